package dispatcher_test

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sekali/sekali/job"
)

// leases is a hand-written database: it hands out what pending holds, and
// records what is written. Its hooks make calls fail, and count them from 1.
type leases struct {
	diary *diary

	mu       sync.Mutex
	pending  []job.Claimed
	waiting  []delayed // requeued, or ended by nobody yet
	held     map[job.Lease]job.Claimed
	cancels  map[job.Lease]bool // somebody asked to cancel
	untold   bool               // of which heartbeats do not tell
	expired  []job.Claimed      // listed while they are held
	overdue  []job.Claimed      // listed until they end
	behind   []job.Claimed      // wait for whoever has their business key
	holders  map[string]bool    // of business keys, besides those that are held
	payloads map[job.ID][]byte
	comeBack bool // requeued jobs are claimed again when they are due
	locked   bool // rows cannot be extended, and are still ours

	finished []job.Ending
	requeued []job.Requeue
	unblocks []time.Time

	nextAt time.Time // of the rate

	beats, claims, looks, finishes, requeues, txs, commits, loads int

	claimTakes                           time.Duration // before an answer with jobs arrives
	onClaim, onFinish, onRequeue, onLoad func(n int) error
	onExtend                             func(n int, length time.Duration) error
	onBegin, onCommit                    func(n int) error // of a transaction, before and after the work
}

// delayed is a job that may be claimed from a moment on.
type delayed struct {
	c   job.Claimed
	due time.Time
}

func (l *leases) Claim(_ context.Context, c job.Claiming) (claimed []job.Claimed, err error) {
	t, n, worker, until := c.Type, c.Max, c.Worker, time.Now().Add(c.Lease)
	defer func() {
		if len(claimed) > 0 {
			<-time.After(l.claimTakes)
		}
	}()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.claims++
	if err := call(l.onClaim, l.claims); err != nil {
		return nil, err
	}
	var rest []job.Claimed
	for _, c := range l.pending {
		if c.Type != t || len(claimed) == n {
			rest = append(rest, c)
			continue
		}
		c.WorkerID, c.Status, c.LeaseEndsAt = worker, job.Processing, until
		c.Attempts++
		l.held[c.Lease] = c
		claimed = append(claimed, c)
	}
	l.pending = rest
	return claimed, nil
}

func (l *leases) Extend(_ context.Context, held []job.Lease, length time.Duration) (map[job.ID]job.Kept, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.beats++
	if l.onExtend != nil {
		if err := l.onExtend(l.beats, length); err != nil {
			return nil, err
		}
	}
	kept := map[job.ID]job.Kept{}
	for _, one := range held {
		if _, ours := l.held[one]; ours {
			kept[one.ID] = job.Kept{Extended: !l.locked, CancelRequested: l.cancels[one] && !l.untold}
		}
	}
	return kept, nil
}

func (l *leases) Finish(_ context.Context, endings []job.Ending) ([]job.Application, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.finishes++
	if err := call(l.onFinish, l.finishes); err != nil {
		return nil, err
	}
	applied := make([]job.Application, len(endings))
	for i, e := range endings {
		applied[i] = l.end(e)
	}
	return applied, nil
}

// end applies one ending; the mutex is held.
func (l *leases) end(e job.Ending) job.Application {
	c, ours := l.held[e.Lease]
	at := -1
	if e.Waiting {
		at = slices.IndexFunc(l.overdue, func(o job.Claimed) bool { return o.Lease == e.Lease })
		ours = at >= 0
	}
	switch {
	case !ours:
		return job.Refused
	case e.Status == job.Failed && l.cancels[e.Lease]:
		return job.CancelPending
	case e.Waiting:
		l.overdue = slices.Delete(l.overdue, at, at+1)
	}
	delete(l.held, e.Lease)
	l.finished = append(l.finished, e)
	l.diary.add("finish %s", e.Status)
	if len(e.Follow) > 0 {
		j := e.Follow[0].Job
		lease := job.Lease{ID: "undo-" + c.ID, Token: 1}
		l.pending = append(l.pending, job.Claimed{Lease: lease, Job: job.Job{
			ID: lease.ID, Type: j.Type, Key: j.Key, Payload: j.Payload, Timeout: time.Minute, MaxAttempts: 3, Token: 1, Version: 2,
		}})
	}
	return job.Applied
}

func (l *leases) FinishTx(ctx context.Context, c job.Claimed, run func(context.Context, *sql.Tx) (job.Ending, error)) error {
	l.mu.Lock()
	l.txs++
	n := l.txs
	begin, commit := l.onBegin, l.onCommit
	l.mu.Unlock()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := call(begin, n); err != nil {
		return err
	}
	ending, err := run(ctx, nil)
	if err != nil {
		return err
	}
	if err := call(commit, n); err != nil {
		return err
	}
	if ctx.Err() != nil { // it was rolled back with its context
		return context.Cause(ctx)
	}
	ending.Lease = c.Lease
	applied, err := l.Finish(ctx, []job.Ending{ending})
	if err == nil && applied[0] != job.Applied {
		return job.ErrLeaseLost
	}
	l.mu.Lock()
	l.commits++
	l.mu.Unlock()
	return err
}

