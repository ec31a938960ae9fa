package repository

import (
	"context"
	"slices"

	"github.com/sekali/sekali/job"
)

// finishSQL moves jobs from the live table to the finished one. It relies on the
// row lock of DELETE: of two endings of a job one gets the row, the other one
// waits and finds nothing. statement_timestamp and not now, because the
// transaction of an attempt began before its work did. A lease is left alone
// until a second (the takeover grace) after its end: its holder's heartbeat may
// be on its way.
//
// A failure gives way to a cancellation: the condition is judged again on the row
// as it is when its lock was had. What a success did is written down with it: the
// job's operation is done, and a cancellation came too late.
const finishSQL = `
with input as (
  select i.slot, i.id, i.token, i.state, i.attempt_outcome, nullif(i.error, '') as error,
    nullif(i.outcome, '') as outcome, nullif(i.duplicate_of, '') as duplicate_of,
    case when i.has_result then i.result end as result, case when i.has_result then i.result_type end as result_type,
    case when i.has_result then i.result_hash end as result_hash,
    case when i.has_result and i.keep_result_ms > 0 then i.keep_result_ms end as keep_result_ms, i.keep_ms, i.if_expired,
    i.waiting, nullif(i.operation_slot, -1) as operation_slot, i.operation_key
  from unnest(cast($1 as smallint[]), cast($2 as uuid[]), cast($3 as bigint[]), cast($4 as text[]), cast($5 as text[]),
    cast($6 as bytea[]), cast($7 as text[]), cast($8 as text[]), cast($9 as boolean[]), cast($10 as bytea[]),
    cast($11 as text[]), cast($12 as bytea[]), cast($13 as bigint[]), cast($14 as bigint[]), cast($15 as boolean[]),
    cast($16 as boolean[]), cast($17 as smallint[]), cast($18 as text[]))
    as i(slot, id, token, state, attempt_outcome, error, outcome, duplicate_of, has_result, result,
      result_type, result_hash, keep_result_ms, keep_ms, if_expired, waiting, operation_slot, operation_key)),
` + finishInputSQL

// finishAloneSQL is finishSQL for one job. Its plan without parameters looks no dearer
// to the server than one with them, so that it makes no other, also in a transaction
// of an attempt, where the server is left as it is set (see probing): to plan
// finishSQL takes three times what it does.
const finishAloneSQL = `
with input as (
  select cast($1 as smallint) as slot, cast($2 as uuid) as id, cast($3 as bigint) as token, cast($4 as text) as state,
    cast($5 as text) as attempt_outcome, nullif(cast($6 as bytea), '') as error,
    nullif(cast($7 as text), '') as outcome, nullif(cast($8 as text), '') as duplicate_of,
    case when cast($9 as boolean) then cast($10 as bytea) end as result, case when $9 then cast($11 as text) end as result_type,
    case when $9 then cast($12 as bytea) end as result_hash,
    case when $9 and cast($13 as bigint) > 0 then $13 end as keep_result_ms, cast($14 as bigint) as keep_ms, cast($15 as boolean) as if_expired,
    cast($16 as boolean) as waiting, nullif(cast($17 as smallint), -1) as operation_slot, cast($18 as text) as operation_key),
` + finishInputSQL

