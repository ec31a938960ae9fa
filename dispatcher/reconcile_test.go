package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sekali/sekali/executor"
	"github.com/sekali/sekali/job"
)

// reconciler is an executor that can be asked. Its hooks count their calls from 1;
// nil: it does not know, and it succeeds.
type reconciler struct {
	answer  func(n int) (executor.Reconciliation, error)
	ask     func(ctx context.Context) (executor.Reconciliation, error) // in the place of answer
	execute func(n int) error

	mu              sync.Mutex
	asked, executed int
	claims          []job.Claimed // of the executions
}

func (r *reconciler) Reconcile(ctx context.Context, _ job.Claimed) (executor.Reconciliation, error) {
	r.mu.Lock()
	r.asked++
	n := r.asked
	r.mu.Unlock()
	switch {
	case r.ask != nil:
		return r.ask(ctx)
	case r.answer != nil:
		return r.answer(n)
	}
	return executor.Reconciliation{}, errors.New("no answer")
}

func (r *reconciler) Execute(_ context.Context, c job.Claimed) (*job.Result, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.executed++
	r.claims = append(r.claims, c)
	return nil, call(r.execute, r.executed)
}

func answered(a executor.ReconcileAnswer, r *job.Result) func(int) (executor.Reconciliation, error) {
	return func(int) (executor.Reconciliation, error) { return executor.Reconciliation{Answer: a, Result: r}, nil }
}

// inDoubt is a job of which nobody knows what its first attempt did.
func inDoubt(asks int) job.Claimed {
	return with("a", func(c *job.Claimed) {
		c.Attempts, c.UnknownAsks = 1, asks
		c.LastError = &job.Failure{Code: "connection", Detail: "no answer", Attempt: 1}
	})
}

func TestReconcile_DoneEndsTheJobWithoutRepeatingIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		result := &job.Result{Body: []byte(`"done"`), MediaType: "application/json"}
		e := &reconciler{answer: answered(executor.ReconcileDone, result)}
		w := setup(t, doubtful(e, job.UnknownReconcile), nil, inDoubt(1))
		if end := w.only(t); end.Status != job.Succeeded || end.Result != result || e.executed != 0 || e.asked != 1 {
			t.Errorf("ending %+v; asked %d times, executed %d times", end, e.asked, e.executed)
		}
		if n := testutil.ToFloat64(w.metrics.Reconciled.WithLabelValues("done")); n != 1 {
			t.Errorf("metric %v", n)
		}
		w.end()
		if got := w.log.named(job.EventReconciled); len(got) != 1 || got[0].Data["answer"] != "done" || got[0].JobID != "a" {
			t.Errorf("events %+v", w.log.all())
		}
	})
}

// Not done: the work runs in the same attempt, and the doubt is over, whatever
// comes of that.
func TestReconcile_NotDoneRunsTheWorkInTheSameAttempt(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		err  error
		asks int
	}{
		"succeeds":              {nil, 0},
		"fails":                 {errors.New("no"), 0},
		"is put off":            {job.Snooze(time.Minute), 0},
		"leaves another doubt":  {unknown, 1},
		"is to be retried soon": {job.RetryAfter(errors.New("no"), time.Second), 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				e := &reconciler{answer: answered(executor.ReconcileNotDone, nil), execute: always(tt.err)}
				w := setup(t, doubtful(e, job.UnknownReconcile), nil, inDoubt(5))
				if e.asked != 1 || e.executed != 1 || w.claims == 0 || e.claims[0].Lease != first {
					t.Fatalf("asked %d times, executed %d times under %+v", e.asked, e.executed, e.claims)
				}
				if tt.err == nil {
					if end := w.only(t); end.Status != job.Succeeded {
						t.Errorf("ending %+v", end)
					}
				} else if r := w.back(t); r.UnknownAsks != tt.asks {
					t.Errorf("requeue %+v, want %d asks", r, tt.asks)
				}
				w.end()
			})
		})
	}
}

