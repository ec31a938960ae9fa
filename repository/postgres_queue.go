package repository

import (
	"context"

	"github.com/sekali/sekali/job"
)

// overdueSQL walks the index jobs_deadline. Rows that are being claimed or ended
// just now are left to that.
const overdueSQL = `
select id, tenant, key, type, state, business_key, operation_key, callback_url, priority, run_at, deadline, timeout_ms,
  max_attempts, earlier_attempts, attempt, generation, version, token, worker_id,
  locked_until, cancel_requested_at, unknown_asks, last_error, created_at, started_at, claimed_at
from jobs
where deadline <= now() and deadline is not null and started_at is null
order by deadline
limit $1
for update skip locked`

func (p *postgres) overdue(ctx context.Context, limit int) ([]jobRow, error) {
	return collect[jobRow](ctx, p.leases, overdueSQL, limit)
}

// requestCancelSQL relies on the row lock: it waits for whoever is ending the
// attempt, and then finds the lease gone, or finds that somebody asked before.
const requestCancelSQL = `
with held as materialized (
  select slot, id, token, attempt, cancel_requested_at is null as first
  from jobs
  where slot = $1 and id = $2 and token = $3 and state = 'processing'
  for no key update),
asked as (
  update jobs j
  set cancel_requested_at = now()
  from held h
  where j.slot = h.slot and j.id = h.id and j.token = h.token and j.state = 'processing' and h.first),
noted as (
  insert into job_events (slot, job_id, id, event, attempt)
  select h.slot, h.id, gen_random_uuid(), 'cancel_requested', h.attempt
  from held h
  where h.first)
select id, token from held`

func (p *postgres) requestCancel(ctx context.Context, l job.Lease) (bool, error) {
	rows, err := collect[leaseRow](ctx, p.leases, requestCancelSQL, int64(l.ID.Slot()), string(l.ID), l.Token)
	return len(rows) > 0, err
}

// queuesSQL walks the index jobs_queue from key to key, however many jobs wait
// for one: the first entry of a key is the job that came first. It returns the
// keys that nobody holds, and the last one of a full page.
const queuesSQL = `
with recursive keys as (
  (select slot, tenant, type, business_key, id, 1 as place
  from jobs
  where blocked and (slot, tenant, type, business_key) > (cast($1 as smallint), $2, $3, $4)
  order by slot, tenant, type, business_key, queued_at, id
  limit 1)
  union all
  select n.slot, n.tenant, n.type, n.business_key, n.id, k.place + 1
  from keys k
  cross join lateral (
    select j.slot, j.tenant, j.type, j.business_key, j.id
    from jobs j
    where j.blocked and (j.slot, j.tenant, j.type, j.business_key) > (k.slot, k.tenant, k.type, k.business_key)
    order by j.slot, j.tenant, j.type, j.business_key, j.queued_at, j.id
    limit 1) n
  where k.place < $5)
select k.slot, k.tenant, k.type, k.business_key, k.id, k.place, h.id is null as free
from keys k
left join jobs h on h.slot = k.slot and h.tenant = k.tenant and h.type = k.type and h.business_key = k.business_key and not h.blocked
where h.id is null or k.place = $5
order by k.place`

func (p *postgres) queues(ctx context.Context, after queueRow, keys int) ([]queueRow, error) {
	slot := after.Slot
	if after == (queueRow{}) {
		slot = noSlot
	}
	return collect[queueRow](ctx, p.leases, queuesSQL, slot, string(after.Tenant), string(after.Type), string(after.BusinessKey), keys)
}

// unblockSQL relies on the unique index jobs_business: a newcomer or another
// process that takes the key at the same time makes it fail with 23505. Keys are
// taken in the order in which accepts take them, and rows that somebody has just
// now are left to the next round.
const unblockSQL = `
with input as (
  select i.slot, i.id from unnest(cast($1 as smallint[]), cast($2 as uuid[])) as i(slot, id)),
first as materialized (
  select j.slot, j.id
  from input i
  join jobs j on j.slot = i.slot and j.id = i.id and j.blocked
  where not exists (
    select 1 from jobs h
    where h.slot = j.slot and h.tenant = j.tenant and h.type = j.type and h.business_key = j.business_key and not h.blocked)
  order by j.slot, j.tenant, j.type, j.business_key
  for no key update of j skip locked)
update jobs j
set blocked = false
from first f
where j.slot = f.slot and j.id = f.id and j.blocked
returning j.type`

func (p *postgres) release(ctx context.Context, first []queueRow) ([]typeRow, error) {
	slots, ids := make([]int64, len(first)), make([]string, len(first))
	for i, k := range first {
		slots[i], ids[i] = k.Slot, string(k.ID)
	}
	return collect[typeRow](ctx, p.leases, unblockSQL, slots, ids)
}
