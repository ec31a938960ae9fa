package repository

import (
	"context"

	"github.com/sekali/sekali/job"
)

// claimNextSQL claims for the tenant $5 or, if that is "", for the one that comes
// before $6 among those that have pending jobs of the type, or for the last one of
// them: for $6 itself if no other tenant has any.
//
// It looks for the tenant from the end of the index jobs_turns: what was claimed
// lately left dead entries where a tenant's jobs begin, and few where they end.
//
// It relies on FOR UPDATE SKIP LOCKED: of any number of processes, each takes other
// rows, and none waits. The states are literals, because a parameter would lose the
// partial index; "materialized" keeps the limit from being applied after the update.
// A claim is committed synchronously like any write: one that a crash forgot would
// give its fencing token out again. A job past its deadline is left to whoever ends
// it. The times are those of the statement: in a claim within a limit the
// transaction began before it had waited for the others.
const claimNextSQL = `
with picked as materialized (
  select slot, id, 1 as turn, 1 as tenants from jobs
  where state = 'pending' and not blocked and type = $1
    and tenant = case when $5 <> '' then $5 else coalesce(
      (select tenant from jobs
       where state = 'pending' and not blocked and type = $1 and tenant < $6
       order by tenant desc, claim_at desc, id desc
       limit 1),
      (select tenant from jobs
       where state = 'pending' and not blocked and type = $1 and tenant >= $6
       order by tenant desc, claim_at desc, id desc
       limit 1)) end
    and (deadline is null or deadline > now() or started_at is not null)
    and not exists (select 1 from type_state s where s.type = $1 and s.paused_at is not null)
  order by claim_at, id
  limit $2
  for update skip locked),
` + claimPickedSQL

// claimPickedSQL is the end of both claims.
const claimPickedSQL = `claimed as (
  update jobs j
  set state = 'processing', attempt = j.attempt + 1, token = j.token + 1, version = j.version + 1, worker_id = $3,
    locked_until = statement_timestamp() + $4 * interval '1 millisecond', claimed_at = statement_timestamp(),
    started_at = coalesce(j.started_at, statement_timestamp())
  from picked p
  where j.slot = p.slot and j.id = p.id
  returning j.id, j.tenant, j.key, j.type, j.state, j.payload, j.business_key, j.operation_key, j.callback_url, j.priority, j.run_at, j.claim_at,
    j.deadline, j.timeout_ms, j.max_attempts, j.earlier_attempts, j.attempt, j.generation, j.version, j.token, j.worker_id,
    j.locked_until, j.cancel_requested_at, j.unknown_asks, j.last_error, j.created_at, j.started_at, j.claimed_at, p.turn, p.tenants)
select id, tenant, key, type, state, payload, business_key, operation_key, callback_url, priority, run_at, claim_at,
  deadline, timeout_ms, max_attempts, earlier_attempts, attempt, generation, version, token, worker_id,
  locked_until, cancel_requested_at, unknown_asks, last_error, created_at, started_at, claimed_at, turn, tenants
from claimed
order by turn, claim_at, id`

// claimInTurnSQL walks the tenants that have pending jobs of the type, backwards from
// the one before $5 on, round to that one and no further than there are jobs to give
// out; each gives its share (see share in claim.go). The walk's last row is one
// without a tenant. Otherwise it is as claimNextSQL.
const claimInTurnSQL = `
with recursive walk as (
  select cast($5 as text) as tenant, 0 as turn
  where not exists (select 1 from type_state s where s.type = $1 and s.paused_at is not null)
  union all
  select coalesce(
    (select j.tenant from jobs j
     where j.state = 'pending' and not j.blocked and j.type = $1
       and j.tenant < w.tenant and j.tenant >= case when w.turn > 0 and w.tenant >= $5 then $5 else '' end
     order by j.tenant desc, j.claim_at desc, j.id desc
     limit 1),
    (select j.tenant from jobs j
     where (w.turn = 0 or w.tenant < $5) and j.state = 'pending' and not j.blocked and j.type = $1 and j.tenant >= $5
     order by j.tenant desc, j.claim_at desc, j.id desc
     limit 1)), w.turn + 1
  from walk w
  where w.turn < $2 and w.tenant is not null),
turns as materialized (
  select tenant, turn, cast(count(*) over () as int) as tenants
  from walk
  where turn > 0 and tenant is not null),
picked as materialized (
  select p.slot, p.id, t.turn, t.tenants
  from (select tenant, turn, tenants from turns order by turn) t
  cross join lateral (
    select j.slot, j.id from jobs j
    where j.state = 'pending' and not j.blocked and j.type = $1 and j.tenant = t.tenant
      and (j.deadline is null or j.deadline > now() or j.started_at is not null)
    order by j.claim_at, j.id
    limit $2 / t.tenants + case when t.turn <= $2 % t.tenants then 1 else 0 end
    for update skip locked) p),
` + claimPickedSQL

// claimWith is the statement for the turn, and its parameters.
func claimWith(c job.Claiming, turn turn) (query string, args []any) {
	args = []any{string(c.Type), c.Max, c.Worker, c.Lease.Milliseconds()}
	if turn.alone || c.Tenant != "" {
		return claimNextSQL, append(args, string(c.Tenant), string(turn.after))
	}
	return claimInTurnSQL, append(args, string(turn.after))
}

func (p *postgres) claim(ctx context.Context, c job.Claiming, turn turn) ([]claimRow, error) {
	query, args := claimWith(c, turn)
	return collect[claimRow](ctx, p.leases, query, args...)
}

func (p *postgres) claimIn(ctx context.Context, t transaction, c job.Claiming, turn turn) ([]claimRow, error) {
	query, args := claimWith(c, turn)
	return rowsOf[claimRow](ctx, t, query, args...)
}

const (
	// lockTypeSQL waits for the claim of the type that has the lock. What that relies
	// on: each statement after it sees what was committed meanwhile (read committed).
	lockTypeSQL = `
select type from type_state
where type = $1
for no key update`

	// addTypeSQL relies on the primary key: of two processes that add the row at once
	// the second one waits for the first, and adds nothing.
	addTypeSQL = `
insert into type_state (type) values ($1)
on conflict (type) do nothing`

	// roomSQL counts what runs in the index jobs_running, which is as long as the slots
	// of all processes. A lease that is over counts until its job is rescued: nobody
	// knows whether it still runs.
	roomSQL = `
select
  (select j.id from jobs j
   where j.state = 'pending' and not j.blocked and j.type = $1 and ($2 = '' or j.tenant = $2)
   order by j.tenant desc, j.claim_at desc, j.id desc
   limit 1) is not null as pending,
  case when $3 > 0 then (select count(*) from jobs j where j.state = 'processing' and j.type = $1) else 0 end as running,
  (select cast(ceil(extract(epoch from s.next_at - statement_timestamp()) * 1000) as bigint) from type_state s where s.type = $1) as wait`

	moveClockSQL = `
update type_state
set next_at = statement_timestamp() + $2 * interval '1 millisecond'
where type = $1`
)

var postgresLimits = &limitStatements{
	lock: lockTypeSQL, add: addTypeSQL, room: roomSQL, clock: moveClockSQL, claims: []string{claimNextSQL, claimInTurnSQL},
}

func (p *postgres) limits() *limitStatements { return postgresLimits }
