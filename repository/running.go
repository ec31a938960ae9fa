package repository

import (
	"context"
	"sync"
	"time"

	"github.com/sekali/sekali/idempotency"
)

// running are keys that one goroutine of this process at a time works on.
type running struct {
	mu   sync.Mutex
	keys map[recordKey]chan struct{}
}

// recordKey names a record.
type recordKey struct {
	tenant idempotency.Tenant
	key    idempotency.Key
}

func keyOf(req idempotency.Request) recordKey { return recordKey{req.Tenant, req.Key} }

// after waits while another caller works on the key, as long as a lock may take;
// ended tells whether that was enough. first tells that there was no other one: those
// who come now wait for this caller, until leave is called.
func (r *running) after(ctx context.Context, req idempotency.Request) (leave func(), first, ended bool, err error) {
	done, mine := r.take(req)
	if mine {
		return func() { r.leave(req, done) }, true, true, nil
	}
	timer := time.NewTimer(lockTimeout)
	defer timer.Stop()
	ended, err = endedBefore(ctx, done, timer)
	return func() {}, false, ended, err
}

// endedBefore waits until ended is closed, and reports false if the timer was first.
// After a standstill both are ready, and chance takes one: the end counts. The timer
// has then run out for whoever waits again.
func endedBefore(ctx context.Context, ended <-chan struct{}, timer *time.Timer) (bool, error) {
	select {
	case <-ended:
		return true, nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	case <-timer.C:
	}
	select {
	case <-ended:
		timer.Reset(0)
		return true, nil
	default:
		return false, nil
	}
}

// take makes the key the caller's, until leave, or returns the channel that is
// closed when it is nobody's.
func (r *running) take(req idempotency.Request) (ended chan struct{}, mine bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ended, ok := r.keys[keyOf(req)]; ok {
		return ended, false
	}
	if r.keys == nil {
		r.keys = map[recordKey]chan struct{}{}
	}
	ended = make(chan struct{})
	r.keys[keyOf(req)] = ended
	return ended, true
}

func (r *running) leave(req idempotency.Request, ended chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.keys, keyOf(req))
	close(ended)
}
