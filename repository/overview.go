package repository

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

// waitingCounted bounds how many waiting jobs one overview counts.
const waitingCounted = 100_000

const (
	// runningSQL reads the index jobs_running, which is as long as the slots of all
	// processes.
	runningSQL = `
select id, tenant, key, type, attempt, worker_id, claimed_at, locked_until, busy
from (
  select id, tenant, key, type, attempt, worker_id, claimed_at, locked_until,
    row_number() over (partition by type order by slot, id) as place, count(*) over (partition by type) as busy
  from jobs
  where state = 'processing') as running
where place <= $1
order by type, place`

	// waitingSQL reads three indexes, each for what its jobs wait for, and stops
	// at the limit. The short ones come first.
	waitingSQL = `
select type, waits_for, count(*) as jobs
from (
  select type, 'holder' as waits_for from jobs where blocked
  union all
  select type, state as waits_for from jobs where state in ('scheduled', 'retrying') and not blocked
  union all
  select type, 'slot' as waits_for from jobs where state = 'pending' and not blocked
  limit $1) as waiting
group by type, waits_for`

	typeStatesSQL = `
select type, paused_at, next_at from type_state
where paused_at is not null or next_at is not null`

	workersSQL = `
select id, slots, types, seen_at from workers
where seen_at > $1
order by id`

	talliesSQL = `
select type, outcome, bucket, cast(sum(attempts) as bigint) as attempts, cast(sum(total_ms) as bigint) as total_ms
from attempt_tallies
where minute > $1
group by type, outcome, bucket
order by type, outcome, bucket`
)

// Overview implements job.Executors. Its parts are read one after the other.
func (r *Repository) Overview(ctx context.Context) (job.Overview, error) {
	return r.overview(ctx, waitingCounted)
}

// overview counts no more waiting jobs than that.
func (r *Repository) overview(ctx context.Context, counted int) (job.Overview, error) {
	o := job.Overview{Types: map[job.Type]*job.TypeOverview{}}
	readWaiting := func(ctx context.Context, o *job.Overview) error { return r.readWaiting(ctx, o, counted) }
	for _, read := range []func(context.Context, *job.Overview) error{
		r.readRunning, readWaiting, r.readTypeStates, r.readWorkers, r.readTallies,
	} {
		if err := read(ctx, &o); err != nil {
			return job.Overview{}, r.fail("read the overview", err)
		}
	}
	return o, nil
}

// typeIn returns the overview of the type.
func typeIn(o *job.Overview, t text) *job.TypeOverview {
	found, ok := o.Types[job.Type(t)]
	if !ok {
		found = &job.TypeOverview{}
		o.Types[job.Type(t)] = found
	}
	return found
}

type runningRow struct {
	ID          text   `db:"id"`
	Tenant      text   `db:"tenant"`
	Key         text   `db:"key"`
	Type        text   `db:"type"`
	Attempt     int    `db:"attempt"`
	WorkerID    text   `db:"worker_id"`
	ClaimedAt   moment `db:"claimed_at"`
	LockedUntil moment `db:"locked_until"`
	Busy        int    `db:"busy"`
}

func (r *Repository) readRunning(ctx context.Context, o *job.Overview) error {
	rows, err := collect[runningRow](ctx, r.engine.reads(), runningSQL, job.RunningListed)
	for _, row := range rows {
		t := typeIn(o, row.Type)
		t.Busy = row.Busy
		name, remote := workerOf(row.WorkerID)
		t.Running = append(t.Running, job.Running{
			ID: job.ID(row.ID), Tenant: idempotency.Tenant(row.Tenant), Key: idempotency.Key(row.Key), Type: job.Type(row.Type),
			Attempt: row.Attempt, WorkerID: name, Remote: remote, StartedAt: row.ClaimedAt.Time, LeaseEndsAt: row.LockedUntil.Time,
		})
	}
	return err
}

type waitsRow struct {
	Type     text `db:"type"`
	WaitsFor text `db:"waits_for"`
	Jobs     int  `db:"jobs"`
}

func (r *Repository) readWaiting(ctx context.Context, o *job.Overview, most int) error {
	rows, err := collect[waitsRow](ctx, r.engine.reads(), waitingSQL, most+1)
	counted := 0
	for _, row := range rows {
		counted += row.Jobs
		waiting := &typeIn(o, row.Type).Waiting
		switch row.WaitsFor {
		case "holder":
			waiting.Blocked = row.Jobs
		case "slot":
			waiting.Pending = row.Jobs
		case text(job.Scheduled):
			waiting.Scheduled = row.Jobs
		case text(job.Retrying):
			waiting.Retrying = row.Jobs
		}
	}
	o.Capped = counted > most
	return err
}

