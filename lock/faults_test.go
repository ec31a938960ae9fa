package lock_test

import (
	"bufio"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sekali/sekali/internal/breaker"
	"github.com/sekali/sekali/internal/testenv"
	"github.com/sekali/sekali/lock"
)

const (
	// hasty is the timeout of the gateway's client.
	hasty = 100 * time.Millisecond
	// promised is how long calls take at most when Redis fails.
	promised = 250 * time.Millisecond
	// soon is the same on a machine under load, which may stand still for seconds:
	// not each call is in time, and none waits for what does not come.
	soon = 4 * time.Second
)

// fault is a way in which Redis fails.
type fault struct {
	strike func(t *testing.T, s *testenv.RedisServer, p *proxy, direct *redis.Client)
	heal   func(t *testing.T, s *testenv.RedisServer, p *proxy, direct *redis.Client)
	// releases: it still lets locks be given back.
	releases bool
}

// command sends a command that Redis must take.
func command(args ...any) func(*testing.T, *testenv.RedisServer, *proxy, *redis.Client) {
	return func(t *testing.T, _ *testenv.RedisServer, _ *proxy, direct *redis.Client) {
		t.Helper()
		if err := direct.Do(t.Context(), args...).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

var faults = map[string]fault{
	"paused": {
		strike: command("client", "pause", "60000", "all"),
		// A pause holds up its own end as well.
		heal: func(t *testing.T, s *testenv.RedisServer, _ *proxy, _ *redis.Client) { must(t, s.Restart()) },
	},
	"killed": {
		strike: func(t *testing.T, s *testenv.RedisServer, _ *proxy, _ *redis.Client) { must(t, s.Kill()) },
		heal:   func(t *testing.T, s *testenv.RedisServer, _ *proxy, _ *redis.Client) { must(t, s.Restart()) },
	},
	"silent": {
		strike: func(_ *testing.T, _ *testenv.RedisServer, p *proxy, _ *redis.Client) { p.silent.Store(true) },
		heal:   func(_ *testing.T, _ *testenv.RedisServer, p *proxy, _ *redis.Client) { p.silent.Store(false) },
	},
	"dropping connections": {
		strike: func(_ *testing.T, _ *testenv.RedisServer, p *proxy, _ *redis.Client) { p.drops.Store(1 << 30) },
		heal:   func(_ *testing.T, _ *testenv.RedisServer, p *proxy, _ *redis.Client) { p.drops.Store(0) },
	},
	"another password": {
		strike: func(t *testing.T, s *testenv.RedisServer, p *proxy, direct *redis.Client) {
			command("config", "set", "requirepass", "another")(t, s, p, direct)
			command("client", "kill", "type", "normal", "skipme", "yes")(t, s, p, direct)
		},
		heal: command("config", "set", "requirepass", ""),
	},
	"out of memory": {
		strike:   command("config", "set", "maxmemory", "1", "maxmemory-policy", "noeviction"),
		heal:     command("config", "set", "maxmemory", "0"),
		releases: true,
	},
	"read only":        {strike: command("replicaof", "127.0.0.1", "1"), heal: command("replicaof", "no", "one")},
	"without replicas": {strike: command("config", "set", "min-replicas-to-write", "1"), heal: command("config", "set", "min-replicas-to-write", "0")},
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// However Redis fails, everything is unavailable soon; after some failures it is
// left alone; and it is used again when it is back.
func TestContract_Row49_AFailingRedisHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	for name, f := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := testenv.OwnRedis(t)
			direct := connect(t, s.URL())
			must(t, direct.Ping(t.Context()).Err())
			p, url := newProxy(t, s.URL())
			client := connectFor(t, url, hasty)
			clock := &hands{}
			l := newLockerFor(t, client, clock.now, 0)
			held := acquireSoon(t, l, "held")

			f.strike(t, s, p, direct)
			fails(t, l, held, f.releases)
			leftAlone(t, l)
			if stats := client.PoolStats(); stats.TotalConns > poolSize {
				t.Errorf("%d connections are open", stats.TotalConns)
			}

			f.heal(t, s, p, direct)
			leftAlone(t, l) // it is not asked, so nobody knows that it is back
			testenv.Eventually(t, 0, "it is used again", func() bool {
				clock.pass(breaker.Rest)
				_, err := l.Acquire(t.Context(), "after", time.Hour)
				return err == nil
			})
		})
	}
}

