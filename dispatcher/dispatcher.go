package dispatcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
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
// the two executors, or Remote.
type Work struct {
	Settings job.Settings
	Kind     string // of the executor, as the configuration names it
	// Slots is how many of the process's slots the type may take at once, so that jobs
	// which all take long leave some to others; 0: all.
	Slots     int
	Execute   executor.Executor
	ExecuteTx executor.TxExecutor
	// Remote leaves the jobs to workers outside of the gateway, which claim them
	// through Dispatcher.Remote. It needs Config.Executions and Config.Clock.
	Remote bool
}

// whole reports whether exactly one way to run the jobs is given.
func (w Work) whole() bool {
	ways := 0
	for _, way := range []bool{w.Execute != nil, w.ExecuteTx != nil, w.Remote} {
		if way {
			ways++
		}
	}
	return ways == 1
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
	// Notices reach the other processes of the database; nil: there are none.
	Notices job.Notices
	// Schedules are what recurs; it needs Clock. nil: this process fires none.
	Schedules *job.Schedules
	// Executions are read for workers outside of the gateway; nil: there are none.
	Executions job.Executions
	// Following makes what follows a job that has ended; a compensation needs its
	// payload. nil: nothing ever does.
	Following func(job.Job) []job.Submission
}

// Dispatcher claims jobs and runs them. See the package comment.
type Dispatcher struct {
	Config
	types    []job.Type                // that this process can run itself; in a fixed order, for rotation
	next     int                       // where the rotation stands; the claiming loop's own
	polled   time.Time                 // last time that every type was tried; likewise
	rests    rests                     // types whose rate lets nothing start just now; likewise
	claimed  atomic.Pointer[time.Time] // last time that claiming worked
	reported atomic.Pointer[time.Time] // last time that a report was written
	ready    *ready
	due      chan struct{} // wakes the promoter
	freed    chan struct{} // wakes the unblocker
	look     chan struct{} // wakes the watcher
	looked   time.Time     // last time that it looked; its own
	running  *running
	events   *eventBuffer
	tallies  *tallies
	outgoing *outgoing // nil if there are no other processes
	remote   *Remote
	// recurring are the schedules as this process works on them; their loop's own.
	recurring []*recurring
	stopped   atomic.Bool     // no new work is taken any more
	base      context.Context // parent of all attempts; ends only when the process gives up on them
	giveUp    context.CancelFunc
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
		if !w.whole() {
			return nil, fmt.Errorf("dispatcher: type %q needs exactly one executor", t)
		}
		if w.Remote && (c.Executions == nil || c.Clock == nil) {
			return nil, fmt.Errorf("dispatcher: type %q is for workers outside: that needs Executions and Clock", t)
		}
		if w.Settings.Lease <= 0 {
			return nil, fmt.Errorf("dispatcher: type %q has no lease", t)
		}
		if shortest == 0 || w.Settings.Lease < shortest {
			shortest = w.Settings.Lease
		}
		if !w.Remote {
			types = append(types, t)
		}
	}
	slices.Sort(types)
	c.PollInterval = cmp.Or(c.PollInterval, time.Second)
	c.Heartbeat = cmp.Or(c.Heartbeat, shortest/3, time.Second)
	base, giveUp := context.WithCancel(context.Background()) //nolint:forbidigo // attempts outlive the context that stops claiming
	d := &Dispatcher{
		Config: c, types: types, ready: newReady(), rests: rests{}, due: make(chan struct{}, 1), freed: make(chan struct{}, 1),
		look: make(chan struct{}, 1), running: newRunning(), events: newEventBuffer(), tallies: newTallies(), outgoing: newOutgoing(c.Notices),
		base: base, giveUp: giveUp, recurring: recurringOf(c.Schedules),
	}
	d.remote = newRemote(d)
	return d, nil
}

// Wake tells that a job of the type may be claimable now. It never blocks.
func (d *Dispatcher) Wake(t job.Type) { d.mark(t) }

// mark notes that jobs of the types may be claimable: here or, if this process
// claims none, elsewhere.
func (d *Dispatcher) mark(types ...job.Type) {
	types = d.remote.mark(types)
	if !d.runs() || d.stopped.Load() {
		d.outgoing.claimable(types...)
		return
	}
	d.ready.mark(types...)
}

