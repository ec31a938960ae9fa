package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sekali/sekali/executor"
	"github.com/sekali/sekali/job"
)

// writes is a transactional executor that counts how often it ran.
func writes(ran *int, outcome string) txExecutor {
	return func(context.Context, job.Claimed) (executor.Done, error) {
		*ran++
		return executor.Done{Outcome: outcome}, nil
	}
}

func TestDispatcher_TransactionalWorkIsEndedByItsCommitAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ran := 0
		w := setup(t, transactional(writes(&ran, job.DuplicateIgnored)), nil, operating(claimable("a", "t")))
		if got := w.only(t); got.Outcome != job.DuplicateIgnored || w.number(&w.finishes) != 1 || w.number(&w.txs) != 1 || got.Operation == nil {
			t.Fatalf("ending %+v, %d finishes, %d transactions", got, w.number(&w.finishes), w.number(&w.txs))
		}
		if n := testutil.ToFloat64(w.metrics.DuplicatesIgnored); n != 1 || w.ops.count() != 0 {
			t.Errorf("%v duplicates counted, the operation was taken %d times besides the transaction", n, w.ops.count())
		}
		w.end()
	})
}

// takings are where in a transaction it shows that another job has the operation.
var takings = map[string]func(*world, func(int) error){
	"before the work": func(w *world, fails func(int) error) { w.onBegin = fails },
	"after the work":  func(w *world, fails func(int) error) { w.onCommit = fails },
}

func TestOperations_InATransaction_DoneByAnotherJobIsADuplicate(t *testing.T) {
	t.Parallel()
	for name, fail := range takings {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ran := 0
				result := &job.Result{Body: []byte(`7`)}
				w := setup(t, transactional(writes(&ran, "")), func(w *world) {
					fail(w, always(fmt.Errorf("finish: %w", job.ErrOperationTaken)))
					w.ops.answer = answers(job.OperationTaken{Done: true, By: "first-key", Result: result}, nil)
				}, operating(claimable("a", "t")))
				e := w.only(t)
				if e.Status != job.Succeeded || e.Outcome != job.DuplicateIgnored || e.DuplicateOf != "first-key" || e.Result != result || e.Operation != nil {
					t.Errorf("ending %+v", e)
				}
				if n := testutil.ToFloat64(w.metrics.DuplicatesIgnored); n != 1 || w.number(&w.txs) != 1 || w.number(&w.commits) != 0 {
					t.Errorf("%v duplicates counted, %d transactions, %d commits", n, w.number(&w.txs), w.number(&w.commits))
				}
				w.end()
			})
		})
	}
}

// The job that had the operation has ended without doing it: it is ours now.
func TestOperations_InATransaction_OneThatWasLeftBehindIsDoneOnce(t *testing.T) {
	t.Parallel()
	for name, fail := range takings {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ran := 0
				w := setup(t, transactional(writes(&ran, "")), func(w *world) { fail(w, upTo(1, job.ErrOperationTaken)) }, operating(claimable("a", "t")))
				e := w.only(t)
				if e.Status != job.Succeeded || e.Outcome != "" || w.number(&w.commits) != 1 || w.number(&w.txs) != 2 || w.ops.count() != 1 {
					t.Errorf("ending %+v, %d transactions, taken %d times", e, w.number(&w.txs), w.ops.count())
				}
				w.end()
			})
		})
	}
}

// Another job is at the operation, or was quicker again: this one waits, and
// loses no attempt.
func TestOperations_InATransaction_ABusyOnePutsTheJobOff(t *testing.T) {
	t.Parallel()
	for name, fail := range takings {
		for found, answer := range map[string]job.OperationTaken{"busy": {By: "busy-key"}, "taken over, and taken again": {Mine: true}} {
			t.Run(name+", "+found, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					ran := 0
					w := setup(t, transactional(writes(&ran, "")), func(w *world) {
						fail(w, always(job.ErrOperationTaken))
						w.ops.answer = answers(answer, nil)
					}, operating(tried(2)))
					r := w.back(t)
					if !r.Uncounted || r.Status != job.Retrying || r.Attempt != job.AttemptReleased || r.Failure != nil || r.In < time.Second/2 {
						t.Errorf("requeue %+v", r)
					}
					w.end()
				})
			})
		}
	}
}

