package repository

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sekali/sekali/job"
)

var _ job.Executors = (*Repository)(nil)

const (
	// workersSeen is for how long a process that says nothing is shown: several
	// of its reports.
	workersSeen = time.Minute
	// workersKept is how long its row stays, for whoever looks into the table.
	workersKept = 10 * time.Minute
	// talliesShown is the window of the overview, and talliesKept how long tallies
	// stay, for whoever looks into the table.
	talliesShown = time.Hour
	talliesKept  = 24 * time.Hour
)

const (
	reportSQL = `
insert into workers (id, slots, types, seen_at)
values ($1, $2, $3, now())
on conflict (id) do update set slots = excluded.slots, types = excluded.types, seen_at = excluded.seen_at`

	tallySQL = `
insert into attempt_tallies (type, minute, outcome, bucket, attempts, total_ms)
values ($1, $2, $3, $4, $5, $6)
on conflict (type, minute, outcome, bucket) do update
set attempts = attempt_tallies.attempts + excluded.attempts, total_ms = attempt_tallies.total_ms + excluded.total_ms`

	leaveSQL = `
delete from workers
where id = $1`

	pauseSQL = `
insert into type_state (type, paused_at)
values ($1, now())
on conflict (type) do update set paused_at = coalesce(type_state.paused_at, excluded.paused_at)`

	resumeSQL = `
update type_state
set paused_at = null
where type = $1`
)

// Report implements job.Executors. Tallies are added in one order, so that two
// processes wait for each other in one direction. A report whose commit was not
// answered is not repeated: it would count twice.
func (r *Repository) Report(ctx context.Context, w job.Worker, done []job.Tally) error {
	types, err := json.Marshal(append([]job.Type{}, w.Types...))
	if err != nil {
		return r.fail("report", err)
	}
	minute := stamp(r.clock.Now().Truncate(time.Minute))
	ctx = context.WithoutCancel(ctx)
	err = again(ctx, r.engine, func(ctx context.Context) error {
		return r.engine.clientTx(ctx, []string{reportSQL, tallySQL}, func(ctx context.Context, t transaction) error {
			if _, err := t.change(ctx, reportSQL, w.ID, w.Slots, string(types)); err != nil {
				return err
			}
			for _, tally := range slices.SortedFunc(slices.Values(done), compareTallies) {
				_, err := t.change(ctx, tallySQL, string(tally.Type), minute, string(tally.Outcome), tally.Bucket,
					tally.Count, tally.Total.Milliseconds())
				if err != nil {
					return err
				}
			}
			return nil
		})
	})
	if errors.Is(err, errCommitLost) {
		err = fmt.Errorf("%w: %w", job.ErrOutcomeUnknown, err)
	}
	return r.fail("report", err)
}

func compareTallies(a, b job.Tally) int {
	return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.Outcome, b.Outcome), cmp.Compare(a.Bucket, b.Bucket))
}

// Leave implements job.Executors.
func (r *Repository) Leave(ctx context.Context, workerID string) error {
	_, _, err := r.execute(ctx, "leave", leaveSQL, workerID)
	return err
}

// Pause implements job.Executors. A type that is paused stays so since then.
func (r *Repository) Pause(ctx context.Context, t job.Type) error {
	if !storable(string(t)) {
		return fmt.Errorf("repository: pause: %w", job.ErrUnknownType)
	}
	_, _, err := r.execute(ctx, "pause", pauseSQL, string(t))
	return err
}

// Resume implements job.Executors.
func (r *Repository) Resume(ctx context.Context, t job.Type) error {
	if !storable(string(t)) {
		return nil // it was never paused
	}
	_, _, err := r.execute(ctx, "resume", resumeSQL, string(t))
	return err
}

// The reaper takes away what the overview does not show any more.
const (
	forgetWorkersSQL = `
delete from workers
where id in (
  select id from workers
  where seen_at < $1
  limit $2)`

	forgetTalliesSQL = `
delete from attempt_tallies
where (type, minute, outcome, bucket) in (
  select type, minute, outcome, bucket from attempt_tallies
  where minute < $1
  order by minute
  limit $2)`
)

// forget deletes old workers and tallies. Reapers that do so at once find the
// same rows in the same order.
func (r *Repository) forget(ctx context.Context, limit int) error {
	now := r.clock.Now()
	if _, err := r.engine.exec(ctx, forgetWorkersSQL, stamp(now.Add(-workersKept)), limit); err != nil {
		return err
	}
	_, err := r.engine.exec(ctx, forgetTalliesSQL, stamp(now.Add(-talliesKept)), limit)
	return err
}
