package repository

import (
	"context"
	"database/sql"

	"github.com/sekali/sekali/job"
)

const overdueFileSQL = `
select id, tenant, key, type, state, business_key, operation_key, callback_url, priority, run_at, deadline, timeout_ms,
  max_attempts, earlier_attempts, attempt, generation, version, token, worker_id,
  locked_until, cancel_requested_at, unknown_asks, last_error, created_at, started_at, claimed_at
from jobs
where deadline <= now() and deadline is not null and started_at is null
order by deadline
limit $1`

func (s *sqlite) overdue(ctx context.Context, limit int) ([]jobRow, error) {
	return collect[jobRow](ctx, s.reader, overdueFileSQL, limit)
}

const (
	requestOneSQL = `
update jobs set cancel_requested_at = now()
where slot = $1 and id = $2 and token = $3 and state = 'processing' and cancel_requested_at is null`

	noteOneSQL = `
insert into job_events (slot, job_id, id, event, attempt, created_at)
select slot, id, $4, $5, attempt, now()
from jobs
where slot = $1 and id = $2 and token = $3 and state = 'processing' and cancel_requested_at is not null`
)

func (s *sqlite) requestCancel(ctx context.Context, l job.Lease) (ours bool, err error) {
	slot, id := int64(l.ID.Slot()), string(l.ID)
	err = s.inTx(ctx, []string{requestOneSQL, noteOneSQL, heldOneSQL}, func(ctx context.Context, tx *sql.Tx) error {
		first, err := s.change(ctx, tx, requestOneSQL, slot, id, l.Token)
		if err != nil {
			return err
		}
		if first > 0 {
			ours = true
			return s.note(ctx, tx, l, job.EventCancelRequested)
		}
		held, err := rowsIn[keptRow](ctx, s, tx, heldOneSQL, slot, id, l.Token)
		ours = len(held) > 0
		return err
	})
	return ours, err
}

// note stores an event of an attempt that somebody asked to cancel.
func (s *sqlite) note(ctx context.Context, tx *sql.Tx, l job.Lease, event job.EventName) error {
	slot := l.ID.Slot()
	_, err := s.change(ctx, tx, noteOneSQL, int64(slot), string(l.ID), l.Token, string(job.NewID(processTime(), slot)), string(event))
	return err
}

// queuesFileSQL goes from key to key, as queuesSQL does. Jobs wait in the order
// of their rowids. The plus signs take the types from the columns: compared with
// typed ones, SQLite uses the first column of the index alone.
const queuesFileSQL = `
with recursive keys(first, place) as (
  select (
    select rowid from jobs
    where blocked and (slot, tenant, type, business_key) > ($1, $2, $3, $4)
    order by slot, tenant, type, business_key, rowid
    limit 1), 1
  union all
  select (
    select n.rowid from jobs n
    where n.blocked and (n.slot, n.tenant, n.type, n.business_key) > (+j.slot, +j.tenant, +j.type, +j.business_key)
    order by n.slot, n.tenant, n.type, n.business_key, n.rowid
    limit 1), k.place + 1
  from keys k
  join jobs j on j.rowid = k.first
  where k.place < $5)
select j.slot, j.tenant, j.type, j.business_key, j.id, k.place, h.id is null as free
from keys k
join jobs j on j.rowid = k.first
left join jobs h on h.slot = j.slot and h.tenant = j.tenant and h.type = j.type and h.business_key = j.business_key and not h.blocked
where h.id is null or k.place = $5
order by k.place`

// queues does not need the write lock: release looks again.
func (s *sqlite) queues(ctx context.Context, after queueRow, keys int) ([]queueRow, error) {
	slot := after.Slot
	if after == (queueRow{}) {
		slot = noSlot
	}
	return collect[queueRow](ctx, s.reader, queuesFileSQL, slot, string(after.Tenant), string(after.Type), string(after.BusinessKey), keys)
}

const unblockOneSQL = `
update jobs set blocked = false
where slot = $1 and id = $2 and blocked and not exists (
  select 1 from jobs h
  where h.slot = jobs.slot and h.tenant = jobs.tenant and h.type = jobs.type and h.business_key = jobs.business_key and not h.blocked)
returning type`

func (s *sqlite) release(ctx context.Context, first []queueRow) (released []typeRow, err error) {
	err = s.inTx(ctx, []string{unblockOneSQL}, func(ctx context.Context, tx *sql.Tx) error {
		for _, k := range first {
			rows, err := rowsIn[typeRow](ctx, s, tx, unblockOneSQL, k.Slot, string(k.ID))
			if err != nil {
				return err
			}
			released = append(released, rows...)
		}
		return nil
	})
	return released, err
}