// The second run of a transaction is stopped like the first one.
func TestOperations_InATransaction_TheSecondRunCanBeStopped(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(*world){
		"cancelled":  func(w *world) { w.d.Cancel(first) },
		"lease lost": func(w *world) { w.take(first) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				runs := 0
				w := setup(t, transactional(func(ctx context.Context, _ job.Claimed) (executor.Done, error) {
					runs++
					if runs == 1 {
						return executor.Done{}, nil
					}
					<-ctx.Done()
					return executor.Done{}, context.Cause(ctx)
				}), func(w *world) { w.onCommit = upTo(1, job.ErrOperationTaken) }, operating(claimable("a", "t")))
				stop(w)
				elapse(lease)
				if w.d.Running() != 0 || runs != 2 {
					t.Fatalf("%d attempts still run, after %d runs", w.d.Running(), runs)
				}
				if name == "cancelled" {
					if e := w.only(t); e.Status != job.Cancelled {
						t.Errorf("ending %+v", e)
					}
				} else if ends, backs := w.endings(), w.putOffs(); len(ends)+len(backs) != 0 {
					t.Errorf("endings %+v, requeues %+v", ends, backs)
				}
				w.end()
			})
		})
	}
}

// A cancellation that came while the first run was being committed counts when
// that has failed: there is no second run.
func TestOperations_InATransaction_ACancellationDuringTheFirstRunCounts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ran := 0
		w := setup(t, transactional(writes(&ran, "")), func(w *world) {
			w.onCommit = func(int) error {
				pass(5 * time.Second)
				return job.ErrOperationTaken
			}
		}, operating(claimable("a", "t")))
		pass(time.Second)
		w.d.Cancel(first)
		elapse(10 * time.Second)
		if e := w.only(t); e.Status != job.Cancelled || ran != 1 {
			t.Errorf("ending %+v after %d runs", e, ran)
		}
		w.end()
	})
}

// TestFailure_BR46_BR50_ATransactionThatTheDatabaseFailedCostsNoAttempt: nothing
// of it is left, whenever it failed.
func TestFailure_BR46_BR50_ATransactionThatTheDatabaseFailedCostsNoAttempt(t *testing.T) {
	t.Parallel()
	for _, err := range []error{job.ErrUnavailable, job.ErrOutcomeUnknown} {
		for name, fail := range takings {
			t.Run(fmt.Sprint(err, " ", name), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					ran := 0
					w := setup(t, transactional(writes(&ran, "")), func(w *world) {
						w.comeBack = true
						fail(w, upTo(5, fmt.Errorf("commit: %w", err)))
					}, tried(2))
					elapse(time.Minute)
					backs := w.putOffs()
					if len(backs) != 5 || len(w.endings()) != 1 || w.endings()[0].Status != job.Succeeded {
						t.Fatalf("endings %+v, requeues %+v", w.endings(), backs)
					}
					for i, r := range backs {
						if !r.Uncounted || r.Attempt != job.AttemptReleased || r.Failure != nil || r.In != 100*time.Millisecond<<i {
							t.Errorf("requeue %d: %+v", i, r)
						}
					}
					w.end()
				})
			})
		}
	}
}

// A statement of the executor's own that fails because the database does is no
// failure of the job; one that fails for itself is.
func TestFailure_BR50_WhatAnExecutorsStatementFailedOf(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		err       error
		uncounted bool
	}{
		"the database": {fmt.Errorf("insert: %w", job.ErrUnavailable), true},
		"itself":       {errors.New("duplicate key"), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := setup(t, transactional(func(context.Context, job.Claimed) (executor.Done, error) {
					return executor.Done{}, tt.err
				}), nil, claimable("a", "t"))
				if r := w.back(t); r.Uncounted != tt.uncounted || (r.Failure == nil) != tt.uncounted {
					t.Errorf("requeue %+v", r)
				}
				w.end()
			})
		})
	}
}

// A stop while the database fails hands the job back at once.
func TestDispatcher_AShutdownWhileTheDatabaseFailsHandsBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := setup(t, transactional(func(ctx context.Context, _ job.Claimed) (executor.Done, error) {
			<-ctx.Done()
			return executor.Done{}, fmt.Errorf("insert: %w", job.ErrUnavailable)
		}), nil, claimable("a", "t"))
		if _, err := w.end(); err != nil {
			t.Fatal(err)
		}
		if r := w.back(t); !r.Uncounted || r.Status != job.Pending || r.Attempt != job.AttemptReleased {
			t.Errorf("requeue %+v", r)
		}
	})
}
