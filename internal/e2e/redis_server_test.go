package e2e_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/sekali/sekali/internal/testenv"
)

// ownRedis is a Redis of one test alone, and a client to see and do what the
// gateway does not.
type ownRedis struct {
	t      testing.TB
	server *testenv.RedisServer
	client *redis.Client
}

func newOwnRedis(t testing.TB) *ownRedis {
	t.Helper()
	server := testenv.OwnRedis(t)
	options, err := redis.ParseURL(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	options.PoolSize, options.DisableIdentity = 2, true
	options.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	client := redis.NewClient(options)
	t.Cleanup(func() { _ = client.Close() })
	return &ownRedis{t, server, client}
}

// config is the configuration that names the Redis, over others.
func (r *ownRedis) config(others ...string) string {
	return both(r.t, append(others, fmt.Sprintf("redis_url: %q", r.server.URL()))...)
}

// command sends one command, which Redis must take, and returns its answer.
func (r *ownRedis) command(words ...any) any {
	r.t.Helper()
	answer, err := r.client.Do(r.t.Context(), words...).Result()
	if err != nil {
		r.t.Fatalf("%v: %v", words, err)
	}
	return answer
}

// told is a line of what INFO tells.
func (r *ownRedis) told(section, name string) string {
	r.t.Helper()
	for line := range strings.Lines(fmt.Sprint(r.command("info", section))) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	r.t.Fatalf("INFO %s tells no %s", section, name)
	return ""
}

// kept is how long each key that matches is kept yet; a key that ran out on the
// way is left out. Below zero: for ever.
func (r *ownRedis) kept(pattern string) map[string]time.Duration {
	r.t.Helper()
	const gone = -2
	left := map[string]time.Duration{}
	keys, err := r.client.Keys(r.t.Context(), pattern).Result()
	if err != nil {
		r.t.Fatal(err)
	}
	for from := 0; from < len(keys); from += 1000 {
		some := keys[from:min(from+1000, len(keys))]
		answers, err := r.client.Pipelined(r.t.Context(), func(pipe redis.Pipeliner) error {
			for _, key := range some {
				pipe.PTTL(r.t.Context(), key)
			}
			return nil
		})
		if err != nil {
			r.t.Fatal(err)
		}
		for i, answer := range answers {
			if ttl := answer.(*redis.DurationCmd).Val(); ttl != gone {
				left[some[i]] = ttl
			}
		}
	}
	return left
}

const anyLock = "sekali:lock:*"

// lockOf is the lock of the job of the key.
func (g *gateway) lockOf(key string) string {
	g.t.Helper()
	return "sekali:lock:job:" + fmt.Sprint(g.get("/jobs/"+key).want(g.t, http.StatusOK).json(g.t)["id"])
}

// owner is whose the lock is; "": nobody's.
func (r *ownRedis) owner(lock string) string {
	r.t.Helper()
	owner, err := r.client.Get(r.t.Context(), lock).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		r.t.Fatal(err)
	}
	return owner
}

// locked waits until somebody has the lock, and returns who.
func (r *ownRedis) locked(lock string) (owner string) {
	r.t.Helper()
	testenv.Eventually(r.t, 20*time.Second, "the lock is taken", func() bool {
		owner = r.owner(lock)
		return owner != ""
	})
	return owner
}

// holding submits jobs of the type until one runs under its lock, and returns its
// key, its lock and who has that. A Redis that is slow for a tenth of a second is
// done without: such a job is cancelled. begins waits for the begin of an attempt,
// and over for what the end of one leaves to wait for.
func (r *ownRedis) holding(g *gateway, kind string, begins, over func()) (key, lock, owner string) {
	r.t.Helper()
	n := 0
	testenv.Eventually(r.t, 90*time.Second, "a job runs under its lock", func() bool {
		n++
		key = fmt.Sprint("under-a-lock-", n)
		g.submit(key, fmt.Sprintf(`{"type":%q}`, kind)).want(r.t, http.StatusAccepted)
		begins()
		lock = g.lockOf(key)
		if owner = r.owner(lock); owner != "" { // it was taken before the begin
			return true
		}
		g.cancel(key).want(r.t, http.StatusAccepted)
		g.finished(key)
		over()
		return false
	})
	return key, lock, owner
}

// holdingCall is holding for the calls of a receiver.
func (r *ownRedis) holdingCall(g *gateway, receives *heldReceiver) (key, lock, owner string) {
	r.t.Helper()
	begins := func() { next(r.t, receives.begun, 1, "begun") }
	return r.holding(g, "call", begins, func() { next(r.t, receives.left, 1, "been given up") })
}

