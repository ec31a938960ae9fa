package lock

import (
	"cmp"
	"context"
	"crypto/rand"
	_ "embed" // the scripts
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sekali/sekali/internal/batching"
	"github.com/sekali/sekali/internal/breaker"
)

var (
	//go:embed take.lua
	takeSource string
	//go:embed release.lua
	releaseSource string

	takeScript    = redis.NewScript(takeSource)
	releaseScript = redis.NewScript(releaseSource)
)

const (
	// prefix tells our locks from what else is in Redis.
	prefix = "sekali:lock:"
	// defaultTimeout is for a Redis nearby, which takes less than a millisecond. A
	// lock is there to save work, so nobody waits long for one.
	defaultTimeout = 200 * time.Millisecond
)

// Redis gives locks that exclude all processes on one Redis. They are lost with
// it, and when it is flushed or failed over: see the package's comment. Calls that
// come together go in one pipeline.
//
// When Redis fails, for whatever reason, calls return ErrUnavailable within the
// timeout; after some failures in a row at once, until Redis has been left alone
// for a while.
type Redis struct {
	cfg     RedisConfig
	breaker *breaker.Breaker
	calls   *batching.Batcher[scriptCall, scriptAnswer]
}

var _ Locker = (*Redis)(nil)

// RedisConfig is what NewRedis needs.
type RedisConfig struct {
	// Client must have ContextTimeoutEnabled, and should have timeouts of some
	// tenths of a second and one retry. It stays the caller's to close.
	Client *redis.Client
	// Clock is time.Now, or a test's own. Only spans are read from it.
	Clock func() time.Time
	// Timeout bounds a call with all that belongs to it: the wait for a connection,
	// its start, and the client's second try. 0 means 200 ms.
	Timeout time.Duration
}

// NewRedis returns a locker. It does not ask Redis for anything yet.
func NewRedis(cfg RedisConfig) (*Redis, error) {
	if cfg.Client == nil || cfg.Clock == nil {
		return nil, errors.New("lock: a client and a clock are needed")
	}
	if !cfg.Client.Options().ContextTimeoutEnabled {
		return nil, errors.New("lock: the client must have ContextTimeoutEnabled, or a Redis that is silent holds up whoever calls")
	}
	cfg.Timeout = cmp.Or(cfg.Timeout, defaultTimeout)
	r := &Redis{cfg: cfg, breaker: breaker.New(cfg.Clock)}
	r.gather()
	return r, nil
}

// Acquire implements Locker. An end of ctx is an error that wraps its cause, and
// none of ours; the lock is not taken then, or is given back.
func (r *Redis) Acquire(ctx context.Context, key string, ttl time.Duration) (Lock, error) {
	if err := r.ready(ctx); err != nil {
		return nil, fmt.Errorf("lock: acquire: %w", err)
	}
	// The time of one call is for both: if the first one takes it all, Redis does
	// not answer, and the lock runs out by itself.
	both, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.cfg.Timeout)
	defer cancel()
	l := &redisLock{from: r, key: key, owner: rand.Text()}
	taken, err := r.take(ctx, l, ttl)
	if err != nil {
		_ = r.release(both, l, false) // it may have been taken all the same
		return nil, fmt.Errorf("lock: acquire: %w", err)
	}
	if !taken {
		return nil, ErrHeld
	}
	return l, nil
}

// ready returns why not to call: because ctx has ended, or Redis is left alone.
func (r *Redis) ready(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if !r.breaker.Allow() {
		return fmt.Errorf("%w: it has failed just now, and is left alone", ErrUnavailable)
	}
	return nil
}

// take makes the lock the owner's for ttl from now, and reports false if it is
// somebody else's. The time counts from before the call: an answer that was
// under way for longer than that says nothing any more.
func (r *Redis) take(ctx context.Context, l *redisLock, ttl time.Duration) (bool, error) {
	started := r.cfg.Clock()
	bounded, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	taken, err := r.run(bounded, scriptCall{script: takeScript, lock: l, args: []any{l.owner, milliseconds(ttl)}, telling: true})
	if err != nil && ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	if took := r.cfg.Clock().Sub(started); err == nil && taken && took >= ttl {
		r.breaker.Report(false)
		err = fmt.Errorf("answered after %s, of which the lock was for %s", took, ttl)
	}
	if err != nil {
		return false, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return taken, nil
}

// release gives the lock back if it is still its owner's.
func (r *Redis) release(ctx context.Context, l *redisLock, telling bool) error {
	l.released.Store(true)
	call := releaseCall(l)
	call.telling = telling
	if _, err := r.run(ctx, call); err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return nil
}

// milliseconds rounds up: Redis takes no fractions, and nothing below one.
func milliseconds(ttl time.Duration) int64 {
	return max((ttl + time.Millisecond - 1).Milliseconds(), 1)
}

// redisLock is one acquisition.
type redisLock struct {
	from  *Redis
	key   string
	owner string // random, and nobody else's

	mu   sync.Mutex // held during calls, so that no refresh overtakes a release
	over bool       // lost, or given back

	// released tells what is under way without its caller; see Redis.flush.
	released atomic.Bool
}

// Key implements Lock.
func (l *redisLock) Key() string { return l.key }

// Refresh implements Lock. What was lost, or given back, stays so.
func (l *redisLock) Refresh(ctx context.Context, ttl time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		return ErrLost
	}
	if err := l.from.ready(ctx); err != nil {
		return fmt.Errorf("lock: refresh: %w", err)
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
func (l *redisLock) Release(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.from.cfg.Timeout)
	defer cancel()
	err := l.from.ready(ctx)
	if err == nil {
		err = l.from.release(ctx, l, true)
	}
	if err != nil {
		return fmt.Errorf("lock: release: %w", err)
	}
	return nil
}
