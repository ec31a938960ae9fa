package job

import (
	"sync"
)

// Waiters wakes those who wait for jobs to move. Whoever commits a transition
// in this process calls Changed; for those of other processes one statement
// for all waiters of the process, see dispatcher.
type Waiters struct {
	mu    sync.Mutex
	byID  map[ID]map[*waiter]struct{}
	ended bool
}

type waiter struct {
	after    int64 // wake when the version is greater
	finished bool  // and only when the job has finished
	c        chan struct{}
}

// Wait returns a channel that is closed when the job's version rises above
// after; with untilFinished only when the job has finished. Call stop when done.
func (w *Waiters) Wait(id ID, after int64, untilFinished bool) (woken <-chan struct{}, stop func()) {
	self := &waiter{after: after, finished: untilFinished, c: make(chan struct{})}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		close(self.c)
		return self.c, func() {}
	}
	if w.byID == nil {
		w.byID = map[ID]map[*waiter]struct{}{}
	}
	if w.byID[id] == nil {
		w.byID[id] = map[*waiter]struct{}{}
	}
	w.byID[id][self] = struct{}{}
	return self.c, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.remove(id, self)
	}
}

// Changed tells that a job has moved to a version.
func (w *Waiters) Changed(id ID, v Version) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for self := range w.byID[id] {
		if v.Number <= self.after || self.finished && !v.Status.Finished() {
			continue
		}
		close(self.c)
		w.remove(id, self)
	}
}

// IDs lists the jobs that somebody waits for.
func (w *Waiters) IDs() []ID {
	w.mu.Lock()
	defer w.mu.Unlock()
	ids := make([]ID, 0, len(w.byID))
	for id := range w.byID {
		ids = append(ids, id)
	}
	return ids
}

// End wakes everybody, now and from now on: the process is shutting down and
// each waiter should answer with what it knows.
func (w *Waiters) End() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
	for id, all := range w.byID {
		for self := range all {
			close(self.c)
		}
		delete(w.byID, id)
	}
}

func (w *Waiters) remove(id ID, self *waiter) {
	delete(w.byID[id], self)
	if len(w.byID[id]) == 0 {
		delete(w.byID, id)
	}
}
