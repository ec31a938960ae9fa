package repository

import (
	"cmp"
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/sekali/sekali/job"
)

// claimSQL relies on FOR UPDATE SKIP LOCKED: of any number of processes, each
// takes other rows, and none waits. The states are literals, because a
// parameter would lose the partial index; "materialized" keeps the limit from
// being applied after the update. A claim is committed synchronously like any
// write: one that a crash forgot would give its fencing token out again.
const claimSQL = `
with picked as materialized (
  select slot, id from jobs
  where state = 'pending' and not blocked and type = $1
  order by claim_at, id
  limit $2
  for update skip locked),
claimed as (
  update jobs j
  set state = 'processing', attempt = j.attempt + 1, token = j.token + 1, version = j.version + 1, worker_id = $3,
    locked_until = now() + $4 * interval '1 millisecond', claimed_at = now(), started_at = coalesce(j.started_at, now())
  from picked p
  where j.slot = p.slot and j.id = p.id
  returning j.id, j.tenant, j.key, j.type, j.state, j.payload, j.business_key, j.priority, j.run_at, j.claim_at, j.timeout_ms,
    j.max_attempts, j.attempt, j.generation, j.version, j.token, j.worker_id, j.locked_until, j.last_error, j.created_at, j.started_at)
select id, tenant, key, type, state, payload, business_key, priority, run_at, claim_at, timeout_ms,
  max_attempts, attempt, generation, version, token, worker_id, locked_until, last_error, created_at, started_at
from claimed
order by claim_at, id`

func (p *postgres) claim(ctx context.Context, t job.Type, n int, worker string, lease time.Duration) ([]jobRow, error) {
	return collect[jobRow](ctx, p.leases, claimSQL, string(t), n, worker, lease.Milliseconds())
}

// extendSQL is the heartbeat of all jobs of a process. It changes no indexed
// column, so that Postgres updates the rows in place. It relies on SKIP LOCKED:
// a row that is locked, by a slow commit of its own end or by an operator, must
// not hold up the leases of all the others; the snapshot still tells whose it is.
const extendSQL = `
with input as (
  select i.slot, i.id, i.token
  from unnest(cast($1 as smallint[]), cast($2 as uuid[]), cast($3 as bigint[])) as i(slot, id, token)),
free as materialized (
  select j.slot, j.id, j.token
  from input i
  join jobs j on j.slot = i.slot and j.id = i.id and j.token = i.token and j.state = 'processing'
  order by j.slot, j.id
  for no key update of j skip locked),
extended as (
  update jobs j
  set locked_until = now() + $4 * interval '1 millisecond'
  from free f
  where j.slot = f.slot and j.id = f.id and j.token = f.token and j.state = 'processing'
  returning j.id, j.token)
select j.id, j.token, e.id is not null as extended
from input i
join jobs j on j.slot = i.slot and j.id = i.id and j.token = i.token and j.state = 'processing'
left join extended e on e.id = j.id and e.token = j.token`

type extendRow struct {
	leaseRow
	Extended bool `db:"extended"`
}

func (p *postgres) extend(ctx context.Context, held []job.Lease, lease time.Duration) (map[job.ID]bool, error) {
	slots, ids, tokens := leaseArgs(slices.SortedFunc(slices.Values(held), compareLeases))
	rows, err := collect[extendRow](ctx, p.leases, extendSQL, slots, ids, tokens, lease.Milliseconds())
	kept := make(map[job.ID]bool, len(rows))
	for _, row := range rows {
		kept[job.ID(row.ID)] = row.Extended
	}
	return kept, err
}

// compareLeases is the order in which statements lock jobs.
func compareLeases(a, b job.Lease) int {
	return cmp.Or(cmp.Compare(a.ID.Slot(), b.ID.Slot()), cmp.Compare(a.ID, b.ID), cmp.Compare(a.Token, b.Token))
}

func leaseArgs(leases []job.Lease) (slots []int64, ids []string, tokens []int64) {
	slots, ids, tokens = make([]int64, len(leases)), make([]string, len(leases)), make([]int64, len(leases))
	for i, l := range leases {
		slots[i], ids[i], tokens[i] = int64(l.ID.Slot()), string(l.ID), l.Token
	}
	return slots, ids, tokens
}

