package dispatcher

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/sekali/sekali/internal/telemetry"
	"github.com/sekali/sekali/job"
)

// verdict is what becomes of an attempt: one of ending and requeue is set,
// unless the job's end is written already or is not ours to write.
type verdict struct {
	ending  *job.Ending
	requeue *job.Requeue
	status  job.Status // the job's status afterwards
	outcome job.Outcome
	err     error // for the log
}

// call names the write for the metric of stale calls.
func (v verdict) call() string {
	if v.ending != nil {
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
	v, ours := d.judge(a, e)
	if !ours {
		d.stale(a, "finish", e.err)
		return
	}
	if !e.committed && !d.write(a, v) {
		return
	}
	d.report(a, v)
}

// judge decides, without writing anything.
func (d *Dispatcher) judge(a *attempt, e ended) (v verdict, ours bool) {
	if e.err == nil {
		ending := d.success(a, e.done)
		return verdict{ending: &ending, status: job.Succeeded, outcome: job.AttemptSucceeded}, true
	}
	cause := context.Cause(a.ctx)
	if errors.Is(e.err, job.ErrLeaseLost) || errors.Is(cause, job.ErrLeaseLost) {
		return verdict{}, false
	}
	failure := attemptError(e.err, cause)
	if e.untried || errors.Is(cause, job.ErrShutdown) && !failure.Permanent {
		return d.handBack(a, e), true
	}
	public := job.Failure{Code: failure.Code, Detail: failure.Detail}
	ending, requeue := a.work.Settings.Fail(a.Claimed, job.AttemptFailed, public, failure)
	v = verdict{ending: ending, requeue: requeue, status: job.Failed, outcome: job.AttemptFailed, err: e.err}
	if requeue != nil {
		v.status = requeue.Status
	}
	return v, true
}

// handBack releases the job uncounted: the process stops, or the database
// failed before the executor began, which is no failure of the job.
func (d *Dispatcher) handBack(a *attempt, e ended) verdict {
	release := a.work.Settings.Release(a.Claimed)
	if e.untried {
		release.Status, release.In = job.Retrying, failFirst
	}
	return verdict{requeue: &release, status: release.Status, outcome: job.AttemptReleased, err: e.err}
}

// attemptError gives every error of an attempt a code and a public text.
func attemptError(err, cause error) *job.AttemptError {
	if errors.Is(cause, job.ErrTimeout) && !isPermanent(err) {
		return &job.AttemptError{Code: "timeout", Detail: "the attempt took longer than its timeout", Err: err}
	}
	var known *job.AttemptError
	if errors.As(err, &known) {
		return known
	}
	if errors.Is(err, job.ErrUnavailable) || errors.Is(err, job.ErrOutcomeUnknown) {
		return &job.AttemptError{Code: "database", Detail: "the database could not be reached", Err: err}
	}
	return &job.AttemptError{Code: "error", Detail: "the executor returned an error", Err: err}
}

func isPermanent(err error) bool {
	var known *job.AttemptError
	return errors.As(err, &known) && known.Permanent
}

// write applies the verdict under the fencing token. It returns false if
// somebody else holds the job, or the process gave up before it could be written.
func (d *Dispatcher) write(a *attempt, v verdict) bool {
	for failures := 1; ; failures++ {
		applied, err := d.writeOnce(a, v)
		if err == nil && applied {
			return true
		}
		if err == nil {
			d.stale(a, v.call(), v.err)
			return false
		}
		d.loopFailed("settle")
		d.Log.LogAttrs(d.base, slog.LevelWarn, "attempt's end not written yet",
			append(d.jobAttrs(a.Claimed), slog.Any(telemetry.Error, err))...)
		timer := time.NewTimer(failurePause(failures))
		select {
		case <-timer.C:
		case <-d.base.Done():
			timer.Stop()
			return false
		}
	}
}

func (d *Dispatcher) writeOnce(a *attempt, v verdict) (bool, error) {
	// Not the attempt's context: it may have ended, and the end must be written.
	var applied []bool
	var err error
	if v.ending != nil {
		applied, err = d.Leases.Finish(d.base, []job.Ending{*v.ending})
	} else {
		applied, err = d.Leases.Requeue(d.base, []job.Requeue{*v.requeue})
	}
	return err == nil && applied[0], err
}

// stale notes an attempt whose end was refused: somebody else holds the job.
func (d *Dispatcher) stale(a *attempt, call string, err error) {
	d.running.lose(a.Lease)
	d.Metrics.StaleCalls.WithLabelValues(call).Inc()
	d.Log.LogAttrs(d.base, slog.LevelWarn, "lease lost; the attempt's end was not written",
		append(d.jobAttrs(a.Claimed), slog.Any(telemetry.Error, err))...)
}

// report wakes waiters and the loops that have something to do now, counts and
// writes the attempt's one log line.
func (d *Dispatcher) report(a *attempt, v verdict) {
	d.Waiters.Changed(a.ID, job.Version{Number: a.Version + 1, Status: v.status})
	if v.status == job.Pending {
		d.ready.mark(a.Type)
	}
	if v.status == job.Retrying {
		d.promoteIn(v.requeue.In)
	}
	took := time.Since(a.started)
	d.Metrics.Attempts.WithLabelValues(string(a.Type), string(v.outcome)).Inc()
	d.Metrics.AttemptSeconds.WithLabelValues(string(a.Type)).Observe(took.Seconds())
	level := slog.LevelInfo
	attrs := append(d.jobAttrs(a.Claimed),
		slog.String(telemetry.StatusBefore, string(job.Processing)),
		slog.String(telemetry.StatusAfter, string(v.status)),
		slog.String(telemetry.Outcome, string(v.outcome)),
		telemetry.DurationAttr(took))
	if v.ending != nil && v.ending.Outcome == job.DuplicateIgnored {
		d.Metrics.DuplicatesIgnored.Inc()
	}
	if v.err != nil {
		level = slog.LevelWarn
		attrs = append(attrs, slog.Any(telemetry.Error, v.err))
	}
	if v.outcome == job.AttemptReleased {
		level = slog.LevelInfo // a shutdown is no warning (BR-90)
	}
	d.Log.LogAttrs(d.base, level, "attempt ended", attrs...)
}