func (l *leases) Requeue(_ context.Context, requeues []job.Requeue) ([]job.Application, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requeues++
	if err := call(l.onRequeue, l.requeues); err != nil {
		return nil, err
	}
	applied := make([]job.Application, len(requeues))
	for i, r := range requeues {
		c, ours := l.held[r.Lease]
		switch {
		case !ours:
			continue
		case l.cancels[r.Lease]:
			applied[i] = job.CancelPending
			continue
		}
		applied[i] = job.Applied
		delete(l.held, r.Lease)
		l.requeued = append(l.requeued, r)
		l.diary.add("requeue %s", r.Status)
		l.putBack(c, r)
	}
	return applied, nil
}

// putBack keeps a requeued job for its next claim; the mutex is held.
func (l *leases) putBack(c job.Claimed, r job.Requeue) {
	if !l.comeBack {
		return
	}
	c.Lease.Token++
	c.Token, c.UnknownAsks = c.Lease.Token, r.UnknownAsks
	c.Version += 3
	if r.Uncounted {
		c.Attempts--
	}
	if r.Failure != nil {
		c.LastError = r.Failure
	}
	l.waiting = append(l.waiting, delayed{c, time.Now().Add(r.In)})
}

func (l *leases) Promote(context.Context, int) (types []job.Type, next time.Duration, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var rest []delayed
	for _, w := range l.waiting {
		left := time.Until(w.due)
		if left <= 0 {
			l.pending = append(l.pending, w.c)
			types = append(types, w.c.Type)
			continue
		}
		rest = append(rest, w)
		if next == 0 || left < next {
			next = left
		}
	}
	l.waiting = rest
	return types, next, nil
}

func (l *leases) Expired(context.Context, string, int) ([]job.Claimed, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expired = slices.DeleteFunc(l.expired, func(c job.Claimed) bool { _, ours := l.held[c.Lease]; return !ours })
	return slices.Clone(l.expired), nil
}

func (l *leases) Overdue(_ context.Context, limit int) ([]job.Claimed, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.overdue[:min(limit, len(l.overdue))]), nil
}

// Unblock lets one job go with each call, for the sake of the test.
func (l *leases) Unblock(context.Context, int) ([]job.Type, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unblocks = append(l.unblocks, time.Now())
	busy := map[string]bool{}
	for _, c := range slices.Concat(l.pending, slices.Collect(maps.Values(l.held))) {
		busy[c.BusinessKey] = true
	}
	for i, c := range l.behind {
		if !busy[c.BusinessKey] && !l.holders[c.BusinessKey] {
			l.behind = slices.Delete(l.behind, i, i+1)
			l.pending = append(l.pending, c)
			return []job.Type{c.Type}, nil
		}
	}
	return nil, nil
}

func (l *leases) Load(_ context.Context, id job.ID) (job.Claimed, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.loads++
	if err := call(l.onLoad, l.loads); err != nil {
		return job.Claimed{}, err
	}
	payload, ok := l.payloads[id]
	if !ok {
		return job.Claimed{}, fmt.Errorf("load: %w", job.ErrNotFound)
	}
	return job.Claimed{Job: job.Job{ID: id, Payload: payload}}, nil
}

func (l *leases) RequestCancel(_ context.Context, lease job.Lease) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ours := l.held[lease]
	l.cancels[lease] = ours
	return ours, nil
}

func (l *leases) Versions(context.Context, []job.ID) (map[job.ID]job.Version, error) {
	return map[job.ID]job.Version{}, nil
}

// take gives the lease to somebody else.
func (l *leases) take(lease job.Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.held, lease)
}

// lose makes the jobs ones whose holder is not coming back.
func (l *leases) lose(lost ...job.Claimed) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range lost {
		l.held[c.Lease] = c
	}
	l.expired = append(l.expired, lost...)
}

// change changes the database while the dispatcher runs.
func (l *leases) change(with func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	with()
}

func (l *leases) endings() []job.Ending {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.finished)
}

func (l *leases) putOffs() []job.Requeue {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.requeued)
}

// unblocked is how often the database was asked to let jobs go.
func (l *leases) unblocked() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.unblocks)
}

// number reads a count of the database's.
func (l *leases) number(of *int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return *of
}

func call(hook func(int) error, n int) error {
	if hook == nil {
		return nil
	}
	return hook(n)
}

// upTo makes the first n calls fail.
func upTo(n int, err error) func(int) error {
	return func(call int) error {
		if call <= n {
			return err
		}
		return nil
	}
}

// always makes every call fail.
func always(err error) func(int) error { return func(int) error { return err } }

// ClaimLimited counts what is held and keeps the clock of the rate, as a database does.
func (l *leases) ClaimLimited(ctx context.Context, c job.Claiming, limit job.Limit) (job.Claims, error) {
	l.mu.Lock()
	l.looks++
	wait := time.Until(l.nextAt)
	if limit.Concurrency > 0 {
		c.Max = min(c.Max, limit.Concurrency-len(l.held))
	}
	batch, every := limit.Rate.Steps()
	if batch > 0 {
		c.Max = min(c.Max, batch)
	}
	none := c.Max <= 0 || len(l.pending) == 0
	l.mu.Unlock()
	if none || wait > 0 {
		return job.Claims{Next: max(wait, 0)}, nil
	}
	jobs, err := l.Claim(ctx, c)
	l.nextAt = time.Now().Add(every)
	return job.Claims{Jobs: jobs, Next: every}, err
}
