package dispatcher_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sekali/sekali/job"
)

// lost is a job whose worker was lost in its n-th attempt.
func lost(id string, attempts int, worker string) job.Claimed {
	return with(id, func(c *job.Claimed) {
		c.Attempts, c.WorkerID, c.Status, c.Payload = attempts, worker, job.Processing, nil
	})
}

func TestFailure_BR64_ALostWorkerCountsAndEndsTheJobAtLast(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := setup(t, plain(succeeds), func(w *world) {
			w.lose(lost("early", 1, "w-dead"), lost("last", 3, "w-dead"), lost("ours", 1, "w-test"))
		})
		ends, backs := w.endings(), w.putOffs()
		if len(ends) != 1 || ends[0].Lease.ID != "last" || ends[0].Status != job.Failed || ends[0].Failure.Code != "lost" ||
			!ends[0].IfExpired || ends[0].Attempt != job.AttemptLost {
			t.Errorf("endings %+v", ends)
		}
		if len(backs) != 2 {
			t.Fatalf("requeues %+v", backs)
		}
		for _, r := range backs {
			if !r.IfExpired {
				t.Errorf("%s: a rescue must check the end of the lease again", r.Lease.ID)
			}
			// A claim whose answer never reached us was never tried.
			if r.Uncounted != (r.Lease.ID == "ours") {
				t.Errorf("%s: uncounted %v", r.Lease.ID, r.Uncounted)
			}
		}
		if n := testutil.ToFloat64(w.metrics.Attempts.WithLabelValues("t", "lost")); n != 2 {
			t.Errorf("%v lost attempts counted, want 2", n)
		}
		w.end()
	})
}

// A replica that does not know the type (an upgrade that adds one) ends a job
// whose attempts are used up; handing it out again would let it run for ever.
func TestFailure_BR64_AnUnknownTypeKeepsToItsAttemptsToo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		left, spent := lost("left", 1, "w-dead"), lost("spent", 3, "w-dead")
		left.Type, spent.Type = "other", "other"
		w := setup(t, plain(succeeds), func(w *world) {
			w.cfg.Unknown = settings()
			w.lose(left, spent)
		})
		if ends := w.endings(); len(ends) != 1 || ends[0].Lease.ID != "spent" || ends[0].Keep != time.Hour || ends[0].Outcome != job.OutcomeUnknown {
			t.Errorf("endings %+v", ends)
		}
		// What their type says of the doubt, others know.
		if backs := w.putOffs(); len(backs) != 1 || backs[0].Lease.ID != "left" || backs[0].UnknownAsks != 1 {
			t.Errorf("requeues %+v", backs)
		}
		w.end()
	})
}

// A cancelled job must not come back because its holder died: it would run again
// (riverqueue/river, discussion 1603).
func TestRescuer_ALostJobThatSomebodyCancelledIsNotRunAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cancelling := func(c job.Claimed) job.Claimed {
			c.CancelRequestedAt = time.Now()
			return c
		}
		w := setup(t, plain(succeeds), func(w *world) {
			w.lose(cancelling(lost("theirs", 1, "w-dead")), cancelling(lost("ours", 1, "w-test")))
			w.cancels[job.Lease{ID: "theirs", Token: 1}], w.cancels[job.Lease{ID: "ours", Token: 1}] = true, true
		})
		ends := w.endings()
		if len(ends) != 2 || len(w.putOffs()) != 0 {
			t.Fatalf("endings %+v, requeues %+v", ends, w.putOffs())
		}
		for _, e := range ends {
			want := job.AttemptLost
			if e.Lease.ID == "ours" { // it was never started
				want = job.AttemptCancelled
			}
			if e.Status != job.Cancelled || e.Attempt != want || !e.IfExpired || e.Outcome != "" {
				t.Errorf("ending %+v", e)
			}
		}
		w.end()
	})
}

