package repository

import (
	"context"
	"fmt"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

var _ job.Operations = (*Repository)(nil)

// takeTries is how often a taking begins anew because the operation changed
// hands between the reading and the writing. Each time somebody made progress.
const takeTries = 4

// Take implements job.Operations. Error, beside those of the database:
// job.ErrLeaseLost if a later attempt of the job has taken it already.
func (r *Repository) Take(ctx context.Context, c job.Claimed) (job.OperationTaken, error) {
	o := c.Operation()
	if o == nil {
		return job.OperationTaken{Mine: true}, nil // nothing to keep others from
	}
	var taken job.OperationTaken
	err := r.write(ctx, "take an operation", func(ctx context.Context) (err error) {
		taken, err = r.take(ctx, *o, c)
		return err
	})
	return taken, err
}

func operationArgs(o job.Operation) []any {
	return []any{int64(o.Slot()), string(o.Tenant), string(o.Type), o.Key}
}

// holderArgs are an operation and the attempt that is to have it.
func holderArgs(o job.Operation, c job.Claimed) []any {
	return append(operationArgs(o), int64(c.Slot()), string(c.ID), string(c.Key), c.Lease.Token)
}

const (
	// takeSQL relies on the primary key of processed_operations: of any number of
	// jobs, one inserts the row. It waits for a transaction that has inserted it
	// and is not over, no longer than for any lock.
	takeSQL = `
insert into processed_operations (slot, tenant, operation_type, operation_key, state, job_slot, job_id, job_key, token, created_at)
values ($1, $2, $3, $4, 'processing', $5, $6, $7, $8, now())
on conflict (slot, tenant, operation_type, operation_key) do nothing`

	// operationSQL tells in one snapshot who has the operation, and whether that
	// job may still do it, or may have done it: it is unfinished, or nobody knows
	// what it did until somebody has resolved it.
	operationSQL = `
select o.state, o.job_slot, o.job_id, o.job_key, o.token, o.result, o.result_type, o.result_hash,
  exists (select j.id from jobs j where j.slot = o.job_slot and j.id = o.job_id)
  or exists (
    select f.id from finished_jobs f
    where f.slot = o.job_slot and f.id = o.job_id and f.state = 'failed' and f.outcome = 'outcome_unknown') as held
from processed_operations o
where o.slot = $1 and o.tenant = $2 and o.operation_type = $3 and o.operation_key = $4`

	// changeHandsSQL names the holder as it was read. That the holder's job had
	// ended cannot be asked again here, in the snapshot of this statement; but a
	// job that came back takes the operation under a new token.
	changeHandsSQL = `
update processed_operations
set job_slot = $5, job_id = $6, job_key = $7, token = $8
where slot = $1 and tenant = $2 and operation_type = $3 and operation_key = $4
  and state = 'processing' and job_slot = $9 and job_id = $10 and token = $11`
)

type operationRow struct {
	State      text   `db:"state"`
	JobSlot    int64  `db:"job_slot"`
	JobID      text   `db:"job_id"`
	JobKey     text   `db:"job_key"`
	Token      int64  `db:"token"`
	Result     []byte `db:"result"`
	ResultType text   `db:"result_type"`
	ResultHash []byte `db:"result_hash"`
	Held       bool   `db:"held"`
}

// taken is what the row says to a job that does not hold the operation.
func (o *operationRow) taken() job.OperationTaken {
	taken := job.OperationTaken{Done: o.State == "done", By: idempotency.Key(o.JobKey)}
	if taken.Done && len(o.ResultHash) > 0 {
		taken.Result = &job.Result{Body: o.Result, MediaType: string(o.ResultType)}
	}
	return taken
}

func (r *Repository) take(ctx context.Context, o job.Operation, c job.Claimed) (job.OperationTaken, error) {
	var last job.OperationTaken
	for range takeTries {
		n, err := r.engine.exec(ctx, takeSQL, holderArgs(o, c)...)
		if n > 0 || err != nil {
			return job.OperationTaken{Mine: err == nil}, err
		}
		rows, err := collect[operationRow](ctx, r.engine.reads(), operationSQL, operationArgs(o)...)
		if err != nil {
			return job.OperationTaken{}, err
		}
		if len(rows) == 0 {
			continue
		}
		row, mine := &rows[0], string(rows[0].JobID) == string(c.ID)
		last = row.taken()
		switch {
		case last.Done, row.Held && !mine:
			return last, nil
		case mine && row.Token > c.Lease.Token:
			return job.OperationTaken{}, fmt.Errorf("%w: a later attempt has the operation", job.ErrLeaseLost)
		}
		n, err = r.engine.exec(ctx, changeHandsSQL, append(holderArgs(o, c), row.JobSlot, string(row.JobID), row.Token)...)
		if n > 0 || err != nil {
			return job.OperationTaken{Mine: err == nil}, err
		}
	}
	return last, nil
}

// holdOperationSQL takes the operation in the transaction that does it. It relies
// on the primary key: a second transaction waits here, before its work, until the
// first one has ended. What another job has or has done is left alone: no row.
// The statement that ends the job makes the operation done.
const holdOperationSQL = `
insert into processed_operations (slot, tenant, operation_type, operation_key, state, job_slot, job_id, job_key, token, created_at)
values ($1, $2, $3, $4, 'processing', $5, $6, $7, $8, now())
on conflict (slot, tenant, operation_type, operation_key) do update set token = excluded.token
where processed_operations.job_slot = excluded.job_slot and processed_operations.job_id = excluded.job_id
  and processed_operations.state = 'processing'`
