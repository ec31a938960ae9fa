package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sekali/sekali/dispatcher"
	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

// telling adds the type of callbacks, with the real rules of what follows, and a job
// of the type t that wants its end told.
func telling(work map[job.Type]dispatcher.Work, told *atomic.Int64) (map[job.Type]dispatcher.Work, func(*world), job.Claimed) {
	work[job.CallbackType] = dispatcher.Work{Settings: settings(), Execute: funcExecutor(func(context.Context, job.Claimed) (*job.Result, error) {
		told.Add(1)
		return nil, nil
	})}
	jobs := &job.Jobs{
		Types: job.Types{"t": work["t"].Settings, job.CallbackType: settings()}, Clock: bubbleClock{},
		Render: func(job.Job) idempotency.Response { return idempotency.Response{Status: 202} },
		Callback: func(j job.Job, _ time.Time) []byte {
			code, result := "", ""
			if j.LastError != nil {
				code = j.LastError.Code
			}
			if j.Result != nil {
				result = string(j.Result.Body)
			}
			return fmt.Appendf(nil, `"%s %s %s %d %d %s"`, j.Status, j.Outcome, code, j.Attempts, j.Version, result)
		},
	}
	c := tried(1)
	c.CallbackURL, c.LastError = "https://shop.example/", &job.Failure{Code: "earlier"}
	return work, func(w *world) { w.cfg.Following = jobs.Following }, c
}

// Whoever ends a job has its end told: the callback comes with the end, says how it
// was, and runs at once.
func TestCallback_FollowsEveryEnd(t *testing.T) {
	t.Parallel()
	never := job.Permanent(errors.New("never"))
	yields := funcExecutor(func(context.Context, job.Claimed) (*job.Result, error) { return &job.Result{Body: []byte("7")}, nil })
	ran := 0
	for name, tt := range map[string]struct {
		work   map[job.Type]dispatcher.Work
		change func(*world, job.Claimed)
		want   string
	}{
		"success":            {work: worked(yields, nil), want: "succeeded   2 3 7"},
		"in its transaction": {work: transactional(writes(&ran, job.DuplicateIgnored)), want: "succeeded duplicate_ignored  2 3 "},
		"failure":            {work: worked(ends(never), nil), want: "failed  error 2 3 "},
		"unknown outcome":    {work: worked(ends(unknown), func(s *job.Settings) { s.OnUnknown = job.UnknownPark }), want: "failed outcome_unknown"},
		"cancelled":          {work: worked(ends(never), nil), change: func(w *world, c job.Claimed) { w.cancels[c.Lease], w.untold = true, true }, want: "cancelled  error 2 3 "},
		"its deadline": {work: worked(yields, nil), change: func(w *world, c job.Claimed) {
			w.pending, w.overdue = nil, []job.Claimed{c}
		}, want: "failed  expired 1 3 "},
		"lost": {work: worked(yields, nil), change: func(w *world, c job.Claimed) {
			w.pending = nil
			l := lost("a", 3, "w-dead")
			l.CallbackURL = c.CallbackURL
			w.lose(l)
		}, want: "failed  lost 3 3 "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var told atomic.Int64
				work, tells, c := telling(tt.work, &told)
				w := setup(t, work, func(w *world) {
					tells(w)
					if tt.change != nil {
						tt.change(w, c)
					}
				}, c)
				elapse(2 * time.Second)
				got := w.endings()
				if len(got) != 2 || len(got[0].Follow) != 1 || len(got[1].Follow) != 0 || told.Load() != 1 || w.number(&w.loads) != 0 {
					t.Fatalf("endings %+v, %d told, %d loads", got, told.Load(), w.number(&w.loads))
				}
				s := got[0].Follow[0]
				if s.Job.Type != job.CallbackType || s.Job.CallbackURL != c.CallbackURL || !strings.HasPrefix(string(s.Job.Payload), `"`+tt.want) {
					t.Errorf("%s to %s: %s", s.Job.Type, s.Job.CallbackURL, s.Job.Payload)
				}
				w.end()
			})
		})
	}
}

// What does not end is not told of; nor is a job that nobody wants to hear about.
func TestCallback_FollowsNothingElse(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		work   map[job.Type]dispatcher.Work
		change func(*job.Claimed)
	}{
		"another attempt": {work: worked(ends(errors.New("no")), nil)},
		"nobody asked":    {work: worked(funcExecutor(succeeds), nil), change: func(c *job.Claimed) { c.CallbackURL = "" }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var told atomic.Int64
				work, tells, c := telling(tt.work, &told)
				if tt.change != nil {
					tt.change(&c)
				}
				w := setup(t, work, tells, c)
				for _, e := range w.endings() {
					if len(e.Follow) > 0 {
						t.Errorf("ending %+v", e)
					}
				}
				if told.Load() != 0 || len(w.endings())+len(w.putOffs()) != 1 {
					t.Errorf("%d told, endings %+v, requeues %+v", told.Load(), w.endings(), w.putOffs())
				}
				w.end()
			})
		})
	}
}

// A type that has a share of the slots leaves the others to other types, however
// many of its jobs wait, and takes what it has again as its attempts end.
func TestDispatcher_ATypeTakesNoMoreSlotsThanItMay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var running, most, slow, quick atomic.Int64
		work := worked(funcExecutor(func(context.Context, job.Claimed) (*job.Result, error) {
			most.Store(max(most.Load(), running.Add(1)))
			defer running.Add(-1)
			<-time.After(time.Second) // in the bubble's time
			slow.Add(1)
			return nil, nil
		}), nil)
		bounded := work["t"]
		bounded.Slots = 2
		work["t"] = bounded
		work["other"] = dispatcher.Work{Settings: settings(), Execute: funcExecutor(func(context.Context, job.Claimed) (*job.Result, error) {
			quick.Add(1)
			return nil, nil
		})}
		var pending []job.Claimed
		for i := range 10 {
			pending = append(pending, claimable(fmt.Sprint("t", i), "t"), claimable(fmt.Sprint("o", i), "other"))
		}
		w := setup(t, work, func(w *world) { w.cfg.Slots = 4 }, pending...)
		if running.Load() != 2 || quick.Load() != 10 {
			t.Errorf("%d run at once, %d of the others are done", running.Load(), quick.Load())
		}
		elapse(5*time.Second + 100*time.Millisecond)
		if slow.Load() != 10 || most.Load() != 2 {
			t.Errorf("%d are done, at most %d at once", slow.Load(), most.Load())
		}
		w.end()
	})
}
