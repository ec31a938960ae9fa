package repository

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/sekali/sekali/job"
)

// The statements of SQLite; see postgresRecords. A transaction that writes has
// the write lock from its beginning.
const purgeFileSQL = `
delete from idempotency_keys
where slot = $1 and tenant = $2 and key = $3 and case
  when state = 'in_progress' then false
  when state = 'retired' then expires_at <= now() or $4 = 0
  when job_id is null then expires_at <= later(-$4)
  else exists (
    select 1 from finished_jobs f
    where f.slot = job_slot and f.id = job_id and f.expires_at <= later(-$4))
  end`

var sqliteRecords = recordStatements{
	claim: `
insert into idempotency_keys (slot, tenant, key, fingerprint, state, owner, claimed_until, expires_at, created_at)
values ($1, $2, $3, $4, 'in_progress', $5, later($6), later($7), now())
on conflict (slot, tenant, key) do nothing`,

	takeover: `
update idempotency_keys
set owner = $5, claimed_until = later($6), expires_at = later($7), attempt = attempt + 1
where slot = $1 and tenant = $2 and key = $3 and owner = $4 and state = 'in_progress' and (claimed_until <= now() or $8)`,

	extend: `
update idempotency_keys
set claimed_until = later($5)
where slot = $1 and tenant = $2 and key = $3 and owner = $4 and state = 'in_progress'`,

	finish: `
update idempotency_keys
set state = 'completed', claimed_until = null, response_status = $5, response_headers = $6, response_body = $7, expires_at = later($8)
where slot = $1 and tenant = $2 and key = $3 and owner = $4 and state = 'in_progress'`,

	interrupt: `
update idempotency_keys
set state = 'interrupted', claimed_until = null, expires_at = later($5)
where slot = $1 and tenant = $2 and key = $3 and owner = $4 and state = 'in_progress'`,

	purge: purgeFileSQL,
}

func (s *sqlite) records() *recordStatements { return &sqliteRecords }

// outlived reports a claim of another process than ours, which has the file to
// itself: whoever made the claim is dead.
func (s *sqlite) outlived(owner, process string) bool {
	return s.lock != nil && owner != "" && !ofProcess(owner, process)
}

func (s *sqlite) exec(ctx context.Context, query string, args ...any) (n int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, acceptTimeout)
	defer cancel()
	err = s.inTx(ctx, []string{query}, func(ctx context.Context, tx *sql.Tx) error {
		n, err = s.change(ctx, tx, query, args...)
		return err
	})
	return n, err
}

// The statements of a handler's transaction; see the ones of Postgres.
const (
	insertOpenFileSQL = `
insert into idempotency_keys (slot, tenant, key, fingerprint, state, owner, expires_at, created_at)
values ($1, $2, $3, $4, 'interrupted', $5, later($6), now())
on conflict (slot, tenant, key) do nothing`

	finishOpenFileSQL = `
update idempotency_keys
set state = 'completed', response_status = $5, response_headers = $6, response_body = $7, expires_at = later($8)
where slot = $1 and tenant = $2 and key = $3 and owner = $4 and state = 'interrupted'`
)

// beginRecord takes the one connection that writes, and sets the savepoint by
// which a transaction that SQLite has rolled back is recognised.
func (s *sqlite) beginRecord(ctx context.Context) (*sql.Tx, func(), error) {
	if err := s.writer.prepare(ctx, insertOpenFileSQL, finishOpenFileSQL); err != nil {
		return nil, nil, err
	}
	tx, done, err := beginOn(ctx, s.writer)
	if err != nil {
		return nil, nil, err
	}
	if _, err := tx.ExecContext(ctx, `savepoint attempt`); err != nil {
		done()
		return nil, nil, err
	}
	return tx, done, nil
}

func (s *sqlite) openRecord(ctx context.Context, tx *sql.Tx, args ...any) (int64, error) {
	return s.change(ctx, tx, insertOpenFileSQL, args...)
}

func (s *sqlite) finishRecord(ctx context.Context, tx *sql.Tx, args ...any) (int64, error) {
	if err := s.intact(ctx, tx); err != nil {
		return 0, err
	}
	return s.change(ctx, tx, finishOpenFileSQL, args...)
}

// intact reports an error if the transaction is not the one that began. SQLite
// rolls a transaction back by itself after some errors, and goes on without one:
// the savepoint of its beginning is gone then, and with it what was written.
func (s *sqlite) intact(ctx context.Context, tx *sql.Tx) error {
	_, err := tx.ExecContext(ctx, `release attempt`)
	if err != nil && s.classify(err) == wrong {
		err = fmt.Errorf("%w: %w", errAborted, err)
	}
	return err
}

