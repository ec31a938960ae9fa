package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/sekali/sekali/executor"
	"github.com/sekali/sekali/internal/telemetry"
	"github.com/sekali/sekali/job"
)

// start takes a claimed job into the running set and works on it. asked is when
// the claim was asked for: the lease counts from then, not from its answer.
func (d *Dispatcher) start(c job.Claimed, asked time.Time) {
	a := &attempt{Claimed: c, work: d.Work[c.Type], started: time.Now()}
	a.ctx, a.cancel = context.WithCancelCause(d.base)
	if !d.Exclusive {
		lease := a.work.Settings.Lease
		trusted := time.Until(asked.Add(lease - trustMargin(lease)))
		if a.late = trusted <= 0; !a.late {
			a.trust = time.AfterFunc(trusted, a.distrust)
		}
	}
	d.running.add(a)
	d.Metrics.Running.WithLabelValues(string(c.Type)).Inc()
	d.begun(c)
	if c.Cancelling() {
		a.askCancel()
	}
	go d.run(a)
}

// begun tells everybody that the job was claimed.
func (d *Dispatcher) begun(c job.Claimed) {
	d.Waiters.Changed(c.ID, job.Version{Number: c.Version, Status: job.Processing})
	if d.Cache != nil {
		d.Cache.Put(c.Job)
	}
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
	d.giveLockBack(a) // only now: the end is written
}

// ended is how the execution of an attempt went.
type ended struct {
	done executor.Done
	err  error
	// committed says that the job was ended in the executor's transaction, and
	// follow what follows it since.
	committed bool
	follow    []job.Submission
	// untried says that the database failed, and nothing of the attempt is left.
	untried bool
	// putOff says that the job must wait for another one: for its operation or its
	// lock.
	putOff bool
	// duplicate is the job that has done the operation; nil: none has.
	duplicate *job.OperationTaken
	// unknown says that the doubt about an earlier attempt is left as it was, and
	// undone that nothing was done then.
	unknown, undone bool
}

// errLate is what an attempt ends with that was not begun, because the answer to its
// claim came when its lease was about to end.
var errLate = errors.New("dispatcher: the claim was answered too late")

// execute runs the executor and waits for it; if it does not return although
// its context has ended, it is left behind: what it still does is fenced off.
func (d *Dispatcher) execute(a *attempt) ended {
	if a.late {
		a.settling.Store(true)
		return ended{err: errLate, untried: true}
	}
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
		a.lock.Store(nil) // what goes on unseen keeps its lock until that runs out
		d.Metrics.AbandonedAttempts.Inc()
		d.Log.LogAttrs(a.ctx, slog.LevelWarn, "executor did not return after its context ended; left behind", d.jobAttrs(a.Claimed)...)
		return ended{err: abandoned(context.Cause(a.ctx)), unknown: a.inDoubt()}
	}
}

// abandoned is the error of an executor that did not return: what it did, and
// still does, nobody knows.
func abandoned(cause error) error {
	return &job.AttemptError{Code: "abandoned", Detail: "the executor did not return after it was told to stop", Unknown: true, Err: cause}
}

// call runs the executor and sends how it went, also when it panicked or ended
// its goroutine (BR-65).
func (d *Dispatcher) call(a *attempt, back chan<- ended) {
	var e ended
	returned := false
	defer func() {
		if !returned {
			e = ended{err: panicked(recover(), debug.Stack()), unknown: a.inDoubt()}
		}
		a.settling.Store(true)
		back <- e
	}()
	e = d.work(a)
	returned = true
}

func panicked(value any, stack []byte) error {
	if value == nil {
		return &job.AttemptError{Code: "panic", Detail: "the executor ended its goroutine", Err: errors.New("runtime.Goexit")}
	}
	return &job.AttemptError{Code: "panic", Detail: "the executor panicked", Err: fmt.Errorf("panic: %v\n%s", value, stack)}
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
