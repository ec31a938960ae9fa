package dispatcher_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sekali/sekali/dispatcher"
	"github.com/sekali/sekali/executor"
	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

type bubbleClock struct{}

func (bubbleClock) Now() time.Time { return time.Now().UTC() }

// compensated is the type t that the type undo compensates, both with the real
// rules of what is compensated.
func compensated(e executor.Executor, undone *atomic.Int64, change func(*job.Settings)) (map[job.Type]dispatcher.Work, func(*world)) {
	work := worked(e, func(s *job.Settings) {
		s.Compensate = "undo"
		if change != nil {
			change(s)
		}
	})
	work["undo"] = dispatcher.Work{Settings: settings(), Execute: funcExecutor(func(context.Context, job.Claimed) (*job.Result, error) {
		undone.Add(1)
		return nil, nil
	})}
	jobs := &job.Jobs{
		Types: job.Types{"t": work["t"].Settings, "undo": work["undo"].Settings}, Clock: bubbleClock{},
		Render: func(job.Job) idempotency.Response { return idempotency.Response{Status: 202} },
		Document: func(j job.Job) []byte {
			document, _ := json.Marshal(map[string]any{
				"status": j.Status, "attempts": j.Attempts, "version": j.Version, "outcome": j.Outcome, "error": j.LastError,
				"payload": json.RawMessage(j.Payload),
			})
			return document
		},
	}
	return work, func(w *world) { w.cfg.Following = jobs.Following }
}

func TestCompensation_FollowsAFailureInItsTransaction(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var undone atomic.Int64
		work, change := compensated(ends(job.Permanent(errors.New("never"))), &undone, nil)
		w := setup(t, work, change, tried(1))
		got := w.endings()
		if len(got) != 2 || got[0].Status != job.Failed || len(got[0].Follow) != 1 {
			t.Fatalf("endings %+v", got)
		}
		s := got[0].Follow[0]
		if s.Job.Type != "undo" || s.Job.Key != "compensate:a" || s.Job.Tenant != "tenant" || s.Job.Status != job.Pending {
			t.Errorf("compensation %+v", s.Job)
		}
		want := `{"attempts":2,"error":{"code":"error","detail":"the executor returned a permanent error","attempt":2},` +
			`"outcome":"","payload":{"of":"a"},"status":"failed","version":3}`
		if string(s.Job.Payload) != want {
			t.Errorf("payload %s\nwant    %s", s.Job.Payload, want)
		}
		// No time has passed since: nobody waited for the next poll.
		if undone.Load() != 1 || w.number(&w.loads) != 0 {
			t.Errorf("%d compensations have run; the payload was read %d times although it was at hand", undone.Load(), w.number(&w.loads))
		}
		w.end()
	})
}

func TestCompensation_FollowsNothingElse(t *testing.T) {
	t.Parallel()
	never := job.Permanent(errors.New("never"))
	for name, tt := range map[string]struct {
		e      executor.Executor
		policy func(*job.Settings)
		change func(*world)
	}{
		"success":         {e: funcExecutor(succeeds)},
		"another attempt": {e: ends(errors.New("no"))},
		"put off":         {e: ends(job.Snooze(time.Hour))},
		"unknown outcome": {e: ends(unknown), policy: func(s *job.Settings) { s.OnUnknown = job.UnknownPark }},
		"cancelled":       {e: ends(never), change: func(w *world) { w.cancels[first] = true }},
		"none wanted":     {e: ends(never), policy: func(s *job.Settings) { s.Compensate = "" }},
		"not started by its deadline": {e: funcExecutor(succeeds), change: func(w *world) {
			w.pending = nil
			w.overdue = []job.Claimed{claimable("a", "t")}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var undone atomic.Int64
				work, compensates := compensated(tt.e, &undone, tt.policy)
				w := setup(t, work, func(w *world) {
					compensates(w)
					if tt.change != nil {
						tt.change(w)
					}
				}, claimable("a", "t"))
				elapse(time.Minute)
				got := w.endings()
				if len(got)+len(w.putOffs()) != 1 || undone.Load() != 0 {
					t.Fatalf("endings %+v, requeues %+v, %d compensations", got, w.putOffs(), undone.Load())
				}
				if len(got) == 1 && len(got[0].Follow) > 0 {
					t.Errorf("ending %+v", got[0])
				}
				w.end()
			})
		})
	}
}

