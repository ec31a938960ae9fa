package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sekali/sekali/dispatcher"
	"github.com/sekali/sekali/job"
)

func TestDeadlines_AJobThatHasNotStartedFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := setup(t, plain(succeeds), func(w *world) {
			w.overdue = []job.Claimed{with("late", func(c *job.Claimed) { c.Status = job.Scheduled })}
			w.onFinish = upTo(1, job.ErrUnavailable)
		})
		woken, stop := w.waiters.Wait("late", 1, true)
		defer stop()
		if got := w.endings(); len(got) != 0 || len(w.cache.all()) != 0 {
			t.Fatalf("told before it was written: %+v", w.cache.all())
		}
		elapse(time.Second)
		e := w.only(t)
		if e.Status != job.Failed || !e.Waiting || e.IfExpired || e.Attempt != "" || e.Failure.Code != "expired" || e.Failure.Attempt != 0 || e.Keep != time.Hour {
			t.Errorf("ending %+v", e)
		}
		select {
		case <-woken:
		default:
			t.Error("nobody was told")
		}
		if puts := w.cache.all(); len(puts) != 1 || puts[0].Status != job.Failed || puts[0].Version != 3 {
			t.Errorf("the cache was told of %+v", puts)
		}
		if n := testutil.ToFloat64(w.metrics.Attempts.WithLabelValues("t", "failed")); n != 0 {
			t.Errorf("%v attempts counted for a job without one", n)
		}
		if n := testutil.ToFloat64(w.metrics.LoopErrors.WithLabelValues("deadlines")); n != 1 {
			t.Errorf("%v errors counted", n)
		}
		w.end()
	})
}

// A job that was claimed or cancelled just then is somebody else's.
func TestDeadlines_WhatWasRefusedIsNotTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := setup(t, plain(succeeds), func(w *world) {
			w.overdue = []job.Claimed{claimable("late", "t"), claimable("claimed", "t"), claimable("cancelled", "t")}
			w.cancels[job.Lease{ID: "cancelled", Token: 1}] = true
			w.onFinish = func(int) error {
				if len(w.overdue) == 3 {
					w.overdue = append(w.overdue[:1], w.overdue[2])
				}
				return nil
			}
		})
		if e := w.only(t); e.Lease.ID != "late" {
			t.Errorf("ending %+v", e)
		}
		if puts := w.cache.all(); len(puts) != 1 || puts[0].ID != "late" {
			t.Errorf("the cache was told of %+v", puts)
		}
		w.end()
	})
}

func TestDeadlines_AFullBatchIsFollowedByTheNextAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := setup(t, plain(succeeds), func(w *world) {
			for i := range 1200 {
				w.overdue = append(w.overdue, claimable(fmt.Sprint(i), "t"))
			}
		})
		elapse(10 * time.Millisecond)
		if got := len(w.endings()); got != 1200 {
			t.Errorf("%d of 1200 jobs ended", got)
		}
		w.end()
	})
}

// queueing is the type t whose jobs wait for each other's business key.
func queueing(e funcExecutor) map[job.Type]dispatcher.Work {
	return worked(e, func(s *job.Settings) { s.OnConflict = job.ConflictQueue })
}

// keyed is a claimable job with a business key.
func keyed(id string) job.Claimed {
	return with(id, func(c *job.Claimed) { c.BusinessKey = "order-1" })
}

// When a job ends that held a business key, the next one runs at once: it does not
// wait for the poll.
func TestContract_Row80_TheNextOfABusinessKeyRunsWhenItsHolderEnds(t *testing.T) {
	t.Parallel()
	gone := lost("gone", 3, "w-dead")
	gone.BusinessKey = "order-1"
	for name, tt := range map[string]struct {
		holder funcExecutor
		change func(*world)
		ends   func(*world)
	}{
		"succeeded": {holder: func(context.Context, job.Claimed) (*job.Result, error) { pass(time.Second); return nil, nil }},
		"failed": {holder: func(context.Context, job.Claimed) (*job.Result, error) {
			pass(time.Second)
			return nil, job.Permanent(errors.New("never"))
		}},
		"cancelled": {holder: waits(same), ends: func(w *world) { w.d.Cancel(first) }},
		"lost": {
			change: func(w *world) { w.pending, w.expired, w.held[gone.Lease] = nil, nil, gone },
			ends:   func(w *world) { w.lose(gone); pass(lease / 2) },
		},
		"cancelled while it waited for its time": {
			change: func(w *world) { w.pending, w.holders = nil, map[string]bool{"order-1": true} },
			ends: func(w *world) {
				w.change(func() { w.holders = nil })
				j := keyed("waited").Job
				j.Status = job.Cancelled
				w.d.Moved(j)
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var ran atomic.Int64
				w := setup(t, queueing(func(ctx context.Context, c job.Claimed) (*job.Result, error) {
					if c.ID == "a" {
						return tt.holder(ctx, c)
					}
					ran.Add(1)
					return nil, nil
				}), func(w *world) {
					w.cfg.PollInterval = 10 * time.Minute
					w.behind = []job.Claimed{keyed("next"), keyed("last")}
					if tt.change != nil {
						tt.change(w)
					}
				}, keyed("a"))
				pass(500 * time.Millisecond)
				synctest.Wait()
				if ran.Load() != 0 {
					t.Fatal("it ran beside the holder of its business key")
				}
				if tt.ends != nil {
					tt.ends(w)
				}
				elapse(time.Second)
				if ran.Load() != 2 {
					t.Errorf("%d of the two that waited have run", ran.Load())
				}
				w.end()
			})
		})
	}
}

func TestContract_Row80_NobodyIsWokenForNothing(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		work map[job.Type]dispatcher.Work
		c    job.Claimed
	}{
		"no business key": {queueing(succeeds), claimable("a", "t")},
		"another policy":  {plain(succeeds), keyed("a")},
		"another policy, beside a type that lets wait": {
			map[job.Type]dispatcher.Work{"t": plain(succeeds)["t"], "other": queueing(succeeds)["t"]}, keyed("a"),
		},
		"not ended": {queueing(ends(errors.New("no"))), keyed("a")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := setup(t, tt.work, func(w *world) { w.cfg.PollInterval = time.Minute })
				asked := w.unblocked()
				w.add(tt.c)
				w.d.Wake("t")
				synctest.Wait()
				if n := w.unblocked(); n != asked || len(w.endings())+len(w.putOffs()) != 1 {
					t.Errorf("asked %d times more", n-asked)
				}
				w.end()
			})
		})
	}
}

// Polling is the truth, and while there is something to let go it goes on.
func TestContract_Row80_TheUnblockerPollsAndGoesOnWhileItFinds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := setup(t, plain(waits(same)), nil) // whatever the types say: compensations wait too
		elapse(10 * time.Second)
		if n := w.unblocked(); n < 10 || n > 13 {
			t.Errorf("asked %d times in ten seconds", n)
		}
		w.change(func() {
			for i := range 8 {
				w.behind = append(w.behind, with(fmt.Sprint(i), func(c *job.Claimed) { c.BusinessKey = fmt.Sprint(i) }))
			}
		})
		elapse(time.Second + 50*time.Millisecond)
		if n := w.d.Running(); n != 8 { // none has ended and let the next one go
			t.Errorf("%d of 8 jobs run", n)
		}
		w.end()
	})
}
