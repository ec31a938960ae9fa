package dispatcher

import (
	"context"
	"errors"
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

// rescueBatch bounds one look at expired leases; the rescuer looks again at
// once while it finds full batches.
const rescueBatch = 500

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
	if err := d.moveOn(ctx, expired); err != nil {
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
	return d.ours(c) && d.running.has(c.Lease)
}

// clockSlack is by how much the end of a lease may miss the deadline that it was
// meant for: the one is the database's reckoning, the other ours.
const clockSlack = 100 * time.Millisecond

// ours reports whether this process claimed the job to run it.
func (d *Dispatcher) ours(c job.Claimed) bool { return c.WorkerID == d.WorkerID && !c.Remote }

// rescued decides what becomes of a job whose lease ran out.
func (d *Dispatcher) rescued(c job.Claimed) job.Decision {
	settings := d.settings(c.Type)
	if d.ours(c) && !d.running.hasLost(c.Lease) {
		// Claimed for us by a statement whose answer was lost: never started.
		return settings.Release(c, nil)
	}
	failure := &job.AttemptError{Code: lostCode, Detail: lostDetail, Unknown: true}
	if c.Remote && !c.LeaseEndsAt.Before(c.ExecutionDeadline().Add(-clockSlack)) { // no heartbeat could prolong it
		failure.Code, failure.Detail = timeoutCode, timeoutDetail
	}
	decision := settings.Fail(c, job.AttemptLost, failure)
	if _, known := d.Work[c.Type]; !known {
		leaveInDoubt(&decision, c)
	}
	return decision
}

// leaveInDoubt is for jobs of types that this process does not know, in the midst
// of an upgrade: what their type says of an unknown outcome, and what undoes them,
// others know. So the doubt is stored, for who claims the job next, or for an
// operator.
func leaveInDoubt(v *job.Decision, c job.Claimed) {
	if v.Requeue != nil {
		v.Requeue.UnknownAsks = max(1, c.UnknownAsks)
	}
	if v.Ending != nil {
		v.Ending.Outcome = job.OutcomeUnknown
	}
}

func (d *Dispatcher) settings(t job.Type) job.Settings {
	if w, ok := d.Work[t]; ok {
		return w.Settings
	}
	return d.Unknown
}

// moveOn applies what was decided about jobs whose leases ran out, if that is
// still so: a heartbeat that came in between wins, and a cancellation is left to
// the next round.
func (d *Dispatcher) moveOn(ctx context.Context, expired []job.Claimed) error {
	var endings []job.Ending
	var requeues []job.Requeue
	decided := make(map[job.ID]job.Decision, len(expired))
	for _, c := range expired {
		v := d.rescued(c)
		if v.Ending == nil {
			v.Requeue.IfExpired = true
			requeues = append(requeues, *v.Requeue)
		} else {
			v.Ending.IfExpired = true
			if err := d.follow(ctx, c, v.Ending); err != nil {
				return err
			}
			endings = append(endings, *v.Ending)
		}
		decided[c.ID] = v
	}
	ended, failed := d.finishAll(ctx, endings)
	requeued, err := d.requeueAll(ctx, requeues)
	for _, c := range expired { // also when one of the two failed: it will not be listed again
		if ended[c.ID] || requeued[c.ID] {
			d.reportRescue(ctx, c, verdict{Decision: decided[c.ID]})
		}
	}
	return errors.Join(wrap("end lost jobs", failed), wrap("requeue lost jobs", err))
}

func (d *Dispatcher) finishAll(ctx context.Context, endings []job.Ending) (map[job.ID]bool, error) {
	moved := map[job.ID]bool{}
	if len(endings) == 0 {
		return moved, nil
	}
	applied, err := d.Leases.Finish(ctx, endings)
	for i, is := range applied {
		moved[endings[i].Lease.ID] = is == job.Applied
	}
	return moved, err
}

func (d *Dispatcher) requeueAll(ctx context.Context, requeues []job.Requeue) (map[job.ID]bool, error) {
	moved := map[job.ID]bool{}
	if len(requeues) == 0 {
		return moved, nil
	}
	applied, err := d.Leases.Requeue(ctx, requeues)
	for i, is := range applied {
		moved[requeues[i].Lease.ID] = is == job.Applied
	}
	return moved, err
}

func (d *Dispatcher) reportRescue(ctx context.Context, c job.Claimed, v verdict) {
	d.Metrics.Rescued.Inc()
	d.count(c.Type, v.outcome(), max(0, c.LeaseEndsAt.Sub(c.ClaimedAt))) // at least as long
	d.moved(c, v.status())
	d.hurry(v.Decision)
	d.Log.LogAttrs(ctx, slog.LevelWarn, "job rescued",
		append(d.jobAttrs(c), slog.String(telemetry.StatusBefore, string(job.Processing)),
			slog.String(telemetry.StatusAfter, string(v.status())), slog.String(telemetry.Outcome, string(v.outcome())))...)
}
