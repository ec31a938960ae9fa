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

// insertRecordSQL relies on the primary key: of a key that is there it inserts
// nothing.
const insertRecordSQL = `
insert into idempotency_keys (slot, tenant, key, fingerprint, state, job_slot, job_id, alias,
  response_status, response_headers, response_body, created_at)
values ($1, $2, $3, $4, 'completed', $5, $6, $7, $8, $9, $10, $11)
on conflict (slot, tenant, key) do nothing`

const insertJobSQL = `
insert into jobs (slot, id, tenant, key, key_slot, type, state, payload, business_key,
  priority, run_at, claim_at, timeout_ms, max_attempts, created_at, operation_key, deadline, blocked, callback_url)
values ($1, $2, $3, $4, $5, $6, $7, $8, nullif($9, ''), $10, $11, $12, $13, $14, $15, nullif($16, ''), nullif($17, ''), $18, nullif($19, ''))`

// acceptAll accepts the batch in one transaction. If one submission fails, all are
// accepted anew, each in a savepoint of its own, so that it takes nothing else with
// it.
func (s *sqlite) acceptAll(ctx context.Context, r *Repository, answers []answer) {
	err := s.acceptEach(ctx, r, answers, s.acceptOne)
	if err != nil && s.classify(err) != busy && s.classify(err) != unavailable {
		for i := range answers {
			answers[i] = answerFor(answers[i].s)
		}
		err = s.acceptEach(ctx, r, answers, s.acceptApart)
	}
	if err == nil {
		return
	}
	if s.classify(err) == busy {
		err = &idempotency.InProgressError{}
	}
	for i := range answers {
		answers[i].err = err
	}
}

// acceptEach runs one for each submission, in one transaction that ends with the
// first error.
func (s *sqlite) acceptEach(
	ctx context.Context, r *Repository, answers []answer, one func(context.Context, *sql.Tx, *Repository, *answer) error,
) error {
	ctx, cancel := context.WithTimeout(ctx, acceptTimeout)
	defer cancel()
	statements := []string{findSQL, purgeFileSQL, holderSQL, insertRecordSQL, insertJobSQL}
	return s.inTx(ctx, statements, func(ctx context.Context, tx *sql.Tx) error {
		for i := range answers {
			if err := one(ctx, tx, r, &answers[i]); err != nil {
				return err
			}
		}
		return nil
	})
}

// acceptAlone is never needed: the one lock of the file is waited for by all.
func (s *sqlite) acceptAlone(ctx context.Context, r *Repository, a *answer) {
	one := []answer{*a}
	s.acceptAll(ctx, r, one)
	*a = one[0]
}

// acceptOne returns an error if the transaction cannot go on. A refusal has
// written nothing.
func (s *sqlite) acceptOne(ctx context.Context, tx *sql.Tx, r *Repository, a *answer) error {
	err := s.decide(ctx, tx, r, a)
	var refused *job.BusinessKeyError
	if errors.As(err, &refused) {
		a.err, err = err, nil
	}
	return err
}

// acceptApart is acceptOne for submissions that may fail: it takes back what such a
// one has written.
func (s *sqlite) acceptApart(ctx context.Context, tx *sql.Tx, r *Repository, a *answer) error {
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

// decide may read before it writes, because the transaction has held the write lock
// since it began. The record comes before the business key, or the holder's own
// repetition would meet itself.
func (s *sqlite) decide(ctx context.Context, tx *sql.Tx, r *Repository, a *answer) error {
	if a.s.Job.BusinessKey == "" {
		inserted, err := s.insert(ctx, tx, a, false)
		if inserted || err != nil {
			return err // most are new
		}
	}
	known, err := s.take(ctx, tx, r, a)
	if known || err != nil {
		return err
	}
	j := a.s.Job
	holders, err := rowsIn[holderRow](ctx, s, tx, holderSQL, int64(j.Slot()), string(j.Tenant), string(j.Type), j.BusinessKey)
	switch {
	case err != nil:
		return err
	case len(holders) == 0, a.s.OnConflict == job.ConflictQueue:
		// Behind any other one: it must not overtake those that wait.
		_, err := s.insert(ctx, tx, a, len(holders) > 0)
		return err
	case a.s.OnConflict == job.ConflictReject:
		return &job.BusinessKeyError{Holder: idempotency.Key(holders[0].Key)}
	}
	if _, err := s.insertRecord(ctx, tx, a, string(holders[0].ID)); err != nil {
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

// insert accepts the submission, and reports false if its key stands for something.
func (s *sqlite) insert(ctx context.Context, tx *sql.Tx, a *answer, blocked bool) (bool, error) {
	j := a.s.Job
	if inserted, err := s.insertRecord(ctx, tx, a, ""); !inserted || err != nil {
		return false, err
	}
	_, err := s.change(ctx, tx, insertJobSQL,
		int64(j.Slot()), string(j.ID), string(j.Tenant), string(j.Key), int64(a.slot),
		string(j.Type), string(j.Status), j.Payload, j.BusinessKey,
		j.Priority, stamp(j.RunAt), stamp(claimAt(j)), j.Timeout.Milliseconds(), j.MaxAttempts, stamp(j.CreatedAt),
		j.OperationKey, stampOrNone(j.Deadline), blocked, j.CallbackURL)
	if err == nil {
		a.fresh()
	}
	return true, err
}

// insertRecord writes the record of a submission: with its response, or as an
// alias of the holder's job. It reports false if the key has one.
func (s *sqlite) insertRecord(ctx context.Context, tx *sql.Tx, a *answer, holder string) (bool, error) {
	req, j, response := a.s.Request, a.s.Job, a.s.Response
	args := []any{
		int64(a.slot), string(req.Tenant), string(req.Key), req.Fingerprint.Bytes(),
		int64(j.Slot()), string(j.ID), false, response.Status, encodeHeader(response.Header), response.Body, stamp(j.CreatedAt),
	}
	if holder != "" {
		args[5], args[6], args[7], args[8], args[9] = holder, true, nil, nil, nil
	}
	n, err := s.change(ctx, tx, insertRecordSQL, args...)
	return n > 0, err
}
