package repository

import (
	"context"
	"database/sql"
	"time"

	"github.com/sekali/sekali/job"
)

// postgresRecords rely on the primary key of idempotency_keys (claim) and on the
// owner in the where clause (all others): under "read committed" a statement
// that had to wait for the row looks at it again.
var postgresRecords = recordStatements{
	claim: `
insert into idempotency_keys (slot, tenant, key, fingerprint, state, owner, claimed_until, expires_at, created_at)
values ($1, $2, $3, $4, 'in_progress', $5, now() + cast($6 as bigint) * interval '1 millisecond',
  now() + cast($7 as bigint) * interval '1 millisecond', now())
on conflict (slot, tenant, key) do nothing`,

	takeover: `
update idempotency_keys
set owner = $5, claimed_until = now() + cast($6 as bigint) * interval '1 millisecond',
  expires_at = now() + cast($7 as bigint) * interval '1 millisecond', attempt = attempt + 1
where slot = $1 and tenant = $2 and key = $3 and owner = $4 and state = 'in_progress' and (claimed_until <= now() or $8)`,

	extend: `
update idempotency_keys
set claimed_until = now() + cast($5 as bigint) * interval '1 millisecond'
where slot = $1 and tenant = $2 and key = $3 and owner = $4 and state = 'in_progress'`,

	finish: `
update idempotency_keys
set state = 'completed', claimed_until = null, response_status = $5, response_headers = $6, response_body = $7,
  expires_at = now() + cast($8 as bigint) * interval '1 millisecond'
where slot = $1 and tenant = $2 and key = $3 and owner = $4 and state = 'in_progress'`,

	interrupt: `
update idempotency_keys
set state = 'interrupted', claimed_until = null, expires_at = now() + cast($5 as bigint) * interval '1 millisecond'
where slot = $1 and tenant = $2 and key = $3 and owner = $4 and state = 'in_progress'`,

	purge: `
delete from idempotency_keys k
where k.slot = $1 and k.tenant = $2 and k.key = $3 and case
  when k.state = 'in_progress' then false
  when k.state = 'retired' then k.expires_at <= now() or cast($4 as bigint) = 0
  when k.job_id is null then k.expires_at <= now() - cast($4 as bigint) * interval '1 millisecond'
  else exists (
    select 1 from finished_jobs f
    where f.slot = k.job_slot and f.id = k.job_id and f.expires_at <= now() - cast($4 as bigint) * interval '1 millisecond')
  end`,
}

func (p *postgres) records() *recordStatements { return &postgresRecords }

// outlived cannot be told: a process may be alive, and only its lease tells.
func (p *postgres) outlived(string, string) bool { return false }

func (p *postgres) exec(ctx context.Context, query string, args ...any) (int64, error) {
	return execIn(ctx, p.accepts, query, args...)
}

// The statements of a handler's transaction. Until it has ended the row says
// that nobody knows the outcome, which would be the truth if the handler
// committed by itself. The times count from the end.
const (
	insertOpenSQL = `
insert into idempotency_keys (slot, tenant, key, fingerprint, state, owner, expires_at, created_at)
values ($1, $2, $3, $4, 'interrupted', $5, now() + cast($6 as bigint) * interval '1 millisecond', now())
on conflict (slot, tenant, key) do nothing`

	finishOpenSQL = `
update idempotency_keys
set state = 'completed', response_status = $5, response_headers = $6, response_body = $7,
  expires_at = statement_timestamp() + cast($8 as bigint) * interval '1 millisecond'
where slot = $1 and tenant = $2 and key = $3 and owner = $4 and state = 'interrupted'`
)

func (p *postgres) beginRecord(ctx context.Context) (*sql.Tx, func(), error) {
	if err := p.txs.prepare(ctx, insertOpenSQL, finishOpenSQL); err != nil {
		return nil, nil, err
	}
	return beginOn(ctx, p.txs)
}

// openRecord waits for another transaction that has the key as long as a lock
// may take, and no longer. The handler's own statements may.
func (p *postgres) openRecord(ctx context.Context, tx *sql.Tx, args ...any) (int64, error) {
	if _, err := tx.ExecContext(ctx, `set local lock_timeout = '1s'`); err != nil {
		return 0, err
	}
	n, err := changeIn(ctx, p.txs, tx, insertOpenSQL, args...)
	if err != nil || n == 0 {
		return n, err
	}
	_, err = tx.ExecContext(ctx, `set local lock_timeout to default`)
	return n, err
}

