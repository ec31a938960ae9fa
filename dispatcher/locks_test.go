package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sekali/sekali/dispatcher"
	"github.com/sekali/sekali/executor"
	"github.com/sekali/sekali/job"
	"github.com/sekali/sekali/lock"
)

// locked makes all types take locks of the scope.
func locked(work map[job.Type]dispatcher.Work, scope job.LockScope) map[job.Type]dispatcher.Work {
	locking := maps.Clone(work)
	for t, w := range locking {
		w.Settings.Lock = scope
		locking[t] = w
	}
	return locking
}

// The lock excludes others from before the work until its end is written: one
// that is given back sooner lets the next one begin work that is done.
func TestLocks_AreTakenBeforeTheWorkAndGivenBackAfterTheWrite(t *testing.T) {
	t.Parallel()
	var notes *diary // of the case
	executes := func(err error) funcExecutor {
		return func(context.Context, job.Claimed) (*job.Result, error) {
			notes.add("execute")
			return nil, err
		}
	}
	inTransaction := func(context.Context, job.Claimed) (executor.Done, error) {
		notes.add("execute")
		return executor.Done{}, nil
	}
	for _, tt := range []struct {
		name string
		work map[job.Type]dispatcher.Work
		want []string
	}{
		{"success", plain(executes(nil)), []string{"acquire", "execute", "finish succeeded", "cache succeeded", "release"}},
		{"failure", plain(executes(job.Permanent(errors.New("no")))), []string{"acquire", "execute", "finish failed", "cache failed", "release"}},
		{"another attempt", plain(executes(errors.New("no"))), []string{"acquire", "execute", "requeue retrying", "cache retrying", "release"}},
		{"commit", transactional(inTransaction), []string{"acquire", "execute", "finish succeeded", "cache succeeded", "release"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				away := errors.New("no database")
				w := setup(t, locked(tt.work, job.LockKey), func(w *world) {
					notes = w.diary
					if tt.name != "commit" {
						w.onFinish, w.onRequeue = upTo(5, away), upTo(5, away)
					}
				}, claimable("a", "t"))
				elapse(10 * time.Second)
				if got := w.diary.all()[1:]; !slices.Equal(got, tt.want) {
					t.Errorf("order %v, want %v", got, tt.want)
				}
				w.end()
			})
		})
	}
}

// A lock that another one holds puts the job off, for longer each time, and costs
// it no attempt.
func TestLocks_AHeldLockPutsTheJobOffUncounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var ran []int
		const refusals = 6
		w := setup(t, locked(plain(func(_ context.Context, c job.Claimed) (*job.Result, error) {
			ran = append(ran, c.Attempts)
			return nil, nil
		}), job.LockKey), func(w *world) {
			w.comeBack = true
			w.locks.onAcquire = func(_ context.Context, n int) error {
				if n <= refusals {
					return fmt.Errorf("acquire: %w", lock.ErrHeld)
				}
				return nil
			}
		}, tried(2)) // the next attempt is its last
		elapse(2 * time.Minute)
		backs := w.putOffs()
		if len(backs) != refusals {
			t.Fatalf("requeues %+v", backs)
		}
		for i, full := range []time.Duration{1, 2, 4, 8, 15, 15} {
			full *= time.Second
			r := backs[i]
			if r.Status != job.Retrying || !r.Uncounted || r.Attempt != job.AttemptReleased || r.Failure != nil || r.In < full/2 || r.In > full {
				t.Errorf("requeue %d: %+v, want a wait of %v", i, r, full)
			}
		}
		if ends := w.endings(); len(ends) != 1 || ends[0].Status != job.Succeeded || !slices.Equal(ran, []int{3}) {
			t.Errorf("endings %+v, the executor ran in attempts %v", ends, ran)
		}
		w.end()
		events := w.log.named(job.EventLockRefused)
		if len(events) != refusals || events[0].JobID != "a" || events[0].Attempt != 3 {
			t.Errorf("events %+v", w.log.all())
		}
		if lines := w.diary.all(); lines[len(lines)-1] != "release" || testutil.ToFloat64(w.metrics.Unlocked) != 0 {
			t.Errorf("diary %v", lines)
		}
	})
}

// While no lock can be asked for, the lease alone carries on.
func TestLocks_WithoutALockerTheLeaseCarriesOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := setup(t, locked(plain(func(context.Context, job.Claimed) (*job.Result, error) {
			pass(2 * lease)
			return nil, nil
		}), job.LockKey), func(w *world) {
			w.locks.onAcquire = func(context.Context, int) error { return fmt.Errorf("acquire: %w", lock.ErrUnavailable) }
		}, claimable("a", "t"))
		if n := testutil.ToFloat64(w.metrics.Unlocked); n != 1 {
			t.Errorf("sekali_attempts_unlocked_total is %v", n)
		}
		elapse(3 * lease)
		if e := w.only(t); e.Status != job.Succeeded {
			t.Errorf("ending %+v", e)
		}
		if lines := w.diary.all(); slices.Contains(lines, "release") || len(w.locks.refreshes()) != 0 {
			t.Errorf("a lock that was not taken was refreshed or given back: %v", lines)
		}
		w.end()
	})
}

