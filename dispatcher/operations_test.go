package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sekali/sekali/job"
)

// answers is what a taking finds, always.
func answers(taken job.OperationTaken, err error) func(int) (job.OperationTaken, error) {
	return func(int) (job.OperationTaken, error) { return taken, err }
}

// operating names an operation in a job.
func operating(c job.Claimed) job.Claimed {
	c.OperationKey = "invoice-7"
	return c
}

// The operation is taken after the lock, so that the two cannot wait for each
// other, and before the work; its end marks it done.
func TestOperations_AreTakenBeforeTheWorkAndDoneWithIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var notes *diary
		w := setup(t, locked(plain(func(context.Context, job.Claimed) (*job.Result, error) {
			notes.add("execute")
			return nil, nil
		}), job.LockKey), func(w *world) { notes = w.diary }, operating(claimable("a", "t")))
		want := []string{"cache processing", "acquire", "take", "execute", "finish succeeded", "cache succeeded", "release"}
		if got := w.diary.all(); !slices.Equal(got, want) {
			t.Errorf("order %v, want %v", got, want)
		}
		e := w.only(t)
		if e.Operation == nil || *e.Operation != (job.Operation{Tenant: "tenant", Type: "t", Key: "invoice-7"}) {
			t.Errorf("the end does not mark the operation done: %+v", e.Operation)
		}
		w.end()
	})
}

func TestOperations_AJobWithoutOneTakesNone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := setup(t, plain(succeeds), nil, claimable("a", "t"))
		if e := w.only(t); e.Operation != nil || w.ops.count() != 0 {
			t.Errorf("ending %+v, %d takings", e, w.ops.count())
		}
		w.end()
	})
}

// A job whose operation another one has done ends well, with that one's result
// and a link to it.
func TestOperations_WhatWasDoneIsNotDoneAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		result := &job.Result{Body: []byte(`7`)}
		ran := false
		w := setup(t, plain(func(context.Context, job.Claimed) (*job.Result, error) { ran = true; return nil, nil }),
			func(w *world) {
				w.ops.answer = answers(job.OperationTaken{Done: true, By: "first-key", Result: result}, nil)
			}, operating(claimable("a", "t")))
		e := w.only(t)
		if e.Status != job.Succeeded || e.Outcome != job.DuplicateIgnored || e.DuplicateOf != "first-key" || e.Result != result {
			t.Errorf("ending %+v", e)
		}
		if e.Operation != nil || e.Attempt != job.AttemptSucceeded || ran {
			t.Errorf("ending %+v, the executor ran: %v", e, ran)
		}
		if n := testutil.ToFloat64(w.metrics.DuplicatesIgnored); n != 1 {
			t.Errorf("%v duplicates counted", n)
		}
		w.end()
	})
}

// While another job does the operation, this one waits, for longer each time, and
// loses no attempt.
func TestOperations_ABusyOnePutsTheJobOffUncounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ran := 0
		w := setup(t, plain(func(context.Context, job.Claimed) (*job.Result, error) { ran++; return nil, nil }), func(w *world) {
			w.comeBack = true
			w.ops.answer = func(n int) (job.OperationTaken, error) {
				if n <= 5 {
					return job.OperationTaken{By: "busy-key"}, nil
				}
				return job.OperationTaken{Mine: true}, nil
			}
		}, operating(tried(2)))
		elapse(2 * time.Minute)
		backs := w.putOffs()
		if len(backs) != 5 || len(w.endings()) != 1 || w.endings()[0].Status != job.Succeeded || ran != 1 {
			t.Fatalf("endings %+v, requeues %+v, ran %d times", w.endings(), backs, ran)
		}
		for i, r := range backs {
			full := min(time.Second<<i, 15*time.Second)
			if r.Status != job.Retrying || !r.Uncounted || r.Attempt != job.AttemptReleased || r.Failure != nil || r.In < full/2 || r.In > full {
				t.Errorf("requeue %d: %+v, want a wait of %v", i, r, full)
			}
		}
		w.end()
		if got := w.log.named(job.EventOperationBusy); len(got) != 5 || got[0].Data["held_by"] != "busy-key" {
			t.Errorf("events %+v", w.log.all())
		}
	})
}

// A database that fails is no failure of the job, in its last attempt neither,
// and is not asked without pause.
func TestFailure_BR46_BR50_AFailingDatabaseCostsNoAttempt(t *testing.T) {
	t.Parallel()
	for _, err := range []error{job.ErrUnavailable, job.ErrOutcomeUnknown, errors.New("deadlock detected")} {
		t.Run(err.Error(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ran := 0
				w := setup(t, plain(func(context.Context, job.Claimed) (*job.Result, error) { ran++; return nil, nil }), func(w *world) {
					w.comeBack = true
					w.ops.answer = func(n int) (job.OperationTaken, error) {
						if n <= 8 {
							return job.OperationTaken{}, fmt.Errorf("take: %w", err)
						}
						return job.OperationTaken{Mine: true}, nil
					}
				}, operating(tried(2)))
				elapse(2 * time.Minute)
				backs := w.putOffs()
				if len(backs) != 8 || ran != 1 || len(w.endings()) != 1 || w.endings()[0].Status != job.Succeeded {
					t.Fatalf("endings %+v, requeues %+v, ran %d times", w.endings(), backs, ran)
				}
				for i, r := range backs {
					if r.Status != job.Retrying || !r.Uncounted || r.Attempt != job.AttemptReleased || r.Failure != nil {
						t.Errorf("requeue %+v", r)
					}
					if want := min(100*time.Millisecond<<i, 5*time.Second); r.In != want {
						t.Errorf("requeue %d waits for %v, want %v", i, r.In, want)
					}
				}
				w.end()
			})
		})
	}
}

// An attempt that was stopped while it took its operation does not begin: it has
// been settled by then, or will be.
func TestOperations_AnAttemptThatEndsMeanwhileDoesNotBegin(t *testing.T) {
	t.Parallel()
	for name, after := range map[string]time.Duration{"in time": time.Second / 2, "too late, and it was left behind": time.Minute} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var ran atomic.Bool
				w := setup(t, plain(func(context.Context, job.Claimed) (*job.Result, error) { ran.Store(true); return nil, nil }),
					func(w *world) {
						w.ops.answer = func(int) (job.OperationTaken, error) {
							pass(time.Second + after)
							return job.OperationTaken{Mine: true}, nil
						}
					}, operating(claimable("a", "t")))
				pass(time.Second)
				w.d.Cancel(first)
				elapse(2 * time.Minute)
				if e := w.only(t); e.Status != job.Cancelled || ran.Load() {
					t.Errorf("ending %+v; the executor was called: %v", e, ran.Load())
				}
				w.end()
			})
		})
	}
}

// A later attempt has the operation, so the lease is not ours any more.
func TestOperations_OneThatALaterAttemptHasEndsThisOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := setup(t, plain(succeeds), func(w *world) {
			w.ops.answer = answers(job.OperationTaken{}, fmt.Errorf("take: %w", job.ErrLeaseLost))
		}, operating(claimable("a", "t")))
		if ends, backs := w.endings(), w.putOffs(); len(ends)+len(backs) != 0 || w.d.Running() != 0 {
			t.Errorf("endings %+v, requeues %+v", ends, backs)
		}
		if n := testutil.ToFloat64(w.metrics.StaleCalls.WithLabelValues("finish")); n != 1 {
			t.Errorf("%v stale calls counted", n)
		}
		w.end()
	})
}
