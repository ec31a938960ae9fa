package dispatcher_test

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sekali/sekali/dispatcher"
	"github.com/sekali/sekali/executor"
	"github.com/sekali/sekali/internal/telemetry"
	"github.com/sekali/sekali/job"
)

const lease = 30 * time.Second

// leases is a hand-written database: it hands out what pending holds, once,
// and records what is written. Its hooks make calls fail.
type leases struct {
	mu       sync.Mutex
	pending  []job.Claimed
	held     map[job.Lease]bool
	expired  []job.Claimed
	finished []job.Ending
	requeued []job.Requeue
	beats    int
	claims   int
	txs      int
	locked   bool // rows cannot be extended, and are still ours

	onClaim  func(n int) error // n counts calls from 1
	onExtend func(n int) error
	onFinish func(n int) error
	finishes int
}

func (l *leases) Claim(_ context.Context, t job.Type, n int, worker string, _ time.Duration) ([]job.Claimed, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.claims++
	if l.onClaim != nil {
		if err := l.onClaim(l.claims); err != nil {
			return nil, err
		}
	}
	var claimed, rest []job.Claimed
	for _, c := range l.pending {
		if c.Type != t || len(claimed) == n {
			rest = append(rest, c)
			continue
		}
		c.WorkerID = worker
		c.Attempts++
		l.held[c.Lease] = true
		claimed = append(claimed, c)
	}
	l.pending = rest
	return claimed, nil
}

func (l *leases) Extend(_ context.Context, held []job.Lease, _ time.Duration) (map[job.ID]bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.beats++
	if l.onExtend != nil {
		if err := l.onExtend(l.beats); err != nil {
			return nil, err
		}
	}
	kept := map[job.ID]bool{}
	for _, one := range held {
		if l.held[one] {
			kept[one.ID] = !l.locked
		}
	}
	return kept, nil
}

func (l *leases) Finish(_ context.Context, endings []job.Ending) ([]bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.finishes++
	if l.onFinish != nil {
		if err := l.onFinish(l.finishes); err != nil {
			return nil, err
		}
	}
	applied := make([]bool, len(endings))
	for i, e := range endings {
		if applied[i] = l.held[e.Lease]; applied[i] {
			delete(l.held, e.Lease)
			l.finished = append(l.finished, e)
		}
	}
	return applied, nil
}

func (l *leases) FinishTx(ctx context.Context, _ job.Lease, run func(context.Context, *sql.Tx) (job.Ending, error)) error {
	l.mu.Lock()
	l.txs++
	l.mu.Unlock()
	ending, err := run(ctx, nil)
	if err != nil {
		return err
	}
	applied, err := l.Finish(ctx, []job.Ending{ending})
	if err == nil && !applied[0] {
		return job.ErrLeaseLost
	}
	return err
}

func (l *leases) Requeue(_ context.Context, requeues []job.Requeue) ([]bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	applied := make([]bool, len(requeues))
	for i, r := range requeues {
		if applied[i] = l.held[r.Lease]; applied[i] {
			delete(l.held, r.Lease)
			l.requeued = append(l.requeued, r)
		}
	}
	return applied, nil
}

func (l *leases) Promote(context.Context, int) ([]job.Type, time.Duration, error) { return nil, 0, nil }

func (l *leases) Expired(context.Context, string, int) ([]job.Claimed, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	expired := l.expired
	l.expired = nil
	return expired, nil
}

func (l *leases) take(lease job.Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.held, lease)
}

func (l *leases) Versions(context.Context, []job.ID) (map[job.ID]job.Version, error) {
	return map[job.ID]job.Version{}, nil
}

// world is a dispatcher with its database and clocks inside a synctest bubble.
type world struct {
	*leases
	d       *dispatcher.Dispatcher
	metrics *telemetry.Metrics
	waiters *job.Waiters
	stop    context.CancelFunc
	stopped chan error
}

type funcExecutor func(ctx context.Context, c job.Claimed) (*job.Result, error)

func (f funcExecutor) Execute(ctx context.Context, c job.Claimed) (*job.Result, error) {
	return f(ctx, c)
}

type txExecutor func(ctx context.Context, c job.Claimed) (executor.Done, error)

func (f txExecutor) ExecuteTx(ctx context.Context, _ *sql.Tx, c job.Claimed) (executor.Done, error) {
	return f(ctx, c)
}

func settings() job.Settings {
	return job.Settings{Lease: lease, Retention: time.Hour, Backoff: job.Backoff{Base: time.Second, Cap: time.Minute}}
}

func claimable(id string, t job.Type) job.Claimed {
	lease := job.Lease{ID: job.ID(id), Token: 1}
	return job.Claimed{Lease: lease, Job: job.Job{
		ID: lease.ID, Type: t, Key: "k", Timeout: 5 * time.Minute, MaxAttempts: 3, Version: 2,
	}}
}

