package repository

import (
	"context"
	"database/sql"
	"errors"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

// holderSQL finds the unfinished job that has the business key, or else the one
// that waits for it longest.
const holderSQL = `
select id, key from (
  select id, key, false as waits from jobs
  where slot = $1 and tenant = $2 and type = $3 and business_key = $4 and not blocked
  union all
  select id, key, true as waits from (
    select id, key from jobs
    where slot = $1 and tenant = $2 and type = $3 and business_key = $4 and blocked
    order by rowid
    limit 1))
order by waits
limit 1`

type holderRow struct {
	ID  text `db:"id"`
	Key text `db:"key"`
}

const insertRecordSQL = `
insert into idempotency_keys (slot, tenant, key, fingerprint, state, job_slot, job_id, alias,
  response_status, response_headers, response_body, created_at)
values ($1, $2, $3, $4, 'completed', $5, $6, $7, $8, $9, $10, $11)`

const insertJobSQL = `
insert into jobs (slot, id, tenant, key, key_slot, type, state, payload, business_key,
  priority, run_at, claim_at, timeout_ms, max_attempts, created_at, operation_key, deadline, blocked)
values ($1, $2, $3, $4, $5, $6, $7, $8, nullif($9, ''), $10, $11, $12, $13, $14, $15, nullif($16, ''), nullif($17, ''), $18)`

// acceptAll accepts the batch in one transaction, each submission in a savepoint
// of its own, so that one that fails takes nothing else with it.
func (s *sqlite) acceptAll(ctx context.Context, r *Repository, submissions []job.Submission) []answer {
	answers := answersFor(submissions)
	ctx, cancel := context.WithTimeout(ctx, acceptTimeout)
	defer cancel()
	err := s.inTx(ctx, []string{findSQL, purgeFileSQL, holderSQL, insertRecordSQL, insertJobSQL}, func(ctx context.Context, tx *sql.Tx) error {
		for i := range answers {
			if err := s.acceptOne(ctx, tx, r, &answers[i]); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		return answers
	}
	if s.classify(err) == busy {
		err = &idempotency.InProgressError{}
	}
	for i := range answers {
		answers[i].err = err
	}
	return answers
}

// acceptOne returns an error only if the transaction cannot go on.
func (s *sqlite) acceptOne(ctx context.Context, tx *sql.Tx, r *Repository, a *answer) error {
	if _, err := tx.ExecContext(ctx, `savepoint submission`); err != nil {
		return err
	}
	if a.err = s.decide(ctx, tx, r, a); a.err != nil {
		if _, err := tx.ExecContext(ctx, `rollback to submission`); err != nil {
			return errors.Join(a.err, err)
		}
	}
	_, err := tx.ExecContext(ctx, `release submission`)
	return err
}

// decide reads before it writes, which is safe because the transaction has held
// the write lock since it began. The record comes before the business key, or
// the holder's own repetition would meet itself.
func (s *sqlite) decide(ctx context.Context, tx *sql.Tx, r *Repository, a *answer) error {
	known, err := s.take(ctx, tx, r, a)
	if known || err != nil {
		return err
	}
	j := a.s.Job
	holders, err := rowsIn[holderRow](ctx, s, tx, holderSQL, int64(j.Slot()), string(j.Tenant), string(j.Type), j.BusinessKey)
	switch {
	case err != nil:
		return err
	case len(holders) == 0:
		return s.insert(ctx, tx, a, false)
	case a.s.OnConflict == job.ConflictQueue:
		// Behind any other one: it must not overtake those that wait.
		return s.insert(ctx, tx, a, true)
	case a.s.OnConflict == job.ConflictReject:
		return &job.BusinessKeyError{Holder: idempotency.Key(holders[0].Key)}
	}
	if err := s.insertRecord(ctx, tx, a.s, string(holders[0].ID)); err != nil {
		return err
	}
	_, err = s.take(ctx, tx, r, a)
	a.receipt.Record.Fresh = true
	return err
}

// take answers with what the key stands for, if it stands for something. A
// record that counts for nothing any more makes room.
func (s *sqlite) take(ctx context.Context, tx *sql.Tx, r *Repository, a *answer) (bool, error) {
	req := a.s.Request
	rows, err := rowsIn[recordRow](ctx, s, tx, findSQL, keyArgs(req.Tenant, req.Key)...)
	if err != nil || len(rows) == 0 {
		return false, err
	}
	if rows[0].replaceable(r.retention, r.retention.afterExpiry) {
		_, err := s.change(ctx, tx, purgeFileSQL, r.retention.purgeArgs(req, r.retention.afterExpiry)...)
		return false, err
	}
	receipt, err := rows[0].receipt(req.Tenant, req.Key)
	a.found(receipt)
	return true, err
}

func (s *sqlite) insert(ctx context.Context, tx *sql.Tx, a *answer, blocked bool) error {
	j, req := a.s.Job, a.s.Request
	if err := s.insertRecord(ctx, tx, a.s, ""); err != nil {
		return err
	}
	_, err := s.change(ctx, tx, insertJobSQL,
		int64(j.Slot()), string(j.ID), string(j.Tenant), string(j.Key), int64(job.KeySlot(req.Tenant, req.Key)),
		string(j.Type), string(j.Status), j.Payload, j.BusinessKey,
		j.Priority, stamp(j.RunAt), stamp(claimAt(j)), j.Timeout.Milliseconds(), j.MaxAttempts, stamp(j.CreatedAt),
		j.OperationKey, stampOrNone(j.Deadline), blocked)
	if err == nil {
		a.fresh()
	}
	return err
}

// insertRecord writes the record of a submission: with its response, or as an
// alias of the holder's job.
func (s *sqlite) insertRecord(ctx context.Context, tx *sql.Tx, sub *job.Submission, holder string) error {
	req, j := sub.Request, sub.Job
	args := []any{
		int64(job.KeySlot(req.Tenant, req.Key)), string(req.Tenant), string(req.Key), req.Fingerprint.Bytes(),
		int64(j.Slot()), string(j.ID), false, sub.Response.Status, encodeHeader(sub.Response.Header), sub.Response.Body, stamp(j.CreatedAt),
	}
	if holder != "" {
		args[5], args[6], args[7], args[8], args[9] = holder, true, nil, nil, nil
	}
	_, err := s.change(ctx, tx, insertRecordSQL, args...)
	return err
}
