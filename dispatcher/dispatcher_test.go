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

	"github.com/sekali/sekali/dispatcher"
	"github.com/sekali/sekali/executor"
	"github.com/sekali/sekali/job"
)

func TestDispatcher_RunsAPendingJobOnceAndWakesWaiters(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		result := &job.Result{Body: []byte(`1`), MediaType: "application/json"}
		w := setup(t, plain(func(context.Context, job.Claimed) (*job.Result, error) { return result, nil }), nil)
		woken, stop := w.waiters.Wait("a", 1, true)
		defer stop()
		w.add(claimable("a", "t"))
		before := time.Now()
		w.d.Wake("t")
		<-woken
		if waited := time.Since(before); waited != 0 {
			t.Errorf("a woken dispatcher took %v to begin", waited)
		}
		synctest.Wait()
		if got := w.only(t); got.Status != job.Succeeded || got.Result != result || got.Keep != time.Hour {
			t.Fatalf("ending %+v", got)
		}
		if took, err := w.end(); err != nil || took != 0 {
			t.Errorf("an idle dispatcher took %v to stop: %v", took, err)
		}
	})
}

func TestDispatcher_PollsWithoutBeingWoken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := setup(t, plain(succeeds), nil)
		w.add(claimable("a", "t"))
		elapse(time.Second)
		w.only(t)
		w.end()
	})
}

func TestFailure_Q35_AClaimErrorIsNoEmptyQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := setup(t, plain(succeeds), func(w *world) { w.onClaim = upTo(3, errors.New("broken")) }, claimable("a", "t"))
		if err := w.d.Healthy(t.Context()); err == nil {
			t.Error("healthy although no claim has worked")
		}
		elapse(2 * time.Second)
		if n := testutil.ToFloat64(w.metrics.LoopErrors.WithLabelValues("claim")); n != 3 {
			t.Errorf("%v claim errors counted, want 3", n)
		}
		w.only(t)
		if err := w.d.Healthy(t.Context()); err != nil {
			t.Error(err)
		}
		w.end()
	})
}

func TestDispatcher_NeverRunsMoreThanItsSlotsAndStarvesNoType(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		running, most := 0, 0
		started := map[job.Type]time.Time{}
		e := funcExecutor(func(_ context.Context, c job.Claimed) (*job.Result, error) {
			mu.Lock()
			running++
			most = max(most, running)
			if started[c.Type].IsZero() {
				started[c.Type] = time.Now()
			}
			mu.Unlock()
			pass(100 * time.Millisecond)
			mu.Lock()
			running--
			mu.Unlock()
			return nil, nil
		})
		work := map[job.Type]dispatcher.Work{"big": {Settings: settings(), Execute: e}, "small": {Settings: settings(), Execute: e}}
		pending := make([]job.Claimed, 0, 401)
		for i := range 400 {
			pending = append(pending, claimable(fmt.Sprintf("big-%d", i), "big"))
		}
		pending = append(pending, claimable("small", "small"))
		begin := time.Now()
		w := setup(t, work, func(w *world) { w.cfg.Slots = 4 }, pending...)
		elapse(401 * 100 / 4 * time.Millisecond)
		mu.Lock()
		if most != 4 {
			t.Errorf("%d ran at once, want 4", most)
		}
		if wait := started["small"].Sub(begin); wait > 0 {
			t.Errorf("the small type waited %v behind the big one", wait)
		}
		mu.Unlock()
		if got := w.endings(); len(got) < 400 {
			t.Errorf("%d of 401 jobs ended: free slots were not filled at once", len(got))
		}
		w.end()
	})
}

func TestNew_RefusesWorkWithoutOneExecutor(t *testing.T) {
	t.Parallel()
	for name, work := range map[string]dispatcher.Work{"none": {Settings: settings()}, "no lease": {Execute: executor.Echo{}}} {
		if _, err := dispatcher.New(dispatcher.Config{Work: map[job.Type]dispatcher.Work{"t": work}}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// The cache is told how a job stands after that was written, and never before:
// what it tells must not be undone.
func TestDispatcher_TheStatusCacheIsToldAfterTheWrite(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		work map[job.Type]dispatcher.Work
		want []string
	}{
		"an end":           {plain(succeeds), []string{"cache processing", "finish succeeded", "cache succeeded"}},
		"a failed attempt": {plain(ends(errors.New("no"))), []string{"cache processing", "requeue retrying", "cache retrying"}},
		"a commit": {
			transactional(func(context.Context, job.Claimed) (executor.Done, error) { return executor.Done{}, nil }),
			[]string{"cache processing", "finish succeeded", "cache succeeded"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := setup(t, tt.work, func(w *world) {
					w.onFinish, w.onRequeue = upTo(3, job.ErrUnavailable), upTo(3, job.ErrUnavailable)
					if w.cfg.Work["t"].ExecuteTx != nil {
						w.onFinish = nil
					}
				}, claimable("a", "t"))
				if w.cfg.Work["t"].ExecuteTx == nil {
					if puts := w.cache.all(); len(puts) != 1 {
						t.Errorf("told of %d moves while the end was not written, want of the claim alone", len(puts))
					}
				}
				elapse(2 * time.Second)
				if got := fmt.Sprint(w.diary.all()); got != fmt.Sprint(tt.want) {
					t.Errorf("order %v, want %v", got, tt.want)
				}
				puts := w.cache.all()
				if len(puts) != 2 || puts[0].Version != 2 || puts[1].Version != 3 || puts[1].Key != "k" {
					t.Errorf("the cache was told of %+v", puts)
				}
				w.end()
			})
		})
	}
}

func TestDispatcher_TheStatusCacheIsNotToldOfAWriteThatWasRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := setup(t, plain(func(context.Context, job.Claimed) (*job.Result, error) {
			pass(time.Second)
			return nil, nil
		}), nil, claimable("a", "t"))
		w.take(job.Lease{ID: "a", Token: 1})
		elapse(2 * time.Second)
		if puts := w.cache.all(); len(puts) != 1 || puts[0].Status != job.Processing {
			t.Errorf("the cache was told of %+v", puts)
		}
		w.end()
		if got := w.log.named(job.EventStaleRefused); len(got) != 1 || got[0].JobID != "a" || got[0].Attempt != 1 {
			t.Errorf("events %+v", w.log.all())
		}
	})
}

// A loop that panics is counted and goes on, as do the others.
func TestFailure_BR65_APanicInALoopEndsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := setup(t, plain(succeeds), func(w *world) {
			w.reports.onReport = func(_ context.Context, n int) error {
				if n <= 2 {
					panic("broken")
				}
				return nil
			}
		})
		w.add(claimable("a", "t"))
		elapse(10 * time.Second)
		w.only(t)
		if n := testutil.ToFloat64(w.metrics.LoopErrors.WithLabelValues("report")); n != 2 {
			t.Errorf("%v panics counted", n)
		}
		if w.reports.sum()[job.Tally{Type: "t", Outcome: job.AttemptSucceeded}].Count != 1 {
			t.Error("the loop did not go on")
		}
		if _, err := w.end(); err != nil {
			t.Error(err)
		}
	})
}