// Cancel tells the attempt under the lease, wherever it runs, that somebody asked
// to cancel it. If that gets lost, the next heartbeat brings it.
func (d *Dispatcher) Cancel(l job.Lease) {
	if !d.cancelHere(l) {
		d.outgoing.cancelling(l)
	}
}

// cancelHere does so if the attempt runs in this process.
func (d *Dispatcher) cancelHere(l job.Lease) bool {
	a := d.running.get(l)
	if a != nil {
		a.askCancel()
	}
	return a != nil
}

// Moved tells that somebody other than this dispatcher moved the job, after the
// commit.
func (d *Dispatcher) Moved(j job.Job) {
	if d.Cache != nil {
		d.Cache.Put(j)
	}
	d.outgoing.moved(j)
	d.freeBusinessKey(j)
}

// Running returns how many jobs this process runs now.
func (d *Dispatcher) Running() int { return d.running.count() }

// healthyFor is how long what a loop does may fail before this process counts as
// not dispatching: longer than the pauses between tries, so that a short loss of the
// database is no reason to restart.
const healthyFor = 4 * failMost

// Healthy returns an error if this process should be claiming jobs and is not, or
// cannot write: a claim that finds nothing may only have read.
func (d *Dispatcher) Healthy(context.Context) error {
	var err error
	if d.runs() {
		err = lately("claim", d.claimed.Load(), d.PollInterval)
	}
	if d.tends() && d.Executors != nil {
		err = errors.Join(err, lately("report", d.reported.Load(), reportEvery))
	}
	return err
}

// lately returns an error unless what is done so often has worked lately.
func lately(what string, last *time.Time, every time.Duration) error {
	if last == nil {
		return fmt.Errorf("dispatcher: no %s has worked yet", what)
	}
	if ago := time.Since(*last); ago > healthyFor+every {
		return fmt.Errorf("dispatcher: no %s has worked for %s", what, ago.Round(time.Second))
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
	d.stopped.Store(true)
	err := d.drain(doneOf(&claimers))
	d.lastNotice()
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
	if len(d.recurring) > 0 {
		loops = append(loops, loop{name: "schedules", every: schedulesEvery, step: d.fireSchedules})
	}
	if d.remote.serves() {
		loops = append(loops, loop{name: "remote", every: d.PollInterval, step: d.remote.poll})
	}
	if d.runs() {
		loops = append(loops, loop{name: "claim", every: d.PollInterval, wake: d.ready.signal, step: d.claim})
	}
	if !d.tends() {
		return loops
	}
	return append(loops,
		loop{name: "promoter", every: d.PollInterval, wake: d.due, step: d.promote},
		loop{name: "unblocker", every: d.PollInterval, wake: d.freed, step: d.unblock},
		loop{name: "deadlines", every: d.PollInterval, step: d.expire},
		loop{name: "rescuer", every: d.rescueEvery(), step: d.rescue})
}

// tending are the loops that running attempts and waiting clients need until
// the end.
func (d *Dispatcher) tending() []loop {
	loops := []loop{
		{name: "watcher", every: d.PollInterval, wake: d.look, step: d.watch},
		{name: "timeline", every: d.PollInterval, step: d.record},
	}
	if d.outgoing != nil {
		loops = append(loops,
			loop{name: "notices", every: d.PollInterval, wake: d.outgoing.signal, step: d.notify},
			loop{name: "listener", every: listenEvery, step: d.listen})
	}
	if d.runs() {
		loops = append(loops,
			loop{name: "heartbeat", every: d.Heartbeat, step: d.beat},
			loop{name: "locks", every: d.Heartbeat, step: d.refreshLocks})
	}
	if d.tends() {
		loops = append(loops, loop{name: "report", every: reportEvery, step: d.reportSelf})
	}
	return loops
}

// runs reports whether this process runs jobs at all.
func (d *Dispatcher) runs() bool { return d.Slots > 0 && len(d.types) > 0 }

// tends reports whether this process moves jobs on: it runs some itself, or workers
// outside of it do.
func (d *Dispatcher) tends() bool { return d.runs() || d.remote.serves() }

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

func (d *Dispatcher) loopFailed(name string) { d.Metrics.LoopErrors.WithLabelValues(name).Inc() }