// The statements of the reaper; see the ones of Postgres. The rows of jobs are
// deleted one by one: a batch is small, and they are found by their keys.
const (
	reapDueFileSQL = `
select slot, id, tenant, key, key_slot, state, expires_at from finished_jobs
where expires_at <= now()
order by expires_at
limit $1`

	reapOwnFileSQL = `
update idempotency_keys
set state = 'retired', final_state = $6, retired_at = $7, expires_at = after($7, $8), job_slot = null, job_id = null,
  response_status = null, response_headers = null, response_body = null
where slot = $1 and tenant = $2 and key = $3 and job_slot = $4 and job_id = $5 and not alias`

	reapAliasesFileSQL = `
update idempotency_keys
set state = 'retired', final_state = $3, retired_at = $4, expires_at = after($4, $5), job_slot = null, job_id = null, alias = 0,
  owner = null, response_status = null, response_headers = null, response_body = null
where job_slot = $1 and job_id = $2 and alias`

	reapAttemptsFileSQL = `delete from job_attempts where slot = $1 and job_id = $2`
	reapEventsFileSQL   = `delete from job_events where slot = $1 and job_id = $2`
	reapJobFileSQL      = `delete from finished_jobs where slot = $1 and id = $2`

	reapResponsesFileSQL = `
update idempotency_keys
set state = 'retired', retired_at = expires_at, expires_at = after(expires_at, $2),
  owner = null, response_status = null, response_headers = null, response_body = null
where (slot, tenant, key) in (
  select slot, tenant, key from idempotency_keys
  where expires_at <= now() and state in ('completed', 'interrupted') and job_id is null
  order by expires_at
  limit $1)`

	reapTombstonesFileSQL = `
delete from idempotency_keys
where (slot, tenant, key) in (
  select slot, tenant, key from idempotency_keys
  where expires_at <= now() and state = 'retired'
  order by expires_at
  limit $1)`

	reapClaimsFileSQL = `
delete from idempotency_keys
where (slot, tenant, key) in (
  select slot, tenant, key from idempotency_keys
  where expires_at <= now() and state = 'in_progress' and claimed_until <= now()
  order by expires_at
  limit $1)`

	reapResultsFileSQL = `
update finished_jobs
set result = null
where (slot, id) in (
  select slot, id from finished_jobs
  where result_expires_at <= now() and result_expires_at is not null and result is not null
  order by result_expires_at
  limit $1)`
)

type dueRow struct {
	Slot      int64  `db:"slot"`
	ID        text   `db:"id"`
	Tenant    text   `db:"tenant"`
	Key       text   `db:"key"`
	KeySlot   int64  `db:"key_slot"`
	State     text   `db:"state"`
	ExpiresAt moment `db:"expires_at"`
}

func (s *sqlite) reap(ctx context.Context, limit int, tombstone time.Duration) (reaped job.Reaped, err error) {
	step := func(count *int, query string, more ...any) reapStep {
		return reapStep{count, func(ctx context.Context, limit int) (int, error) {
			n, err := s.exec(ctx, query, append([]any{limit}, more...)...)
			return int(n), err
		}}
	}
	ms := tombstone.Milliseconds()
	jobs := reapStep{&reaped.Jobs, func(ctx context.Context, limit int) (int, error) { return s.reapJobs(ctx, limit, ms) }}
	err = reapAll(ctx, min(limit, reapMostOnFile), &reaped.More, jobs,
		step(&reaped.Responses, reapResponsesFileSQL, ms),
		step(&reaped.Tombstones, reapTombstonesFileSQL),
		step(&reaped.Claims, reapClaimsFileSQL),
		step(&reaped.Results, reapResultsFileSQL))
	return reaped, err
}

var reapJobStatements = []string{
	reapDueFileSQL, reapOwnFileSQL, reapAliasesFileSQL, reapAttemptsFileSQL, reapEventsFileSQL, reapJobFileSQL,
}

func (s *sqlite) reapJobs(ctx context.Context, limit int, tombstoneMS int64) (n int, err error) {
	ctx, cancel := context.WithTimeout(ctx, acceptTimeout)
	defer cancel()
	err = s.inTx(ctx, reapJobStatements, func(ctx context.Context, tx *sql.Tx) error {
		due, err := rowsIn[dueRow](ctx, s, tx, reapDueFileSQL, limit)
		for _, d := range due {
			err = errors.Join(err, s.reapJob(ctx, tx, d, tombstoneMS))
		}
		n = len(due)
		return err
	})
	return n, err
}

func (s *sqlite) reapJob(ctx context.Context, tx *sql.Tx, d dueRow, tombstoneMS int64) error {
	id, state, expired := string(d.ID), string(d.State), stamp(d.ExpiresAt.Time)
	for _, one := range []struct {
		query string
		args  []any
	}{
		{reapOwnFileSQL, []any{d.KeySlot, string(d.Tenant), string(d.Key), d.Slot, id, state, expired, tombstoneMS}},
		{reapAliasesFileSQL, []any{d.Slot, id, state, expired, tombstoneMS}},
		{reapAttemptsFileSQL, []any{d.Slot, id}},
		{reapEventsFileSQL, []any{d.Slot, id}},
		{reapJobFileSQL, []any{d.Slot, id}},
	} {
		if _, err := s.change(ctx, tx, one.query, one.args...); err != nil {
			return err
		}
	}
	return nil
}
