package lock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sekali/sekali/internal/testenv"
	"github.com/sekali/sekali/lock"
)

// pipes counts the pipelines of a client that run scripts.
type pipes struct {
	// before is called with the number of each before it is sent.
	before func(n int64)
	// send, if there is one, sends a pipeline of so many scripts.
	send    func(scripts int, next func() error) error
	sent    atomic.Int64
	scripts atomic.Int64
	ended   atomic.Int64
}

func (*pipes) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*pipes) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (p *pipes) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, commands []redis.Cmder) error {
		if name := commands[0].Name(); name != "evalsha" && name != "eval" { // the greeting of a new connection
			return next(ctx, commands)
		}
		p.scripts.Add(int64(len(commands)))
		p.before(p.sent.Add(1))
		defer p.ended.Add(1)
		if p.send != nil {
			return p.send(len(commands), func() error { return next(ctx, commands) })
		}
		return next(ctx, commands)
	}
}

// atOnce is how many pipelines may be under way at once.
const atOnce = 4

// crowd makes n calls at once. The first pipelines are held back until all other
// calls wait, and before has been called.
func crowd(t *testing.T, l *lock.Redis, client *redis.Client, n int, before func(), call func(n int)) *pipes {
	t.Helper()
	p := &pipes{}
	p.crowd(t, l, client, n, before, call)
	return p
}

func (p *pipes) crowd(t *testing.T, l *lock.Redis, client *redis.Client, n int, before func(), call func(n int)) {
	t.Helper()
	let := make(chan struct{})
	p.before = func(int64) { <-let }
	client.AddHook(p)
	var wg sync.WaitGroup
	for m := range n {
		wg.Go(func() { call(m) })
	}
	testenv.Eventually(t, 0, "all wait", func() bool {
		return p.sent.Load() == atOnce && int64(lock.Waiting(l))+p.scripts.Load() == int64(n)
	})
	before()
	close(let)
	wg.Wait()
}

// Locks that are taken together take a few round trips, not one each.
func TestRedis_CallsThatComeTogetherShareRoundTrips(t *testing.T) {
	t.Parallel()
	const jobs = 200
	client := connect(t, testenv.OwnRedis(t).URL())
	l := newLocker(t, client, time.Now)
	release(t, acquire(t, l, "warm up")) // Redis knows the scripts from here on
	p := crowd(t, l, client, jobs, func() {}, func(n int) {
		if _, err := l.Acquire(t.Context(), fmt.Sprint(n), time.Minute); err != nil {
			t.Errorf("%d: %v", n, err)
		}
	})
	if n := p.sent.Load(); n > atOnce+1 { // the first ones, and one for all others
		t.Errorf("%d pipelines for %d locks", n, jobs)
	}
	if n := p.scripts.Load(); n != jobs {
		t.Errorf("%d scripts for %d locks", n, jobs)
	}
	if n := client.DBSize(t.Context()).Val(); n != jobs {
		t.Errorf("%d locks are there", n)
	}
}

// A call that fails, or whose script Redis has forgotten, is alone in that.
func TestRedis_OneThatFailsKeepsItsNeighbours(t *testing.T) {
	t.Parallel()
	const jobs = 40
	url := testenv.OwnRedis(t).URL()
	client, direct := connect(t, url), connect(t, url)
	l := newLocker(t, client, time.Now)
	held := make([]lock.Lock, jobs)
	for n := range held {
		held[n] = acquire(t, l, fmt.Sprint("held ", n))
	}
	must(t, direct.RPush(t.Context(), "sekali:lock:7", "no lock").Err())
	forget := func() { must(t, direct.ScriptFlush(t.Context()).Err()) }
	crowd(t, l, client, 2*jobs, forget, func(n int) {
		if n < jobs {
			release(t, held[n])
			return
		}
		n -= jobs
		_, err := l.Acquire(t.Context(), fmt.Sprint(n), time.Minute)
		if bad := n == 7; bad != errors.Is(err, lock.ErrUnavailable) || bad != (err != nil) {
			t.Errorf("%d: %v", n, err)
		}
	})
	if n := direct.DBSize(t.Context()).Val(); n != jobs { // one of them is no lock
		t.Errorf("%d locks are there", n)
	}
}

