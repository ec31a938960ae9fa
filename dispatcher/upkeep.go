package dispatcher

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/sekali/sekali/internal/telemetry"
	"github.com/sekali/sekali/job"
)

// Bounds of one step of the loops below; each steps again at once after a full
// batch.
const (
	promoteBatch = 1000
	unblockBatch = 200
	overdueBatch = 500
)

// promote makes due jobs claimable and sleeps until the next one is due.
func (d *Dispatcher) promote(ctx context.Context) (time.Duration, error) {
	types, next, err := d.Leases.Promote(ctx, promoteBatch)
	if err != nil {
		return 0, fmt.Errorf("promote: %w", err)
	}
	d.mark(types...)
	return next, nil
}

// promoteIn makes the promoter look again after a delay shorter than its
// interval, so that a short backoff does not wait for the next poll.
func (d *Dispatcher) promoteIn(delay time.Duration) {
	if delay >= d.PollInterval {
		return
	}
	select {
	case d.due <- struct{}{}:
	default:
	}
}

// watch wakes waiters whose jobs another process moved: one statement for all
// of them. It is the truth about them: notices only come sooner.
func (d *Dispatcher) watch(ctx context.Context) (time.Duration, error) {
	if rest := min(lookEvery, d.PollInterval/2) - time.Since(d.looked); rest > 0 {
		return rest, nil
	}
	d.looked = time.Now()
	ids := d.Waiters.IDs()
	if len(ids) == 0 {
		return 0, nil
	}
	versions, err := d.Versions.Versions(ctx, ids)
	if err != nil {
		return 0, fmt.Errorf("watch: %w", err)
	}
	for id, v := range versions {
		d.Waiters.Changed(id, v)
	}
	return 0, nil
}

// unblock lets the jobs go whose business key nobody holds any more. It is the
// truth about them: whoever ends a job only hurries it. It runs whatever the types
// say: a compensation waits for its business key in any case.
func (d *Dispatcher) unblock(ctx context.Context) (time.Duration, error) {
	types, err := d.Leases.Unblock(ctx, unblockBatch)
	if err != nil {
		return 0, fmt.Errorf("unblock: %w", err)
	}
	d.mark(types...)
	if len(types) > 0 {
		return time.Millisecond, nil // the next of the same key may wait already
	}
	return 0, nil
}

// freeBusinessKey hurries the unblocker: a job that held a business key may have
// ended.
func (d *Dispatcher) freeBusinessKey(j job.Job) {
	if j.BusinessKey == "" || !j.Status.Finished() || d.settings(j.Type).OnConflict != job.ConflictQueue {
		return
	}
	select {
	case d.freed <- struct{}{}:
	default:
	}
}

// expire fails the jobs that have not started by their deadline.
func (d *Dispatcher) expire(ctx context.Context) (time.Duration, error) {
	overdue, err := d.Leases.Overdue(ctx, overdueBatch)
	if err != nil || len(overdue) == 0 {
		return 0, wrap("list overdue jobs", err)
	}
	endings := make([]job.Ending, len(overdue))
	for i, c := range overdue {
		endings[i] = d.settings(c.Type).Expire(c)
		if err := d.follow(ctx, c, &endings[i]); err != nil {
			return 0, err
		}
	}
	ended, err := d.finishAll(ctx, endings)
	for i, c := range overdue { // also after an error: it may be about one of them
		if !ended[c.ID] {
			continue // claimed, cancelled or expired by somebody else meanwhile
		}
		before := c.Status
		d.moved(c, job.Failed)
		d.markFollowing(endings[i].Follow)
		d.Log.LogAttrs(ctx, slog.LevelWarn, "job expired before it started", append(d.jobAttrs(c),
			slog.String(telemetry.StatusBefore, string(before)), slog.String(telemetry.StatusAfter, string(job.Failed)))...)
	}
	if err == nil && len(overdue) == overdueBatch {
		return time.Millisecond, nil
	}
	return 0, wrap("end overdue jobs", err)
}

func wrap(doing string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// moved tells everybody that a job went on to a status, after the commit.
func (d *Dispatcher) moved(c job.Claimed, to job.Status) {
	j := c.Job
	j.Status = to
	j.Version++
	d.Waiters.Changed(j.ID, job.Version{Number: j.Version, Status: to})
	if d.Cache != nil {
		d.Cache.Put(j)
	}
	d.outgoing.moved(j)
	if to == job.Pending || c.Status == job.Processing && d.settings(c.Type).Limit.Concurrency > 0 {
		d.mark(j.Type) // a job of the type may start: this one, or one that its limit kept
	}
	d.freeBusinessKey(j)
}
