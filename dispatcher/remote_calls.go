package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/sekali/sekali/executor"
	"github.com/sekali/sekali/internal/telemetry"
	"github.com/sekali/sekali/job"
)

// The calls of workers, as metrics and timelines name them.
const (
	callHeartbeat = "heartbeat"
	callComplete  = "complete"
	callFail      = "fail"
	callRelease   = "release"
)

// Heartbeat implements job.Workers. A lease is never prolonged beyond the attempt's
// deadline; when it has ended there, the job is taken from the worker.
func (r *Remote) Heartbeat(ctx context.Context, c job.WorkerCall) (job.WorkerBeat, error) {
	lease, x, err := r.find(ctx, c, callHeartbeat)
	if err != nil {
		return job.WorkerBeat{}, err
	}
	if !x.Runs(lease) {
		return job.WorkerBeat{}, r.stale(ctx, lease, x, callHeartbeat)
	}
	now := r.d.Clock.Now() // the lease counts from before the write, not from its answer
	beat := job.WorkerBeat{LeaseEndsAt: x.Job.LeaseEndsAt, CancelRequested: !x.Job.CancelRequestedAt.IsZero()}
	if length := min(r.d.settings(x.Job.Type).Lease, x.Job.ExecutionDeadline().Sub(now)); length > 0 {
		kept, err := r.d.Leases.Extend(ctx, []job.Lease{lease}, length)
		if err != nil {
			return job.WorkerBeat{}, fmt.Errorf("heartbeat: %w", err)
		}
		k, ours := kept[lease.ID]
		if !ours {
			return job.WorkerBeat{}, r.stale(ctx, lease, x, callHeartbeat)
		}
		beat.CancelRequested = k.CancelRequested
		if k.Extended { // else somebody is writing to the job just now
			beat.LeaseEndsAt = now.Add(length)
		}
	}
	beat.LeaseFor = max(0, beat.LeaseEndsAt.Sub(now))
	return beat, nil
}

// Complete implements job.Workers.
func (r *Remote) Complete(ctx context.Context, c job.WorkerCall, result *job.Result) (job.Job, error) {
	x, err := r.settle(ctx, c, callComplete, ended{done: executor.Done{Result: result}}, nil, job.AttemptSucceeded)
	if err != nil {
		return job.Job{}, err
	}
	if !x.HasResult(result) {
		return x.Job, job.ErrExecutionFinished
	}
	return x.Job, nil
}

// Fail implements job.Workers.
func (r *Remote) Fail(ctx context.Context, c job.WorkerCall, e *job.AttemptError) (job.Job, error) {
	x, err := r.settle(ctx, c, callFail, ended{err: e}, nil, job.AttemptFailed, job.AttemptCancelled)
	return x.Job, err
}

// errReleased is what an attempt ended with whose worker handed its job back.
var errReleased = errors.New("dispatcher: released by its worker")

// Release implements job.Workers. It ends an attempt as the end of a process ends
// those of its own executors.
func (r *Remote) Release(ctx context.Context, c job.WorkerCall) (job.Job, error) {
	x, err := r.settle(ctx, c, callRelease, ended{err: errReleased, untried: true}, job.ErrShutdown, job.AttemptReleased, job.AttemptCancelled)
	return x.Job, err
}

// settle ends the attempt of the call, if its lease still holds the job. Then, or if
// it had ended before, the call stands if the attempt has ended in one of the ways
// that it can lead to; else it came too late.
func (r *Remote) settle(ctx context.Context, c job.WorkerCall, call string, e ended, cause error, ways ...job.Outcome) (job.Execution, error) {
	lease, x, err := r.find(ctx, c, call)
	if err != nil {
		return job.Execution{}, err
	}
	if x.Runs(lease) {
		a := r.attempt(ctx, job.Claimed{Job: x.Job, Lease: lease})
		if cause != nil {
			a.cancel(cause)
		}
		if _, err := r.conclude(ctx, a, e); err != nil {
			return job.Execution{}, fmt.Errorf("%s: %w", call, err)
		}
		if x, err = r.read(ctx, c, lease); err != nil {
			return job.Execution{}, err
		}
	}
	// Once a later claim has the job, nothing about it is the caller's business.
	if !x.EndedAs(ways...) || x.Job.Token != lease.Token {
		return job.Execution{}, r.stale(ctx, lease, x, call)
	}
	return x, nil
}

