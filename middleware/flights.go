package middleware

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/idempotency"
)

// A waiter looks at the store after the first of these, and then less and less
// often: most handlers end soon.
const (
	firstLook   = 100 * time.Millisecond
	slowestLook = 500 * time.Millisecond
)

// await waits for the request in flight, if the client prefers that to a 409
// and there is room, and then tries again: the answer is there by then, or the
// key was released and is claimed. why is what it returns otherwise.
func (o *once) await(w http.ResponseWriter, r *http.Request, req idempotency.Request, why error) (*idempotency.Claim, idempotency.Record, error) {
	var none idempotency.Record
	wait, leave, err := o.mayWait(r, req.Tenant, why)
	if wait == 0 {
		return nil, none, err
	}
	defer leave()
	w.Header().Set("Preference-Applied", api.WaitApplied(wait))
	ctx, cancel := context.WithTimeout(r.Context(), wait)
	defer cancel()
	id := flightID{req.Tenant, req.Key}
	for {
		f := o.flights.join(id)
		// The request may have ended before the join, so once more.
		claim, rec, err := o.begin(ctx, req)
		if !inFlight(err) {
			o.flights.leave(id, f)
			return claim, rec, err
		}
		moved := o.follow(ctx, id, f)
		o.flights.leave(id, f)
		if !moved {
			return nil, none, err
		}
		if err := o.still(r); err != nil {
			return nil, none, err
		}
	}
}

// still returns why a request that has waited gets no answer: its caller would not be
// let in any more.
func (o *Options) still(r *http.Request) error {
	if o.Still == nil {
		return nil
	}
	return o.Still(r)
}

// mayWait is how long the request may wait; if it may not, err is the answer.
func (o *Options) mayWait(r *http.Request, t idempotency.Tenant, why error) (wait time.Duration, leave func(), err error) {
	wait, _ = api.ParsePrefer(r.Header.Values("Prefer")).Grant(o.MaxWait)
	if wait == 0 || o.Waiters == nil {
		return wait, func() {}, why
	}
	leave, ok := o.Waiters.Enter(t)
	if !ok {
		return 0, nil, &idempotency.InProgressError{RetryIn: api.CrowdedPace}
	}
	return wait, leave, why
}

// follow blocks until the key has moved, and reports false if ctx or the process
// ends before. A key that this process does not run itself is looked at now and
// then, by one of those who wait for it.
func (o *once) follow(ctx context.Context, id flightID, f *flight) bool {
	turn := f.turn
	if f.local {
		turn = nil
	}
	for {
		select {
		case <-f.woken:
			return true
		case <-ctx.Done():
			return false
		case <-o.Stopping:
			return false
		case turn <- struct{}{}:
		}
		if o.look(ctx, id, f) {
			o.flights.wake(id, f)
			return true
		}
		<-turn
	}
}

// look waits a moment and reports whether the key has moved.
func (o *once) look(ctx context.Context, id flightID, f *flight) bool {
	timer := time.NewTimer(f.pace)
	defer timer.Stop()
	f.pace = min(2*f.pace, slowestLook)
	select {
	case <-f.woken:
		return true
	case <-ctx.Done():
		return false
	case <-o.Stopping:
		return false
	case <-timer.C:
	}
	ctx, cancel := context.WithTimeout(ctx, o.StoreTimeout)
	defer cancel()
	rec, err := o.store.Find(ctx, id.tenant, id.key)
	if err != nil {
		// A store that does not answer is no reason to try.
		return errors.Is(err, idempotency.ErrNotFound)
	}
	return rec.State != idempotency.InProgress || rec.RetryIn <= 0
}

type flightID struct {
	tenant idempotency.Tenant
	key    idempotency.Key
}

// flights are the keys that this process waits for, and those that it runs
// itself: who waits for one of these is woken, and need not look at the store.
// It holds as much as there are requests in the process.
type flights struct {
	mu      sync.Mutex
	waiting map[flightID]*flight
	running map[flightID]int
}

// flight is one key that somebody waits for.
type flight struct {
	woken   chan struct{}
	turn    chan struct{} // held by the one waiter that looks, for all
	pace    time.Duration // whose turn it is waits so long before it looks
	local   bool          // this process runs it
	waiters int
}

func newFlights() *flights {
	return &flights{waiting: map[flightID]*flight{}, running: map[flightID]int{}}
}

// begun says that this process runs the key's handler.
func (f *flights) begun(id flightID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.running[id]++
}

// ended says that it does not any more, and wakes who waits for that.
func (f *flights) ended(id flightID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.running[id]--; f.running[id] == 0 {
		delete(f.running, id)
	}
	f.wakeLocked(id, f.waiting[id])
}

// wake wakes everybody who waits for the key.
func (f *flights) wake(id flightID, waiting *flight) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wakeLocked(id, waiting)
}

func (f *flights) wakeLocked(id flightID, waiting *flight) {
	if waiting != nil && f.waiting[id] == waiting {
		close(waiting.woken)
		delete(f.waiting, id)
	}
}

func (f *flights) join(id flightID) *flight {
	f.mu.Lock()
	defer f.mu.Unlock()
	joined := f.waiting[id]
	if joined == nil {
		joined = &flight{woken: make(chan struct{}), turn: make(chan struct{}, 1), pace: firstLook, local: f.running[id] > 0}
		f.waiting[id] = joined
	}
	joined.waiters++
	return joined
}

func (f *flights) leave(id flightID, left *flight) {
	f.mu.Lock()
	defer f.mu.Unlock()
	left.waiters--
	if left.waiters == 0 && f.waiting[id] == left {
		delete(f.waiting, id)
	}
}
