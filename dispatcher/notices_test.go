package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sekali/sekali/job"
)

// noticeboard stands for all other processes: it keeps what they are told, and says
// what they say.
type noticeboard struct {
	mu      sync.Mutex
	told    []job.Notice
	hear    func(job.Notice)
	listens []time.Time
	lost    chan error // ends the connection

	onSend   func(ctx context.Context) error
	onListen func(n int) error
}

func (n *noticeboard) Send(ctx context.Context, told job.Notice) (bool, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.onSend != nil {
		if err := n.onSend(ctx); err != nil {
			return false, err
		}
	}
	n.told = append(n.told, told)
	return true, nil
}

func (n *noticeboard) Listen(ctx context.Context, listening func(), heard func(job.Notice)) error {
	n.mu.Lock()
	n.listens = append(n.listens, time.Now())
	err := call(n.onListen, len(n.listens))
	n.hear = heard
	n.mu.Unlock()
	if err != nil {
		return err
	}
	listening()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-n.lost:
		return err
	}
}

// sent is what the others were told.
func (n *noticeboard) sent() []job.Notice {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.told)
}

// say tells the process something.
func (n *noticeboard) say(notice job.Notice) {
	n.mu.Lock()
	hear := n.hear
	n.mu.Unlock()
	hear(notice)
	synctest.Wait()
}

// among puts a world among other processes. It polls so seldom that what happens
// sooner came by a notice.
func among(board *noticeboard, slots int) func(*world) {
	board.lost = make(chan error)
	return func(w *world) {
		w.cfg.Notices, w.cfg.Slots, w.cfg.PollInterval = board, slots, 30*time.Second
	}
}

// counted is a database that tells one version of every job, and how often it was
// asked.
type counted struct {
	mu      sync.Mutex
	asked   int
	version job.Version
}

func (c *counted) Versions(_ context.Context, ids []job.ID) (map[job.ID]job.Version, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
	found := map[job.ID]job.Version{}
	for _, id := range ids {
		found[id] = c.version
	}
	return found, nil
}

func (c *counted) times() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asked
}

func isWoken(woken <-chan struct{}) bool {
	select {
	case <-woken:
		return true
	default:
		return false
	}
}

func TestNotices_AProcessWithoutSlotsTellsOfItsJobsAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		board := &noticeboard{}
		w := setup(t, plain(succeeds), among(board, 0))
		elapse(time.Second)
		w.d.Wake("t")
		synctest.Wait() // and no time has passed
		if got := board.sent(); len(got) != 1 || fmt.Sprint(got[0].Claimable) != "[t]" {
			t.Errorf("told %+v", got)
		}
	})
}

// The number of notices is bounded by time, however many jobs are accepted.
func TestFailure_Q20_NoticesDoNotGrowWithTheJobs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		board := &noticeboard{}
		w := setup(t, plain(succeeds), among(board, 0))
		for range 200 {
			for range 50 {
				w.d.Wake("t")
			}
			elapse(time.Millisecond)
		}
		elapse(time.Second)
		if n := len(board.sent()); n < 10 || n > 21 {
			t.Errorf("%d notices of 10000 jobs in 200 ms, want one each 10 ms", n)
		}
	})
}

// A process that runs its jobs itself tells nobody to come for them.
func TestNotices_WhatThisProcessRunsIsNotOffered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		board := &noticeboard{}
		w := setup(t, plain(succeeds), among(board, 8))
		w.add(claimable("a", "t"))
		w.d.Wake("t")
		elapse(time.Minute)
		want := job.Notice{Ended: map[job.ID]job.Version{"a": {Number: 3, Status: job.Succeeded}}}
		if got := board.sent(); len(got) != 1 || fmt.Sprint(got[0]) != fmt.Sprint(want) {
			t.Errorf("told %+v, want only %+v", got, want)
		}
	})
}