// finishInputSQL is the end of both statements.
const finishInputSQL = `gone as (
  delete from jobs j
  using input i
  where j.slot = i.slot and j.id = i.id and j.token = i.token and case
      when i.waiting then j.state <> 'processing'
      else j.state = 'processing' and (i.state <> 'failed' or j.cancel_requested_at is null)
        and (not i.if_expired or j.locked_until < now() - interval '1 second')
    end
  returning j.slot, j.id, j.tenant, j.key, j.key_slot, j.type, i.state, j.payload, j.business_key, j.operation_key,
    j.callback_url, j.priority, j.run_at, j.deadline, j.timeout_ms, j.max_attempts, j.earlier_attempts, j.attempt,
    j.generation, j.version, j.token, j.worker_id, j.cancel_requested_at, j.last_error, j.created_at, j.started_at, j.claimed_at,
    i.attempt_outcome, i.error, i.outcome, i.duplicate_of, i.result, i.result_type, i.result_hash,
    i.keep_result_ms, i.keep_ms, i.waiting, i.operation_slot, i.operation_key as operation_done),
ended as (
  insert into job_attempts (slot, job_id, token, number, outcome, worker_id, error, started_at, finished_at)
  select g.slot, g.id, g.token, g.attempt, g.attempt_outcome, g.worker_id, g.error, g.claimed_at, statement_timestamp()
  from gone g
  where not g.waiting),
operated as (
  update processed_operations o
  set state = 'done', token = g.token, result = g.result, result_type = g.result_type, result_hash = g.result_hash
  from gone g
  where o.slot = g.operation_slot and o.tenant = g.tenant and o.operation_type = g.type and o.operation_key = g.operation_done
    and o.job_slot = g.slot and o.job_id = g.id and o.state = 'processing' and g.state = 'succeeded'),
overtaken as (
  insert into job_events (slot, job_id, id, event, attempt, created_at)
  select g.slot, g.id, gen_random_uuid(), 'cancel_too_late', g.attempt, statement_timestamp()
  from gone g
  where g.state = 'succeeded' and g.cancel_requested_at is not null)
insert into finished_jobs (slot, id, tenant, key, key_slot, type, state, payload, business_key, operation_key,
  callback_url, priority, run_at, deadline, timeout_ms, max_attempts, earlier_attempts, attempt, generation, version,
  token, worker_id, last_error, created_at, started_at, claimed_at,
  outcome, duplicate_of, result, result_type, result_hash, result_expires_at, finished_at, expires_at)
select g.slot, g.id, g.tenant, g.key, g.key_slot, g.type, g.state, g.payload, g.business_key, g.operation_key,
  g.callback_url, g.priority, g.run_at, g.deadline, g.timeout_ms, g.max_attempts, g.earlier_attempts, g.attempt, g.generation, g.version + 1,
  g.token, g.worker_id, case when g.state <> 'succeeded' then coalesce(g.error, g.last_error) end, g.created_at, g.started_at, g.claimed_at,
  g.outcome, g.duplicate_of, g.result, g.result_type, g.result_hash,
  statement_timestamp() + g.keep_result_ms * interval '1 millisecond',
  statement_timestamp(), statement_timestamp() + g.keep_ms * interval '1 millisecond'
from gone g
returning id, token`

// settling is the pool for ends of attempts.
func (p *postgres) settling(patient bool) *pool {
	if patient {
		return p.leases
	}
	return p.settles
}

func (p *postgres) finish(ctx context.Context, endings []ending, patient bool) ([]job.Application, error) {
	query, args := finishStatement(endings)
	rows, err := collect[leaseRow](ctx, p.settling(patient), query, args...)
	if err != nil {
		return nil, err
	}
	wanted := make([]settlement, len(endings))
	for i, e := range endings {
		wanted[i] = e.settlement()
	}
	return p.applications(ctx, reached(rows), wanted)
}

// finishStatement is the cheapest statement that applies the endings.
func finishStatement(endings []ending) (query string, args []any) {
	if len(endings) == 1 {
		return finishAloneSQL, finishAloneArgs(endings[0])
	}
	return finishSQL, finishArgs(endings)
}

func finishAloneArgs(e ending) []any {
	operationSlot, operation := int64(noSlot), ""
	if e.Operation != nil {
		operationSlot, operation = int64(e.Operation.Slot()), e.Operation.Key
	}
	body := e.body
	if body == nil {
		body = []byte{} // an empty result is none that is missing
	}
	return []any{
		int64(e.Lease.ID.Slot()), string(e.Lease.ID), e.Lease.Token, string(e.Status), string(e.Attempt), e.failure, e.Outcome, string(e.DuplicateOf),
		e.hasResult, body, e.mediaType, e.hash, e.keepResult.Milliseconds(), e.Keep.Milliseconds(), e.IfExpired,
		e.Waiting, operationSlot, operation,
	}
}

