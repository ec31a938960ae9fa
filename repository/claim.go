package repository

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

// Claim implements job.Leases.
func (r *Repository) Claim(ctx context.Context, c job.Claiming) ([]job.Claimed, error) {
	if c.Max <= 0 {
		return nil, nil
	}
	c.Worker = storedWorker(c)
	rows, err := r.inTurn(ctx, c, func(c job.Claiming, turn turn) (rows []claimRow, err error) {
		err = r.write(ctx, "claim", func(ctx context.Context) (err error) {
			rows, err = r.engine.claim(ctx, c, turn)
			return err
		})
		return rows, err
	})
	if err != nil && len(rows) == 0 {
		return nil, err
	}
	// What was claimed is ours, whatever became of the look for more.
	claimed, err := each(rows, (*claimRow).claimed)
	return claimed, r.fail("claim", err)
}

// claimRow is a claimed job, whose tenant was the turn-th of so many that have
// pending jobs of the type.
type claimRow struct {
	jobRow
	Turn    int `db:"turn"`
	Tenants int `db:"tenants"`
}

// mostSkipped is how many tenants one claim passes over whose jobs cannot start. It
// takes a moment for them to be ended, or for whoever has them to let go.
const mostSkipped = 3

// inTurn claims for the tenants that come after the one that was served last, each
// its share, and again for those who have more where others had less than theirs.
// It returns what was claimed also when a later claim failed.
func (r *Repository) inTurn(
	ctx context.Context, c job.Claiming, claim func(job.Claiming, turn) ([]claimRow, error),
) (rows []claimRow, err error) {
	skipped := 0
	for c.Max > 0 {
		now := r.turns.of(c.Type)
		got, err := claim(c, now)
		if err != nil {
			return rows, err
		}
		rows = append(rows, got...)
		if c.Tenant != "" {
			break
		}
		if len(got) == 0 {
			if skipped++; skipped > mostSkipped || !r.skip(ctx, c.Type, now) {
				break
			}
			continue
		}
		next := now.next(got, c.Max)
		r.turns.move(c.Type, next)
		if next.alone {
			break
		}
		c.Max -= len(got)
	}
	return rows, nil
}

// turn is whose turn it is among the tenants that have pending jobs of a type.
type turn struct {
	after idempotency.Tenant // the one that was served last
	// alone: no other tenant had any. Then it is enough to look for the next one.
	alone bool
}

// next is the turn after a claim of at most n jobs. One that only looked for the
// next tenant, as one for a single job does in any case, has seen no other if it
// came back to the one that was served last.
func (t turn) next(claimed []claimRow, n int) turn {
	last := lastServed(claimed, n)
	return turn{after: last, alone: claimed[0].Tenants == 1 && (last == t.after || n > 1 && !t.alone)}
}

// nextTenantSQL finds the tenant whose turn it is, as a claim does.
const nextTenantSQL = `
select coalesce(
  (select tenant from jobs
   where state = 'pending' and not blocked and type = $1 and tenant < $2
   order by tenant desc, claim_at desc, id desc
   limit 1),
  (select tenant from jobs
   where state = 'pending' and not blocked and type = $1 and tenant >= $2
   order by tenant desc, claim_at desc, id desc
   limit 1)) as tenant
where not exists (select 1 from type_state where type = $1 and paused_at is not null)`

type tenantRow struct {
	Tenant text `db:"tenant"`
}

// skip passes the turn of a tenant over whose jobs could not be claimed: they are
// past their deadlines, or somebody else has them just now. It reports false where
// nobody has any.
func (r *Repository) skip(ctx context.Context, of job.Type, now turn) bool {
	rows, err := collect[tenantRow](ctx, r.engine.reads(), nextTenantSQL, string(of), string(now.after))
	if err != nil || len(rows) == 0 || rows[0].Tenant == "" {
		return false // the claim itself has worked
	}
	r.turns.move(of, turn{after: idempotency.Tenant(rows[0].Tenant)})
	return true
}

// share is how many of n jobs the tenant may take whose turn it is: what does not
// come out even goes to the first ones.
func share(n, tenants, turn int) int {
	if turn <= n%tenants {
		return n/tenants + 1
	}
	return n / tenants
}

// lastServed is the tenant after whom the next claim begins: the last one that had
// one job more than the others, or the last of all.
func lastServed(rows []claimRow, n int) idempotency.Tenant {
	extra := cmp.Or(n%rows[0].Tenants, rows[0].Tenants)
	last := rows[0]
	for _, row := range rows {
		if row.Turn > last.Turn && row.Turn <= extra {
			last = row
		}
	}
	return idempotency.Tenant(last.Tenant)
}

// turns keeps the turn of each type in this process.
type turns struct {
	mu sync.Mutex
	at map[job.Type]turn
}

func newTurns() *turns { return &turns{at: map[job.Type]turn{}} }

func (t *turns) of(name job.Type) turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.at[name]
}

func (t *turns) move(name job.Type, to turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.at[name] = to
}

// byTurn is the order in which claimed jobs are returned.
func byTurn(rows []claimRow) {
	slices.SortStableFunc(rows, func(a, b claimRow) int {
		return cmp.Or(cmp.Compare(a.Turn, b.Turn), a.ClaimAt.Compare(b.ClaimAt.Time), cmp.Compare(a.ID, b.ID))
	})
}