// concludeTries is how often an attempt's end is decided: once, and once more with
// a cancellation that came in between.
const concludeTries = 3

// conclude writes what became of the attempt, and tells everybody. It reports false
// if the lease does not hold the job any more. Unlike those of our own executors,
// an end that cannot be written now is an error: who brought it brings it again.
func (r *Remote) conclude(ctx context.Context, a *attempt, e ended) (bool, error) {
	ctx = context.WithoutCancel(ctx)
	for range concludeTries {
		v := verdict{Decision: r.d.decide(a, e, context.Cause(a.ctx)), err: e.err}
		applied, err := r.d.writeIn(ctx, &v, a.Claimed)
		switch {
		case err != nil:
			return false, err
		case applied == job.Applied:
			r.d.report(a, v)
			return true, nil
		case applied != job.CancelPending:
			return false, nil
		}
		a.cancelAsked.Store(true)
	}
	return false, job.ErrUnavailable
}

// find reads the execution that the call is about.
func (r *Remote) find(ctx context.Context, c job.WorkerCall, call string) (job.Lease, job.Execution, error) {
	if err := r.readSecret(ctx); err != nil {
		return job.Lease{}, job.Execution{}, err
	}
	lease, genuine := r.lease(c)
	x, err := r.read(ctx, c, lease)
	if err != nil {
		return lease, x, err
	}
	if !genuine {
		lease.Token = 0 // it names no claim
		x.Ended = nil
		return lease, x, r.stale(ctx, lease, x, call)
	}
	return lease, x, nil
}

// read finds the job whatever has become of it. One of another tenant is none.
func (r *Remote) read(ctx context.Context, c job.WorkerCall, lease job.Lease) (job.Execution, error) {
	x, err := r.d.Executions.Execution(ctx, lease)
	switch {
	case errors.Is(err, job.ErrNotFound):
		return job.Execution{}, job.ErrExecutionNotFound
	case err != nil:
		return job.Execution{}, fmt.Errorf("read the execution: %w", err)
	case c.Tenant != "" && x.Job.Tenant != c.Tenant:
		return job.Execution{}, job.ErrExecutionNotFound
	}
	return x, nil
}

// stale counts a call whose lease does not hold the job, writes it down on the job's
// timeline, and returns the error that it gets.
func (r *Remote) stale(ctx context.Context, lease job.Lease, x job.Execution, call string) error {
	d := r.d
	d.Metrics.StaleCalls.WithLabelValues(call).Inc()
	c := job.Claimed{Job: x.Job, Lease: lease}
	c.Attempts, c.WorkerID = 0, ""
	if x.Ended != nil {
		c.Attempts, c.WorkerID = x.Ended.Number, x.Ended.WorkerID
	}
	if !r.stales.first(lease, call, time.Now()) {
		return job.ErrLeaseLost
	}
	name := job.EventStaleRefused
	if call == callHeartbeat {
		name = job.EventHeartbeatLost
	}
	d.noteOf(c, c.WorkerID, name, map[string]any{"call": call})
	d.Log.LogAttrs(ctx, slog.LevelWarn, "a worker's call about a lease that it does not hold was refused",
		append(d.jobAttrs(c), slog.String(telemetry.Call, call))...)
	return job.ErrLeaseLost
}

// staleCalls are the stale calls of late: of a worker that does not stop calling,
// one of each sort in a while is written down.
type staleCalls struct {
	mu    sync.Mutex
	calls map[staleCall]time.Time
}

type staleCall struct {
	lease job.Lease
	call  string
}

const (
	staleAgain = time.Minute
	staleMost  = 10_000 // are remembered
)

// first reports whether the call is to be written down.
func (s *staleCalls) first(l job.Lease, call string, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at, known := s.calls[staleCall{l, call}]; known && now.Sub(at) < staleAgain {
		return false
	}
	if s.calls == nil || len(s.calls) >= staleMost {
		s.calls = map[staleCall]time.Time{}
	}
	s.calls[staleCall{l, call}] = now
	return true
}