func finishArgs(endings []ending) []any {
	n := len(endings)
	sorted := slices.SortedStableFunc(slices.Values(endings), func(a, b ending) int { return compareLeases(a.Lease, b.Lease) })
	var (
		leases                     = make([]job.Lease, n)
		states, attempts, outcomes = make([]string, n), make([]string, n), make([]string, n)
		duplicates, mediaTypes     = make([]string, n), make([]string, n)
		failures, bodies, hashes   = make([][]byte, n), make([][]byte, n), make([][]byte, n)
		hasResult                  = make([]bool, n)
		ifExpired, waiting         = make([]bool, n), make([]bool, n)
		keep, keepResult           = make([]int64, n), make([]int64, n)
		operationSlots             = make([]int64, n)
		operations                 = make([]string, n)
	)
	for i, e := range sorted {
		leases[i], states[i], attempts[i], failures[i] = e.Lease, string(e.Status), string(e.Attempt), e.failure
		outcomes[i], duplicates[i], keep[i], ifExpired[i] = e.Outcome, string(e.DuplicateOf), e.Keep.Milliseconds(), e.IfExpired
		hasResult[i], bodies[i], mediaTypes[i], hashes[i], keepResult[i] = e.hasResult, e.body, e.mediaType, e.hash, e.keepResult.Milliseconds()
		waiting[i], operationSlots[i] = e.Waiting, noSlot
		if e.Operation != nil {
			operationSlots[i], operations[i] = int64(e.Operation.Slot()), e.Operation.Key
		}
	}
	slots, ids, tokens := leaseArgs(leases)
	return []any{
		slots, ids, tokens, states, attempts, failures, outcomes, duplicates,
		hasResult, bodies, mediaTypes, hashes, keepResult, keep, ifExpired,
		waiting, operationSlots, operations,
	}
}

// noSlot stands for no operation.
const noSlot = -1

// requeueSQL puts jobs back, unless somebody asked to cancel them. A pending job
// keeps its place in the queue.
const requeueSQL = `
with input as (
  select i.slot, i.id, i.token, i.retrying, i.in_ms, i.attempt_outcome, nullif(i.error, '') as error, i.uncounted, i.if_expired,
    i.unknown_asks, i.unstarted
  from unnest(cast($1 as smallint[]), cast($2 as uuid[]), cast($3 as bigint[]), cast($4 as boolean[]), cast($5 as bigint[]),
    cast($6 as text[]), cast($7 as bytea[]), cast($8 as int[]), cast($9 as boolean[]), cast($10 as int[]), cast($11 as boolean[]))
    as i(slot, id, token, retrying, in_ms, attempt_outcome, error, uncounted, if_expired, unknown_asks, unstarted)),
moved as (
  update jobs j
  set state = case when i.retrying then 'retrying' else 'pending' end,
    attempt = j.attempt - i.uncounted, version = j.version + 1, locked_until = null, unknown_asks = i.unknown_asks,
    last_error = coalesce(i.error, j.last_error),
    started_at = case when not i.unstarted or j.attempt > i.uncounted then j.started_at end,
    run_at = case when i.retrying then now() + i.in_ms * interval '1 millisecond' else j.run_at end,
    claim_at = case when i.retrying then now() + i.in_ms * interval '1 millisecond' + j.priority * interval '10 seconds'
      else j.claim_at end
  from input i
  where j.slot = i.slot and j.id = i.id and j.token = i.token and (j.state <> 'processing') is false and j.cancel_requested_at is null
    and (not i.if_expired or j.locked_until < now() - interval '1 second')
  returning j.slot, j.id, j.token, j.attempt + i.uncounted as number, i.attempt_outcome, j.worker_id, i.error, j.claimed_at)
insert into job_attempts (slot, job_id, token, number, outcome, worker_id, error, started_at, finished_at)
select m.slot, m.id, m.token, m.number, m.attempt_outcome, m.worker_id, m.error, m.claimed_at, now()
from moved m
returning job_id as id, token`

func (p *postgres) requeue(ctx context.Context, requeues []requeue, patient bool) ([]job.Application, error) {
	rows, err := collect[leaseRow](ctx, p.settling(patient), requeueSQL, requeueArgs(requeues)...)
	if err != nil {
		return nil, err
	}
	wanted := make([]settlement, len(requeues))
	for i, q := range requeues {
		wanted[i] = q.settlement()
	}
	return p.applications(ctx, reached(rows), wanted)
}

