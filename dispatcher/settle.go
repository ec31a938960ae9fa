package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/sekali/sekali/internal/telemetry"
	"github.com/sekali/sekali/job"
)

// verdict is what becomes of an attempt.
type verdict struct {
	job.Decision
	err error // for the log
}

// status is the job's status afterwards.
func (v verdict) status() job.Status {
	if v.Ending != nil {
		return v.Ending.Status
	}
	return v.Requeue.Status
}

func (v verdict) outcome() job.Outcome {
	if v.Ending != nil {
		return v.Ending.Attempt
	}
	return v.Requeue.Attempt
}

// call names the write for the metric of stale calls.
func (v verdict) call() string {
	if v.Ending != nil {
		return "finish"
	}
	return "requeue"
}

// settle writes what became of the attempt and tells everybody. The write is
// repeated until it is known to have worked or to be refused: finished work must
// not run again because the database was slow or away, and a lease that is over
// is still ours as long as nobody has taken the job. The heartbeat goes on
// meanwhile, because the attempt is still in the running set.
func (d *Dispatcher) settle(a *attempt, e ended) {
	for failures := 1; ; {
		v, ours := d.judge(a, e)
		if !ours {
			d.stale(a, "finish", e.err)
			return
		}
		if e.committed {
			v.Ending.Follow = e.follow
			d.report(a, v)
			return
		}
		applied, err := d.write(&v, a.Claimed)
		switch {
		case err != nil:
			if !d.pauseAfter(a, err, failures) {
				return
			}
			failures++
		case applied == job.Applied:
			d.report(a, v)
			return
		case applied == job.CancelPending:
			a.cancelAsked.Store(true) // and judge again, knowing it
		default:
			d.stale(a, v.call(), v.err)
			return
		}
	}
}

// judge decides, without writing anything.
func (d *Dispatcher) judge(a *attempt, e ended) (v verdict, ours bool) {
	cause := context.Cause(a.ctx)
	if e.err != nil && (errors.Is(e.err, job.ErrLeaseLost) || errors.Is(cause, job.ErrLeaseLost)) {
		return verdict{}, false
	}
	return verdict{Decision: d.decide(a, e, cause), err: e.err}, true
}

func (d *Dispatcher) decide(a *attempt, e ended, cause error) job.Decision {
	settings, c := a.work.Settings, a.asked()
	switch {
	case e.duplicate != nil:
		ending := settings.Duplicate(c, *e.duplicate)
		return job.Decision{Ending: &ending}
	case e.putOff:
		return settings.PutOff(c, putOffFor(c))
	case e.unknown && errors.Is(cause, job.ErrShutdown):
		return settings.Release(c, nil)
	case e.unknown:
		return settings.StillUnknown(c)
	case e.undone:
		decision, _ := settings.NotDone(c)
		return decision
	case e.err == nil:
		ending := d.success(a, e.done)
		return job.Decision{Ending: &ending}
	case e.untried:
		return d.untried(a, c, cause)
	}
	failure := attemptError(e.err, cause)
	switch {
	case errors.Is(cause, job.ErrShutdown) && !failure.Permanent:
		return settings.Release(c, failure)
	case errors.Is(cause, job.ErrLockLost) && !failure.Permanent:
		return settings.Fail(c, job.AttemptLost, failure)
	}
	return settings.Fail(c, job.AttemptFailed, failure)
}

// untried hands the job back, uncounted: it was not begun, or the database failed,
// which is no failure of the job. The pause grows, because the database may fail
// this one alone.
func (d *Dispatcher) untried(a *attempt, c job.Claimed, cause error) job.Decision {
	if errors.Is(cause, job.ErrShutdown) {
		return a.work.Settings.Release(c, nil)
	}
	return a.work.Settings.PutOff(c, failurePause(uncounted(c)))
}

// putOffBackoff is how long a job waits for what another one holds: its
// operation or its lock.
var putOffBackoff = job.Backoff{Base: time.Second, Cap: 15 * time.Second}

// putOffFor grows with the claims of the job that did not count.
func putOffFor(c job.Claimed) time.Duration {
	return putOffBackoff.Delay(uncounted(c), rand.Float64)
}

// uncounted is how many claims of the job did not count, with this one; no more
// than matters to a pause.
func uncounted(c job.Claimed) int {
	return int(max(1, min(c.Lease.Token-int64(c.Attempts)+1, 1000)))
}

// The public account of an attempt that took too long.
const (
	timeoutCode   = "timeout"
	timeoutDetail = "the attempt took longer than its timeout"
)

// attemptError gives every error of an attempt a code and a public text.
func attemptError(err, cause error) *job.AttemptError {
	var known *job.AttemptError
	if !errors.As(err, &known) {
		known = &job.AttemptError{Code: "error", Detail: "the executor returned an error", Err: err}
	}
	if known.Permanent {
		return known
	}
	for because, text := range map[error][2]string{
		job.ErrTimeout:  {timeoutCode, timeoutDetail},
		job.ErrLockLost: {"lock-lost", "somebody else took the lock of the job"},
	} {
		if errors.Is(cause, because) {
			return &job.AttemptError{Code: text[0], Detail: text[1], Unknown: known.Unknown, Err: err}
		}
	}
	return known
}

