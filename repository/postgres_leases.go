package repository

import (
	"cmp"
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/sekali/sekali/job"
)

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
  join jobs j on j.slot = i.slot and j.id = i.id and j.token = i.token and (j.state <> 'processing') is false
  order by j.slot, j.id
  for no key update of j skip locked),
extended as (
  update jobs j
  set locked_until = now() + $4 * interval '1 millisecond'
  from free f
  where j.slot = f.slot and j.id = f.id and j.token = f.token and (j.state <> 'processing') is false
  returning j.id, j.token)
select j.id, j.token, (j.id, j.token) in (select id, token from extended) as extended, j.cancel_requested_at is not null as cancel_requested
from input i
join jobs j on j.slot = i.slot and j.id = i.id and j.token = i.token and (j.state <> 'processing') is false`

func (p *postgres) extend(ctx context.Context, held []job.Lease, lease time.Duration) (map[job.ID]job.Kept, error) {
	slots, ids, tokens := leaseArgs(slices.SortedFunc(slices.Values(held), compareLeases))
	rows, err := collect[keptRow](ctx, p.leases, extendSQL, slots, ids, tokens, lease.Milliseconds())
	kept := make(map[job.ID]job.Kept, len(rows))
	for _, row := range rows {
		kept[job.ID(row.ID)] = row.kept()
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
select id, tenant, key, type, state, business_key, operation_key, callback_url, priority, run_at, deadline, timeout_ms,
  max_attempts, earlier_attempts, attempt, generation, version, token, worker_id,
  locked_until, cancel_requested_at, unknown_asks, last_error, created_at, started_at, claimed_at
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