// Somebody cancels between the look at the lost jobs and the write about them:
// nothing is decided for him, and the next round knows.
func TestRescuer_ACancellationThatCameInBetweenIsLeftToTheNextRound(t *testing.T) {
	t.Parallel()
	for name, attempts := range map[string]int{"would be retried": 1, "would have failed": 3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := setup(t, plain(succeeds), func(w *world) {
					w.lose(lost("a", attempts, "w-dead"))
					w.cancels[job.Lease{ID: "a", Token: 1}] = true
				})
				if n := testutil.ToFloat64(w.metrics.Rescued); n != 0 || len(w.cache.all()) != 0 || len(w.endings())+len(w.putOffs()) != 0 {
					t.Fatalf("%v rescued before the cancellation was known: %+v %+v", n, w.endings(), w.putOffs())
				}
				w.change(func() { w.expired[0].CancelRequestedAt = time.Now() })
				elapse(lease)
				if e := w.only(t); e.Status != job.Cancelled || e.Attempt != job.AttemptLost {
					t.Errorf("ending %+v", e)
				}
				if n := testutil.ToFloat64(w.metrics.Rescued); n != 1 {
					t.Errorf("%v rescued", n)
				}
				w.end()
			})
		})
	}
}

// What a round has written is told, also when the rest of the round fails.
func TestRescuer_TellsOfWhatItWroteAlthoughTheRestFailed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := setup(t, plain(succeeds), func(w *world) {
			w.onRequeue = always(errors.New("this one fails"))
			w.lose(lost("left", 1, "w-dead"), lost("spent", 3, "w-dead"))
		})
		if e := w.only(t); e.Lease.ID != "spent" {
			t.Errorf("ending %+v", e)
		}
		if puts := w.cache.all(); len(puts) != 1 || puts[0].ID != "spent" || puts[0].Status != job.Failed {
			t.Errorf("the cache was told of %+v", puts)
		}
		w.change(func() { w.onRequeue = nil })
		elapse(lease)
		if backs := w.putOffs(); len(backs) != 1 || backs[0].Lease.ID != "left" {
			t.Errorf("requeues %+v", backs)
		}
		if n := testutil.ToFloat64(w.metrics.Rescued); n != 2 {
			t.Errorf("%v rescued", n)
		}
		w.end()
	})
}

// A job that this process still works on is its own business: the next heartbeat
// brings the lease back.
func TestRescuer_LeavesWhatThisProcessStillWorksOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := setup(t, plain(waits(same)), nil, claimable("a", "t"))
		w.change(func() { w.expired = append(w.expired, w.held[job.Lease{ID: "a", Token: 1}]) })
		elapse(2 * lease)
		if ends, backs := w.endings(), w.putOffs(); len(ends)+len(backs) != 0 {
			t.Errorf("endings %+v, requeues %+v", ends, backs)
		}
		w.end()
	})
}

// An attempt that this process made, and whose end it may not write any more, was
// made: it counts as lost, unlike a claim that never arrived.
func TestRescuer_AnAttemptThatThisProcessGaveUpOnCounts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := setup(t, plain(waits(same)), func(w *world) { w.locked = true }, claimable("a", "t"))
		elapse(lease) // its trust has ended, and so has the attempt
		if ends, backs := w.endings(), w.putOffs(); len(ends)+len(backs) != 0 || w.d.Running() != 0 {
			t.Fatalf("endings %+v, requeues %+v", ends, backs)
		}
		w.change(func() { w.expired = append(w.expired, w.held[first]) })
		elapse(lease)
		if r := w.back(t); r.Attempt != job.AttemptLost || r.Uncounted || !r.IfExpired {
			t.Errorf("requeue %+v", r)
		}
		w.end()
	})
}

// A lost worker leaves a doubt behind, unless its work was part of our
// transaction.
func TestRescuer_ALostAttemptMayHaveDoneItsWork(t *testing.T) {
	t.Parallel()
	for _, policy := range []job.UnknownPolicy{job.UnknownRetry, job.UnknownReconcile, job.UnknownPark} {
		for _, inTransaction := range []bool{false, true} {
			name := string(policy)
			if inTransaction {
				name += " in our transaction"
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					work := worked(funcExecutor(succeeds), func(s *job.Settings) { s.OnUnknown, s.Transactional = policy, inTransaction })
					w := setup(t, work, func(w *world) { w.lose(lost("a", 1, "w-dead")) })
					if policy == job.UnknownPark && !inTransaction {
						if e := w.only(t); e.Status != job.Failed || e.Outcome != job.OutcomeUnknown || e.Attempt != job.AttemptLost {
							t.Errorf("ending %+v", e)
						}
						w.end()
						return
					}
					want := 0
					if policy == job.UnknownReconcile && !inTransaction {
						want = 1
					}
					if r := w.back(t); r.UnknownAsks != want || r.Attempt != job.AttemptLost || r.Uncounted || r.Status != job.Retrying {
						t.Errorf("requeue %+v, want %d asks", r, want)
					}
					w.end()
				})
			})
		}
	}
}
