package dispatcher_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sekali/sekali/dispatcher"
	"github.com/sekali/sekali/job"
)

func TestDispatcher_ALostLeaseEndsTheAttemptAndWritesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var cause error
		one := claimable("a", "t")
		w := setup(t, plain(func(ctx context.Context, _ job.Claimed) (*job.Result, error) {
			<-ctx.Done()
			cause = context.Cause(ctx)
			return nil, ctx.Err()
		}), nil, one)
		w.take(one.Lease)
		elapse(lease / 3)
		if !errors.Is(cause, job.ErrLeaseLost) {
			t.Fatalf("cause %v", cause)
		}
		if e, r := w.endings(), w.putOffs(); len(e)+len(r) != 0 {
			t.Fatalf("written without a lease: %v %v", e, r)
		}
		w.end()
		if got := w.log.named(job.EventHeartbeatLost); len(got) != 1 || got[0].JobID != "a" || got[0].Attempt != 1 ||
			got[0].Data["worker_id"] != "w-test" {
			t.Errorf("events %+v", w.log.all())
		}
	})
}

func TestDispatcher_TrustEndsBeforeTheLeaseWhenHeartbeatsFail(t *testing.T) {
	t.Parallel()
	for name, exclusive := range map[string]bool{"shared database": false, "exclusive database": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				started := time.Now()
				var lost time.Duration
				w := setup(t, plain(func(ctx context.Context, _ job.Claimed) (*job.Result, error) {
					select {
					case <-ctx.Done():
						lost = time.Since(started)
					case <-time.After(3 * lease):
					}
					return nil, ctx.Err()
				}), func(w *world) {
					w.cfg.Exclusive = exclusive
					w.onExtend = func(int, time.Duration) error { return errors.New("no database") }
				}, claimable("a", "t"))
				elapse(4 * lease)
				switch {
				case exclusive && (lost != 0 || len(w.endings()) != 1):
					t.Errorf("lost after %v: on an engine that one process owns time ends no lease", lost)
				case !exclusive && (lost == 0 || lost >= lease):
					t.Errorf("trusted for %v, want less than the lease", lost)
				}
				w.end()
			})
		})
	}
}

// An answer that was on its way for as long as the lease brings a job that somebody
// else may have by now. It goes back, and nothing was tried.
func TestFailure_Q2_AClaimThatWasAnsweredTooLateUsesUpNoAttempt(t *testing.T) {
	t.Parallel()
	for name, takes := range map[string]time.Duration{"in time": lease / 2, "within the margin": lease - time.Second, "after the lease": 2 * lease} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ran := 0
				w := setup(t, plain(func(context.Context, job.Claimed) (*job.Result, error) {
					ran++
					return nil, nil
				}), func(w *world) { w.claimTakes = takes }, claimable("a", "t"))
				elapse(takes)
				if name == "in time" {
					if w.only(t); ran != 1 {
						t.Errorf("run %d times", ran)
					}
					return
				}
				if back := w.back(t); ran != 0 || back.Attempt != job.AttemptReleased || !back.Uncounted || back.Failure != nil {
					t.Errorf("run %d times, and put back: %+v", ran, back)
				}
			})
		})
	}
}

// Nothing of such a job is under way, so its heartbeat has nothing to end.
func TestDispatcher_ALateClaimThatCannotBeHandedBackYetLosesNoHeartbeat(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		one := claimable("a", "t")
		w := setup(t, plain(func(context.Context, job.Claimed) (*job.Result, error) { return nil, nil }), func(w *world) {
			w.claimTakes = 2 * lease
			w.onRequeue = always(job.ErrUnavailable)
		}, one)
		elapse(2 * lease)
		w.take(one.Lease)
		elapse(lease / 2)
		if got := w.log.named(job.EventHeartbeatLost); len(got) != 0 {
			t.Errorf("events %+v", got)
		}
		w.change(func() { w.onRequeue = nil })
		elapse(lease)
		if n := w.d.Running(); n != 0 {
			t.Errorf("%d slots still taken", n)
		}
	})
}

