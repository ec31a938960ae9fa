package dispatcher

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/sekali/sekali/executor"
	"github.com/sekali/sekali/internal/telemetry"
	"github.com/sekali/sekali/job"
)

// start takes a claimed job into the running set and works on it.
func (d *Dispatcher) start(c job.Claimed) {
	a := &attempt{Claimed: c, work: d.Work[c.Type], started: time.Now()}
	a.ctx, a.cancel = context.WithCancelCause(d.base)
	if !d.Exclusive {
		lease := a.work.Settings.Lease
		a.trust = time.AfterFunc(lease-trustMargin(lease), a.distrust)
	}
	d.running.add(a)
	d.Metrics.Running.WithLabelValues(string(c.Type)).Inc()
	d.Waiters.Changed(c.ID, job.Version{Number: c.Version, Status: job.Processing})
	go d.run(a)
}

// run executes and settles one attempt, and frees its slot.
func (d *Dispatcher) run(a *attempt) {
	defer d.ready.wake()
	defer d.running.remove(a)
	defer d.Metrics.Running.WithLabelValues(string(a.Type)).Dec()
	if a.trust != nil {
		defer a.trust.Stop()
	}
	defer a.cancel(nil)
	timeout := time.AfterFunc(a.Timeout, func() { a.cancel(job.ErrTimeout) })
	defer timeout.Stop()

	result := d.execute(a)
	timeout.Stop()
	d.settle(a, result)
}

// ended is how the execution of an attempt went.
type ended struct {
	done executor.Done
	err  error
	// committed says that the job was ended in the executor's transaction.
	committed bool
	// untried says that the database failed before the executor began.
	untried bool
}

// execute runs the executor and waits for it; if it does not return although
// its context has ended, it is left behind: what it still does is fenced off.
func (d *Dispatcher) execute(a *attempt) ended {
	back := make(chan ended, 1)
	go d.call(a, back)
	select {
	case e := <-back:
		return e
	case <-a.ctx.Done():
	}
	timer := time.NewTimer(abandonAfter)
	defer timer.Stop()
	select {
	case e := <-back:
		return e
	case <-timer.C:
		d.Metrics.AbandonedAttempts.Inc()
		d.Log.LogAttrs(a.ctx, slog.LevelWarn, "executor did not return after its context ended; left behind", d.jobAttrs(a.Claimed)...)
		return ended{err: context.Cause(a.ctx)}
	}
}

// call runs the executor and sends how it went, also when it panicked or ended
// its goroutine (BR-65).
func (d *Dispatcher) call(a *attempt, back chan<- ended) {
	var e ended
	returned := false
	defer func() {
		if !returned {
			e = ended{err: panicked(recover(), debug.Stack())}
		}
		a.settling.Store(true)
		back <- e
	}()
	if a.work.ExecuteTx != nil {
		e = d.executeTx(a)
	} else {
		e.done.Result, e.err = a.work.Execute.Execute(a.ctx, a.Claimed)
	}
	returned = true
}

func panicked(value any, stack []byte) error {
	if value == nil {
		return &job.AttemptError{Code: "panic", Detail: "the executor ended its goroutine", Err: errors.New("runtime.Goexit")}
	}
	return &job.AttemptError{Code: "panic", Detail: "the executor panicked", Err: fmt.Errorf("panic: %v\n%s", value, stack)}
}

// executeTx runs a transactional executor; the job's end is part of its commit.
func (d *Dispatcher) executeTx(a *attempt) ended {
	var e ended
	e.untried = true
	e.err = d.Leases.FinishTx(a.ctx, a.Lease, func(ctx context.Context, tx *sql.Tx) (job.Ending, error) {
		e.untried = false
		done, err := a.work.ExecuteTx.ExecuteTx(ctx, tx, a.Claimed)
		if err != nil {
			return job.Ending{}, err
		}
		e.done = done
		a.settling.Store(true)
		return d.success(a, done), nil
	})
	e.committed = e.err == nil
	return e
}

func (d *Dispatcher) success(a *attempt, done executor.Done) job.Ending {
	ending := a.work.Settings.Succeed(a.Claimed, done.Result)
	ending.Outcome = done.Outcome
	return ending
}

// jobAttrs are the log attributes that name a claimed job everywhere.
func (d *Dispatcher) jobAttrs(c job.Claimed) []slog.Attr {
	return []slog.Attr{
		d.Keys.Attr(string(c.Key)),
		slog.String(telemetry.ExternalJobID, string(c.ID)),
		d.Keys.BusinessAttr(c.BusinessKey),
		slog.String(telemetry.Type, string(c.Type)),
		slog.Int(telemetry.Attempt, c.Attempts),
		slog.String(telemetry.WorkerID, c.WorkerID),
	}
}