func requeueArgs(requeues []requeue) []any {
	n := len(requeues)
	sorted := slices.SortedStableFunc(slices.Values(requeues), func(a, b requeue) int { return compareLeases(a.Lease, b.Lease) })
	var (
		leases                = make([]job.Lease, n)
		retrying, ifExpired   = make([]bool, n), make([]bool, n)
		unstarted             = make([]bool, n)
		wait, uncounted, asks = make([]int64, n), make([]int64, n), make([]int64, n)
		attempts, failures    = make([]string, n), make([][]byte, n)
	)
	for i, q := range sorted {
		leases[i], retrying[i], wait[i] = q.Lease, q.Status == job.Retrying, q.In.Milliseconds()
		attempts[i], failures[i], ifExpired[i], asks[i] = string(q.Attempt), q.failure, q.IfExpired, int64(q.UnknownAsks)
		unstarted[i] = q.Unstarted
		if q.Uncounted {
			uncounted[i] = 1
		}
	}
	slots, ids, tokens := leaseArgs(leases)
	return []any{slots, ids, tokens, retrying, wait, attempts, failures, uncounted, ifExpired, asks, unstarted}
}

// settledSQL finds what became of decisions that a statement did not apply. An
// attempt had ended in this way already if its row says so: that is written once,
// with the end, under the token that it ended. Where there was no attempt the
// finished job says it. Or else a cancellation was in the way. Of a lease that had
// run out the row does not say whose rescuer wrote it, so that counts for nobody:
// or else each rescuer would count the rescues of all. It is a statement of its own
// because it must see what the first one waited for.
const settledSQL = `
select i.id, i.token, a.job_id is not null or f.id is not null as applied, j.id is not null as cancel_pending
from unnest(cast($1 as smallint[]), cast($2 as uuid[]), cast($3 as bigint[]), cast($4 as text[]), cast($5 as text[]),
  cast($6 as boolean[]), cast($7 as boolean[]), cast($8 as boolean[]))
  as i(slot, id, token, outcome, state, waiting, yields, if_expired)
left join job_attempts a on a.slot = i.slot and a.job_id = i.id and a.token = i.token and a.outcome = i.outcome and not i.waiting
  and not i.if_expired
left join finished_jobs f on f.slot = i.slot and f.id = i.id and f.token = i.token and f.state = i.state and i.waiting
left join jobs j on j.slot = i.slot and j.id = i.id and j.token = i.token and (j.state <> 'processing') is false
  and j.cancel_requested_at is not null and i.yields
  and (not i.if_expired or j.locked_until < now() - interval '1 second')`

func (p *postgres) settled(ctx context.Context, wanted []settlement) ([]job.Application, error) {
	n := len(wanted)
	var (
		leases                     = make([]job.Lease, n)
		outcomes, states           = make([]string, n), make([]string, n)
		waiting, yields, ifExpired = make([]bool, n), make([]bool, n), make([]bool, n)
	)
	for i, w := range wanted {
		leases[i], outcomes[i], states[i] = w.lease, string(w.attempt), string(w.status)
		waiting[i], yields[i], ifExpired[i] = w.waiting, w.yields, w.ifExpired
	}
	slots, ids, tokens := leaseArgs(leases)
	rows, err := collect[settledRow](ctx, p.leases, settledSQL, slots, ids, tokens, outcomes, states, waiting, yields, ifExpired)
	if err != nil {
		return nil, err
	}
	found := make(map[job.Lease]job.Application, len(rows))
	for _, row := range rows {
		found[job.Lease{ID: job.ID(row.ID), Token: row.Token}] = row.application()
	}
	applications := make([]job.Application, n)
	for i, w := range wanted {
		applications[i] = found[w.lease]
	}
	return applications, nil
}

// applications tells what became of each decision, given those that were applied
// just now.
func (p *postgres) applications(ctx context.Context, now map[job.Lease]bool, wanted []settlement) ([]job.Application, error) {
	applications := make([]job.Application, len(wanted))
	var others []settlement
	var places []int
	for i, w := range wanted {
		if now[w.lease] {
			applications[i] = job.Applied
			continue
		}
		others, places = append(others, w), append(places, i)
	}
	if len(others) == 0 {
		return applications, nil
	}
	settled, err := p.settled(ctx, others)
	if err != nil {
		return nil, err
	}
	for n, i := range places {
		applications[i] = settled[n]
	}
	return applications, nil
}
