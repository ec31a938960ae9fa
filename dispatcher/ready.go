package dispatcher

import (
	"sync"

	"github.com/sekali/sekali/job"
)

// ready is the set of job types that may have claimable jobs, with a signal
// for the claiming loop. Marking is cheap and never blocks: accepts do it.
type ready struct {
	mu     sync.Mutex
	marked map[job.Type]bool // whether it is for this process to tell others of them
	signal chan struct{}
}

func newReady() *ready {
	return &ready{marked: map[job.Type]bool{}, signal: make(chan struct{}, 1)}
}

// mark notes that jobs of the types may be claimable: this process has made them so.
func (r *ready) mark(types ...job.Type) { r.add(true, types) }

// hint notes the same as something that every other process may know.
func (r *ready) hint(types ...job.Type) { r.add(false, types) }

func (r *ready) add(untold bool, types []job.Type) {
	if len(types) == 0 {
		return
	}
	r.mu.Lock()
	for _, t := range types {
		r.marked[t] = r.marked[t] || untold
	}
	r.mu.Unlock()
	r.wake()
}

// wake runs the claiming loop without marking anything: a slot became free.
func (r *ready) wake() {
	select {
	case r.signal <- struct{}{}:
	default:
	}
}

// take empties the set and returns what was in it.
func (r *ready) take() map[job.Type]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	taken := r.marked
	r.marked = map[job.Type]bool{}
	return taken
}

// putBack marks types again without a signal: there is no slot for them now,
// and the next free one wakes the loop.
func (r *ready) putBack(types map[job.Type]bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for t, untold := range types {
		r.marked[t] = r.marked[t] || untold
	}
}