// Which lock: of the job, of its business key, or none; of one tenant and type
// each.
func TestLocks_AreNamedByTheirScope(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		work := map[job.Type]dispatcher.Work{}
		for name, scope := range map[job.Type]job.LockScope{
			"t": job.LockBusinessKey, "other": job.LockBusinessKey, "keyed": job.LockKey, "none": job.LockNone,
		} {
			w := plain(succeeds)["t"]
			w.Settings.Lock = scope
			work[name] = w
		}
		w := setup(t, work, nil)
		names := map[string]string{}
		for id, c := range map[string]job.Claimed{
			"a":       {Job: job.Job{Type: "t", Tenant: "x", BusinessKey: "order-1"}},
			"same":    {Job: job.Job{Type: "t", Tenant: "x", BusinessKey: "order-1"}},
			"tenant":  {Job: job.Job{Type: "t", Tenant: "y", BusinessKey: "order-1"}},
			"type":    {Job: job.Job{Type: "other", Tenant: "x", BusinessKey: "order-1"}},
			"key":     {Job: job.Job{Type: "t", Tenant: "x", BusinessKey: "order-2"}},
			"without": {Job: job.Job{Type: "t", Tenant: "x"}},
			"job":     {Job: job.Job{Type: "keyed", Tenant: "x", BusinessKey: "order-1"}},
			"none":    {Job: job.Job{Type: "none", Tenant: "x", BusinessKey: "order-1"}},
		} {
			one := claimable(id, c.Type)
			one.Tenant, one.BusinessKey = c.Tenant, c.BusinessKey
			before := len(w.locks.names())
			w.add(one)
			w.d.Wake(c.Type)
			synctest.Wait()
			if taken := w.locks.names(); len(taken) > before {
				names[id] = taken[before]
			}
		}
		if names["a"] == "" || names["a"] != names["same"] {
			t.Errorf("one business key, two locks: %q and %q", names["a"], names["same"])
		}
		different := map[string]string{}
		for _, id := range []string{"a", "tenant", "type", "key", "job"} {
			if names[id] == "" || different[names[id]] != "" {
				t.Errorf("%s and %s share the lock %q", id, different[names[id]], names[id])
			}
			different[names[id]] = id
		}
		if names["without"] != "" || names["none"] != "" {
			t.Errorf("locks of jobs that ask for none: %q, %q", names["without"], names["none"])
		}
		w.end()
		for _, a := range w.locks.acquired {
			if a.ttl != lease {
				t.Errorf("taken for %v, want the length of the lease", a.ttl)
			}
		}
		if got := len(w.endings()); got != 8 {
			t.Errorf("%d of 8 jobs ended", got)
		}
	})
}

// TestFailure_BR56_ALostLockStopsTheExecutor: somebody else may be at the same
// work, so the attempt ends as lost.
func TestFailure_BR56_ALostLockStopsTheExecutor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var cause atomic.Value
		started := time.Now()
		var stopped atomic.Int64
		w := setup(t, locked(plain(func(ctx context.Context, _ job.Claimed) (*job.Result, error) {
			<-ctx.Done()
			cause.Store(context.Cause(ctx))
			stopped.Store(int64(time.Since(started)))
			return nil, ctx.Err()
		}), job.LockKey), func(w *world) {
			w.locks.onRefresh = func(n int) error {
				if n >= 3 {
					return fmt.Errorf("refresh: %w", lock.ErrLost)
				}
				return nil
			}
		}, claimable("a", "t"))
		elapse(2 * lease)
		if got, _ := cause.Load().(error); !errors.Is(got, job.ErrLockLost) {
			t.Fatalf("cause %v", got)
		}
		if at := time.Duration(stopped.Load()); at > lease {
			t.Errorf("stopped after %v, want with the third heartbeat", at)
		}
		r := w.back(t)
		if r.Attempt != job.AttemptLost || r.Uncounted || r.Status != job.Retrying || r.Failure.Code != "lock-lost" {
			t.Errorf("requeue %+v", r)
		}
		if n := testutil.ToFloat64(w.metrics.Attempts.WithLabelValues("t", "lost")); n != 1 {
			t.Errorf("%v lost attempts counted", n)
		}
		if n := len(w.locks.refreshes()); n != 3 || slices.Contains(w.diary.all(), "release") {
			t.Errorf("%d refreshes, %v: the lock is somebody else's", n, w.diary.all())
		}
		w.end()
		if got := w.log.named(job.EventLockLost); len(got) != 1 || got[0].JobID != "a" {
			t.Errorf("events %+v", w.log.all())
		}
	})
}

