package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sekali/sekali/dispatcher"
	"github.com/sekali/sekali/executor"
	"github.com/sekali/sekali/job"
	"github.com/sekali/sekali/lock"
)

var first = job.Lease{ID: "a", Token: 1}

// cancel asks to cancel the attempt as another process does: in the database.
func (w *world) cancel(l job.Lease) {
	w.change(func() { w.cancels[l] = true })
}

// tellings are the ways in which an attempt learns that it was cancelled.
var tellings = map[string]func(*world){
	"told by the heartbeat": func(w *world) { w.cancel(first) },
	"told in the process": func(w *world) {
		w.cancel(first)
		w.d.Cancel(first)
	},
}

// TestContract_Row102_ARunningJobIsCancelled: whatever the executor makes of it,
// the job is not tried again.
func TestContract_Row102_ARunningJobIsCancelled(t *testing.T) {
	t.Parallel()
	for name, after := range map[string]func(cause error) error{
		"heeds":           same,
		"an own error":    func(error) error { return errors.New("broke off") },
		"permanent":       func(error) error { return job.Permanent(errors.New("never")) },
		"to be retried":   func(error) error { return job.RetryAfter(errors.New("no"), time.Second) },
		"put off":         func(error) error { return job.Snooze(time.Second) },
		"panics":          func(error) error { panic("stopped") },
		"a clean context": func(error) error { return context.Canceled },
	} {
		for how, tell := range tellings {
			t.Run(name+", "+how, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					var cause atomic.Value
					w := setup(t, plain(waits(func(err error) error {
						cause.Store(err)
						return after(err)
					})), func(w *world) { w.comeBack = true }, claimable("a", "t"))
					tell(w)
					elapse(lease / 3) // one heartbeat
					if got, _ := cause.Load().(error); !errors.Is(got, job.ErrCancelled) {
						t.Fatalf("cause %v", got)
					}
					if e := w.only(t); e.Status != job.Cancelled || e.Attempt != job.AttemptCancelled || e.Outcome != "" || e.Keep != time.Hour {
						t.Errorf("ending %+v", e)
					}
					w.end()
				})
			})
		}
	}
}

func TestDispatcher_CancelIsToldAtOnceAndToThatAttemptAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := setup(t, plain(waits(same)), nil, claimable("a", "t"))
		w.d.Cancel(job.Lease{ID: "a", Token: 2})
		w.d.Cancel(job.Lease{ID: "b", Token: 1})
		synctest.Wait()
		if n := w.d.Running(); n != 1 {
			t.Fatal("somebody else's cancellation ended the attempt")
		}
		w.d.Cancel(first)
		synctest.Wait()
		if e := w.only(t); e.Status != job.Cancelled {
			t.Errorf("ending %+v", e)
		}
		w.end()
	})
}

// What was done although somebody wished it away is done.
func TestContract_Row102_WorkThatEndedAnywayHasSucceeded(t *testing.T) {
	t.Parallel()
	committing := func(w *world) { // for longer than it takes to tell
		w.onCommit = func(int) error {
			pass(lease)
			return nil
		}
	}
	writing := func(w *world) { w.onFinish = upTo(10, job.ErrUnavailable) }
	ran := 0
	for kind, tt := range map[string]struct {
		work   map[job.Type]dispatcher.Work
		change func(*world)
	}{
		"executor":            {plain(waits(func(error) error { return nil })), nil},
		"end not written yet": {plain(succeeds), writing},
		"commit on its way":   {transactional(writes(&ran, "")), committing},
	} {
		for how, tell := range tellings {
			t.Run(kind+", "+how, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := setup(t, tt.work, tt.change, claimable("a", "t"))
					tell(w)
					elapse(2 * lease)
					if e := w.only(t); e.Status != job.Succeeded || e.Attempt != job.AttemptSucceeded {
						t.Errorf("ending %+v", e)
					}
					w.end()
				})
			})
		}
	}
}

