package repository

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

var _ job.Operator = (*Repository)(nil)

// act is one call of an operator: the record of its key, and what it does, in
// one transaction.
type act struct {
	doing    string
	request  idempotency.Request
	response idempotency.Response
	from     job.Job
	becomes  job.Job
	// owner marks the record as this call's, for when its commit is not answered.
	owner      string
	statements []string
	apply      func(ctx context.Context, t transaction) error
}

// receipt is the answer to the call that did it.
func (a *act) receipt() job.Receipt {
	record := idempotency.Record{Request: a.request, State: idempotency.Completed, Response: a.response, Fresh: true}
	return job.Receipt{Record: record, Job: a.becomes, Alias: true}
}

var (
	// errKeyTaken says that the operator's key has a record of an earlier request.
	errKeyTaken = errors.New("the key has a record")
	// errOutrun says that others kept coming in between.
	errOutrun = errors.New("other changes kept coming in between")
)

// operate does the act, unless its key stands for something already. It begins
// anew where a record that counts for nothing stood in the way, and where another
// job took the business key at the same moment.
func (r *Repository) operate(ctx context.Context, a act) (job.Receipt, error) {
	ctx = context.WithoutCancel(ctx)
	a.owner = r.newOwner()
	for range acceptTries {
		err := r.operateOnce(ctx, &a)
		switch {
		case err == nil:
			return a.receipt(), nil
		case r.engine.classify(err) == unique:
			continue
		case !errors.Is(err, errKeyTaken):
			return job.Receipt{}, err
		}
		receipt, purged, err := r.standing(ctx, a.request)
		switch {
		case purged && err == nil, errors.Is(err, job.ErrNotFound):
			continue
		case err != nil:
			return job.Receipt{}, r.fail(a.doing, err)
		}
		return receipt, nil
	}
	return job.Receipt{}, fmt.Errorf("repository: %s: %w: %w", a.doing, job.ErrUnavailable, errOutrun)
}

// operateOnce runs the transaction. Only a wait for the key says that the key is
// in progress: to wait for the job means that somebody else moves it.
func (r *Repository) operateOnce(ctx context.Context, a *act) error {
	statements := append([]string{operatorRecordSQL, ownRecordSQL, insertEventSQL}, a.statements...)
	held := false
	err := r.transact(ctx, a.doing, func(ctx context.Context) error {
		return r.engine.clientTx(ctx, statements, func(ctx context.Context, t transaction) error {
			err := r.openAct(ctx, t, a)
			held = r.engine.classify(err) == busy
			if err != nil {
				return err
			}
			return a.apply(ctx, t)
		})
	})
	if held && !errors.Is(err, job.ErrOutcomeUnknown) {
		return fmt.Errorf("repository: %s: %w: %w", a.doing, &idempotency.InProgressError{}, err)
	}
	return err
}

const (
	// operatorRecordSQL relies on the primary key of idempotency_keys, as accepts
	// do: of two calls with one key the second one waits for the first, and then
	// inserts nothing. The record is an alias of the job that has a response.
	operatorRecordSQL = `
insert into idempotency_keys (slot, tenant, key, fingerprint, state, job_slot, job_id, alias,
  response_status, response_headers, response_body, owner, created_at)
values ($1, $2, $3, $4, 'completed', $5, $6, true, $7, $8, $9, $10, now())
on conflict (slot, tenant, key) do nothing`

	ownRecordSQL = `
select key from idempotency_keys
where slot = $1 and tenant = $2 and key = $3 and owner = $4`
)

type keyRow struct {
	Key text `db:"key"`
}

// openAct inserts the record. It returns errSettled if an earlier run of this call,
// whose commit was not answered, has done all of it.
func (r *Repository) openAct(ctx context.Context, t transaction, a *act) error {
	key := keyArgs(a.request.Tenant, a.request.Key)
	n, err := t.change(ctx, operatorRecordSQL, append(slices.Clone(key),
		a.request.Fingerprint.Bytes(), int64(a.from.Slot()), string(a.from.ID),
		a.response.Status, encodeHeader(a.response.Header), storedBody(a.response), a.owner)...)
	if n > 0 || err != nil {
		return err
	}
	own, err := rowsOf[keyRow](ctx, t, ownRecordSQL, append(key, a.owner)...)
	switch {
	case err != nil:
		return err
	case len(own) == 0:
		return errKeyTaken
	}
	return errSettled
}

// insertEventSQL stores one event of a job that the transaction has changed.
const insertEventSQL = `
insert into job_events (slot, job_id, id, event, attempt, data, created_at)
values ($1, $2, $3, $4, $5, $6, now())`

// note stores an event of the job, of its last attempt so far.
func (r *Repository) note(ctx context.Context, t transaction, j job.Job, name job.EventName, data map[string]any) error {
	encoded, err := json.Marshal(data)
	if err != nil {
		return err
	}
	id := job.NewID(r.clock.Now(), j.Slot())
	_, err = t.change(ctx, insertEventSQL, int64(j.Slot()), string(j.ID), string(id), string(name), attemptOrNull(j.Attempts), encoded)
	return err
}

// attemptOrNull: no attempt has the number 0.
func attemptOrNull(number int) any {
	if number == 0 {
		return nil
	}
	return number
}