// The doubt is over once the answer was "not done", also if the process then
// stops before the work could be repeated.
func TestReconcile_NotDoneIsRememberedByAShutdown(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		after func(error) error
		asks  int
	}{
		"nothing sent": {same, 0},
		"sent":         {func(error) error { return unknown }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				e := &struct {
					asks
					funcExecutor
				}{asks(answered(executor.ReconcileNotDone, nil)), waits(tt.after)}
				w := setup(t, doubtful(e, job.UnknownReconcile), nil, inDoubt(5))
				w.end()
				if r := w.back(t); r.UnknownAsks != tt.asks || r.Status != job.Pending || !r.Uncounted {
					t.Errorf("requeue %+v, want %d asks", r, tt.asks)
				}
			})
		})
	}
}

// asks is the part of an executor that can be asked.
type asks func(int) (executor.Reconciliation, error)

func (a asks) Reconcile(context.Context, job.Claimed) (executor.Reconciliation, error) { return a(1) }

// Not done, and no attempt is left: the attempt that asked was one too many.
func TestReconcile_NotDoneWithoutAnAttemptLeftFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := &reconciler{answer: answered(executor.ReconcileNotDone, nil)}
		w := setup(t, doubtful(e, job.UnknownReconcile), nil, with("a", func(c *job.Claimed) {
			*c = inDoubt(2)
			c.Attempts = 3
		}))
		if end := w.only(t); end.Status != job.Failed || end.Outcome != "" || end.Failure.Code != "connection" || e.executed != 0 {
			t.Errorf("ending %+v; executed %d times", end, e.executed)
		}
		w.end()
	})
}

// The attempts are counted as they are made: the last one may be repeated if
// another is left.
func TestReconcile_NotDoneAfterTheLastButOneAttemptRunsTheLast(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := &reconciler{answer: answered(executor.ReconcileNotDone, nil), execute: always(errors.New("no"))}
		w := setup(t, doubtful(e, job.UnknownReconcile), nil, with("a", func(c *job.Claimed) {
			*c = inDoubt(1)
			c.Attempts = 2
		}))
		if end := w.only(t); end.Status != job.Failed || end.Failure.Code != "error" || end.Failure.Attempt != 3 || e.executed != 1 {
			t.Errorf("ending %+v; executed %d times", end, e.executed)
		}
		w.end()
	})
}

// TestReconcile_IsAskedTwentyTimesAtMost: without an answer the job is not tried
// again, uses up no attempt, and is parked at last.
func TestReconcile_IsAskedTwentyTimesAtMost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := &reconciler{execute: always(unknown)}
		w := setup(t, doubtful(e, job.UnknownReconcile), func(w *world) { w.comeBack = true }, claimable("a", "t"))
		elapse(30 * time.Minute)
		backs, ends := w.putOffs(), w.endings()
		if e.executed != 1 || e.asked != 20 {
			t.Fatalf("executed %d times, asked %d times", e.executed, e.asked)
		}
		if len(backs) != 20 || backs[0].Uncounted || backs[0].Attempt != job.AttemptLost {
			t.Fatalf("%d requeues, first %+v", len(backs), backs[0])
		}
		for i, r := range backs[1:] {
			if !r.Uncounted || r.Attempt != job.AttemptReleased || r.Status != job.Retrying || r.UnknownAsks != i+2 {
				t.Errorf("after %d asks: %+v", i+1, r)
			}
			if full := min(time.Second<<i, time.Minute); r.In < full/2 || r.In > full {
				t.Errorf("after %d asks it waits for %v, want up to %v", i+1, r.In, full)
			}
		}
		if len(ends) != 1 || ends[0].Status != job.Failed || ends[0].Outcome != job.OutcomeUnknown || ends[0].Failure.Code != "connection" {
			t.Errorf("endings %+v", ends)
		}
		if n := testutil.ToFloat64(w.metrics.Reconciled.WithLabelValues("unknown")); n != 20 {
			t.Errorf("metric %v", n)
		}
		w.end()
		if got := w.log.named(job.EventReconciled); len(got) != 20 {
			t.Errorf("%d events", len(got))
		}
	})
}