// Metrics of locks.
func (g *gateway) lockCalls(call, result string) float64 {
	g.t.Helper()
	return g.measured("sekali_lock_calls_total", fmt.Sprintf("call=%q", call), fmt.Sprintf("result=%q", result))
}

func (g *gateway) unlocked() float64 { return g.measured("sekali_attempts_unlocked_total") }

// lacksRedis waits until the gateway says everywhere that Redis is of no use.
func (g *gateway) lacksRedis() {
	g.t.Helper()
	testenv.Eventually(g.t, 20*time.Second, "/readyz lacks Redis, and nothing else", func() bool {
		a := g.get("/readyz")
		got := a.json(g.t)
		return a.StatusCode == http.StatusOK && fmt.Sprint(got["status"], got["degraded"], got["failed"]) == "degraded[redis] []"
	})
	g.showsRedis("1")
}

// hasRedis waits until the gateway says everywhere that all is well.
func (g *gateway) hasRedis() {
	g.t.Helper()
	g.awaitReady()
	testenv.Eventually(g.t, 20*time.Second, "/readyz says that all is well", func() bool {
		return fmt.Sprint(g.get("/readyz").json(g.t)["degraded"]) == "[]"
	})
	g.showsRedis("0")
}

func (g *gateway) showsRedis(value string) {
	g.t.Helper()
	seldom(g.t, 30*time.Second, "sekali_degraded is "+value, func() bool {
		return series(g.t, g)[`sekali_degraded{part="redis"}`] == value
	})
}

// seldom is Eventually for checks that cost the gateway more than a moment, such
// as all of its metrics.
func seldom(t testing.TB, within time.Duration, what string, check func() bool) {
	t.Helper()
	last := time.Time{}
	testenv.Eventually(t, within, what, func() bool {
		if time.Since(last) < 200*time.Millisecond {
			return false
		}
		last = time.Now()
		return check()
	})
}

// locksAgain waits until jobs of the type, which takes a lock, take one: a Redis
// that is back is left alone for a while.
func (g *gateway) locksAgain(t testing.TB, prefix, kind string) {
	t.Helper()
	before, n := g.lockCalls("acquire", "done"), 0
	seldom(t, 30*time.Second, "a lock is taken again", func() bool {
		n++
		g.ended(t, fmt.Sprint(prefix, "-", n), fmt.Sprintf(`{"type":%q}`, kind))
		return g.lockCalls("acquire", "done") > before
	})
}

// happened counts the events of the job by their names.
func (g *gateway) happened(key string) map[string]int {
	g.t.Helper()
	events := map[string]int{}
	all, _ := g.get("/jobs/"+key+"/events").want(g.t, http.StatusOK).json(g.t)["events"].([]any)
	for _, e := range all {
		events[fmt.Sprint(e.(map[string]any)["event"])]++
	}
	return events
}

// storedEvent waits for an event that is stored beside the job's life.
func (g *gateway) storedEvent(key, event string) {
	g.t.Helper()
	seldom(g.t, 20*time.Second, "the event "+event+" of "+key, func() bool { return g.happened(key)[event] > 0 })
}

// frontage is an address behind which one Redis takes the place of another, as
// in a failover.
type frontage struct {
	url string

	mu     sync.Mutex
	server string
	conns  []net.Conn
}

func newFrontage(t testing.TB, r *ownRedis) *frontage {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &frontage{url: "redis://" + listener.Addr().String() + "/0"}
	f.stands(t, r)
	t.Cleanup(func() {
		listener.Close()
		f.breakAll()
	})
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go f.connect(conn)
		}
	}()
	return f
}

// stands makes the Redis the one behind the address, and breaks all connections.
func (f *frontage) stands(t testing.TB, r *ownRedis) {
	t.Helper()
	u, err := url.Parse(r.server.URL())
	if err != nil {
		t.Fatal(err)
	}
	f.mu.Lock()
	f.server = u.Host
	f.mu.Unlock()
	f.breakAll()
}

func (f *frontage) breakAll() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, conn := range f.conns {
		conn.Close()
	}
	f.conns = nil
}

func (f *frontage) connect(client net.Conn) {
	defer client.Close()
	f.mu.Lock()
	server, err := net.Dial("tcp", f.server)
	if err == nil {
		f.conns = append(f.conns, client, server)
	}
	f.mu.Unlock()
	if err != nil {
		return
	}
	defer server.Close()
	go func() {
		defer client.Close()
		_, _ = io.Copy(client, server)
	}()
	_, _ = io.Copy(server, client)
}
