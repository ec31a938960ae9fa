package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sekali/sekali/dispatcher"
	"github.com/sekali/sekali/job"
)

// Execution tells of the jobs that are held and of those that have ended.
func (l *leases) Execution(_ context.Context, lease job.Lease) (job.Execution, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for held, c := range l.held {
		if held.ID == lease.ID {
			c.Job.Token, c.ClaimedAt = held.Token, time.Now().UTC()
			return job.Execution{Job: c.Job}, nil
		}
	}
	for _, e := range l.finished {
		if e.Lease.ID == lease.ID {
			x := job.Execution{Job: job.Job{ID: lease.ID, Tenant: "tenant", Type: "t", Status: e.Status, Token: e.Lease.Token}}
			x.Ended = &job.Attempt{Number: 1, WorkerID: "w1", Outcome: e.Attempt}
			return x, nil
		}
	}
	return job.Execution{}, job.ErrNotFound
}

func (l *leases) Secret(context.Context, string) ([]byte, error) { return []byte("secret"), nil }

// outside is a world whose type t, and others, are for workers outside.
func outside(t *testing.T, change func(*world), others ...job.Type) *world {
	t.Helper()
	work := map[job.Type]dispatcher.Work{}
	for _, name := range append(others, "t") {
		work[name] = dispatcher.Work{Settings: settings(), Remote: true}
	}
	return setup(t, work, func(w *world) {
		w.cfg.Executions, w.cfg.Clock, w.cfg.PollInterval = w.leases, bubbleClock{}, 10*time.Second
		if change != nil {
			change(w)
		}
	})
}

// handed is what a claim has brought, and when.
type handed struct {
	jobs []job.Handed
	err  error
	at   time.Time
}

func (h handed) ids() (ids []job.ID) {
	for _, one := range h.jobs {
		ids = append(ids, one.ID)
	}
	return ids
}

// asks begins a claim of at most so many jobs, which waits for a minute.
func (w *world) asks(ctx context.Context, most int, types ...job.Type) <-chan handed {
	done := make(chan handed, 1)
	go func() {
		jobs, err := w.d.Remote().Claim(ctx, job.WorkerClaim{Worker: "w1", Types: types, Max: most, Wait: time.Minute, Tenant: "tenant"})
		done <- handed{jobs, err, time.Now()}
	}()
	synctest.Wait()
	return done
}

// brought is what the claim has brought by now.
func brought(t *testing.T, c <-chan handed) handed {
	t.Helper()
	synctest.Wait()
	select {
	case h := <-c:
		return h
	default:
		t.Fatal("the claim still waits")
		return handed{}
	}
}

func TestRemote_AnAcceptWakesAClaimAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := outside(t, nil)
		c, begun := w.asks(t.Context(), 1, "t"), time.Now()
		elapse(3 * time.Second)
		w.add(claimable("a", "t"))
		w.d.Wake("t")
		h := brought(t, c)
		if h.err != nil || len(h.jobs) != 1 || h.jobs[0].LeaseToken == "" || h.jobs[0].LeaseFor != lease || h.at.Sub(begun) != 3*time.Second {
			t.Errorf("%+v", h)
		}
		w.end()
	})
}

// However many claims wait, one of each sort looks at the interval: those of one
// tenant are one sort.
func TestRemote_ManyWaitingClaimsCostOneLook(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := outside(t, nil)
		ctx, leave := context.WithCancel(t.Context())
		var all []<-chan handed
		for range 50 {
			all = append(all, w.asks(ctx, 1, "t"))
		}
		before := w.number(&w.leases.claims)
		elapse(45 * time.Second)
		if looks := w.number(&w.leases.claims) - before; looks < 3 || looks > 6 {
			t.Errorf("%d looks in 45 seconds at an interval of 10", looks)
		}
		w.add(claimable("a", "t")) // of which nobody tells
		elapse(10 * time.Second)   // the longest pause between two looks; the claims wait for longer
		leave()
		found := 0
		for _, c := range all {
			found += len((<-c).jobs)
		}
		if found != 1 {
			t.Errorf("%d jobs were found", found)
		}
		w.end()
	})
}

func TestRemote_WhoFindsEnoughLetsTheNextOneLook(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := outside(t, nil)
		all := []<-chan handed{w.asks(t.Context(), 1, "t"), w.asks(t.Context(), 1, "t"), w.asks(t.Context(), 1, "t")}
		for i := range 3 {
			w.add(claimable(fmt.Sprint("a", i), "t"))
		}
		w.d.Wake("t") // once for all of them
		for _, c := range all {
			if h := brought(t, c); len(h.jobs) != 1 {
				t.Errorf("%+v", h)
			}
		}
		w.end()
	})
}

func TestRemote_TypesTakeTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := outside(t, nil, "u")
		for i := range 4 {
			w.add(claimable(fmt.Sprint("t", i), "t"))
			w.add(claimable(fmt.Sprint("u", i), "u"))
		}
		var types []job.Type
		for range 4 {
			h := brought(t, w.asks(t.Context(), 1, "t", "u"))
			types = append(types, h.jobs[0].Type)
		}
		slices.Sort(types)
		if !slices.Equal(types, []job.Type{"t", "t", "u", "u"}) {
			t.Errorf("four claims of one brought %v", types)
		}
		if h := brought(t, w.asks(t.Context(), 4, "t", "u")); len(h.jobs) != 4 {
			t.Errorf("a claim of four brought %v", h.ids())
		}
		w.end()
	})
}