// What does not find a slot is offered, once; what another process offered is not.
func TestNotices_WhatFindsNoSlotIsOfferedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		board := &noticeboard{}
		w := setup(t, plain(waits(same)), among(board, 1), claimable("a", "t"))
		elapse(time.Minute)
		board.say(job.Notice{Claimable: []job.Type{"t"}})
		elapse(time.Minute)
		if got := board.sent(); len(got) != 0 {
			t.Fatalf("told %+v, and knew nothing that others do not", got)
		}
		w.add(claimable("b", "t"))
		w.d.Wake("t")
		w.d.Wake("unknown here")
		elapse(2 * time.Minute) // many polls
		var offered []job.Type
		for _, n := range board.sent() {
			offered = append(offered, n.Claimable...)
		}
		slices.Sort(offered)
		if fmt.Sprint(offered) != "[t unknown here]" {
			t.Errorf("offered %v", offered)
		}
	})
}

func TestNotices_AnOfferIsTakenUpAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		board := &noticeboard{}
		w := setup(t, plain(succeeds), among(board, 8))
		elapse(time.Second)
		w.add(claimable("a", "t"))
		board.say(job.Notice{Claimable: []job.Type{"other", "t"}})
		w.only(t)
		if n := testutil.ToFloat64(w.metrics.Notices.WithLabelValues("heard")); n != 1 {
			t.Errorf("heard %v notices", n)
		}
	})
}

func TestNotices_AWaiterIsToldOfAnEndElsewhere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		board := &noticeboard{}
		w := setup(t, plain(succeeds), among(board, 0))
		elapse(time.Second)
		woken, stop := w.waiters.Wait("a", 1, true)
		defer stop()
		other, stop := w.waiters.Wait("b", 1, true)
		defer stop()
		board.say(job.Notice{Ended: map[job.ID]job.Version{"a": {Number: 3, Status: job.Failed}}})
		if !isWoken(woken) || isWoken(other) {
			t.Error("want the waiter of the job that ended woken, and no other")
		}
	})
}

// A notice that could not name everything makes the process look at all that it waits
// for, and many of them do not make it look all the time.
func TestNotices_MoreIsLookedForAndNotTooOften(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		board, versions := &noticeboard{}, &counted{version: job.Version{Number: 2, Status: job.Processing}}
		w := setup(t, plain(succeeds), func(w *world) {
			among(board, 8)(w)
			w.cfg.Versions = versions
		})
		_, stop := w.waiters.Wait("a", 1, true)
		defer stop()
		elapse(time.Second)
		before := versions.times()
		w.add(claimable("b", "t"))
		board.say(job.Notice{More: true})
		if n := versions.times() - before; n != 1 {
			t.Errorf("asked %d times for the versions, want once and at once", n)
		}
		w.only(t) // the types were looked at as well
		for range 100 {
			board.say(job.Notice{More: true})
			elapse(10 * time.Millisecond)
		}
		if n := versions.times() - before; n < 5 || n > 12 {
			t.Errorf("asked %d times for the versions in a second, want about ten", n)
		}
	})
}

func TestNotices_TooManyEndsAreOneWord(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		board := &noticeboard{}
		w := setup(t, plain(succeeds), among(board, 0))
		for i := range 5000 {
			w.d.Moved(job.Job{ID: job.ID(fmt.Sprint(i)), Status: job.Cancelled, Version: 2})
			w.d.Moved(job.Job{ID: "revived", Status: job.Pending, Version: 3})
		}
		elapse(time.Second)
		named, more := 0, false
		for _, n := range board.sent() {
			if _, ok := n.Ended["revived"]; ok {
				t.Error("told of a job that has not ended")
			}
			named, more = named+len(n.Ended), more || n.More
		}
		if named == 0 || named > 1500 || !more {
			t.Errorf("%d ends are named, more: %v", named, more)
		}
	})
}

