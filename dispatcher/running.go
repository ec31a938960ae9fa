package dispatcher

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sekali/sekali/executor"
	"github.com/sekali/sekali/job"
	"github.com/sekali/sekali/lock"
)

// attempt is one claimed job while this process works on it, from the claim
// until its end is written.
type attempt struct {
	job.Claimed
	work    Work
	started time.Time
	late    bool // the lease could not be trusted any more when the claim was answered
	// ctx ends with a cause: job.ErrTimeout, job.ErrLeaseLost, job.ErrLockLost,
	// job.ErrCancelled, job.ErrShutdown.
	// It is the attempt's lifetime, handed to its executor.
	ctx    context.Context
	cancel context.CancelCauseFunc
	// settling is set once the work is over and its end is being written. From
	// then on only that write, fenced by the token, tells whether the lease held.
	settling atomic.Bool
	// cancelAsked is set once somebody asked to cancel the job.
	cancelAsked atomic.Bool
	// undone is set once reconciliation said that the earlier attempt did nothing.
	undone atomic.Bool
	lock   atomic.Pointer[lock.Lock]
	trust  *time.Timer // fires when the lease may not be trusted any more; nil if time ends no lease
}

// asked is the claimed job with what its holder has learned since the claim.
func (a *attempt) asked() job.Claimed {
	c := a.Claimed
	if a.cancelAsked.Load() && !c.Cancelling() {
		c.CancelRequestedAt = a.started // the time is the database's business
	}
	if a.undone.Load() {
		c.UnknownAsks = 0
	}
	return c
}

// askCancel ends the attempt because somebody cancelled the job. Work that is
// done stays done.
func (a *attempt) askCancel() {
	if !a.cancelAsked.Swap(true) && !a.settling.Load() {
		a.cancel(job.ErrCancelled)
	}
}

// resume takes back that the work is over, because the transaction that was to
// be its end has failed. A cancellation that came in meanwhile counts now.
func (a *attempt) resume() {
	a.settling.Store(false)
	if a.cancelAsked.Load() {
		a.cancel(job.ErrCancelled)
	}
}

// inDoubt reports whether nobody knows what an earlier attempt did, and that has
// to be asked before the job is tried again.
func (a *attempt) inDoubt() bool {
	_, can := a.work.Execute.(executor.Reconciler)
	return a.UnknownAsks > 0 && !a.undone.Load() && can && a.work.Settings.OnUnknown == job.UnknownReconcile
}

func (a *attempt) holdLock(l lock.Lock) { a.lock.Store(&l) }

// lose ends the attempt because its lease is not ours any more.
func (a *attempt) lose() { a.cancel(job.ErrLeaseLost) }

// distrust ends the attempt because its lease may not be ours any more. Work
// that is done stays done: doing it again would be the harm.
func (a *attempt) distrust() {
	if !a.settling.Load() {
		a.lose()
	}
}

// trustMargin is how long before the end of its lease a process stops trusting
// it: for the pause between "it is still mine" and the act, and for clocks that
// do not run at one speed. The write itself is fenced by the token.
func trustMargin(lease time.Duration) time.Duration { return min(2*time.Second, lease/5) }

// running is the set of attempts of this process. It is keyed by lease, not by
// job: a job whose lease was lost may be claimed again by the same process
// while the first attempt is still on its way out.
type running struct {
	mu      sync.Mutex
	byLease map[job.Lease]*attempt
	idle    chan struct{} // closed while the set is empty
	// lost are leases whose attempts were made here and left without an end,
	// and when: the rescuer must not take them for claims that never arrived.
	lost map[job.Lease]time.Time
}

// rememberLost is how long a lost lease is remembered: longer than it takes the
// rescuer to find it, however long the database was away.
const rememberLost = 24 * time.Hour

func newRunning() *running {
	r := &running{byLease: map[job.Lease]*attempt{}, idle: make(chan struct{}), lost: map[job.Lease]time.Time{}}
	close(r.idle)
	return r
}

func (r *running) add(a *attempt) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.byLease) == 0 {
		r.idle = make(chan struct{})
	}
	r.byLease[a.Lease] = a
}

func (r *running) remove(a *attempt) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byLease[a.Lease] != a {
		return
	}
	delete(r.byLease, a.Lease)
	if len(r.byLease) == 0 {
		close(r.idle)
	}
}

// lose notes that an attempt under the lease has left no end.
func (r *running) lose(l job.Lease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(r.lost, func(_ job.Lease, at time.Time) bool { return now.Sub(at) > rememberLost })
	r.lost[l] = now
}

// hasLost reports whether an attempt under the lease was made here and has left
// no end.
func (r *running) hasLost(l job.Lease) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.lost[l]
	return ok
}

func (r *running) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.byLease)
}

// countOf is how many of the type there are.
func (r *running) countOf(t job.Type) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, a := range r.byLease {
		if a.Type == t {
			n++
		}
	}
	return n
}

// has reports whether this very lease is being worked on.
func (r *running) has(l job.Lease) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.byLease[l] != nil
}

// get is the attempt under the lease; nil if this process makes none.
func (r *running) get(l job.Lease) *attempt {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.byLease[l]
}

func (r *running) all() []*attempt {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]*attempt, 0, len(r.byLease))
	for _, a := range r.byLease {
		all = append(all, a)
	}
	return all
}

// ended returns a channel that is closed once no attempt is running.
func (r *running) ended() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.idle
}