// setup starts a dispatcher with the jobs pending; it must run in a bubble.
func setup(t *testing.T, work map[job.Type]dispatcher.Work, change func(*dispatcher.Config), pending ...job.Claimed) *world {
	t.Helper()
	l := &leases{pending: pending, held: map[job.Lease]bool{}}
	var types []string
	for name := range work {
		types = append(types, string(name))
	}
	w := &world{leases: l, metrics: telemetry.NewMetrics(prometheus.NewRegistry(), types), waiters: &job.Waiters{}, stopped: make(chan error, 1)}
	cfg := dispatcher.Config{
		Leases: l, Versions: l, Work: work, Waiters: w.waiters, Metrics: w.metrics,
		Log: slog.New(slog.DiscardHandler), WorkerID: "w-test", Slots: 8, Grace: 5 * time.Second,
	}
	if change != nil {
		change(&cfg)
	}
	var err error
	if w.d, err = dispatcher.New(cfg); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	w.stop = stop
	t.Cleanup(stop)
	go func() { w.stopped <- w.d.Run(ctx) }()
	synctest.Wait()
	return w
}

// end stops the dispatcher and returns how long that took.
func (w *world) end() (time.Duration, error) {
	start := time.Now()
	w.stop()
	err := <-w.stopped
	return time.Since(start), err
}

func (w *world) endings() []job.Ending {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]job.Ending(nil), w.finished...)
}

func (w *world) requeues() []job.Requeue {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]job.Requeue(nil), w.requeued...)
}

func plain(e funcExecutor) map[job.Type]dispatcher.Work {
	return map[job.Type]dispatcher.Work{"t": {Settings: settings(), Execute: e}}
}

func TestDispatcher_RunsAPendingJobOnceAndWakesWaiters(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		result := &job.Result{Body: []byte(`1`), MediaType: "application/json"}
		w := setup(t, plain(func(context.Context, job.Claimed) (*job.Result, error) { return result, nil }), nil)
		woken, stop := w.waiters.Wait("a", 1, true)
		defer stop()
		w.mu.Lock()
		w.pending = append(w.pending, claimable("a", "t"))
		w.mu.Unlock()
		before := time.Now()
		w.d.Wake("t")
		<-woken
		if waited := time.Since(before); waited != 0 {
			t.Errorf("a woken dispatcher took %v to begin", waited)
		}
		synctest.Wait()
		got := w.endings()
		if len(got) != 1 || got[0].Status != job.Succeeded || got[0].Result != result || got[0].Keep != time.Hour {
			t.Fatalf("endings %+v", got)
		}
		if took, err := w.end(); err != nil || took != 0 {
			t.Errorf("an idle dispatcher took %v to stop: %v", took, err)
		}
	})
}

func TestDispatcher_PollsWithoutBeingWoken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := setup(t, plain(func(context.Context, job.Claimed) (*job.Result, error) { return nil, nil }), nil)
		w.mu.Lock()
		w.pending = append(w.pending, claimable("a", "t"))
		w.mu.Unlock()
		elapse(time.Second)
		synctest.Wait()
		if got := w.endings(); len(got) != 1 {
			t.Fatalf("after a poll interval: %+v", got)
		}
		w.end()
	})
}

func TestFailure_BR65_PanicsAreFailedAttempts(t *testing.T) {
	t.Parallel()
	broken := map[string]funcExecutor{
		"a string": func(context.Context, job.Claimed) (*job.Result, error) { panic("secret") },
		"an error": func(context.Context, job.Claimed) (*job.Result, error) { panic(errors.New("secret")) },
		"a nil map": func(context.Context, job.Claimed) (*job.Result, error) {
			emptyMap()["a"] = 1
			return nil, nil
		},
		"Goexit": func(context.Context, job.Claimed) (*job.Result, error) { runtime.Goexit(); return nil, nil },
		"a nil pointer": func(_ context.Context, _ job.Claimed) (*job.Result, error) {
			var r *job.Result
			return nil, errors.New(r.MediaType)
		},
	}
	for name, e := range broken {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := setup(t, plain(e), nil, claimable("a", "t"))
				got := w.requeues()
				if len(got) != 1 || got[0].Status != job.Retrying || got[0].Failure.Code != "panic" {
					t.Fatalf("requeues %+v", got)
				}
				if d := got[0].Failure.Detail; d != "the executor panicked" && d != "the executor ended its goroutine" {
					t.Errorf("public detail %q", d)
				}
				if n := w.d.Running(); n != 0 {
					t.Errorf("%d slots still taken", n)
				}
				w.end()
			})
		})
	}
}

