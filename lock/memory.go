package lock

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// sweepEvery is how often an acquisition looks for locks that ran out and were
// not given back: seldom enough that the look costs nothing on average.
const sweepEvery = time.Minute

// Memory gives locks within one process. Other processes are not excluded, not
// even on one machine: it is for a gateway that is alone with its database, and
// for tests. It never returns ErrUnavailable but for a lock of no length.
type Memory struct {
	clock func() time.Time

	mu    sync.Mutex
	held  map[string]holding
	swept time.Time
}

var _ Locker = (*Memory)(nil)

// holding is who has a lock until when.
type holding struct {
	owner *memoryLock
	ends  time.Time
}

// NewMemory returns a locker without locks on the clock, which must be there:
// time.Now, of which the monotonic part counts, or a test's own.
func NewMemory(clock func() time.Time) *Memory {
	return &Memory{clock: clock, held: map[string]holding{}, swept: clock()}
}

// Acquire implements Locker. An end of ctx is an error that wraps its cause, and
// none of ours.
func (m *Memory) Acquire(ctx context.Context, key string, ttl time.Duration) (Lock, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sweep()
	l := &memoryLock{from: m, key: key}
	taken, err := m.take(ctx, l, ttl)
	if err != nil {
		return nil, fmt.Errorf("lock: acquire: %w", err)
	}
	if !taken {
		return nil, ErrHeld
	}
	return l, nil
}

// take makes the lock the owner's for ttl from now, and reports false if it is
// somebody else's. The mutex is held.
func (m *Memory) take(ctx context.Context, l *memoryLock, ttl time.Duration) (bool, error) {
	switch {
	case ctx.Err() != nil:
		return false, context.Cause(ctx)
	case ttl <= 0:
		return false, fmt.Errorf("%w: a lock for %s has run out before it is taken", ErrUnavailable, ttl)
	}
	now := m.clock()
	if h, ok := m.held[l.key]; ok && h.owner != l && now.Before(h.ends) {
		return false, nil
	}
	m.held[l.key] = holding{owner: l, ends: now.Add(ttl)}
	return true, nil
}

// sweep forgets, now and then, locks that have run out.
func (m *Memory) sweep() {
	now := m.clock()
	if now.Sub(m.swept) < sweepEvery {
		return
	}
	m.swept = now
	for key, h := range m.held {
		if !now.Before(h.ends) {
			delete(m.held, key)
		}
	}
}

// memoryLock is one acquisition: its address is its owner token.
type memoryLock struct {
	from *Memory
	key  string
	over bool // lost, or given back; under the locker's mutex
}

// Key implements Lock.
func (l *memoryLock) Key() string { return l.key }

// Refresh implements Lock. What was lost, or given back, stays so.
func (l *memoryLock) Refresh(ctx context.Context, ttl time.Duration) error {
	l.from.mu.Lock()
	defer l.from.mu.Unlock()
	if l.over {
		return ErrLost
	}
	taken, err := l.from.take(ctx, l, ttl)
	if err != nil {
		return fmt.Errorf("lock: refresh: %w", err)
	}
	if !taken {
		l.over = true
		return ErrLost
	}
	return nil
}

// Release implements Lock.
func (l *memoryLock) Release(context.Context) error {
	l.from.mu.Lock()
	defer l.from.mu.Unlock()
	l.over = true
	if l.from.held[l.key].owner == l {
		delete(l.from.held, l.key)
	}
	return nil
}
