package repository

import (
	"sync"

	"github.com/sekali/sekali/idempotency"
)

// running are keys that one goroutine of this process at a time works on.
type running struct {
	mu   sync.Mutex
	keys map[runningKey]chan struct{}
}

type runningKey struct {
	tenant idempotency.Tenant
	key    idempotency.Key
}

// take makes the key the caller's, until leave, or returns the channel that is
// closed when it is nobody's.
func (r *running) take(req idempotency.Request) (ended chan struct{}, mine bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ended, ok := r.keys[runningKey{req.Tenant, req.Key}]; ok {
		return ended, false
	}
	if r.keys == nil {
		r.keys = map[runningKey]chan struct{}{}
	}
	ended = make(chan struct{})
	r.keys[runningKey{req.Tenant, req.Key}] = ended
	return ended, true
}

func (r *running) leave(req idempotency.Request, ended chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.keys, runningKey{req.Tenant, req.Key})
	close(ended)
}
