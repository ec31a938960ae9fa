package dispatcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sekali/sekali/executor"
	"github.com/sekali/sekali/internal/telemetry"
	"github.com/sekali/sekali/job"
	"github.com/sekali/sekali/lock"
)

// Work is how jobs of one type are run: the type's settings and exactly one of
// the two executors.
type Work struct {
	Settings  job.Settings
	Kind      string // of the executor, as the configuration names it
	Execute   executor.Executor
	ExecuteTx executor.TxExecutor
}

// Versions is what the dispatcher reads for those who wait.
type Versions interface {
	Versions(ctx context.Context, ids []job.ID) (map[job.ID]job.Version, error)
}

// Config is what a Dispatcher needs. Fields without a stated default are
// required.
type Config struct {
	Leases     job.Leases
	Versions   Versions
	Operations job.Operations
	Work       map[job.Type]Work
	// Unknown is for jobs of types that this process does not know, whose worker
	// was lost: somebody must move them on.
	Unknown job.Settings
	Waiters *job.Waiters
	Metrics *telemetry.Metrics
	Log     *slog.Logger
	// WorkerID names this process in leases; it must be new at every start.
	WorkerID string
	// Slots is how many jobs run at once; with 0 this process only accepts.
	Slots        int
	PollInterval time.Duration // default 1s
	Heartbeat    time.Duration // default a third of the shortest lease
	// Grace is how long running jobs may go on after Run was told to stop.
	Grace time.Duration
	// Exclusive says that no other process can hold leases in this database
	// (SQLite): they end with the process, never by time.
	Exclusive bool
	// Keys says how keys stand in the log.
	Keys telemetry.KeyLog
	// Retention is what takes away jobs and records that have outlived their
	// time; nil: this process leaves that to others.
	Retention Retention
	// Locker gives the locks that types ask for; nil: none is taken.
	Locker lock.Locker
	// Events stores what leaves no other trace of a job; nil: nobody does.
	Events job.EventLog
	// Clock dates the events; nil: they get the time at which they are stored.
	Clock job.Clock
	// Repeats are flushed to the timeline; nil: none are counted.
	Repeats *job.Repeats
	// Executors is told that this process is alive and what it has done; nil:
	// nobody is.
	Executors Reporter
	// Cache is told of jobs that have moved, after the commit; nil: nobody is.
	Cache job.StatusCache
	// Compensation makes the job that follows one that has failed, nil if none
	// does; it needs the job's payload. nil: none ever does.
	Compensation func(job.Job) *job.Submission
}

// Dispatcher claims jobs and runs them. See the package comment.
type Dispatcher struct {
	Config
	types   []job.Type                // in a fixed order, for rotation
	next    int                       // where the rotation stands; the claiming loop's own
	polled  time.Time                 // last time that every type was tried; likewise
	claimed atomic.Pointer[time.Time] // last time that claiming worked
	ready   *ready
	due     chan struct{} // wakes the promoter
	freed   chan struct{} // wakes the unblocker
	running *running
	events  *eventBuffer
	tallies *tallies
	base    context.Context // parent of all attempts; ends only when the process gives up on them
	giveUp  context.CancelFunc
}

// How long after Grace the process still waits for attempts whose contexts
// have ended: first for the executors to return, then for the hand-back to be
// written. Together under two seconds (BR-66).
const (
	abandonAfter  = time.Second
	handBackAfter = 800 * time.Millisecond
)

// New returns a Dispatcher that does nothing yet.
func New(c Config) (*Dispatcher, error) {
	shortest := time.Duration(0)
	types := make([]job.Type, 0, len(c.Work))
	for t, w := range c.Work {
		if (w.Execute == nil) == (w.ExecuteTx == nil) {
			return nil, fmt.Errorf("dispatcher: type %q needs exactly one executor", t)
		}
		if w.Settings.Lease <= 0 {
			return nil, fmt.Errorf("dispatcher: type %q has no lease", t)
		}
		if shortest == 0 || w.Settings.Lease < shortest {
			shortest = w.Settings.Lease
		}
		types = append(types, t)
	}
	slices.Sort(types)
	c.PollInterval = cmp.Or(c.PollInterval, time.Second)
	c.Heartbeat = cmp.Or(c.Heartbeat, shortest/3, time.Second)
	base, giveUp := context.WithCancel(context.Background()) //nolint:forbidigo // attempts outlive the context that stops claiming
	return &Dispatcher{
		Config: c, types: types, ready: newReady(), due: make(chan struct{}, 1), freed: make(chan struct{}, 1),
		running: newRunning(), events: newEventBuffer(), tallies: newTallies(), base: base, giveUp: giveUp,
	}, nil
}