// A worker that leaves while its claim is being written gets nothing, and nobody
// waits for the end of its lease.
func TestRemote_AClaimWhoseWorkerHasLeftIsHandedBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, leave := context.WithCancel(t.Context())
		w := outside(t, func(w *world) {
			w.onClaim = func(int) error { leave(); return nil }
		})
		w.add(claimable("a", "t"))
		h := brought(t, w.asks(ctx, 1, "t"))
		if !errors.Is(h.err, context.Canceled) || len(h.jobs) != 0 {
			t.Errorf("%+v", h)
		}
		if r := w.back(t); !r.Uncounted || r.Status != job.Pending || r.Attempt != job.AttemptReleased {
			t.Errorf("%+v", r)
		}
		w.end()
	})
}

func TestRemote_OthersAreToldOfWhatNobodyHereWaitsFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		board := &noticeboard{}
		w := outside(t, among(board, 0))
		w.d.Wake("t")
		elapse(time.Second)
		if told := board.sent(); len(told) != 1 || !slices.Equal(told[0].Claimable, []job.Type{"t"}) {
			t.Fatalf("with nobody here, the others were told %+v", told)
		}
		c := w.asks(t.Context(), 1, "t")
		w.add(claimable("a", "t"))
		w.add(claimable("b", "t"))
		w.d.Wake("t")
		if h := brought(t, c); len(h.jobs) != 1 {
			t.Errorf("%+v", h)
		}
		elapse(time.Second)
		if told := board.sent(); len(told) != 2 {
			t.Errorf("of the second job, the others were told %+v", told)
		}
		c = w.asks(t.Context(), 1, "t")
		if h := brought(t, c); len(h.jobs) != 1 {
			t.Errorf("%+v", h)
		}
		c = w.asks(t.Context(), 1, "t")
		w.add(claimable("c", "t"))
		board.say(job.Notice{Claimable: []job.Type{"t"}})
		if h := brought(t, c); len(h.jobs) != 1 {
			t.Errorf("told by another process: %+v", h)
		}
		w.end()
	})
}

func TestRemote_TheEndOfTheProcessEndsEveryWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := outside(t, nil)
		c, begun := w.asks(t.Context(), 1, "t"), time.Now()
		w.d.Remote().EndClaims()
		w.d.Remote().EndClaims()
		if h := brought(t, c); h.err != nil || len(h.jobs) != 0 || h.at.After(begun) {
			t.Errorf("%+v", h)
		}
		if h := brought(t, w.asks(t.Context(), 1, "t")); h.err != nil || len(h.jobs) != 0 {
			t.Errorf("one that came later: %+v", h)
		}
		w.end()
	})
}

// What an attempt needs before its work is taken at the claim.
func TestRemote_AnOperationThatIsDoneReachesNoWorker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := outside(t, func(w *world) {
			w.ops.answer = answers(job.OperationTaken{Done: true, By: "first", Result: &job.Result{Body: []byte("7")}}, nil)
		})
		w.add(operating(claimable("a", "t")))
		w.add(claimable("b", "t"))
		if h := brought(t, w.asks(t.Context(), 2, "t")); !slices.Equal(h.ids(), []job.ID{"b"}) {
			t.Errorf("handed out are %v", h.ids())
		}
		if e := w.only(t); e.Outcome != job.DuplicateIgnored || e.DuplicateOf != "first" || string(e.Result.Body) != "7" {
			t.Errorf("%+v", e)
		}
		w.end()
	})
}

func TestRemote_AnOperationThatIsBusyPutsTheJobOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := outside(t, func(w *world) { w.ops.answer = answers(job.OperationTaken{By: "first"}, nil) })
		w.add(operating(claimable("a", "t")))
		c := w.asks(t.Context(), 1, "t")
		elapse(time.Second)
		if r := w.back(t); !r.Uncounted || r.Status != job.Retrying || r.In <= 0 {
			t.Errorf("%+v", r)
		}
		w.d.Remote().EndClaims()
		if h := brought(t, c); len(h.jobs) != 0 {
			t.Errorf("%+v", h)
		}
		w.end()
	})
}

// A process that runs nothing itself rescues the jobs of workers outside.
func TestRemote_AProcessWithoutSlotsRescues(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := outside(t, func(w *world) { w.cfg.Slots = 0 })
		now := time.Now().UTC()
		lost := with("a", func(c *job.Claimed) {
			c.WorkerID, c.Remote, c.Status, c.Attempts = "w-test", true, job.Processing, 1 // a name that passes for the process's
			c.ClaimedAt, c.LeaseEndsAt = now.Add(-time.Minute), now.Add(-2*time.Second)
		})
		w.lose(lost)
		elapse(lease)
		if r := w.back(t); r.Uncounted || r.Attempt != job.AttemptLost || r.Failure.Code != "lost" || !r.IfExpired {
			t.Errorf("%+v", r)
		}
		w.end()
	})
}

// A lease that ended with the attempt's time is told apart from one that nobody
// prolonged.
func TestRemote_AnAttemptThatTakesTooLongIsLostByItsTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := outside(t, nil)
		now := time.Now().UTC()
		w.lose(with("a", func(c *job.Claimed) {
			c.WorkerID, c.Remote, c.Status, c.Attempts = "w1", true, job.Processing, 1
			c.ClaimedAt, c.LeaseEndsAt = now.Add(-c.Timeout), now
		}))
		elapse(lease)
		if r := w.back(t); r.Failure.Code != "timeout" || r.Attempt != job.AttemptLost {
			t.Errorf("%+v", r)
		}
		w.end()
	})
}
