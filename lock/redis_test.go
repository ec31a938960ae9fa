package lock_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sekali/sekali/internal/testenv"
	"github.com/sekali/sekali/lock"
	"github.com/sekali/sekali/lock/locktest"
)

// patience is for tests whose Redis answers, on a machine that may be slow.
const patience = 20 * time.Second

// connect returns a client for a Redis that answers.
func connect(t *testing.T, url string) *redis.Client {
	t.Helper()
	return connectFor(t, url, patience)
}

// connectFor returns a client as the gateway has one, but for its timeouts.
func connectFor(t *testing.T, url string, timeout time.Duration) *redis.Client {
	t.Helper()
	options, err := redis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	options.DialTimeout, options.ReadTimeout, options.WriteTimeout, options.PoolTimeout = timeout, timeout, timeout, timeout
	options.ContextTimeoutEnabled = true
	options.MaxRetries, options.DialerRetries = 1, 1
	options.PoolSize, options.PipelinePoolSize = poolSize, -1
	c := redis.NewClient(options)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

const poolSize = 8

// newLocker returns a locker for a Redis that answers.
func newLocker(t *testing.T, c *redis.Client, clock func() time.Time) *lock.Redis {
	t.Helper()
	return newLockerFor(t, c, clock, patience)
}

func newLockerFor(t *testing.T, c *redis.Client, clock func() time.Time, timeout time.Duration) *lock.Redis {
	t.Helper()
	l, err := lock.NewRedis(lock.RedisConfig{Client: c, Clock: clock, Timeout: timeout})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestRedis(t *testing.T) {
	t.Parallel()
	u, err := url.Parse(testenv.OwnRedis(t).URL())
	if err != nil {
		t.Fatal(err)
	}
	var worlds atomic.Int64 // each in a database of its own, of which there are sixteen
	t.Run("contract", func(t *testing.T) {
		locktest.Run(t, func(t *testing.T) locktest.World {
			own := *u
			own.Path = fmt.Sprint("/", worlds.Add(1))
			return locktest.World{
				Locker:  newLocker(t, connect(t, own.String()), time.Now),
				Another: newLocker(t, connect(t, own.String()), time.Now),
				TTL:     6 * time.Second, // a machine under load may stand still for three, which is half of it
				// Redis reckons in milliseconds, from when it has got the call.
				Pass: func(_ *testing.T, d time.Duration) { <-time.After(d + 20*time.Millisecond) },
			}
		})
	})
}

func TestNewRedis_RefusesAClientThatWouldHoldCallersUp(t *testing.T) {
	t.Parallel()
	c := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer c.Close()
	for _, cfg := range []lock.RedisConfig{{}, {Client: c}, {Client: c, Clock: time.Now}} {
		if _, err := lock.NewRedis(cfg); err == nil {
			t.Errorf("%+v: no error", cfg)
		}
	}
}

// The client repeats a call whose answer was lost: it must not meet itself.
func TestFailure_Q36_ARepeatedAcquireFindsItsOwnLock(t *testing.T) {
	t.Parallel()
	p, url := newProxy(t, testenv.OwnRedis(t).URL())
	l := newLocker(t, connect(t, url), time.Now)
	release(t, acquire(t, l, "warm up")) // the scripts are loaded, and a connection is there
	p.drops.Store(1)
	held := acquire(t, l, "k")
	if p.dropped.Load() != 1 {
		t.Fatal("no answer was lost")
	}
	p.drops.Store(1)
	if err := held.Refresh(t.Context(), time.Minute); err != nil {
		t.Errorf("refresh: %v", err)
	}
	p.drops.Store(1)
	release(t, held)
	if p.dropped.Load() != 3 {
		t.Error("not each answer was lost")
	}
}

// A lock that was taken while the caller gave up waiting must not stay until it
// runs out, and the caller must not think that somebody else has it.
func TestFailure_Q37_ACallerThatGivesUpLeavesNoLockBehind(t *testing.T) {
	t.Parallel()
	s := testenv.OwnRedis(t)
	direct := connect(t, s.URL())
	p, url := newProxy(t, s.URL())
	// The client does not see the end of a context while it reads, only its timeout.
	l := newLocker(t, connectFor(t, url, 5*time.Second), time.Now)
	release(t, acquire(t, l, "warm up"))
	why := errors.New("shutting down")
	ctx, cancel := context.WithCancelCause(t.Context())
	givesUp := func() { cancel(why) }
	p.instead.Store(&givesUp) // when Redis has answered, and before that is known
	if _, err := l.Acquire(ctx, "k", time.Hour); !errors.Is(err, why) || errors.Is(err, lock.ErrHeld) || errors.Is(err, lock.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
	if direct.Exists(t.Context(), "sekali:lock:k").Val() != 0 {
		t.Error("the lock of nobody stands")
	}
}

// An answer that comes after the lock's time says nothing any more.
func TestFailure_Q38_TheTimeCountsFromBeforeTheCall(t *testing.T) {
	t.Parallel()
	direct := connect(t, testenv.OwnRedis(t).URL())
	var slow atomic.Bool
	clock := &hands{}
	l := newLocker(t, direct, func() time.Time {
		if slow.Load() {
			clock.pass(time.Minute) // each look at the clock is that much later
		}
		return clock.now()
	})
	held := acquire(t, l, "held")
	slow.Store(true)
	if _, err := l.Acquire(t.Context(), "k", time.Minute); !errors.Is(err, lock.ErrUnavailable) {
		t.Errorf("acquire: %v", err)
	}
	if err := held.Refresh(t.Context(), time.Minute); !errors.Is(err, lock.ErrUnavailable) {
		t.Errorf("refresh: %v", err)
	}
	slow.Store(false)
	if direct.Exists(t.Context(), "sekali:lock:k").Val() != 0 {
		t.Error("the lock of nobody stands")
	}
}

// Whatever a holder does whose lock is another's now, the other's stays.
func TestFailure_BR51_AnothersLockIsLeftAlone(t *testing.T) {
	t.Parallel()
	direct := connect(t, testenv.OwnRedis(t).URL())
	l := newLocker(t, direct, time.Now)
	held := acquire(t, l, "k")
	direct.Set(t.Context(), "sekali:lock:k", "somebody", time.Minute)
	if err := held.Refresh(t.Context(), time.Minute); !errors.Is(err, lock.ErrLost) {
		t.Errorf("refresh: %v", err)
	}
	release(t, held)
	if owner := direct.Get(t.Context(), "sekali:lock:k").Val(); owner != "somebody" {
		t.Errorf("the lock is %q's", owner)
	}
}

func TestFailure_BR58_NoLockIsWithoutTimeToLive(t *testing.T) {
	t.Parallel()
	direct := connect(t, testenv.OwnRedis(t).URL())
	l := newLocker(t, direct, (&hands{}).now) // stands still, so that no answer is too late
	direct.Set(t.Context(), "sekali:lock:for ever", "somebody", 0)
	if _, err := l.Acquire(t.Context(), "for ever", time.Minute); !errors.Is(err, lock.ErrHeld) {
		t.Errorf("acquire: %v", err)
	}
	var wg sync.WaitGroup
	for n := range 8 {
		wg.Go(func() {
			for m := range 50 {
				held, err := l.Acquire(t.Context(), fmt.Sprint(n, m), time.Minute)
				if err != nil {
					t.Errorf("acquire: %v", err)
					return
				}
				if m%3 == 0 {
					_ = held.Refresh(t.Context(), time.Microsecond)
				}
				if m%2 == 0 {
					_ = held.Release(t.Context())
				}
			}
		})
	}
	wg.Wait()
	keys := direct.Keys(t.Context(), "*").Val()
	if len(keys) < 100 {
		t.Fatalf("only %d locks are there", len(keys))
	}
	for _, key := range keys {
		if ttl := direct.PTTL(t.Context(), key).Val(); ttl == -1 || ttl > time.Minute { // -2: it has run out
			t.Errorf("%s: %s", key, ttl)
		}
	}
}

func TestRedis_AFlushLosesNothingButLocks(t *testing.T) {
	t.Parallel()
	direct := connect(t, testenv.OwnRedis(t).URL())
	l := newLocker(t, direct, time.Now)
	held := acquire(t, l, "k")
	for what, flush := range map[string]func() error{
		"scripts": func() error { return direct.ScriptFlush(t.Context()).Err() },
		"all":     func() error { return direct.FlushAll(t.Context()).Err() },
	} {
		if err := flush(); err != nil {
			t.Fatal(err)
		}
		if err := held.Refresh(t.Context(), time.Minute); err != nil {
			t.Errorf("refresh after a flush of %s: %v", what, err)
		}
		if _, err := l.Acquire(t.Context(), "k", time.Minute); !errors.Is(err, lock.ErrHeld) {
			t.Errorf("acquire after a flush of %s: %v", what, err)
		}
	}
}

func acquire(t *testing.T, l lock.Locker, key string) lock.Lock {
	t.Helper()
	held, err := l.Acquire(t.Context(), key, time.Minute)
	if err != nil {
		t.Fatalf("acquire %q: %v", key, err)
	}
	return held
}

func release(t *testing.T, l lock.Lock) {
	t.Helper()
	if err := l.Release(t.Context()); err != nil {
		t.Errorf("release: %v", err)
	}
}