// An asking that was cut off is no answer.
func TestReconcile_CutOffKeepsTheDoubt(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		stop func(*world)
		ask  func(ctx context.Context) (executor.Reconciliation, error)
		want func(r job.Requeue) bool
	}{
		"shutdown": {
			func(w *world) { w.stop() }, nil,
			func(r job.Requeue) bool { return r.Status == job.Pending && r.Uncounted && r.UnknownAsks == 3 },
		},
		"shutdown, with an answer that came too late": {
			func(w *world) { w.stop() },
			func(ctx context.Context) (executor.Reconciliation, error) {
				<-ctx.Done()
				return executor.Reconciliation{Answer: executor.ReconcileNotDone}, nil
			},
			func(r job.Requeue) bool { return r.Status == job.Pending && r.Uncounted && r.UnknownAsks == 3 },
		},
		"timeout": {
			func(*world) {}, nil,
			func(r job.Requeue) bool { return r.Status == job.Retrying && r.Uncounted && r.UnknownAsks == 4 },
		},
		"it does not return": {
			func(*world) {},
			func(context.Context) (executor.Reconciliation, error) {
				pass(15 * time.Minute)
				return executor.Reconciliation{}, nil
			},
			func(r job.Requeue) bool { return r.Status == job.Retrying && r.Uncounted && r.UnknownAsks == 4 },
		},
		"it panics": {
			func(*world) {},
			func(context.Context) (executor.Reconciliation, error) { panic("broken") },
			func(r job.Requeue) bool { return r.Status == job.Retrying && r.Uncounted && r.UnknownAsks == 4 },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				e := &reconciler{ask: tt.ask}
				if e.ask == nil {
					e.ask = func(ctx context.Context) (executor.Reconciliation, error) {
						<-ctx.Done()
						return executor.Reconciliation{}, fmt.Errorf("cut off: %w", context.Cause(ctx))
					}
				}
				w := setup(t, doubtful(e, job.UnknownReconcile), nil, inDoubt(3))
				tt.stop(w)
				elapse(10 * time.Minute)
				if r := w.back(t); !tt.want(r) {
					t.Errorf("requeue %+v", r)
				}
				if e.executed != 0 {
					t.Error("repeated without an answer")
				}
				elapse(10 * time.Minute) // whoever was left behind comes back
				w.back(t)
				if name == "timeout" || name == "it panics" {
					w.end()
				}
			})
		})
	}
}

func TestReconcile_WithoutALeaseNothingIsWritten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := &reconciler{ask: func(ctx context.Context) (executor.Reconciliation, error) {
			<-ctx.Done()
			return executor.Reconciliation{}, context.Cause(ctx)
		}}
		w := setup(t, doubtful(e, job.UnknownReconcile), nil, inDoubt(3))
		w.take(first)
		elapse(lease)
		if ends, backs := w.endings(), w.putOffs(); len(ends)+len(backs) != 0 || w.d.Running() != 0 {
			t.Errorf("endings %+v, requeues %+v", ends, backs)
		}
		w.end()
	})
}

// A type that does not ask repeats, and one whose job is in no doubt does not ask.
func TestReconcile_IsAskedOnlyInDoubtAndOnlyWhereItIsWanted(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		policy job.UnknownPolicy
		asks   int
	}{"no doubt": {job.UnknownReconcile, 0}, "another policy by now": {job.UnknownRetry, 4}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				e := &reconciler{}
				w := setup(t, doubtful(e, tt.policy), nil, inDoubt(tt.asks))
				if end := w.only(t); end.Status != job.Succeeded || e.asked != 0 || e.executed != 1 {
					t.Errorf("ending %+v; asked %d times, executed %d times", end, e.asked, e.executed)
				}
				w.end()
			})
		})
	}
}