// Wake tells that a job of the type may be claimable now. It never blocks.
func (d *Dispatcher) Wake(t job.Type) { d.ready.mark(t) }

// Cancel tells the attempt under the lease, if it runs in this process, that
// somebody asked to cancel it; another process learns it with its next heartbeat.
func (d *Dispatcher) Cancel(l job.Lease) {
	if a := d.running.get(l); a != nil {
		a.askCancel()
	}
}

// Moved tells that somebody other than this dispatcher moved the job, after the
// commit.
func (d *Dispatcher) Moved(j job.Job) {
	if d.Cache != nil {
		d.Cache.Put(j)
	}
	d.freeBusinessKey(j)
}

// Running returns how many jobs this process runs now.
func (d *Dispatcher) Running() int { return d.running.count() }

// healthyFor is how long the claiming loop may go without a claim that worked
// before this process counts as not dispatching: longer than the pauses
// between tries, so that a short loss of the database is no reason to restart.
const healthyFor = 4 * failMost

// Healthy returns an error if this process should be claiming jobs and is not.
func (d *Dispatcher) Healthy(context.Context) error {
	if !d.runs() {
		return nil
	}
	last := d.claimed.Load()
	if last == nil {
		return errors.New("dispatcher: no claim has worked yet")
	}
	if ago := time.Since(*last); ago > healthyFor+d.PollInterval {
		return fmt.Errorf("dispatcher: no claim has worked for %s", ago.Round(time.Second))
	}
	return nil
}

// Run works until ctx ends, then stops as the package comment says, and
// returns when no attempt is running and every loop has ended: at most Grace
// plus two seconds later. It must be called once.
func (d *Dispatcher) Run(ctx context.Context) error {
	defer d.giveUp()
	claiming, stopClaiming := context.WithCancel(ctx)
	defer stopClaiming()
	tending, stopTending := context.WithCancel(d.base)
	defer stopTending()

	var claimers, tenders sync.WaitGroup
	start := func(ctx context.Context, wg *sync.WaitGroup, loops ...loop) {
		for _, l := range loops {
			wg.Go(func() { l.run(ctx, d.Log, d.loopFailed) })
		}
	}
	start(tending, &tenders, d.tending()...)
	start(claiming, &claimers, d.claiming()...)
	<-ctx.Done()
	err := d.drain(doneOf(&claimers))
	stopTending()
	d.leave()
	if !waitFor(doneOf(&tenders), tendAfter) {
		err = errors.Join(err, errors.New("dispatcher: the database does not answer the last heartbeat"))
	}
	return err
}

// claiming are the loops that bring work in; they end when the process is told
// to stop.
func (d *Dispatcher) claiming() []loop {
	var loops []loop
	if d.Retention != nil {
		loops = append(loops, loop{name: "reaper", every: reapEvery, step: d.reap})
	}
	if !d.runs() {
		return loops
	}
	return append(loops,
		loop{name: "claim", every: d.PollInterval, wake: d.ready.signal, step: d.claim},
		loop{name: "promoter", every: d.PollInterval, wake: d.due, step: d.promote},
		loop{name: "unblocker", every: d.PollInterval, wake: d.freed, step: d.unblock},
		loop{name: "deadlines", every: d.PollInterval, step: d.expire},
		loop{name: "rescuer", every: d.rescueEvery(), step: d.rescue})
}

