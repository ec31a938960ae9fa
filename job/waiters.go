package job

import (
	"sync"
)

// Waiters wakes those who wait for jobs to move. Whoever commits a transition
// in this process calls Changed; for those of other processes notices do and, as the
// truth, one statement for all waiters of the process, see dispatcher.
type Waiters struct {
	mu    sync.Mutex
	byID  map[ID]*waiter // the latest of each job; a list, as a map per job costs more than all else
	ended bool
}

type waiter struct {
	after    int64 // wake when the version is greater
	finished bool  // and only when the job has finished
	c        chan struct{}

	newer, older *waiter // of the same job
	gone         bool    // from the list
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
	w.add(id, self)
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
	for self := w.byID[id]; self != nil; {
		older := self.older // removing self forgets it
		if v.Number > self.after && (!self.finished || v.Status.Finished()) {
			close(self.c)
			w.remove(id, self)
		}
		self = older
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

// Ended reports whether End was called: nobody waits any more.
func (w *Waiters) Ended() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ended
}

// End wakes everybody, now and from now on: the process is shutting down and
// each waiter should answer with what it knows.
func (w *Waiters) End() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
	for id, self := range w.byID {
		for self != nil {
			older := self.older
			close(self.c)
			w.remove(id, self)
			self = older
		}
	}
}

func (w *Waiters) add(id ID, self *waiter) {
	if w.byID == nil {
		w.byID = map[ID]*waiter{}
	}
	if self.older = w.byID[id]; self.older != nil {
		self.older.newer = self
	}
	w.byID[id] = self
}

func (w *Waiters) remove(id ID, self *waiter) {
	if self.gone {
		return
	}
	self.gone = true
	if self.older != nil {
		self.older.newer = self.newer
	}
	switch {
	case self.newer != nil:
		self.newer.older = self.older
	case self.older != nil:
		w.byID[id] = self.older
	default:
		delete(w.byID, id)
	}
	self.newer, self.older = nil, nil
}