// A lost job is listed without its payload, which is read for it; until that has
// worked, its end waits.
func TestCompensation_OfALostJobReadsItsPayload(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var undone atomic.Int64
		work, compensates := compensated(funcExecutor(succeeds), &undone, nil)
		w := setup(t, work, func(w *world) {
			compensates(w)
			w.payloads["a"] = []byte(`{"of":"a lost job"}`)
			w.onLoad = upTo(3, job.ErrUnavailable)
			w.lose(lost("a", 3, "w-dead"), lost("b", 1, "w-dead"), with("c", func(c *job.Claimed) {
				*c = lost("c", 3, "w-dead")
				c.CancelRequestedAt = time.Now()
			}))
		})
		if got := w.endings(); len(got) != 0 {
			t.Fatalf("ended without its compensation: %+v", got)
		}
		if n := testutil.ToFloat64(w.metrics.LoopErrors.WithLabelValues("rescuer")); n != 1 {
			t.Errorf("%v errors of the rescuer counted", n)
		}
		elapse(5 * time.Second)
		got := w.endings()
		if len(got) != 3 || got[0].Lease.ID != "a" || len(got[0].Follow) != 1 || got[1].Status != job.Cancelled || undone.Load() != 1 {
			t.Fatalf("endings %+v, %d compensations", got, undone.Load())
		}
		if payload := string(got[0].Follow[0].Job.Payload); !strings.Contains(payload, `{"of":"a lost job"}`) {
			t.Errorf("payload %s", payload)
		}
		if w.number(&w.loads) != 4 { // and none for the jobs that do not fail
			t.Errorf("payloads read %d times", w.number(&w.loads))
		}
		w.end()
	})
}

// A lost job that has ended meanwhile has nothing to be compensated.
func TestCompensation_OfALostJobThatIsGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var undone atomic.Int64
		work, compensates := compensated(funcExecutor(succeeds), &undone, nil)
		w := setup(t, work, func(w *world) {
			compensates(w)
			w.lose(lost("b", 3, "w-dead"), lost("c", 3, "w-dead"))
			w.payloads["c"] = []byte(`{}`)
			w.onLoad = func(n int) error {
				if n == 1 {
					delete(w.held, job.Lease{ID: "b", Token: 1}) // somebody else ends it now
				}
				return nil
			}
		})
		for _, e := range w.endings() {
			if e.Lease.ID == "b" {
				t.Errorf("ending %+v", e)
			}
		}
		if n := testutil.ToFloat64(w.metrics.LoopErrors.WithLabelValues("rescuer")); n != 0 {
			t.Errorf("%v errors of the rescuer counted: one job that is gone held up the others", n)
		}
		if undone.Load() != 1 {
			t.Errorf("%d compensations, want the other job's", undone.Load())
		}
		if n := testutil.ToFloat64(w.metrics.Rescued); n != 1 {
			t.Errorf("%v rescued", n)
		}
		w.end()
	})
}

// The end of an attempt waits for the payload of its compensation likewise, with
// its lease held.
func TestCompensation_NothingIsLostWhileThePayloadCannotBeRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var undone atomic.Int64
		work, compensates := compensated(ends(job.Permanent(errors.New("never"))), &undone, nil)
		w := setup(t, work, func(w *world) {
			compensates(w)
			w.payloads["a"] = []byte(`{}`)
			w.onLoad = upTo(12, job.ErrUnavailable)
		}, with("a", func(c *job.Claimed) { c.Payload = nil }))
		elapse(lease)
		if got := w.endings(); len(got) != 0 || w.d.Running() != 1 || w.beats == 0 {
			t.Fatalf("endings %+v, %d run, %d heartbeats", got, w.d.Running(), w.number(&w.beats))
		}
		elapse(lease)
		if got := w.endings(); len(got) != 2 || len(got[0].Follow) != 1 || undone.Load() != 1 {
			t.Errorf("endings %+v, %d compensations", got, undone.Load())
		}
		w.end()
	})
}