// tending are the loops that running attempts and waiting clients need until
// the end.
func (d *Dispatcher) tending() []loop {
	loops := []loop{
		{name: "watcher", every: d.PollInterval, step: d.watch},
		{name: "timeline", every: d.PollInterval, step: d.record},
	}
	if !d.runs() {
		return loops
	}
	return append(loops,
		loop{name: "heartbeat", every: d.Heartbeat, step: d.beat},
		loop{name: "locks", every: d.Heartbeat, step: d.refreshLocks},
		loop{name: "report", every: reportEvery, step: d.reportSelf})
}

// runs reports whether this process runs jobs at all.
func (d *Dispatcher) runs() bool { return d.Slots > 0 && len(d.types) > 0 }

// tendAfter bounds the wait for statements of the last loops: they go on in a
// database that is silent, and must not hold up the end of the process.
const tendAfter = 100 * time.Millisecond

// doneOf returns a channel that is closed when the group is done.
func doneOf(wg *sync.WaitGroup) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		wg.Wait()
		close(done)
	}()
	return done
}

// drain waits for running attempts, for Grace on their own account and then
// until they are handed back. What a claim that is still on its way brings, a
// silent database permitting, belongs to them.
func (d *Dispatcher) drain(claimed <-chan struct{}) error {
	if n := d.running.count(); n > 0 {
		d.Log.Info("waiting for running jobs", slog.Int("running", n), telemetry.MillisecondsAttr("grace_ms", d.Grace))
	}
	stopped := time.Now()
	answered := waitFor(claimed, d.Grace)
	if answered && waitFor(d.running.ended(), d.Grace-time.Since(stopped)) {
		return nil
	}
	for _, a := range d.running.all() {
		a.cancel(job.ErrShutdown)
	}
	if waitFor(d.running.ended(), abandonAfter+handBackAfter) && answered {
		return nil
	}
	return fmt.Errorf("dispatcher: %d jobs could not be handed back; they go on when their leases end", d.running.count())
}

func waitFor(done <-chan struct{}, most time.Duration) bool {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

// claim fills free slots, type by type in rotation, a share of them each time,
// so that no type's backlog keeps the others waiting. It keeps the types that
// may have more for when a slot is free again.
func (d *Dispatcher) claim(ctx context.Context) (time.Duration, error) {
	hungry := d.ready.take()
	maps.DeleteFunc(hungry, func(t job.Type, _ bool) bool { _, ok := d.Work[t]; return !ok })
	if time.Since(d.polled) >= d.PollInterval*8/10 { // polling is the truth
		d.polled = time.Now()
		for _, t := range d.types {
			hungry[t] = true
		}
	}
	var failed error
	later := map[job.Type]bool{}
	for len(hungry) > 0 && ctx.Err() == nil {
		free := d.Slots - d.running.count()
		if free <= 0 {
			break
		}
		t, want := d.nextOf(hungry), max(1, free/len(hungry))
		n, err := d.claimSome(ctx, t, want)
		if err != nil {
			failed = errors.Join(failed, err)
			later[t] = true
		}
		if n < want {
			delete(hungry, t)
		}
	}
	maps.Copy(later, hungry)
	d.ready.putBack(later)
	if failed == nil {
		d.claimed.Store(new(time.Now()))
	}
	return max(d.PollInterval-time.Since(d.polled), time.Millisecond), failed
}

func (d *Dispatcher) claimSome(ctx context.Context, t job.Type, want int) (int, error) {
	asked := time.Now()
	claimed, err := d.Leases.Claim(ctx, t, want, d.WorkerID, d.Work[t].Settings.Lease)
	if err != nil {
		return 0, fmt.Errorf("claim %s: %w", t, err)
	}
	d.Metrics.Claimed.WithLabelValues(string(t)).Add(float64(len(claimed)))
	for _, c := range claimed {
		d.start(c, asked)
	}
	return len(claimed), nil
}

// nextOf returns the next type of the set in rotation; the set is not empty
// and holds configured types only.
func (d *Dispatcher) nextOf(set map[job.Type]bool) job.Type {
	for {
		t := d.types[d.next]
		d.next = (d.next + 1) % len(d.types)
		if set[t] {
			return t
		}
	}
}

func (d *Dispatcher) loopFailed(name string) { d.Metrics.LoopErrors.WithLabelValues(name).Inc() }
