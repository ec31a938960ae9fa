package dispatcher

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/sekali/sekali/internal/telemetry"
	"github.com/sekali/sekali/job"
)

// A lost attempt's public account.
const (
	lostCode   = "lost"
	lostDetail = "the worker was lost: its lease ended before the attempt did"
)

func (d *Dispatcher) rescueEvery() time.Duration {
	shortest := time.Duration(0)
	for _, w := range d.Work {
		if shortest == 0 || w.Settings.Lease < shortest {
			shortest = w.Settings.Lease
		}
	}
	return shortest / 2
}

// rescue moves on jobs whose holder is not coming back.
func (d *Dispatcher) rescue(ctx context.Context) (time.Duration, error) {
	expired, err := d.Leases.Expired(ctx, d.WorkerID, rescueBatch)
	if err != nil {
		return 0, fmt.Errorf("list expired leases: %w", err)
	}
	found := len(expired)
	d.Metrics.RunningPastLease.Set(float64(found))
	expired = slices.DeleteFunc(expired, d.tended)
	var endings []job.Ending
	var requeues []job.Requeue
	for _, c := range expired {
		ending, requeue := d.rescued(c)
		if ending != nil {
			endings = append(endings, *ending)
		} else {
			requeues = append(requeues, *requeue)
		}
	}
	if err := d.apply(ctx, expired, endings, requeues); err != nil {
		return 0, err
	}
	d.Metrics.RunningPastLease.Set(float64(found - len(expired)))
	if found == rescueBatch {
		return time.Millisecond, nil
	}
	return 0, nil
}

// tended reports whether this process still works on the job, or on writing its
// end. It lost its lease while the database was away: unless somebody else takes
// the job first, the next heartbeat brings the lease back.
func (d *Dispatcher) tended(c job.Claimed) bool {
	return c.WorkerID == d.WorkerID && d.running.has(c.Lease)
}

// rescued decides what becomes of a job whose lease ran out.
func (d *Dispatcher) rescued(c job.Claimed) (*job.Ending, *job.Requeue) {
	settings := d.settings(c.Type)
	if c.WorkerID == d.WorkerID && !d.running.hasLost(c.Lease) {
		// Claimed for us by a statement whose answer was lost: never started.
		release := settings.Release(c)
		release.IfExpired = true
		return nil, &release
	}
	ending, requeue := settings.Fail(c, job.AttemptLost,
		job.Failure{Code: lostCode, Detail: lostDetail}, &job.AttemptError{Code: lostCode, Permanent: false})
	if ending != nil {
		ending.IfExpired = true
		return ending, nil
	}
	requeue.IfExpired = true
	return nil, requeue
}

func (d *Dispatcher) settings(t job.Type) job.Settings {
	if w, ok := d.Work[t]; ok {
		return w.Settings
	}
	return d.Unknown
}

func (d *Dispatcher) apply(ctx context.Context, expired []job.Claimed, endings []job.Ending, requeues []job.Requeue) error {
	moved := map[job.ID]job.Status{}
	if len(endings) > 0 {
		applied, err := d.Leases.Finish(ctx, endings)
		if err != nil {
			return fmt.Errorf("end lost jobs: %w", err)
		}
		for i, ok := range applied {
			if ok {
				moved[endings[i].Lease.ID] = endings[i].Status
			}
		}
	}
	if len(requeues) > 0 {
		applied, err := d.Leases.Requeue(ctx, requeues)
		if err != nil {
			return fmt.Errorf("requeue lost jobs: %w", err)
		}
		for i, ok := range applied {
			if ok {
				moved[requeues[i].Lease.ID] = requeues[i].Status
				d.promoteIn(requeues[i].In)
			}
		}
	}
	for _, c := range expired {
		if status, ok := moved[c.ID]; ok {
			d.reportRescue(ctx, c, status)
		}
	}
	return nil
}

func (d *Dispatcher) reportRescue(ctx context.Context, c job.Claimed, status job.Status) {
	d.Metrics.Rescued.Inc()
	d.Metrics.Attempts.WithLabelValues(d.Metrics.TypeLabel(string(c.Type)), string(job.AttemptLost)).Inc()
	d.Waiters.Changed(c.ID, job.Version{Number: c.Version + 1, Status: status})
	if status == job.Pending {
		d.ready.mark(c.Type)
	}
	d.Log.LogAttrs(ctx, slog.LevelWarn, "job rescued",
		append(d.jobAttrs(c), slog.String(telemetry.StatusBefore, string(job.Processing)),
			slog.String(telemetry.StatusAfter, string(status)), slog.String(telemetry.Outcome, string(job.AttemptLost)))...)
}