// finishSQL moves jobs from the live table to the finished one. It relies on the
// row lock of DELETE: of two endings of a job one gets the row, the other one
// waits and finds nothing. statement_timestamp and not now, because the
// transaction of an attempt began before its work did. A lease is left alone
// until a second (the takeover grace) after its end: its holder's heartbeat may
// be on its way.
const finishSQL = `
with input as (
  select i.slot, i.id, i.token, i.state, i.attempt_outcome, nullif(i.error, '') as error,
    nullif(i.outcome, '') as outcome, nullif(i.duplicate_of, '') as duplicate_of,
    case when i.has_result then i.result end as result, case when i.has_result then i.result_type end as result_type,
    case when i.has_result then i.result_hash end as result_hash,
    case when i.has_result and i.keep_result_ms > 0 then i.keep_result_ms end as keep_result_ms, i.keep_ms, i.if_expired
  from unnest(cast($1 as smallint[]), cast($2 as uuid[]), cast($3 as bigint[]), cast($4 as text[]), cast($5 as text[]),
    cast($6 as bytea[]), cast($7 as text[]), cast($8 as text[]), cast($9 as boolean[]), cast($10 as bytea[]),
    cast($11 as text[]), cast($12 as bytea[]), cast($13 as bigint[]), cast($14 as bigint[]), cast($15 as boolean[]))
    as i(slot, id, token, state, attempt_outcome, error, outcome, duplicate_of, has_result, result,
      result_type, result_hash, keep_result_ms, keep_ms, if_expired)),
gone as (
  delete from jobs j
  using input i
  where j.slot = i.slot and j.id = i.id and j.token = i.token and j.state = 'processing'
    and (not i.if_expired or j.locked_until < now() - interval '1 second')
  returning j.slot, j.id, j.tenant, j.key, j.key_slot, j.type, i.state, j.payload, j.business_key, j.operation_key,
    j.callback_url, j.priority, j.run_at, j.deadline, j.timeout_ms, j.max_attempts, j.attempt, j.generation, j.version,
    j.token, j.worker_id, j.last_error, j.created_at, j.started_at, j.claimed_at,
    i.attempt_outcome, i.error, i.outcome, i.duplicate_of, i.result, i.result_type, i.result_hash,
    i.keep_result_ms, i.keep_ms),
ended as (
  insert into job_attempts (slot, job_id, token, number, outcome, worker_id, error, started_at, finished_at)
  select g.slot, g.id, g.token, g.attempt, g.attempt_outcome, g.worker_id, g.error, g.claimed_at, statement_timestamp()
  from gone g)
insert into finished_jobs (slot, id, tenant, key, key_slot, type, state, payload, business_key, operation_key,
  callback_url, priority, run_at, deadline, timeout_ms, max_attempts, attempt, generation, version,
  token, worker_id, last_error, created_at, started_at, claimed_at,
  outcome, duplicate_of, result, result_type, result_hash, result_expires_at, finished_at, expires_at)
select g.slot, g.id, g.tenant, g.key, g.key_slot, g.type, g.state, g.payload, g.business_key, g.operation_key,
  g.callback_url, g.priority, g.run_at, g.deadline, g.timeout_ms, g.max_attempts, g.attempt, g.generation, g.version + 1,
  g.token, g.worker_id, case when g.state <> 'succeeded' then coalesce(g.error, g.last_error) end, g.created_at, g.started_at, g.claimed_at,
  g.outcome, g.duplicate_of, g.result, g.result_type, g.result_hash,
  statement_timestamp() + g.keep_result_ms * interval '1 millisecond',
  statement_timestamp(), statement_timestamp() + g.keep_ms * interval '1 millisecond'
from gone g
returning id, token`

func (p *postgres) finish(ctx context.Context, endings []ending) ([]bool, error) {
	rows, err := collect[leaseRow](ctx, p.leases, finishSQL, finishArgs(endings)...)
	if err != nil {
		return nil, err
	}
	outcomes := make([]attemptOutcome, len(endings))
	for i, e := range endings {
		outcomes[i] = attemptOutcome{e.Lease, e.Attempt}
	}
	return p.applied(ctx, reached(rows), outcomes)
}

