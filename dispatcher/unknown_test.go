package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sekali/sekali/dispatcher"
	"github.com/sekali/sekali/executor"
	"github.com/sekali/sekali/job"
	"github.com/sekali/sekali/lock"
)

// unknown is the error of an attempt of which nobody knows what it did.
var unknown error = &job.AttemptError{Code: "connection", Detail: "no answer", Unknown: true}

// doubtful is the type t with a policy for unknown outcomes.
func doubtful(e executor.Executor, policy job.UnknownPolicy) map[job.Type]dispatcher.Work {
	return worked(e, func(s *job.Settings) { s.OnUnknown = policy })
}

func TestDispatcher_AnAttemptWithAnUnknownOutcomeIsLost(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		policy   job.UnknownPolicy
		attempts int // before this one
		status   job.Status
		outcome  string
		asks     int
	}{
		{job.UnknownRetry, 0, job.Retrying, "", 0},
		{job.UnknownRetry, 2, job.Failed, "", 0},
		{job.UnknownReconcile, 0, job.Retrying, "", 1},
		{job.UnknownReconcile, 2, job.Retrying, "", 1}, // not failed before it was asked
		{job.UnknownPark, 0, job.Failed, job.OutcomeUnknown, 0},
		{job.UnknownPark, 2, job.Failed, job.OutcomeUnknown, 0},
	} {
		t.Run(fmt.Sprint(tt.policy, " after ", tt.attempts), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := setup(t, doubtful(ends(fmt.Errorf("sent: %w", unknown)), tt.policy), nil,
					with("a", func(c *job.Claimed) { c.Attempts = tt.attempts }))
				if tt.status == job.Failed {
					e := w.only(t)
					if e.Status != job.Failed || e.Attempt != job.AttemptLost || e.Outcome != tt.outcome || e.Failure.Code != "connection" {
						t.Errorf("ending %+v", e)
					}
				} else if r := w.back(t); r.Status != job.Retrying || r.Attempt != job.AttemptLost || r.Uncounted || r.UnknownAsks != tt.asks || r.Failure.Code != "connection" {
					t.Errorf("requeue %+v", r)
				}
				w.end()
			})
		})
	}
}

// What did not commit did not happen.
func TestDispatcher_ATransactionHasNoUnknownOutcome(t *testing.T) {
	t.Parallel()
	for _, policy := range []job.UnknownPolicy{job.UnknownRetry, job.UnknownReconcile, job.UnknownPark} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				work := transactional(func(context.Context, job.Claimed) (executor.Done, error) { return executor.Done{}, unknown })
				one := work["t"]
				one.Settings.OnUnknown = policy
				work["t"] = one
				w := setup(t, work, nil, claimable("a", "t"))
				if r := w.back(t); r.Attempt != job.AttemptFailed || r.UnknownAsks != 0 || r.Uncounted {
					t.Errorf("requeue %+v", r)
				}
				w.end()
			})
		})
	}
}

// A stop in mid-request: the job goes back, and who claims it next asks first.
func TestDispatcher_AShutdownInMidRequestLeavesADoubt(t *testing.T) {
	t.Parallel()
	sent := func(error) error { return fmt.Errorf("sent: %w", unknown) }
	for policy, asks := range map[job.UnknownPolicy]int{job.UnknownRetry: 0, job.UnknownReconcile: 1} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := setup(t, doubtful(waits(sent), policy), nil, claimable("a", "t"))
				w.end()
				if r := w.back(t); r.Status != job.Pending || !r.Uncounted || r.Attempt != job.AttemptReleased || r.UnknownAsks != asks {
					t.Errorf("requeue %+v, want %d asks", r, asks)
				}
			})
		})
	}
	t.Run("park", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			w := setup(t, doubtful(waits(sent), job.UnknownPark), nil, claimable("a", "t"))
			w.end()
			if e := w.only(t); e.Status != job.Failed || e.Outcome != job.OutcomeUnknown || e.Attempt != job.AttemptLost {
				t.Errorf("ending %+v", e)
			}
		})
	})
}

// An executor that does not return may do anything yet.
func TestFailure_BR80_AnExecutorThatWasLeftBehindLeavesADoubt(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(*world){
		"timeout":   func(*world) {},
		"shutdown":  func(w *world) { w.stop() },
		"cancelled": func(w *world) { w.d.Cancel(first) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				forever := make(chan struct{})
				w := setup(t, doubtful(funcExecutor(func(context.Context, job.Claimed) (*job.Result, error) {
					<-forever
					return nil, nil
				}), job.UnknownPark), nil, with("a", func(c *job.Claimed) { c.Timeout = time.Minute }))
				stop(w)
				elapse(2 * time.Minute)
				want := job.Failed
				if name == "cancelled" {
					want = job.Cancelled
				}
				if e := w.only(t); e.Status != want || e.Outcome != job.OutcomeUnknown || e.Attempt != job.AttemptLost {
					t.Errorf("ending %+v", e)
				}
				close(forever)
				synctest.Wait()
				if e := w.only(t); e.Status != want { // and what it returns at last changes nothing
					t.Errorf("ending %+v", e)
				}
				w.end()
			})
		})
	}
}

// A job in doubt that could not even be asked about keeps its doubt.
func TestDispatcher_AJobThatIsPutOffKeepsItsDoubt(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*world){
		"lock held":       func(w *world) { w.locks.onAcquire = func(context.Context, int) error { return lock.ErrHeld } },
		"operation held":  func(w *world) { w.ops.answer = answers(job.OperationTaken{By: "other"}, nil) },
		"database failed": func(w *world) { w.ops.answer = answers(job.OperationTaken{}, job.ErrUnavailable) },
		"lock panics":     func(w *world) { w.locks.onAcquire = func(context.Context, int) error { panic("broken") } },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				e := &reconciler{}
				w := setup(t, locked(doubtful(e, job.UnknownReconcile), job.LockKey), change,
					with("a", func(c *job.Claimed) { c.UnknownAsks, c.OperationKey = 7, "op" }))
				if r := w.back(t); r.UnknownAsks < 7 || !r.Uncounted || r.Attempt != job.AttemptReleased {
					t.Errorf("requeue %+v", r)
				}
				if e.asked != 0 || e.executed != 0 {
					t.Errorf("asked %d times, executed %d times", e.asked, e.executed)
				}
				w.end()
			})
		})
	}
}

// An error that says "nobody knows" may also say when to ask.
func TestFailure_BR68_AnUnknownOutcomeWaitsAsLongAsItWasTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		later := &job.AttemptError{Code: "http-status", Unknown: true, After: 40 * time.Second, Err: errors.New("503")}
		w := setup(t, doubtful(ends(later), job.UnknownReconcile), nil, claimable("a", "t"))
		if r := w.back(t); r.In != 40*time.Second {
			t.Errorf("requeue %+v", r)
		}
		w.end()
	})
}
