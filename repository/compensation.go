package repository

import (
	"context"
	"fmt"

	"github.com/sekali/sekali/job"
)

var compensationStatements = []string{compensationRecordSQL, holdersSQL, compensationJobSQL}

const (
	// compensationRecordSQL relies on the primary key of idempotency_keys.
	compensationRecordSQL = `
insert into idempotency_keys (slot, tenant, key, fingerprint, state, job_slot, job_id, alias,
  response_status, response_headers, response_body, created_at)
values ($1, $2, $3, $4, 'completed', $5, $6, false, $7, $8, $9, $10)
on conflict (slot, tenant, key) do nothing`

	compensationJobSQL = `
insert into jobs (slot, id, tenant, key, key_slot, type, state, blocked, payload, business_key, operation_key,
  priority, run_at, claim_at, deadline, timeout_ms, max_attempts, created_at)
values ($1, $2, $3, $4, $5, $6, 'pending', $7, $8, nullif($9, ''), nullif($10, ''), $11, $12, $13, $14, $15, $16, $17)`
)

func (e ending) compensated() bool { return e.Compensation != nil }

// finishMixed ends the jobs that nothing follows as one batch, and each of the
// others in a transaction with what follows.
func (r *Repository) finishMixed(ctx context.Context, endings []ending) ([]job.Application, error) {
	applications := make([]job.Application, len(endings))
	var plain []ending
	var places []int
	for i, e := range endings {
		if !e.compensated() {
			plain, places = append(plain, e), append(places, i)
		}
	}
	if len(plain) > 0 {
		ended, err := r.finish(ctx, plain)
		if err != nil {
			return nil, err
		}
		for n, i := range places {
			applications[i] = ended[n]
		}
	}
	for i, e := range endings {
		if !e.compensated() {
			continue
		}
		var err error
		if applications[i], err = r.finishCompensated(ctx, e); err != nil {
			return nil, err
		}
	}
	return applications, nil
}

// finishCompensated ends a job and accepts its compensation, together. A call
// whose first commit was not answered finds the job ended, and the compensation
// with it.
func (r *Repository) finishCompensated(ctx context.Context, e ending) (job.Application, error) {
	statements := append(r.engine.finishStatements(), compensationStatements...)
	applied := false
	once := func(ctx context.Context) error {
		return r.engine.leaseTx(ctx, statements, func(ctx context.Context, t transaction) (err error) {
			applied, err = r.engine.finishIn(ctx, t, e)
			switch {
			case err != nil:
				return err
			case !applied:
				return errSettled
			}
			return compensate(ctx, t, e.Compensation)
		})
	}
	err := r.transact(ctx, "finish", once)
	for try := 1; try < acceptTries && r.engine.classify(err) == unique; try++ {
		err = r.transact(ctx, "finish", once) // another job took the business key at the same moment
	}
	switch {
	case r.engine.classify(err) == unique:
		return job.Refused, fmt.Errorf("%w: %w", job.ErrUnavailable, err)
	case err != nil:
		return job.Refused, err
	case applied:
		return job.Applied, nil
	}
	settled, err := r.engine.settled(ctx, []settlement{e.settlement()})
	if err != nil {
		return job.Refused, r.fail("finish", err)
	}
	return settled[0], nil
}

// compensate accepts the job that follows a failed one, in the transaction that
// ends that one: this transaction is the first to end it, so a key that was used
// before was used for something else. Whatever its type
// says of conflicts, a job whose business key is taken waits for it: to be bound
// to another job or refused would lose the compensation.
func compensate(ctx context.Context, t transaction, s *job.Submission) error {
	req, j := s.Request, s.Job
	n, err := t.change(ctx, compensationRecordSQL, append(keyArgs(req.Tenant, req.Key), req.Fingerprint.Bytes(),
		int64(j.Slot()), string(j.ID), s.Response.Status, encodeHeader(s.Response.Header), storedBody(s.Response), stamp(j.CreatedAt))...)
	switch {
	case err != nil:
		return err
	case n == 0 && s.Otherwise != nil:
		return compensate(ctx, t, s.Otherwise)
	case n == 0:
		return nil
	}
	holder, waits, err := businessHolder(ctx, t, j)
	if err != nil {
		return err
	}
	_, err = t.change(ctx, compensationJobSQL, int64(j.Slot()), string(j.ID), string(j.Tenant), string(j.Key),
		int64(job.KeySlot(req.Tenant, req.Key)), string(j.Type), holder != "" || waits, j.Payload, j.BusinessKey, j.OperationKey,
		j.Priority, stamp(j.RunAt), stamp(claimAt(j)), stampOrNull(j.Deadline), j.Timeout.Milliseconds(), j.MaxAttempts, stamp(j.CreatedAt))
	return err
}