func finishArgs(endings []ending) []any {
	n := len(endings)
	sorted := slices.SortedStableFunc(slices.Values(endings), func(a, b ending) int { return compareLeases(a.Lease, b.Lease) })
	var (
		leases                     = make([]job.Lease, n)
		states, attempts, outcomes = make([]string, n), make([]string, n), make([]string, n)
		duplicates, mediaTypes     = make([]string, n), make([]string, n)
		failures, bodies, hashes   = make([][]byte, n), make([][]byte, n), make([][]byte, n)
		hasResult, ifExpired       = make([]bool, n), make([]bool, n)
		keep, keepResult           = make([]int64, n), make([]int64, n)
	)
	for i, e := range sorted {
		leases[i], states[i], attempts[i], failures[i] = e.Lease, string(e.Status), string(e.Attempt), e.failure
		outcomes[i], duplicates[i], keep[i], ifExpired[i] = e.Outcome, string(e.DuplicateOf), e.Keep.Milliseconds(), e.IfExpired
		hasResult[i], bodies[i], mediaTypes[i], hashes[i], keepResult[i] = e.hasResult, e.body, e.mediaType, e.hash, e.keepResult.Milliseconds()
	}
	slots, ids, tokens := leaseArgs(leases)
	return []any{
		slots, ids, tokens, states, attempts, failures, outcomes, duplicates,
		hasResult, bodies, mediaTypes, hashes, keepResult, keep, ifExpired,
	}
}

// requeueSQL puts jobs back. A pending job keeps its place in the queue.
const requeueSQL = `
with input as (
  select i.slot, i.id, i.token, i.retrying, i.in_ms, i.attempt_outcome, nullif(i.error, '') as error, i.uncounted, i.if_expired
  from unnest(cast($1 as smallint[]), cast($2 as uuid[]), cast($3 as bigint[]), cast($4 as boolean[]), cast($5 as bigint[]),
    cast($6 as text[]), cast($7 as bytea[]), cast($8 as int[]), cast($9 as boolean[]))
    as i(slot, id, token, retrying, in_ms, attempt_outcome, error, uncounted, if_expired)),
moved as (
  update jobs j
  set state = case when i.retrying then 'retrying' else 'pending' end,
    attempt = j.attempt - i.uncounted, version = j.version + 1, locked_until = null, last_error = coalesce(i.error, j.last_error),
    run_at = case when i.retrying then now() + i.in_ms * interval '1 millisecond' else j.run_at end,
    claim_at = case when i.retrying then now() + i.in_ms * interval '1 millisecond' + j.priority * interval '10 seconds'
      else j.claim_at end
  from input i
  where j.slot = i.slot and j.id = i.id and j.token = i.token and j.state = 'processing'
    and (not i.if_expired or j.locked_until < now() - interval '1 second')
  returning j.slot, j.id, j.token, j.attempt + i.uncounted as number, i.attempt_outcome, j.worker_id, i.error, j.claimed_at)
insert into job_attempts (slot, job_id, token, number, outcome, worker_id, error, started_at, finished_at)
select m.slot, m.id, m.token, m.number, m.attempt_outcome, m.worker_id, m.error, m.claimed_at, now()
from moved m
returning job_id as id, token`

func (p *postgres) requeue(ctx context.Context, requeues []requeue) ([]bool, error) {
	n := len(requeues)
	sorted := slices.SortedStableFunc(slices.Values(requeues), func(a, b requeue) int { return compareLeases(a.Lease, b.Lease) })
	var (
		leases, outcomes    = make([]job.Lease, n), make([]attemptOutcome, n)
		retrying, ifExpired = make([]bool, n), make([]bool, n)
		wait, uncounted     = make([]int64, n), make([]int64, n)
		attempts, failures  = make([]string, n), make([][]byte, n)
	)
	for i, q := range sorted {
		leases[i], retrying[i], wait[i] = q.Lease, q.Status == job.Retrying, q.In.Milliseconds()
		attempts[i], failures[i], ifExpired[i] = string(q.Attempt), q.failure, q.IfExpired
		if q.Uncounted {
			uncounted[i] = 1
		}
	}
	slots, ids, tokens := leaseArgs(leases)
	rows, err := collect[leaseRow](ctx, p.leases, requeueSQL,
		slots, ids, tokens, retrying, wait, attempts, failures, uncounted, ifExpired)
	if err != nil {
		return nil, err
	}
	for i, q := range requeues {
		outcomes[i] = attemptOutcome{q.Lease, q.Attempt}
	}
	return p.applied(ctx, reached(rows), outcomes)
}