func TestFailure_BR63_TimeoutIsRecordedAndBR80_AnExecutorThatIgnoresItIsLeftBehind(t *testing.T) {
	t.Parallel()
	for name, ignores := range map[string]bool{"heeds its context": false, "ignores its context": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				forever := make(chan struct{})
				one := claimable("a", "t")
				one.Timeout = time.Second
				w := setup(t, plain(func(ctx context.Context, _ job.Claimed) (*job.Result, error) {
					if !ignores {
						<-ctx.Done()
						return nil, ctx.Err()
					}
					<-forever
					return nil, nil
				}), nil, one)
				elapse(2 * time.Second)
				synctest.Wait()
				got := w.requeues()
				if len(got) != 1 || got[0].Failure.Code != "timeout" || got[0].Attempt != job.AttemptFailed || got[0].Uncounted {
					t.Fatalf("two seconds after the start: %+v", got)
				}
				if n := testutil.ToFloat64(w.metrics.AbandonedAttempts); (n == 1) != ignores {
					t.Errorf("%v attempts left behind", n)
				}
				close(forever)
				w.end()
			})
		})
	}
}

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
		synctest.Wait()
		if !errors.Is(cause, job.ErrLeaseLost) {
			t.Fatalf("cause %v", cause)
		}
		if e, r := w.endings(), w.requeues(); len(e)+len(r) != 0 {
			t.Fatalf("written without a lease: %v %v", e, r)
		}
		w.end()
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
				}), func(c *dispatcher.Config) { c.Exclusive = exclusive }, claimable("a", "t"))
				w.mu.Lock()
				w.onExtend = func(int) error { return errors.New("no database") }
				w.mu.Unlock()
				elapse(4 * lease)
				synctest.Wait()
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
		}), nil, claimable("a", "t"))
		w.mu.Lock()
		w.locked = true
		w.mu.Unlock()
		elapse(lease - 5*time.Second)
		synctest.Wait()
		if lost := time.Duration(ended.Load()); lost != 0 {
			t.Errorf("lost after %v although the token was still the job's", lost)
		}
		elapse(5 * time.Second)
		synctest.Wait()
		if lost := time.Duration(ended.Load()); lost == 0 || lost >= lease {
			t.Errorf("trusted for %v without being extended, want less than the lease", lost)
		}
		w.end()
	})
}

func TestFailure_Q24_AHeartbeatingJobKeepsItsLeaseHoweverLong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		one := claimable("a", "t")
		one.Timeout = 24 * time.Hour
		w := setup(t, plain(func(ctx context.Context, _ job.Claimed) (*job.Result, error) {
			select {
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			case <-time.After(20 * time.Hour):
				return nil, nil
			}
		}), nil, one)
		elapse(21 * time.Hour)
		synctest.Wait()
		if got := w.endings(); len(got) != 1 || got[0].Status != job.Succeeded {
			t.Fatalf("endings %+v, requeues %+v", got, w.requeues())
		}
		w.end()
	})
}

func TestFailure_Q2_FinishedWorkKeepsItsHeartbeatUntilTheEndIsWritten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := 0
		w := setup(t, plain(func(context.Context, job.Claimed) (*job.Result, error) { l++; return nil, nil }),
			func(c *dispatcher.Config) {
				c.Leases.(*leases).onFinish = func(n int) error {
					if n < 15 {
						return job.ErrUnavailable
					}
					return nil
				}
			}, claimable("a", "t"))
		elapse(2 * lease)
		synctest.Wait()
		if got := w.endings(); len(got) != 1 || got[0].Status != job.Succeeded {
			t.Fatalf("endings %+v", got)
		}
		if w.beats < 3 || l != 1 {
			t.Errorf("%d heartbeats while the end could not be written, the work ran %d times", w.beats, l)
		}
		w.end()
	})
}

func TestFailure_Q8_WorkThatEndsDuringTheDrainIsRecorded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := setup(t, plain(func(context.Context, job.Claimed) (*job.Result, error) {
			elapse(3 * time.Second)
			return nil, nil
		}), nil, claimable("a", "t"), claimable("b", "t"))
		took, err := w.end()
		if got := w.endings(); len(got) != 2 || err != nil {
			t.Fatalf("endings %+v, %v", got, err)
		}
		if took != 3*time.Second {
			t.Errorf("stopped after %v, want as soon as the work had ended", took)
		}
	})
}

func TestFailure_BR66_StopIsBoundedAndHandsBack(t *testing.T) {
	t.Parallel()
	for name, ignores := range map[string]bool{"heeds": false, "ignores": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				forever := make(chan struct{})
				w := setup(t, plain(func(ctx context.Context, _ job.Claimed) (*job.Result, error) {
					if !ignores {
						<-ctx.Done()
						return nil, ctx.Err()
					}
					<-forever
					return nil, nil
				}), nil, claimable("a", "t"))
				took, err := w.end()
				if took > 7*time.Second || err != nil {
					t.Errorf("stopped after %v: %v; grace is 5s", took, err)
				}
				got := w.requeues()
				if len(got) != 1 || !got[0].Uncounted || got[0].Status != job.Pending || got[0].Attempt != job.AttemptReleased {
					t.Errorf("requeues %+v", got)
				}
				close(forever)
			})
		})
	}
}