func (p *postgres) finishRecord(ctx context.Context, tx *sql.Tx, args ...any) (int64, error) {
	n, err := changeIn(ctx, p.txs, tx, finishOpenSQL, args...)
	return n, aborted(err)
}

// The statements of the reaper. Each takes the oldest first and skips what
// another transaction has locked, so that reapers share the work and nobody
// waits for them. A job's rows go in the statement that makes its keys
// tombstones; a record names its job, so a key that was used anew is left alone.
const (
	reapJobsSQL = `
with due as materialized (
  select slot, id, tenant, key, key_slot, state, expires_at from finished_jobs
  where expires_at <= now()
  order by expires_at
  limit $1
  for update skip locked),
own as (
  update idempotency_keys k
  set state = 'retired', final_state = d.state, retired_at = d.expires_at,
    expires_at = d.expires_at + cast($2 as bigint) * interval '1 millisecond', job_slot = null, job_id = null,
    response_status = null, response_headers = null, response_body = null
  from due d
  where k.slot = d.key_slot and k.tenant = d.tenant and k.key = d.key and k.job_slot = d.slot and k.job_id = d.id and not k.alias),
aliases as (
  update idempotency_keys k
  set state = 'retired', final_state = d.state, retired_at = d.expires_at,
    expires_at = d.expires_at + cast($2 as bigint) * interval '1 millisecond', job_slot = null, job_id = null, alias = false,
    owner = null, response_status = null, response_headers = null, response_body = null
  from due d
  where k.job_slot = d.slot and k.job_id = d.id and k.alias),
attempts as (
  delete from job_attempts a using due d where a.slot = d.slot and a.job_id = d.id),
events as (
  delete from job_events e using due d where e.slot = d.slot and e.job_id = d.id)
delete from finished_jobs f using due d where f.slot = d.slot and f.id = d.id`

	reapResponsesSQL = `
with due as materialized (
  select slot, tenant, key from idempotency_keys
  where expires_at <= now() and state in ('completed', 'interrupted') and job_id is null
  order by expires_at
  limit $1
  for update skip locked)
update idempotency_keys k
set state = 'retired', retired_at = k.expires_at, expires_at = k.expires_at + cast($2 as bigint) * interval '1 millisecond',
  owner = null, response_status = null, response_headers = null, response_body = null
from due d
where k.slot = d.slot and k.tenant = d.tenant and k.key = d.key`

	reapTombstonesSQL = `
with due as materialized (
  select slot, tenant, key from idempotency_keys
  where expires_at <= now() and state = 'retired'
  order by expires_at
  limit $1
  for update skip locked)
delete from idempotency_keys k
using due d
where k.slot = d.slot and k.tenant = d.tenant and k.key = d.key`

	reapClaimsSQL = `
with due as materialized (
  select slot, tenant, key from idempotency_keys
  where expires_at <= now() and state = 'in_progress' and claimed_until <= now()
  order by expires_at
  limit $1
  for update skip locked)
delete from idempotency_keys k
using due d
where k.slot = d.slot and k.tenant = d.tenant and k.key = d.key`

	reapResultsSQL = `
with due as materialized (
  select slot, id from finished_jobs
  where result_expires_at <= now() and result_expires_at is not null and result is not null
  order by result_expires_at
  limit $1
  for update skip locked)
update finished_jobs f
set result = null
from due d
where f.slot = d.slot and f.id = d.id`
)

func (p *postgres) reap(ctx context.Context, limit int, tombstone time.Duration) (reaped job.Reaped, err error) {
	step := func(count *int, query string, more ...any) reapStep {
		return reapStep{count, func(ctx context.Context, limit int) (int, error) {
			n, err := execIn(ctx, p.leases, query, append([]any{limit}, more...)...)
			return int(n), err
		}}
	}
	ms := tombstone.Milliseconds()
	err = reapAll(ctx, limit, &reaped.More,
		step(&reaped.Jobs, reapJobsSQL, ms),
		step(&reaped.Responses, reapResponsesSQL, ms),
		step(&reaped.Tombstones, reapTombstonesSQL),
		step(&reaped.Claims, reapClaimsSQL),
		step(&reaped.Results, reapResultsSQL))
	if err == nil {
		err = p.keepPartitions(ctx)
	}
	return reaped, err
}