// attemptOutcome is how an attempt is said to have ended.
type attemptOutcome struct {
	lease   job.Lease
	outcome job.Outcome
}

// endedSQL finds the attempts that had ended in this way already: the row of an
// attempt is written once, with its end, under the token that it ended.
const endedSQL = `
select a.job_id as id, a.token
from unnest(cast($1 as smallint[]), cast($2 as uuid[]), cast($3 as bigint[]), cast($4 as text[])) as i(slot, id, token, outcome)
join job_attempts a on a.slot = i.slot and a.job_id = i.id and a.token = i.token and a.outcome = i.outcome`

// applied tells for each attempt whether its end stands: written just now, or
// by an earlier call whose answer was lost.
func (p *postgres) applied(ctx context.Context, now map[job.Lease]bool, wanted []attemptOutcome) ([]bool, error) {
	applied := make([]bool, len(wanted))
	var leases []job.Lease
	var outcomes []string
	for i, w := range wanted {
		applied[i] = now[w.lease]
		if !applied[i] {
			leases, outcomes = append(leases, w.lease), append(outcomes, string(w.outcome))
		}
	}
	if len(leases) == 0 {
		return applied, nil
	}
	slots, ids, tokens := leaseArgs(leases)
	rows, err := collect[leaseRow](ctx, p.leases, endedSQL, slots, ids, tokens, outcomes)
	if err != nil {
		return nil, err
	}
	before := reached(rows)
	for i, w := range wanted {
		applied[i] = applied[i] || before[w.lease]
	}
	return applied, nil
}

// promoteSQL relies on SKIP LOCKED: processes that promote at once share the
// work. It touches no column of a unique index, so it cannot be refused
// (failures/queues 5).
const promoteSQL = `
with due as materialized (
  select slot, id from jobs
  where state in ('scheduled', 'retrying') and run_at <= now()
  order by run_at, id
  limit $1
  for update skip locked)
update jobs j
set state = 'pending', version = j.version + 1
from due d
where j.slot = d.slot and j.id = d.id
returning j.type`

// nextDueSQL is how long it is until the next job is due, in milliseconds.
const nextDueSQL = `
select cast(ceil(extract(epoch from min(run_at) - now()) * 1000) as bigint) as wait
from jobs
where state in ('scheduled', 'retrying')`

func (p *postgres) promote(ctx context.Context, limit int) ([]job.Type, time.Duration, error) {
	promoted, err := collect[typeRow](ctx, p.leases, promoteSQL, limit)
	if err != nil {
		return nil, 0, err
	}
	due, err := collect[waitRow](ctx, p.leases, nextDueSQL)
	if err != nil {
		return nil, 0, err
	}
	return typesOf(promoted), due[0].next(), nil
}

type typeRow struct {
	Type text `db:"type"`
}

func typesOf(rows []typeRow) []job.Type {
	var types []job.Type
	for _, row := range rows {
		if t := job.Type(row.Type); !slices.Contains(types, t) {
			types = append(types, t)
		}
	}
	return types
}

type waitRow struct {
	Wait sql.NullInt64 `db:"wait"`
}

// next is the wait, never zero while a job waits: zero says that none does.
func (w waitRow) next() time.Duration {
	if !w.Wait.Valid {
		return 0
	}
	return max(time.Duration(w.Wait.Int64)*time.Millisecond, time.Millisecond)
}

// expiredSQL walks the processing jobs in the order of the index jobs_running
// from where the last page ended. Rows that a settling transaction holds are
// left to it.
const expiredSQL = `
select id, tenant, key, type, state, business_key, priority, run_at, timeout_ms, max_attempts, attempt, generation, version,
  token, worker_id, locked_until, last_error, created_at, started_at
from jobs
where state = 'processing' and locked_until < now() - interval '1 second' and (slot, id) > ($1, $2)
order by slot, id
limit $3
for update skip locked`

func (p *postgres) expired(ctx context.Context, _ string, limit int) ([]jobRow, error) {
	slot, id := p.page.begin()
	rows, err := collect[jobRow](ctx, p.leases, expiredSQL, slot, id, limit)
	p.page.end(rows, limit)
	return rows, err
}
