package repository

import (
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/sekali/sekali/job"
)

// ClaimLimited implements job.Leases. It looks without a lock first: where nothing
// waits or the limit is reached, which is how most looks end, nothing is written.
func (r *Repository) ClaimLimited(ctx context.Context, c job.Claiming, limit job.Limit) (job.Claims, error) {
	if limit.None() {
		jobs, err := r.Claim(ctx, c)
		return job.Claims{Jobs: jobs}, err
	}
	if c.Max <= 0 {
		return job.Claims{}, nil
	}
	c.Worker = storedWorker(c)
	with := r.engine.limits()
	seen, err := collect[roomRow](ctx, r.engine.reads(), with.room, roomArgs(c, limit)...)
	if err != nil {
		return job.Claims{}, r.fail("look at a limit", err)
	}
	if seen[0].most(c.Max, limit) == 0 && !seen[0].foreign(limit) {
		return job.Claims{Next: seen[0].next(limit)}, nil
	}
	var rows []claimRow
	var next time.Duration
	err = r.write(ctx, "claim within a limit", func(ctx context.Context) error {
		return r.engine.leaseTx(ctx, with.all(), func(ctx context.Context, t transaction) (err error) {
			rows, next, err = r.claimWithin(ctx, t, c, limit)
			return err
		})
	})
	if err != nil {
		return job.Claims{}, err
	}
	claimed, err := each(rows, (*claimRow).claimed)
	return job.Claims{Jobs: claimed, Next: next}, r.fail("claim within a limit", err)
}

// limitStatements are those of a claim within a limit, on one engine.
type limitStatements struct {
	// lock lets one claim of the type after the other look and take; add makes the row
	// that it locks. Both are "" where one transaction at a time writes.
	lock, add string
	// room tells what a limit leaves, and clock moves on when the next one may start.
	room, clock string
	claims      []string
}

func (l *limitStatements) all() []string {
	all := slices.Concat([]string{l.room, l.clock}, l.claims)
	if l.lock != "" {
		all = append(all, l.lock, l.add)
	}
	return all
}

// hold locks the type until the transaction ends.
func (l *limitStatements) hold(ctx context.Context, t transaction, of job.Type) error {
	if l.lock == "" {
		return nil
	}
	rows, err := rowsOf[typeRow](ctx, t, l.lock, string(of))
	if err != nil || len(rows) > 0 {
		return err
	}
	if _, err := t.change(ctx, l.add, string(of)); err != nil {
		return err
	}
	_, err = rowsOf[typeRow](ctx, t, l.lock, string(of))
	return err
}

// roomRow is what there is to claim, and what keeps it.
type roomRow struct {
	Pending bool          `db:"pending"` // there are jobs to claim
	Running int           `db:"running"`
	Wait    sql.NullInt64 `db:"wait"` // milliseconds until the rate lets one start
}

func roomArgs(c job.Claiming, limit job.Limit) []any {
	return []any{string(c.Type), string(c.Tenant), limit.Concurrency}
}

// most is how many of the wanted jobs may be claimed.
func (r roomRow) most(wanted int, limit job.Limit) int {
	if !r.Pending || r.next(limit) > 0 {
		return 0
	}
	if limit.Concurrency > 0 {
		wanted = min(wanted, max(0, limit.Concurrency-r.Running))
	}
	if batch, _ := limit.Rate.Steps(); batch > 0 {
		wanted = min(wanted, batch)
	}
	return wanted
}

// next is how long the rate keeps what is there from starting.
func (r roomRow) next(limit job.Limit) time.Duration {
	if !r.Pending || limit.Rate.None() || r.Wait.Int64 <= 0 {
		return 0
	}
	return time.Duration(r.Wait.Int64) * time.Millisecond
}

// foreign reports that the rate's clock was set by another rate, which was in force
// before, or by a clock of the database that has been put back since.
func (r roomRow) foreign(limit job.Limit) bool {
	_, every := limit.Rate.Steps()
	return r.next(limit) > every
}

// claimWithin takes what the limit has room for. It holds the lock of the type.
func (r *Repository) claimWithin(ctx context.Context, t transaction, c job.Claiming, limit job.Limit) ([]claimRow, time.Duration, error) {
	with := r.engine.limits()
	if err := with.hold(ctx, t, c.Type); err != nil {
		return nil, 0, err
	}
	room, err := rowsOf[roomRow](ctx, t, with.room, roomArgs(c, limit)...)
	if err != nil {
		return nil, 0, err
	}
	_, every := limit.Rate.Steps()
	if room[0].foreign(limit) { // from now on it goes by this rate
		_, err := t.change(ctx, with.clock, string(c.Type), every.Milliseconds())
		return nil, every, err
	}
	if c.Max = room[0].most(c.Max, limit); c.Max == 0 {
		return nil, room[0].next(limit), nil
	}
	rows, err := r.inTurn(ctx, c, func(c job.Claiming, turn turn) ([]claimRow, error) {
		return r.engine.claimIn(ctx, t, c, turn)
	})
	if err != nil || len(rows) == 0 || limit.Rate.None() {
		return rows, 0, err
	}
	asked := processTime()
	if _, err := t.change(ctx, with.clock, string(c.Type), every.Milliseconds()); err != nil {
		return nil, 0, err
	}
	return rows, max(every-processTime().Sub(asked), time.Millisecond), nil
}