// readTypeStates does not bring types back that nothing else is known of: the clock
// of a rate stays when its type has gone from every configuration.
func (r *Repository) readTypeStates(ctx context.Context, o *job.Overview) error {
	rows, err := collect[struct {
		Type     text   `db:"type"`
		PausedAt moment `db:"paused_at"`
		NextAt   moment `db:"next_at"`
	}](ctx, r.engine.reads(), typeStatesSQL)
	for _, row := range rows {
		if _, known := o.Types[job.Type(row.Type)]; !known && row.PausedAt.IsZero() {
			continue
		}
		of := typeIn(o, row.Type)
		of.PausedAt, of.NextAt = row.PausedAt.Time, row.NextAt.Time
	}
	return err
}

type workerRow struct {
	ID     text   `db:"id"`
	Slots  int    `db:"slots"`
	Types  text   `db:"types"`
	SeenAt moment `db:"seen_at"`
}

func (w *workerRow) worker() (job.Worker, error) {
	worker := job.Worker{ID: string(w.ID), Slots: w.Slots, SeenAt: w.SeenAt.Time}
	if err := json.Unmarshal([]byte(w.Types), &worker.Types); err != nil {
		return job.Worker{}, fmt.Errorf("types of the worker %s: %w", w.ID, err)
	}
	return worker, nil
}

func (r *Repository) readWorkers(ctx context.Context, o *job.Overview) error {
	rows, err := collect[workerRow](ctx, r.engine.reads(), workersSQL, stamp(r.clock.Now().Add(-workersSeen)))
	if err != nil {
		return err
	}
	o.Workers, err = each(rows, (*workerRow).worker)
	return err
}

type tallyRow struct {
	Type     text  `db:"type"`
	Outcome  text  `db:"outcome"`
	Bucket   int   `db:"bucket"`
	Attempts int64 `db:"attempts"`
	TotalMS  int64 `db:"total_ms"`
}

func (r *Repository) readTallies(ctx context.Context, o *job.Overview) error {
	rows, err := collect[tallyRow](ctx, r.engine.reads(), talliesSQL, stamp(r.clock.Now().Add(-talliesShown)))
	all := map[text]*durations{}
	for _, row := range rows {
		if all[row.Type] == nil {
			all[row.Type] = newDurations()
		}
		all[row.Type].add(&typeIn(o, row.Type).Ended, row)
	}
	for t, d := range all {
		ended := &typeIn(o, t).Ended
		ended.Mean, ended.P95 = d.mean(), d.quantile(0.95)
	}
	return err
}

// durations are the times of attempts in buckets; the last bucket has no bound.
type durations struct {
	counts, totals []int64 // totals in milliseconds
}

func newDurations() *durations {
	buckets := len(job.TallyBuckets) + 1
	return &durations{counts: make([]int64, buckets), totals: make([]int64, buckets)}
}

// add counts the row. The times of released attempts say nothing of the work.
func (d *durations) add(ended *job.Ended, row tallyRow) {
	n := int(row.Attempts)
	switch job.Outcome(row.Outcome) {
	case job.AttemptSucceeded:
		ended.Succeeded += n
	case job.AttemptFailed:
		ended.Failed += n
	case job.AttemptLost:
		ended.Lost += n
	case job.AttemptCancelled:
		ended.Cancelled += n
	case job.AttemptReleased:
		ended.Released += n
		return
	}
	bucket := min(max(row.Bucket, 0), len(d.counts)-1)
	d.counts[bucket] += row.Attempts
	d.totals[bucket] += row.TotalMS
}

func (d *durations) mean() time.Duration {
	var count, total int64
	for bucket := range d.counts {
		count += d.counts[bucket]
		total += d.totals[bucket]
	}
	if count == 0 {
		return 0
	}
	return time.Duration(total) * time.Millisecond / time.Duration(count)
}

// quantile is the time within which the share of attempts ended, as if those of a
// bucket were spread over it evenly.
func (d *durations) quantile(share float64) time.Duration {
	var all, below int64
	for _, n := range d.counts {
		all += n
	}
	wanted := share * float64(all)
	for bucket, n := range d.counts {
		if n == 0 || float64(below+n) < wanted {
			below += n
			continue
		}
		low, high := d.bounds(bucket)
		return low + time.Duration((wanted-float64(below))/float64(n)*float64(high-low))
	}
	return 0
}

// bounds are those of the bucket; of the last one the mean of what is in it stands
// for its end.
func (d *durations) bounds(bucket int) (low, high time.Duration) {
	if bucket > 0 {
		low = job.TallyBuckets[bucket-1]
	}
	if bucket < len(job.TallyBuckets) {
		return low, job.TallyBuckets[bucket]
	}
	return low, max(low, time.Duration(d.totals[bucket])*time.Millisecond/time.Duration(d.counts[bucket]))
}
