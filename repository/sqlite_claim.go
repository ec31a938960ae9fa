package repository

import (
	"context"
	"database/sql"

	"github.com/sekali/sekali/job"
)

const (
	// lastTenantSQL and tenantBeforeSQL walk the tenants that have pending jobs of the
	// type, as claimInTurnSQL does.
	lastTenantSQL = `
select tenant from jobs
where state = 'pending' and not blocked and type = $1 and tenant >= $2
order by tenant desc
limit 1`

	tenantBeforeSQL = `
select tenant from jobs
where state = 'pending' and not blocked and type = $1 and tenant >= $2 and tenant < $3
order by tenant desc
limit 1`

	pausedTypeSQL = `
select type from type_state
where type = $1 and paused_at is not null`

	claimOneFileSQL = `
update jobs
set state = 'processing', attempt = attempt + 1, token = token + 1, version = version + 1, worker_id = $3,
  locked_until = later($4), claimed_at = now(), started_at = coalesce(started_at, now())
where (slot, id) in (
  select slot, id from jobs
  where state = 'pending' and not blocked and type = $1 and tenant = $5
    and (deadline is null or deadline > now() or started_at is not null)
  order by claim_at, id
  limit $2)
returning id, tenant, key, type, state, payload, business_key, operation_key, callback_url, priority, run_at, claim_at,
  deadline, timeout_ms, max_attempts, earlier_attempts, attempt, generation, version, token, worker_id,
  locked_until, cancel_requested_at, unknown_asks, last_error, created_at, started_at, claimed_at`

	roomFileSQL = `
select
  exists (
    select 1 from jobs
    where state = 'pending' and not blocked and type = $1 and ($2 = '' or tenant = $2)) as pending,
  case when $3 > 0 then (select count(*) from jobs where state = 'processing' and type = $1) else 0 end as running,
  (select until(next_at) from type_state where type = $1) as wait`

	moveClockFileSQL = `
insert into type_state (type, next_at) values ($1, later($2))
on conflict (type) do update set next_at = excluded.next_at`
)

var (
	sqliteClaims = []string{pausedTypeSQL, lastTenantSQL, tenantBeforeSQL, claimOneFileSQL}
	sqliteLimits = &limitStatements{room: roomFileSQL, clock: moveClockFileSQL, claims: sqliteClaims}
)

func (s *sqlite) limits() *limitStatements { return sqliteLimits }

func (s *sqlite) claim(ctx context.Context, c job.Claiming, turn turn) (rows []claimRow, err error) {
	err = s.inTx(ctx, sqliteClaims, func(ctx context.Context, tx *sql.Tx) error {
		rows, err = s.claimIn(ctx, transaction{tx, s.writer}, c, turn)
		return err
	})
	return rows, err
}

func (s *sqlite) claimIn(ctx context.Context, t transaction, c job.Claiming, turn turn) ([]claimRow, error) {
	if !c.Remote {
		s.worker.Store(&c.Worker)
	}
	if paused, err := rowsOf[typeRow](ctx, t, pausedTypeSQL, string(c.Type)); err != nil || len(paused) > 0 {
		return nil, err
	}
	tenants, err := tenantsInTurn(ctx, t, c, string(turn.after))
	if err != nil {
		return nil, err
	}
	var all []claimRow
	for i, tenant := range tenants {
		n := share(c.Max, len(tenants), i+1)
		rows, err := rowsOf[jobRow](ctx, t, claimOneFileSQL, string(c.Type), n, c.Worker, c.Lease.Milliseconds(), tenant)
		if err != nil {
			return nil, err
		}
		for _, row := range rows {
			all = append(all, claimRow{jobRow: row, Turn: i + 1, Tenants: len(tenants)})
		}
	}
	byTurn(all) // SQLite returns changed rows in any order
	return all, nil
}

// tenantsInTurn are those that have pending jobs, from the one after the given one
// on, round to that one, and no more than jobs are wanted.
func tenantsInTurn(ctx context.Context, t transaction, c job.Claiming, after string) ([]string, error) {
	if c.Tenant != "" {
		return []string{string(c.Tenant)}, nil
	}
	var tenants []string
	first, last, round := "", after, false // of the part of the round that is being walked
	for len(tenants) < c.Max {
		next, err := rowsOf[tenantRow](ctx, t, tenantBeforeSQL, string(c.Type), first, last)
		if err == nil && len(next) == 0 && !round {
			first, round = after, true
			next, err = rowsOf[tenantRow](ctx, t, lastTenantSQL, string(c.Type), first)
		}
		if err != nil || len(next) == 0 {
			return tenants, err
		}
		last = string(next[0].Tenant)
		tenants = append(tenants, last)
	}
	return tenants, nil
}
