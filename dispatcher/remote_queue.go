package dispatcher

import (
	"slices"
	"sync"
	"time"

	"github.com/sekali/sekali/job"
)

// claimQueue is the claims of workers that wait in this process. However many they
// are, one of each sort (a type, of a tenant or of all) looks at a time, when it is
// told of a job or at the interval; whoever finds as much as it asked for lets the
// next one look.
type claimQueue struct {
	ended chan struct{} // closed when nobody may wait any more

	mu     sync.Mutex
	groups map[job.Type]groups // its keys never change
	over   bool
	// resting are types whose rate lets nothing start for a while.
	resting map[job.Type]bool
}

// groups are claims that wait for jobs of one type, by the tenant whose jobs they may
// take ("": all); in the order in which they came.
type groups map[string][]*waitingClaim

// waitingClaim is one claim. The queue's lock guards what changes.
type waitingClaim struct {
	ask    job.WorkerClaim
	signal chan struct{}
	// told are the types to look at, and whether other processes are to be told if
	// this claim does not take everything.
	told    map[job.Type]bool
	looking bool
}

func (w *waitingClaim) tenant() string { return string(w.ask.Tenant) }

func newClaimQueue() *claimQueue {
	return &claimQueue{ended: make(chan struct{}), groups: map[job.Type]groups{}, resting: map[job.Type]bool{}}
}

// knows reports whether the type is one for workers outside.
func (q *claimQueue) knows(t job.Type) bool { _, ok := q.groups[t]; return ok }

// enter adds a claim that begins by looking.
func (q *claimQueue) enter(ask job.WorkerClaim) *waitingClaim {
	w := &waitingClaim{ask: ask, signal: make(chan struct{}, 1), told: map[job.Type]bool{}, looking: true}
	if ask.Wait <= 0 {
		return w // it waits for nothing
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, t := range ask.Types {
		if of := q.groups[t]; of != nil {
			of[w.tenant()] = append(of[w.tenant()], w)
		}
	}
	return w
}

// leave removes the claim, and returns what it was told and did not look at.
func (q *claimQueue) leave(w *waitingClaim) map[job.Type]bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, t := range w.ask.Types {
		of := q.groups[t]
		rest := slices.DeleteFunc(of[w.tenant()], func(other *waitingClaim) bool { return other == w })
		if len(rest) == 0 {
			delete(of, w.tenant())
			continue
		}
		of[w.tenant()] = rest
	}
	return w.told
}

// take returns what the claim was told, and notes that it looks.
func (q *claimQueue) take(w *waitingClaim) map[job.Type]bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	told := w.told
	w.told, w.looking = map[job.Type]bool{}, true
	return told
}

// lookedInVain notes that the claim does nothing for now.
func (q *claimQueue) lookedInVain(w *waitingClaim) {
	q.mu.Lock()
	defer q.mu.Unlock()
	w.looking = false
}

// rest lets one claim of each sort look at the type again after a while, once for
// all who ask for that meanwhile.
func (q *claimQueue) rest(t job.Type, length time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.resting[t] {
		return
	}
	q.resting[t] = true
	time.AfterFunc(length, func() {
		q.mu.Lock()
		delete(q.resting, t)
		q.mu.Unlock()
		q.wakeAll(t, false)
	})
}

// rests reports whether the type's rate lets nothing start just now.
func (q *claimQueue) rests(t job.Type) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.resting[t]
}

// wake lets one claim look that waits for the type; false says that none does.
func (q *claimQueue) wake(t job.Type, tenant string, untold bool) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.tell(t, q.groups[t][tenant], untold)
}

// wakeAll is wake for a claim of each sort: whose jobs there are is not known.
func (q *claimQueue) wakeAll(t job.Type, untold bool) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	woken := false
	for _, waiting := range q.groups[t] {
		woken = q.tell(t, waiting, untold) || woken
	}
	return woken
}

// tell picks the first claim that does nothing yet. If all of them are about to
// look, that will do; one that looks already may have come too early, and looks
// once more.
func (q *claimQueue) tell(t job.Type, waiting []*waitingClaim, untold bool) bool {
	if len(waiting) == 0 || q.over {
		return false
	}
	free := slices.IndexFunc(waiting, func(w *waitingClaim) bool { return !w.looking && len(w.told) == 0 })
	w := waiting[max(free, 0)]
	w.told[t] = w.told[t] || untold
	select {
	case w.signal <- struct{}{}:
	default:
	}
	return true
}

// end lets nobody wait any more. Calling it again does nothing.
func (q *claimQueue) end() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.over {
		q.over = true
		close(q.ended)
	}
}
