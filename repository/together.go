package repository

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/sekali/sekali/internal/batching"
	"github.com/sekali/sekali/job"
)

// What many callers ask at once goes together: one statement and one commit for
// all that arrived while the statements before were on their way (docs/adr/0017).
// A caller that is alone has its own statement at once.
const (
	// readSize bounds how many records one statement reads: each may bring a payload, a
	// response and a result.
	readSize = 16
	// togetherWeight bounds the bytes of one statement; a larger payload goes alone.
	togetherWeight = 1 << 20
	// defaultQueue is how many submissions may wait: at the rate of one machine a
	// fraction of a second.
	defaultQueue = 2000
	// togetherPatience is how long a caller may wait for its statement to begin. It is below
	// what a client waits for an answer.
	togetherPatience = acceptTimeout
)

// together are the batchers of a repository.
type together struct {
	accepts  *batching.Batcher[*job.Submission, accepted]
	finds    *batching.Batcher[recordKey, found]
	endings  *batching.Batcher[ending, applied]
	followed *batching.Batcher[ending, applied] // endings that something follows
	requeues *batching.Batcher[requeue, applied]

	// accepting are keys of which a submission is under way. Repetitions wait for it
	// instead of its lock.
	accepting running
	// Keys and jobs that somebody outside holds locked are asked about alone, or
	// each statement that names them would wait for that lock.
	heldKeys contended[recordKey]
	heldJobs contended[job.ID]
}

const (
	// lockedMost is how many rows of a statement are found to be locked, one after the
	// other, before the rest is not tried row by row: then it is hardly rows that
	// somebody holds, but the table.
	lockedMost = 3
	// aloneMost is how many wait alone at once. Each has a connection that others
	// need too.
	aloneMost = 3
)

// accepted, found and applied are the answers of the batchers.
type (
	accepted struct {
		answer *answer // has the receipt, which is too large to be handed on by value
		err    error
	}
	found struct {
		row *recordRow // nil: there is no record
		err error
	}
	applied struct {
		application job.Application
		err         error
	}
)

func (r *Repository) putTogether(queue int) {
	writers, readers := r.engine.flushes()
	r.accepts = batching.New(batching.Config[*job.Submission]{
		Flushes: writers, Size: waveSize, Room: queue, Patience: togetherPatience,
		Weigh: func(s *job.Submission) int { return len(s.Job.Payload) }, Weight: togetherWeight,
	}, r.acceptTogether)
	r.finds = batching.New(batching.Config[recordKey]{Flushes: readers, Size: readSize, Patience: togetherPatience}, r.findTogether)
	r.endings = batching.New(batching.Config[ending]{
		Flushes: writers, Size: waveSize,
		Weigh: ending.weight, Weight: togetherWeight,
	}, func(ctx context.Context, calls []*batching.Call[ending, applied]) {
		applyTogether(ctx, r, calls, r.finish)
	})
	r.followed = batching.New(batching.Config[ending]{
		Flushes: writers, Size: waveSize,
		Weigh: ending.weight, Weight: togetherWeight,
	}, func(ctx context.Context, calls []*batching.Call[ending, applied]) {
		applyTogether(ctx, r, calls, r.finishFollowed)
	})
	r.requeues = batching.New(batching.Config[requeue]{Flushes: writers, Size: waveSize},
		func(ctx context.Context, calls []*batching.Call[requeue, applied]) {
			applyTogether(ctx, r, calls, r.requeue)
		})
}

// Waiting is how many submissions wait in this process for their statement.
func (r *Repository) Waiting() int { return r.accepts.Waiting() }

// waited explains why a batcher did not take a call. Nothing was sent.
func waited(err error) error {
	switch {
	case errors.Is(err, batching.ErrFull):
		return job.ErrQueueFull
	case errors.Is(err, batching.ErrPatience):
		return fmt.Errorf("%w: %w", job.ErrUnavailable, err)
	}
	return err
}

// acceptTogether accepts the submissions of many callers. One that waits for a
// lock does so alone.
func (r *Repository) acceptTogether(ctx context.Context, calls []*batching.Call[*job.Submission, accepted]) {
	answers := make([]answer, len(calls))
	for i, c := range calls {
		answers[i] = answerFor(c.In)
	}
	r.engine.acceptAll(ctx, r, answers)
	for i, c := range calls {
		a := &answers[i]
		if a.locked {
			c.Later(func() accepted { return r.acceptAlone(ctx, a) })
			continue
		}
		c.Answer(r.acceptedBy(a))
	}
}

func (r *Repository) acceptedBy(a *answer) accepted {
	return accepted{a, r.fail("accept", a.err)}
}