// A row that somebody holds for a moment is not a lost lease, and one that is
// held for longer than the lease is not trusted any more.
func TestDispatcher_ALockedRowIsNotALostLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		started := time.Now()
		var ended atomic.Int64
		w := setup(t, plain(func(ctx context.Context, _ job.Claimed) (*job.Result, error) {
			<-ctx.Done()
			ended.Store(int64(time.Since(started)))
			return nil, ctx.Err()
		}), func(w *world) { w.locked = true }, claimable("a", "t"))
		elapse(lease - 5*time.Second)
		if lost := time.Duration(ended.Load()); lost != 0 {
			t.Errorf("lost after %v although the token was still the job's", lost)
		}
		elapse(5 * time.Second)
		if lost := time.Duration(ended.Load()); lost == 0 || lost >= lease {
			t.Errorf("trusted for %v without being extended, want less than the lease", lost)
		}
		w.end()
	})
}

func TestFailure_Q24_AHeartbeatingJobKeepsItsLeaseHoweverLong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := setup(t, plain(func(ctx context.Context, _ job.Claimed) (*job.Result, error) {
			select {
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			case <-time.After(3 * time.Hour):
				return nil, nil
			}
		}), func(w *world) { w.cfg.PollInterval = time.Minute }, with("a", func(c *job.Claimed) { c.Timeout = 24 * time.Hour }))
		elapse(3*time.Hour + time.Minute)
		if got := w.only(t); got.Status != job.Succeeded {
			t.Fatalf("ending %+v", got)
		}
		w.end()
	})
}

func TestFailure_Q2_FinishedWorkKeepsItsHeartbeatUntilTheEndIsWritten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ran := 0
		w := setup(t, plain(func(context.Context, job.Claimed) (*job.Result, error) { ran++; return nil, nil }),
			func(w *world) { w.onFinish = upTo(14, job.ErrUnavailable) }, claimable("a", "t"))
		elapse(2 * lease)
		if got := w.only(t); got.Status != job.Succeeded {
			t.Fatalf("ending %+v", got)
		}
		if w.number(&w.beats) < 3 || ran != 1 {
			t.Errorf("%d heartbeats while the end could not be written, the work ran %d times", w.number(&w.beats), ran)
		}
		w.end()
	})
}

// Types may have leases of different lengths, and each length has a statement of
// its own: one that fails must not cost the others their leases.
func TestDispatcher_AFailingHeartbeatOfOneLengthLeavesTheOthersTheirs(t *testing.T) {
	t.Parallel()
	for range 8 { // the statements have no order
		synctest.Test(t, func(t *testing.T) {
			long := settings()
			long.Lease = 2 * lease
			running := func(ctx context.Context, _ job.Claimed) (*job.Result, error) {
				select {
				case <-ctx.Done():
					return nil, context.Cause(ctx)
				case <-time.After(4 * lease):
					return nil, nil
				}
			}
			work := map[job.Type]dispatcher.Work{
				"short": {Settings: settings(), Execute: funcExecutor(running)}, "long": {Settings: long, Execute: funcExecutor(running)},
			}
			w := setup(t, work, func(w *world) {
				w.onExtend = func(_ int, length time.Duration) error {
					if length == long.Lease {
						return errors.New("this one fails")
					}
					return nil
				}
			}, claimable("a", "short"), claimable("b", "long"))
			elapse(5 * lease)
			if got := w.only(t); got.Lease.ID != "a" || got.Status != job.Succeeded {
				t.Errorf("ending %+v", got)
			}
			if n := testutil.ToFloat64(w.metrics.LoopErrors.WithLabelValues("heartbeat")); n == 0 {
				t.Error("the failing heartbeat was not counted")
			}
			w.end()
		})
	}
}

// A job that was taken from this process may come back to it while the first
// attempt still runs: the lease of the second one keeps nothing of the first.
func TestDispatcher_ALeaseThatCameBackIsNotTheFirstOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		causes := map[int64]error{}
		var mu sync.Mutex
		one := claimable("a", "t")
		w := setup(t, plain(func(ctx context.Context, c job.Claimed) (*job.Result, error) {
			select {
			case <-ctx.Done():
			case <-time.After(3 * lease):
			}
			mu.Lock()
			defer mu.Unlock()
			causes[c.Lease.Token] = context.Cause(ctx)
			return nil, ctx.Err()
		}), nil, one)
		w.take(one.Lease)
		w.add(with("a", func(c *job.Claimed) { c.Lease.Token, c.Job.Token, c.Attempts = 2, 2, 1 }))
		elapse(4 * lease)
		if !errors.Is(causes[1], job.ErrLeaseLost) || causes[2] != nil {
			t.Errorf("the attempts ended with %v", causes)
		}
		if e := w.only(t); e.Lease.Token != 2 || e.Status != job.Succeeded {
			t.Errorf("the job ended with %+v", e)
		}
		w.end()
	})
}