// write applies the verdict under the fencing token.
func (d *Dispatcher) write(v *verdict, c job.Claimed) (job.Application, error) {
	// Not the attempt's context: it may have ended, and the end must be written.
	return d.writeIn(d.base, v, c)
}

func (d *Dispatcher) writeIn(ctx context.Context, v *verdict, c job.Claimed) (job.Application, error) {
	if v.Ending == nil {
		return first(d.Leases.Requeue(ctx, []job.Requeue{*v.Requeue}))
	}
	if err := d.follow(ctx, c, v.Ending); err != nil {
		return job.Refused, err
	}
	return first(d.Leases.Finish(ctx, []job.Ending{*v.Ending}))
}

func first(applied []job.Application, err error) (job.Application, error) {
	if err != nil {
		return job.Refused, err
	}
	return applied[0], nil
}

// follow lets what follows the job's end come with it, in the same transaction.
func (d *Dispatcher) follow(ctx context.Context, c job.Claimed, e *job.Ending) error {
	j := ending(c.Job, *e)
	follows, compensated := d.settings(c.Type).Follows(j)
	if d.Following == nil || !follows {
		return nil
	}
	if compensated && c.Payload == nil { // it came from a list
		whole, err := d.Leases.Load(ctx, c.ID)
		if errors.Is(err, job.ErrNotFound) {
			return nil // it has ended: ours will be refused
		}
		if err != nil {
			return fmt.Errorf("read the payload of a failed job: %w", err)
		}
		j.Payload = whole.Payload
	}
	e.Follow = d.Following(j)
	return nil
}

// ending is the job as its end leaves it.
func ending(j job.Job, e job.Ending) job.Job {
	j.Status, j.Outcome, j.DuplicateOf, j.Result = e.Status, e.Outcome, e.DuplicateOf, e.Result
	j.Version++
	switch {
	case e.Status == job.Succeeded:
		j.LastError = nil
	case e.Failure != nil:
		j.LastError = e.Failure
	}
	return j
}

// pauseAfter reports an end that could not be written, and waits; false means
// that the process has given up.
func (d *Dispatcher) pauseAfter(a *attempt, err error, failures int) bool {
	d.loopFailed("settle")
	d.Log.LogAttrs(d.base, slog.LevelWarn, "attempt's end not written yet",
		append(d.jobAttrs(a.Claimed), slog.Any(telemetry.Error, err))...)
	timer := time.NewTimer(failurePause(failures))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-d.base.Done():
		return false
	}
}

// stale notes an attempt whose end was refused: somebody else holds the job.
func (d *Dispatcher) stale(a *attempt, call string, err error) {
	d.running.lose(a.Lease)
	d.Metrics.StaleCalls.WithLabelValues(call).Inc()
	d.note(a.Claimed, job.EventStaleRefused, map[string]any{"call": call})
	d.Log.LogAttrs(d.base, slog.LevelWarn, "lease lost; the attempt's end was not written",
		append(d.jobAttrs(a.Claimed), slog.Any(telemetry.Error, err))...)
}

// report wakes waiters and the loops that have something to do now, counts and
// writes the attempt's one log line.
func (d *Dispatcher) report(a *attempt, v verdict) {
	d.moved(a.Claimed, v.status())
	d.hurry(v.Decision)
	took := time.Since(a.started)
	d.count(a.Type, v.outcome(), took)
	d.Metrics.AttemptSeconds.WithLabelValues(string(a.Type)).Observe(took.Seconds())
	level := slog.LevelInfo
	attrs := append(d.jobAttrs(a.Claimed),
		slog.String(telemetry.StatusBefore, string(job.Processing)),
		slog.String(telemetry.StatusAfter, string(v.status())),
		slog.String(telemetry.Outcome, string(v.outcome())),
		telemetry.DurationAttr(took))
	if v.Ending != nil && v.Ending.Outcome == job.DuplicateIgnored {
		d.Metrics.DuplicatesIgnored.Inc()
	}
	if v.err != nil {
		level = slog.LevelWarn
		attrs = append(attrs, slog.Any(telemetry.Error, v.err))
	}
	if v.outcome() == job.AttemptReleased || v.status() == job.Cancelled {
		level = slog.LevelInfo // neither a shutdown nor a wish is a warning (BR-90)
	}
	d.Log.LogAttrs(d.base, level, "attempt ended", attrs...)
}

// hurry wakes the loops that a decision gives something to do.
func (d *Dispatcher) hurry(v job.Decision) {
	switch {
	case v.Requeue != nil && v.Requeue.Status == job.Retrying:
		d.promoteIn(v.Requeue.In)
	case v.Ending != nil:
		d.markFollowing(v.Ending.Follow)
	}
}

// markFollowing tells that what follows a job is there.
func (d *Dispatcher) markFollowing(follow []job.Submission) {
	for _, f := range follow {
		d.mark(f.Job.Type)
	}
}

// count counts an attempt that ended.
func (d *Dispatcher) count(t job.Type, outcome job.Outcome, took time.Duration) {
	d.Metrics.Attempts.WithLabelValues(d.Metrics.TypeLabel(string(t)), string(outcome)).Inc()
	d.tallies.add(t, outcome, took)
}