// fails makes calls of each sort, as many as it takes until Redis is left alone.
func fails(t *testing.T, l lock.Locker, held lock.Lock, releases bool) {
	t.Helper()
	unavailable(t, "refresh", func() error { return held.Refresh(t.Context(), time.Minute) })
	if releases {
		release(t, held)
	} else {
		unavailable(t, "release", func() error { return held.Release(t.Context()) })
	}
	quickest := soon
	for range breaker.Failures {
		took := unavailable(t, "acquire", func() error { _, err := l.Acquire(t.Context(), "k", time.Minute); return err })
		quickest = min(quickest, took)
	}
	if quickest > promised {
		t.Errorf("no call took less than %s", quickest)
	}
}

// acquireSoon acquires on a machine that may be too slow for a hasty client.
func acquireSoon(t *testing.T, l lock.Locker, key string) (held lock.Lock) {
	t.Helper()
	testenv.Eventually(t, 0, "the lock is taken", func() bool {
		var err error
		held, err = l.Acquire(t.Context(), key, time.Hour)
		return err == nil
	})
	return held
}

// unavailable tells how long the call took to fail.
func unavailable(t *testing.T, what string, call func() error) time.Duration {
	t.Helper()
	started := time.Now()
	err := call()
	took := time.Since(started)
	if took > soon {
		t.Errorf("%s took %s", what, took)
	}
	if !errors.Is(err, lock.ErrUnavailable) || errors.Is(err, lock.ErrHeld) || errors.Is(err, lock.ErrLost) {
		t.Errorf("%s: %v, want that it is unavailable", what, err)
	}
	return took
}

// leftAlone makes many calls that take no time.
func leftAlone(t *testing.T, l lock.Locker) {
	t.Helper()
	started := time.Now()
	for range 1000 {
		if _, err := l.Acquire(t.Context(), "k", time.Minute); !errors.Is(err, lock.ErrUnavailable) {
			t.Fatalf("acquire: %v", err)
		}
	}
	if took := time.Since(started); took > soon {
		t.Errorf("a thousand calls took %s", took)
	}
}

// Many callers at once do not wait for one another's timeouts.
func TestRedis_APausedRedisHoldsNobodyUpBehindOthers(t *testing.T) {
	t.Parallel()
	s := testenv.OwnRedis(t)
	direct := connect(t, s.URL())
	l := newLockerFor(t, connectFor(t, s.URL(), hasty), time.Now, 0)
	acquireSoon(t, l, "warm up")
	must(t, direct.Do(t.Context(), "client", "pause", "60000", "all").Err())
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			unavailable(t, "acquire", func() error { _, err := l.Acquire(t.Context(), "k", time.Minute); return err })
		})
	}
	wg.Wait()
}

// A Redis that is starting answers everything with an error.
func TestRedis_ALoadingRedisIsUnavailable(t *testing.T) {
	t.Parallel()
	l := newLockerFor(t, connectFor(t, "redis://"+loading(t), hasty), time.Now, 0)
	unavailable(t, "acquire", func() error { _, err := l.Acquire(t.Context(), "k", time.Minute); return err })
}

// loading answers each line that begins a command with the error of a Redis that
// reads its data.
func loading(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer conn.Close()
				for lines := bufio.NewScanner(conn); lines.Scan(); {
					if lines.Text()[0] == '*' {
						_, _ = conn.Write([]byte("-LOADING Redis is loading the dataset in memory\r\n"))
					}
				}
			})
		}
	})
	t.Cleanup(serving.Wait)
	t.Cleanup(func() { _ = listener.Close() })
	return listener.Addr().String()
}