// All repeat their calls together when the answers are lost, and find their own
// locks; when connections stay broken, nobody is told that it has one.
func TestFailure_Q36_ABrokenConnectionIsEverybodysInThePipeline(t *testing.T) {
	t.Parallel()
	const jobs = 40
	for name, broken := range map[string]struct {
		drops int64
		want  error
	}{
		"once":     {1, nil},
		"for good": {1 << 30, lock.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, url := newProxy(t, testenv.OwnRedis(t).URL())
			client := connect(t, url)
			l := newLocker(t, client, (&hands{}).now) // stands still, so that no answer is too late
			release(t, acquire(t, l, "warm up"))
			crowd(t, l, client, jobs, func() { p.drops.Store(broken.drops) }, func(n int) {
				if _, err := l.Acquire(t.Context(), fmt.Sprint(n), time.Minute); !errors.Is(err, broken.want) {
					t.Errorf("%d: %v", n, err)
				}
			})
		})
	}
}

// Many calls that fail with one connection are one failure: Redis is not left alone
// for it.
func TestFailure_Q36_OneBrokenConnectionIsOneFailure(t *testing.T) {
	t.Parallel()
	const many = 10 // of all calls but the first ones, in one pipeline or in two
	p, url := newProxy(t, testenv.OwnRedis(t).URL())
	client := connect(t, url)
	l := newLocker(t, client, (&hands{}).now)
	release(t, acquire(t, l, "warm up"))
	var alone sync.RWMutex
	var broken, failed atomic.Int64
	pipelines := &pipes{send: func(scripts int, next func() error) error {
		if scripts < many || !broken.CompareAndSwap(0, int64(scripts)) {
			alone.RLock()
			defer alone.RUnlock()
			return next()
		}
		alone.Lock() // so that no other one breaks too
		defer alone.Unlock()
		p.drops.Store(1 << 30)
		defer p.drops.Store(0)
		return next()
	}}
	pipelines.crowd(t, l, client, 40, func() {}, func(n int) {
		if _, err := l.Acquire(t.Context(), fmt.Sprint(n), time.Minute); err != nil {
			failed.Add(1)
		}
	})
	if n := failed.Load(); n < many || n != broken.Load() {
		t.Fatalf("%d calls failed, with a connection of %d", n, broken.Load())
	}
	release(t, acquire(t, l, "afterwards"))
}

// leaving are calls that a caller leaves, and how it gives the lock back then.
var leaving = map[string]func(t *testing.T, l lock.Locker) (call func(context.Context) error, after func()){
	"acquire": func(_ *testing.T, l lock.Locker) (func(context.Context) error, func()) { // it does so itself
		return func(ctx context.Context) error { _, err := l.Acquire(ctx, "k", time.Hour); return err }, func() {}
	},
	"refresh": func(t *testing.T, l lock.Locker) (func(context.Context) error, func()) {
		t.Helper()
		held := acquire(t, l, "k")
		return func(ctx context.Context) error { return held.Refresh(ctx, time.Hour) }, func() { release(t, held) }
	},
}

// Who leaves while its call is under way does not wait for it. Its release may
// overtake the call, and the lock is given back all the same.
func TestFailure_Q37_ACallThatIsOvertakenByItsReleaseLeavesNoLockBehind(t *testing.T) {
	t.Parallel()
	for name, leave := range leaving {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := connect(t, testenv.OwnRedis(t).URL())
			l := newLocker(t, client, time.Now)
			release(t, acquire(t, l, "warm up")) // Redis knows the scripts from here on
			call, after := leave(t, l)
			why := errors.New("shutting down")
			ctx, cancel := context.WithCancelCause(t.Context())
			let := make(chan struct{})
			p := &pipes{before: func(n int64) {
				if n == 1 {
					cancel(why)
					<-let
				}
			}}
			client.AddHook(p)
			if err := call(ctx); !errors.Is(err, why) {
				t.Errorf("got %v", err)
			}
			after()
			if p.scripts.Load() != 2 {
				t.Error("the release has not gone another way")
			}
			close(let)
			testenv.Eventually(t, 0, "the call has ended, and what follows from it", func() bool { return p.ended.Load() == 3 })
			if client.Exists(t.Context(), "sekali:lock:k").Val() != 0 {
				t.Error("the lock of nobody stands")
			}
		})
	}
}