// acceptAlone waits for a key that somebody holds, as long as a lock may take.
func (r *Repository) acceptAlone(ctx context.Context, a *answer) accepted {
	leave, ok := r.heldKeys.enter(keyOf(a.s.Request))
	if !ok {
		a.fail(fmt.Errorf("%w: too many wait for locks", job.ErrUnavailable))
		return r.acceptedBy(a)
	}
	defer leave()
	r.engine.acceptAlone(ctx, r, a)
	return r.acceptedBy(a)
}

// findTogether reads the records of many callers.
func (r *Repository) findTogether(ctx context.Context, calls []*batching.Call[recordKey, found]) {
	keys := make([]recordKey, len(calls))
	for i, c := range calls {
		keys[i] = c.In
	}
	rows, err := r.engine.findAll(ctx, keys)
	for i, c := range calls {
		if err != nil {
			c.Answer(found{err: err})
			continue
		}
		c.Answer(found{row: rows[i]})
	}
}

// decision is an ending or a requeue.
type decision interface{ settlement() settlement }

// applier applies decisions. Unless it is patient, it waits for a lock only for a
// moment.
type applier[D decision] func(ctx context.Context, decisions []D, patient bool) ([]job.Application, error)

// applyTogether applies the decisions of many callers. One that cannot be applied
// fails alone, and one whose job somebody holds waits alone.
func applyTogether[D decision](ctx context.Context, r *Repository, calls []*batching.Call[D, applied], apply applier[D]) {
	for _, round := range apart(calls) {
		decisions := make([]D, len(round))
		for i, c := range round {
			decisions[i] = c.In
		}
		applications, err := apply(ctx, decisions, false)
		alone, locked := err != nil && r.concernsOne(err), 0
		for i, c := range round {
			switch {
			case alone && locked < lockedMost:
				locked++
				if !applyAlone(ctx, r, c, apply) {
					locked = 0
				}
			case err != nil:
				c.Answer(applied{err: err})
			default:
				c.Answer(applied{application: applications[i]})
			}
		}
	}
}

// applyAlone applies one decision, and reports whether somebody holds its job.
func applyAlone[D decision](ctx context.Context, r *Repository, c *batching.Call[D, applied], apply applier[D]) (locked bool) {
	one := func(patient bool) applied {
		application, err := theOnly(apply(ctx, []D{c.In}, patient))
		return applied{application, err}
	}
	quick := one(false)
	if quick.err == nil || r.engine.classify(quick.err) != busy {
		c.Answer(quick)
		return false
	}
	c.Later(func() applied {
		leave, ok := r.heldJobs.enter(c.In.settlement().lease.ID)
		if !ok {
			return quick // whoever settles will try again
		}
		defer leave()
		return one(true)
	})
	return true
}

func theOnly(applications []job.Application, err error) (job.Application, error) {
	if err != nil {
		return job.Refused, err
	}
	return applications[0], nil
}

// concernsOne reports that an error of a statement may be about one row of it
// alone. The lock of a SQLite file is everybody's.
func (r *Repository) concernsOne(err error) bool {
	switch r.engine.classify(err) {
	case unavailable, conflict:
		return false
	case busy:
		return !r.Exclusive()
	case other, unique, wrong:
	}
	return !errors.Is(err, job.ErrOutcomeUnknown)
}

// apart splits calls so that no two of a round are about one job: a statement
// would apply either of them and report both.
func apart[D decision](calls []*batching.Call[D, applied]) [][]*batching.Call[D, applied] {
	var rounds [][]*batching.Call[D, applied]
	times := make(map[job.ID]int, len(calls))
	for _, c := range calls {
		id := c.In.settlement().lease.ID
		n := times[id]
		times[id]++
		if n == len(rounds) {
			rounds = append(rounds, nil)
		}
		rounds[n] = append(rounds[n], c)
	}
	return rounds
}

// contended are keys that somebody outside holds, and how many wait for each.
type contended[K comparable] struct {
	mu      sync.Mutex
	waiting map[K]int
	all     int
}

func (c *contended[K]) has(key K) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.waiting[key] > 0
}

// enter notes that one more waits for the key, until leave is called. It reports
// false if as many wait as may.
func (c *contended[K]) enter(key K) (leave func(), ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all == aloneMost {
		return nil, false
	}
	if c.waiting == nil {
		c.waiting = map[K]int{}
	}
	c.waiting[key]++
	c.all++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.all--
		if c.waiting[key]--; c.waiting[key] == 0 {
			delete(c.waiting, key)
		}
	}, true
}