// A cancellation goes to whoever runs the job, and to nobody if that is this process.
func TestContract_Row102_ACancellationReachesOtherProcesses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		board := &noticeboard{}
		w := setup(t, plain(waits(same)), among(board, 8), claimable("a", "t"))
		elsewhere := job.Lease{ID: "elsewhere", Token: 4}
		w.d.Cancel(elsewhere)
		elapse(time.Second)
		if got := board.sent(); len(got) != 1 || fmt.Sprint(got[0].Cancelling) != fmt.Sprint([]job.Lease{elsewhere}) {
			t.Fatalf("told %+v", got)
		}
		w.cancel(first)
		board.say(job.Notice{Cancelling: []job.Lease{elsewhere, {ID: "a", Token: 7}}})
		if got := w.endings(); len(got) != 0 {
			t.Fatalf("the cancellation of another attempt ended this one: %+v", got)
		}
		board.say(job.Notice{Cancelling: []job.Lease{first}})
		if e := w.only(t); e.Status != job.Cancelled {
			t.Errorf("the job is %s", e.Status)
		}
	})
}

// A connection that breaks is opened again at once; what was said meanwhile is looked
// for. While it cannot be opened, tries come seldom, and polling goes on.
func TestFailure_BR79_Q34_ListeningBeginsAnew(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		board := &noticeboard{}
		w := setup(t, plain(succeeds), among(board, 8))
		degraded := func() float64 { return testutil.ToFloat64(w.metrics.Degraded.WithLabelValues("notices")) }
		elapse(time.Second)
		for range 20 { // each time at once, however often it happens
			w.add(claimable("a", "t"))
			board.lost <- errors.New("connection reset")
			synctest.Wait()
			if degraded() != 1 {
				t.Fatal("nothing shows that others are not heard")
			}
			before := len(w.endings())
			elapse(200 * time.Millisecond)
			if degraded() != 0 || len(w.endings()) != before+1 {
				t.Fatalf("after a while: degraded %v, %d jobs run", degraded(), len(w.endings())-before)
			}
			elapse(time.Second)
		}
		board.mu.Lock()
		tries := len(board.listens)
		board.onListen = always(errors.New("refused"))
		board.mu.Unlock()
		board.lost <- errors.New("connection reset")
		w.add(claimable("b", "t"))
		elapse(time.Minute)
		if n := len(board.listens) - tries; n < 10 || n > 20 || degraded() != 1 {
			t.Errorf("%d tries in a minute, degraded %v", n, degraded())
		}
		if n := len(w.endings()); n != 21 {
			t.Errorf("%d jobs were run: polling should find the last one", n)
		}
	})
}

// A database that has no notices is not asked all the time, and nothing is a failure.
func TestNotices_ADatabaseWithoutThem(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		none := fmt.Errorf("listen: %w", errors.ErrUnsupported)
		board := &noticeboard{onListen: always(none), onSend: func(context.Context) error { return none }}
		w := setup(t, plain(waits(same)), among(board, 1), claimable("a", "t"))
		for range 600 {
			w.d.Wake("t")
			elapse(time.Second)
		}
		if n := len(board.listens); n > 15 {
			t.Errorf("asked %d times in ten minutes", n)
		}
		if n := testutil.CollectAndCount(w.metrics.LoopErrors); n != 0 {
			t.Errorf("%d loops have failed", n)
		}
	})
}

// What a process leaves behind is offered to the others, and a database that does not
// answer does not hold up the end.
func TestNotices_AProcessThatEndsOffersWhatItHandsBack(t *testing.T) {
	t.Parallel()
	for name, silent := range map[string]bool{"the others hear it": false, "silence": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				board := &noticeboard{}
				w := setup(t, plain(waits(same)), among(board, 1), claimable("a", "t"))
				elapse(time.Second)
				if silent {
					board.onSend = func(ctx context.Context) error {
						<-ctx.Done()
						return ctx.Err()
					}
				}
				took, err := w.end()
				if err != nil || took > 5*time.Second+300*time.Millisecond {
					t.Errorf("the end took %v: %v", took, err)
				}
				w.back(t)
				if got := board.sent(); !silent && (len(got) != 1 || fmt.Sprint(got[0].Claimable) != "[t]") {
					t.Errorf("told %+v", got)
				}
			})
		})
	}
}
