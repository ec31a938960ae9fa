package dispatcher_test

import (
	"context"
	"database/sql"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sekali/sekali/dispatcher"
	"github.com/sekali/sekali/executor"
	"github.com/sekali/sekali/internal/telemetry"
	"github.com/sekali/sekali/job"
)

const lease = 30 * time.Second

// world is a dispatcher with its database, its other neighbours and clocks inside
// a synctest bubble.
type world struct {
	*leases
	cfg     *dispatcher.Config
	locks   *locker
	ops     *operations
	log     *eventLog
	reports *reporter
	cache   *cache
	logged  *logged
	d       *dispatcher.Dispatcher
	metrics *telemetry.Metrics
	waiters *job.Waiters
	stop    context.CancelFunc
	stopped chan struct{} // closed when Run has returned
	err     error         // what it returned
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
	return job.Settings{
		Lease: lease, Retention: time.Hour, OnUnknown: job.UnknownRetry, Backoff: job.Backoff{Base: time.Second, Cap: time.Minute},
	}
}

func claimable(id string, t job.Type) job.Claimed {
	lease := job.Lease{ID: job.ID(id), Token: 1}
	return job.Claimed{Lease: lease, Job: job.Job{
		ID: lease.ID, Tenant: "tenant", Type: t, Key: "k", Status: job.Pending, Payload: []byte(`{"of":"` + id + `"}`),
		Timeout: 5 * time.Minute, MaxAttempts: 3, Token: 1, Version: 2,
	}}
}

// with is a claimable job of the type t with something else about it.
func with(id string, change func(*job.Claimed)) job.Claimed {
	c := claimable(id, "t")
	change(&c)
	return c
}

// tried is a claimable job of the type t after attempts that all counted.
func tried(attempts int) job.Claimed {
	return with("a", func(c *job.Claimed) {
		c.Attempts, c.Lease.Token, c.Token = attempts, int64(attempts+1), int64(attempts+1)
	})
}

// setup starts a dispatcher with the jobs pending; it must run in a bubble.
// change prepares the world before that.
func setup(t *testing.T, work map[job.Type]dispatcher.Work, change func(*world), pending ...job.Claimed) *world {
	t.Helper()
	notes := &diary{}
	l := &leases{
		diary: notes, pending: pending, held: map[job.Lease]job.Claimed{},
		cancels: map[job.Lease]bool{}, payloads: map[job.ID][]byte{},
	}
	types := make([]string, 0, len(work))
	for name := range work {
		types = append(types, string(name))
	}
	w := &world{
		leases: l, locks: &locker{diary: notes}, ops: &operations{diary: notes}, log: &eventLog{}, reports: &reporter{},
		cache: &cache{diary: notes}, logged: &logged{},
		metrics: telemetry.NewMetrics(prometheus.NewRegistry(), types), waiters: &job.Waiters{}, stopped: make(chan struct{}),
	}
	w.cfg = &dispatcher.Config{
		Leases: l, Versions: l, Operations: w.ops, Work: work, Waiters: w.waiters, Metrics: w.metrics,
		Log: slog.New(w.logged), WorkerID: "w-test", Slots: 8, Grace: 5 * time.Second,
		Locker: w.locks, Events: w.log, Executors: w.reports, Cache: w.cache,
	}
	if change != nil {
		change(w)
	}
	var err error
	if w.d, err = dispatcher.New(*w.cfg); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	w.stop = stop
	t.Cleanup(func() { w.end() })
	go func() {
		defer close(w.stopped)
		w.err = w.d.Run(ctx)
	}()
	synctest.Wait()
	return w
}

// end stops the dispatcher and returns how long that took.
func (w *world) end() (time.Duration, error) {
	start := time.Now()
	w.stop()
	<-w.stopped
	return time.Since(start), w.err
}

// only returns the one ending that was written, and fails if there is any other
// write.
func (w *world) only(t *testing.T) job.Ending {
	t.Helper()
	ends, backs := w.endings(), w.putOffs()
	if len(ends) != 1 || len(backs) != 0 {
		t.Fatalf("endings %+v, requeues %+v; want one ending", ends, backs)
	}
	return ends[0]
}

// back returns the one requeue that was written, and fails if there is any other
// write.
func (w *world) back(t *testing.T) job.Requeue {
	t.Helper()
	ends, backs := w.endings(), w.putOffs()
	if len(ends) != 0 || len(backs) != 1 {
		t.Fatalf("endings %+v, requeues %+v; want one requeue", ends, backs)
	}
	return backs[0]
}

// add makes a job claimable while the dispatcher runs.
func (w *world) add(c job.Claimed) {
	w.change(func() { w.pending = append(w.pending, c) })
}

func plain(e funcExecutor) map[job.Type]dispatcher.Work { return worked(e, nil) }

// worked is the type t with other settings.
func worked(e executor.Executor, change func(*job.Settings)) map[job.Type]dispatcher.Work {
	s := settings()
	if change != nil {
		change(&s)
	}
	return map[job.Type]dispatcher.Work{"t": {Settings: s, Execute: e}}
}

// transactional is the type t with an executor that works in the transaction.
func transactional(e txExecutor) map[job.Type]dispatcher.Work {
	s := settings()
	s.Transactional = true
	return map[job.Type]dispatcher.Work{"t": {Settings: s, ExecuteTx: e}}
}

// succeeds is an executor that does nothing, well.
func succeeds(context.Context, job.Claimed) (*job.Result, error) { return nil, nil }

// ends is an executor that always ends with the error.
func ends(err error) funcExecutor {
	return func(context.Context, job.Claimed) (*job.Result, error) { return nil, err }
}

// waits is an executor that works until it is stopped, and then ends with what
// after makes of the cause.
func waits(after func(cause error) error) funcExecutor {
	return func(ctx context.Context, _ job.Claimed) (*job.Result, error) {
		<-ctx.Done()
		return nil, after(context.Cause(ctx))
	}
}

func same(err error) error { return err }

// elapse lets the bubble's time pass, and what falls into it happen. It is the
// test's own; executors use pass.
func elapse(d time.Duration) {
	pass(d)
	synctest.Wait()
}

// pass lets the bubble's time pass.
func pass(d time.Duration) { <-time.After(d) }