func TestFailure_Q35_AClaimErrorIsNoEmptyQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := setup(t, plain(func(context.Context, job.Claimed) (*job.Result, error) { return nil, nil }),
			func(c *dispatcher.Config) {
				c.Leases.(*leases).onClaim = func(n int) error {
					if n <= 3 {
						return errors.New("broken")
					}
					return nil
				}
			}, claimable("a", "t"))
		if err := w.d.Healthy(t.Context()); err == nil {
			t.Error("healthy although no claim has worked")
		}
		elapse(2 * time.Second)
		synctest.Wait()
		if n := testutil.ToFloat64(w.metrics.LoopErrors.WithLabelValues("claim")); n != 3 {
			t.Errorf("%v claim errors counted, want 3", n)
		}
		if got := w.endings(); len(got) != 1 {
			t.Errorf("after the database was back: %+v", got)
		}
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
			elapse(100 * time.Millisecond)
			mu.Lock()
			running--
			mu.Unlock()
			return nil, nil
		})
		work := map[job.Type]dispatcher.Work{"big": {Settings: settings(), Execute: e}, "small": {Settings: settings(), Execute: e}}
		var pending []job.Claimed
		for i := range 400 {
			pending = append(pending, claimable("big-"+string(rune('a'+i/26))+string(rune('a'+i%26)), "big"))
		}
		pending = append(pending, claimable("small", "small"))
		begin := time.Now()
		w := setup(t, work, func(c *dispatcher.Config) { c.Slots = 4 }, pending...)
		elapse(401 * 100 / 4 * time.Millisecond)
		synctest.Wait()
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

func TestFailure_BR64_ALostWorkerCountsAndEndsTheJobAtLast(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		lost := func(id string, attempts int, worker string) job.Claimed {
			c := claimable(id, "t")
			c.Attempts, c.WorkerID = attempts, worker
			return c
		}
		expired := []job.Claimed{lost("early", 1, "w-dead"), lost("last", 3, "w-dead"), lost("ours", 1, "w-test")}
		w := setup(t, plain(func(context.Context, job.Claimed) (*job.Result, error) { return nil, nil }),
			func(c *dispatcher.Config) {
				l := c.Leases.(*leases)
				l.expired = expired
				for _, e := range expired {
					l.held[e.Lease] = true
				}
			})
		ends, backs := w.endings(), w.requeues()
		if len(ends) != 1 || ends[0].Lease.ID != "last" || ends[0].Status != job.Failed || ends[0].Failure.Code != "lost" || !ends[0].IfExpired {
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
		w.end()
	})
}

// A replica that does not know the type (an upgrade that adds one) ends a job
// whose attempts are used up; handing it out again would let it run for ever.
func TestFailure_BR64_AnUnknownTypeKeepsToItsAttemptsToo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		left, spent := claimable("left", "other"), claimable("spent", "other")
		left.Attempts, spent.Attempts = 1, 3
		w := setup(t, plain(func(context.Context, job.Claimed) (*job.Result, error) { return nil, nil }),
			func(c *dispatcher.Config) {
				c.Unknown = settings()
				l := c.Leases.(*leases)
				l.expired = []job.Claimed{left, spent}
				l.held[left.Lease], l.held[spent.Lease] = true, true
			})
		if ends := w.endings(); len(ends) != 1 || ends[0].Lease.ID != "spent" || ends[0].Keep != time.Hour {
			t.Errorf("endings %+v", ends)
		}
		if backs := w.requeues(); len(backs) != 1 || backs[0].Lease.ID != "left" {
			t.Errorf("requeues %+v", backs)
		}
		w.end()
	})
}

func TestDispatcher_TransactionalWorkIsEndedByItsCommitAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		work := map[job.Type]dispatcher.Work{"t": {Settings: settings(), ExecuteTx: txExecutor(
			func(context.Context, job.Claimed) (executor.Done, error) {
				return executor.Done{Outcome: job.DuplicateIgnored}, nil
			})}}
		w := setup(t, work, nil, claimable("a", "t"))
		if got := w.endings(); len(got) != 1 || got[0].Outcome != job.DuplicateIgnored || w.finishes != 1 || w.txs != 1 {
			t.Fatalf("endings %+v, %d finishes, %d transactions", got, w.finishes, w.txs)
		}
		if n := testutil.ToFloat64(w.metrics.DuplicatesIgnored); n != 1 {
			t.Errorf("%v duplicates counted", n)
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

// elapse lets the bubble's time pass.
func elapse(d time.Duration) { <-time.After(d) }

func emptyMap() map[string]int { return nil }