// A lock that cannot be asked about is not lost.
func TestLocks_ARefreshThatFailsEndsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := setup(t, locked(plain(func(ctx context.Context, _ job.Claimed) (*job.Result, error) {
			select {
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			case <-time.After(3 * lease):
				return nil, nil
			}
		}), job.LockKey), func(w *world) { w.locks.onRefresh = always(lock.ErrUnavailable) }, claimable("a", "t"))
		elapse(4 * lease)
		if e := w.only(t); e.Status != job.Succeeded {
			t.Errorf("ending %+v", e)
		}
		w.end()
	})
}

// Work that is done stays done, whoever has the lock by now: only the fencing
// token decides about its end.
func TestLocks_AnAttemptThatIsSettlingDoesNotLoseItsLock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := setup(t, locked(plain(ends(job.Permanent(errors.New("no")))), job.LockKey), func(w *world) {
			w.onFinish = always(job.ErrUnavailable)
		}, claimable("a", "t"))
		// Only now: at the start the loop may come to a lock before its work is done.
		w.locks.set(func() { w.locks.onRefresh = always(lock.ErrLost) })
		before := len(w.locks.refreshes())
		elapse(lease)
		if n := len(w.locks.refreshes()) - before; n == 0 {
			t.Fatal("the lock was not refreshed while the end could not be written")
		}
		w.change(func() { w.onFinish = nil })
		elapse(10 * time.Second)
		if e := w.only(t); e.Attempt != job.AttemptFailed || e.Failure.Code != "error" {
			t.Errorf("ending %+v", e)
		}
		w.end()
		if got := w.log.all(); len(got) != 0 {
			t.Errorf("events %+v", got)
		}
	})
}

// TestFailure_BR57_TheLockLivesAsLongAsTheWork: it is refreshed in the rhythm of
// the heartbeat while the work runs, and not a moment longer.
func TestFailure_BR57_TheLockLivesAsLongAsTheWork(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		started := time.Now()
		w := setup(t, locked(plain(func(ctx context.Context, _ job.Claimed) (*job.Result, error) {
			pass(95 * time.Second)
			return nil, errors.New("the connection was reset")
		}), job.LockKey), nil, claimable("a", "t"))
		elapse(95 * time.Second)
		refreshes := w.locks.refreshes()
		last := started
		for _, at := range refreshes {
			if pause := at.Sub(last); pause > lease/3 {
				t.Errorf("not refreshed for %v; the lease is %v", pause, lease)
			}
			last = at
		}
		if len(refreshes) < 9 || len(refreshes) > 12 {
			t.Errorf("%d refreshes in 95 seconds", len(refreshes))
		}
		if lines := w.diary.all(); lines[len(lines)-1] != "release" {
			t.Errorf("the lock outlives the work: %v", lines)
		}
		if r := w.back(t); r.In > 2*time.Second {
			t.Errorf("the next attempt waits for %v", r.In)
		}
		elapse(2 * lease)
		if n := len(w.locks.refreshes()); n != len(refreshes) {
			t.Errorf("refreshed %d times after the work had ended", n-len(refreshes))
		}
		w.end()
	})
}

// An attempt that ends while it asks for its lock has not been tried: it does not
// begin, and no lock was unavailable.
func TestFailure_Q37_AnAttemptThatEndsWhileItAsksForItsLockDoesNotBegin(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(*world){
		"shutdown":  func(w *world) { w.end() },
		"cancelled": func(w *world) { w.d.Cancel(job.Lease{ID: "a", Token: 1}) },
		"timeout":   func(*world) { elapse(5 * time.Minute) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ran := false
				w := setup(t, locked(plain(func(context.Context, job.Claimed) (*job.Result, error) {
					ran = true
					return nil, nil
				}), job.LockKey), func(w *world) {
					w.locks.onAcquire = func(ctx context.Context, _ int) error {
						<-ctx.Done()
						return fmt.Errorf("acquire: %w", context.Cause(ctx))
					}
				}, claimable("a", "t"))
				stop(w)
				synctest.Wait()
				if n := testutil.ToFloat64(w.metrics.Unlocked); ran || n != 0 {
					t.Errorf("executor called: %v; %v attempts without their lock", ran, n)
				}
				if name == "cancelled" {
					if e := w.only(t); e.Status != job.Cancelled || e.Attempt != job.AttemptCancelled {
						t.Errorf("ending %+v", e)
					}
				} else if r := w.back(t); !r.Uncounted || r.Attempt != job.AttemptReleased || (r.Status == job.Pending) != (name == "shutdown") {
					t.Errorf("requeue %+v", r)
				}
				if name != "shutdown" {
					w.end()
				}
			})
		})
	}
}