// TestContract_Row102_ACancellationThatTheHolderDidNotKnow stops its decision at
// the database: it decides again, and the job does not come back.
func TestContract_Row102_ACancellationThatTheHolderDidNotKnow(t *testing.T) {
	t.Parallel()
	busy := func(w *world) {
		w.locks.onAcquire = func(context.Context, int) error { return lock.ErrHeld }
	}
	asks := func(a executor.ReconcileAnswer) executor.Executor {
		return &reconciler{answer: func(int) (executor.Reconciliation, error) { return executor.Reconciliation{Answer: a}, nil }}
	}
	for name, tt := range map[string]struct {
		work    map[job.Type]dispatcher.Work
		change  func(*world)
		c       func(*job.Claimed)
		outcome string
	}{
		"another attempt":  {work: plain(ends(errors.New("no")))},
		"the last attempt": {work: plain(ends(errors.New("no"))), c: func(c *job.Claimed) { c.Attempts = 2 }},
		"permanent":        {work: plain(ends(job.Permanent(errors.New("never"))))},
		"snooze":           {work: plain(ends(job.Snooze(time.Hour)))},
		"lock held":        {work: locked(plain(succeeds), job.LockKey), change: busy},
		"lock held, in doubt": {
			work: locked(plain(succeeds), job.LockKey), change: busy,
			c: func(c *job.Claimed) { c.UnknownAsks = 3 }, outcome: job.OutcomeUnknown,
		},
		"operation held": {
			work: plain(succeeds), c: func(c *job.Claimed) { c.OperationKey = "op" },
			change: func(w *world) { w.ops.answer = answers(job.OperationTaken{By: "other"}, nil) },
		},
		"database failed": {
			work: plain(succeeds), c: func(c *job.Claimed) { c.OperationKey = "op" },
			change: func(w *world) { w.ops.answer = answers(job.OperationTaken{}, job.ErrUnavailable) },
		},
		"parked":        {work: doubtful(ends(unknown), job.UnknownPark), outcome: job.OutcomeUnknown},
		"to be asked":   {work: doubtful(ends(unknown), job.UnknownReconcile), outcome: job.OutcomeUnknown},
		"to be retried": {work: doubtful(ends(unknown), job.UnknownRetry)},
		"asked in vain": {
			work: doubtful(asks(executor.ReconcileUnknown), job.UnknownReconcile),
			c:    func(c *job.Claimed) { c.UnknownAsks = 1 }, outcome: job.OutcomeUnknown,
		},
		"asked for the last time": {
			work: doubtful(asks(executor.ReconcileUnknown), job.UnknownReconcile),
			c:    func(c *job.Claimed) { c.UnknownAsks = 20 }, outcome: job.OutcomeUnknown,
		},
		"not done, and no attempt left": {
			work: doubtful(asks(executor.ReconcileNotDone), job.UnknownReconcile),
			c:    func(c *job.Claimed) { c.UnknownAsks, c.Attempts = 1, 3 },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				one := claimable("a", "t")
				if tt.c != nil {
					tt.c(&one)
				}
				w := setup(t, tt.work, func(w *world) {
					w.cancels[first], w.untold = true, true // by no heartbeat yet
					if tt.change != nil {
						tt.change(w)
					}
				}, one)
				if e := w.only(t); e.Status != job.Cancelled || e.Outcome != tt.outcome {
					t.Errorf("ending %+v, want the outcome %q", e, tt.outcome)
				}
				for _, line := range w.diary.all() {
					if line == "cache retrying" || line == "cache failed" {
						t.Errorf("the cache was told of what was refused: %v", w.diary.all())
					}
				}
				w.end()
			})
		})
	}
}

func TestDispatcher_ACancellationDuringTheShutdown(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		executor funcExecutor
		while    func(*world) // between the start of the stop and its end
		stops    time.Duration
	}{
		"told while the work may still end": {
			waits(same), func(w *world) { w.d.Cancel(first) }, 0,
		},
		"told by a heartbeat while the work may still end": {
			waits(same), func(w *world) { w.cancel(first); elapse(4 * time.Second) }, 4 * time.Second,
		},
		"not told before the hand-back": {
			waits(func(err error) error { pass(500 * time.Millisecond); return err }),
			func(w *world) { elapse(5*time.Second + 100*time.Millisecond); w.cancel(first) }, 5500 * time.Millisecond,
		},
		"told after the work was stopped": {
			waits(func(err error) error { pass(500 * time.Millisecond); return err }),
			func(w *world) { elapse(5*time.Second + 100*time.Millisecond); w.d.Cancel(first) }, 5500 * time.Millisecond,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := setup(t, plain(tt.executor), func(w *world) { w.cfg.Heartbeat = time.Second }, claimable("a", "t"))
				started := time.Now()
				w.stop()
				synctest.Wait()
				tt.while(w)
				if _, err := w.end(); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(started); took > tt.stops {
					t.Errorf("stopped after %v, want %v", took, tt.stops)
				}
				if e := w.only(t); e.Status != job.Cancelled || e.Attempt != job.AttemptCancelled {
					t.Errorf("ending %+v", e)
				}
			})
		})
	}
}

// Nobody knows what a cancelled attempt did that left a doubt behind; a receiver
// that recognises repetitions has been told nothing twice.
func TestDispatcher_ACancelledAttemptMayLeaveADoubt(t *testing.T) {
	t.Parallel()
	for policy, outcome := range map[job.UnknownPolicy]string{
		job.UnknownRetry: "", job.UnknownReconcile: job.OutcomeUnknown, job.UnknownPark: job.OutcomeUnknown,
	} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := setup(t, doubtful(waits(func(error) error { return fmt.Errorf("sent: %w", unknown) }), policy), nil, claimable("a", "t"))
				w.d.Cancel(first)
				synctest.Wait()
				if e := w.only(t); e.Status != job.Cancelled || e.Attempt != job.AttemptLost || e.Outcome != outcome {
					t.Errorf("ending %+v, want the outcome %q", e, outcome)
				}
				w.end()
			})
		})
	}
}
