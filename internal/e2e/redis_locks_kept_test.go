package e2e_test

import (
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/testenv"
)

func TestFailure_BR58_NothingInRedisIsForEver(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		jobs, batch := 5000, 500
		if onSQLite(database) { // which commits for each job by itself
			jobs, batch = 300, 100
		}
		r, s := newOwnRedis(t), newSink(t)
		config := r.config(s.types(map[string]string{"fails": "/status/422", "flaky": "/flaky?fail=1", "slow": "/slow?ms=1500"}),
			"job_types: {echoes: {executor: echo, lock: key}, named: {executor: echo, lock: business_key}, fails: {lock: key}, flaky: {lock: key}, slow: {lock: key}}",
			"defaults: {lease: 2s, backoff: {base: 50ms, cap: 100ms}}")
		bounded := func() (keys int) {
			t.Helper()
			for key, ttl := range r.kept("*") {
				keys++
				most := time.Hour
				if strings.HasPrefix(key, "sekali:lock:") {
					most = 2 * time.Second
				}
				if ttl < 0 || ttl > most {
					t.Errorf("%s is kept for %v", key, ttl)
				}
			}
			return keys
		}
		submit := func(g *gateway, from int) {
			t.Helper()
			var items strings.Builder
			for i := from; i < from+batch; i++ {
				kind := []string{"fails", "flaky", "named", "echoes"}[min(i%20, 3)]
				fmt.Fprintf(&items, "{\"key\":\"k-%d\",\"type\":%q,\"business_key\":\"b-%d\"}\n", i, kind, i)
			}
			testenv.Eventually(t, 60*time.Second, "a batch is accepted", func() bool { // again, where the database was slow
				a := g.do(http.MethodPost, "/jobs/batch", items.String(), "Content-Type: application/x-ndjson").want(t, http.StatusMultiStatus)
				return strings.Count(string(a.body), `"status":202`) == batch
			})
		}
		slow := 0
		g := start(t, database, config)
		for from := 0; from < jobs; from += batch {
			submit(g, from)
			bounded()
			if from == jobs/2/batch*batch {
				for held := false; !held; { // a Redis that was slow is left alone for a while
					slow++
					key := fmt.Sprint("slow-", slow)
					persist(t, key, `{"type":"slow","priority":-100}`, g) // before all that waits
					testenv.Eventually(t, 20*time.Second, "the slow job runs", func() bool { return len(s.of(key)) > 0 })
					held = r.owner(g.lockOf(key)) != ""
				}
				g.kill() // which leaves a lock behind
				g = start(t, database, config)
			}
		}
		db := beside(t, database)
		testenv.Eventually(t, 90*time.Second, "all jobs ended", func() bool { return count(t, db, `select count(*) from jobs`) == 0 })
		if n := count(t, db, `select count(*) from finished_jobs where state = 'succeeded'`); n != jobs+slow-jobs/20 {
			t.Errorf("%d jobs succeeded, want %d", n, jobs+slow-jobs/20)
		}
		sound(t, db)
		if keys := bounded(); keys < jobs/2 {
			t.Errorf("only %d keys are in Redis: the test shows less than it should", keys)
		}
		testenv.Eventually(t, 30*time.Second, "no lock is left", func() bool { return len(r.kept(anyLock)) == 0 })
	})
}

// A failover loses what was not copied. The lock is gone, the lease is not.
func TestFailure_BR59_AFailoverThatLosesTheLockLetsNobodyIn(t *testing.T) {
	t.Parallel()
	primary, copies, receives := newOwnRedis(t), newOwnRedis(t), newHeldReceiver(t)
	w := newWire(t, primary.server.URL())
	host, port, _ := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(w.url, "redis://"), "/0"), ":")
	copies.command("replicaof", host, port)
	testenv.Eventually(t, 20*time.Second, "the copy is in step", func() bool { return copies.told("replication", "master_link_status") == "up" })
	front := newFrontage(t, primary)
	database := testenv.Postgres(t)
	config := both(t, receives.config(), byKey, longerLease, fmt.Sprintf("redis_url: %q", front.url))
	gateways := []*gateway{start(t, database, config), start(t, database, config)}

	w.rule(func([]byte) fate { return cut })
	testenv.Eventually(t, 20*time.Second, "nothing is copied any more", func() bool { return primary.told("replication", "connected_slaves") == "0" })
	key, lock, owner := primary.holdingCall(gateways[0], receives)
	do(t, primary.server.Kill)
	if lost := copies.owner(lock); lost != "" {
		t.Fatalf("the lock was copied: %q", lost)
	}
	copies.command("replicaof", "no", "one")
	front.stands(t, copies)
	select {
	case attempt := <-receives.begun:
		t.Errorf("attempt %d begins while the first one runs", attempt)
	case attempt := <-receives.left:
		t.Errorf("attempt %d was given up", attempt)
	case <-time.After(8 * time.Second): // twice the lease, in which anybody could come in
	}
	// The breaker rests for some seconds; then the holder takes its lock again.
	if again := copies.locked(lock); again != owner {
		t.Errorf("the lock is %q's, was %q's", again, owner)
	}
	close(receives.let[1])
	if j := gateways[1].finished(key); j["status"] != "succeeded" || fmt.Sprint(j["attempts"]) != "1" {
		t.Errorf("the job is %v", j)
	}
	if n := len(receives.begun); n != 0 {
		t.Errorf("%d more attempts", n)
	}
	for _, g := range gateways {
		g.hasRedis()
	}
	testenv.Eventually(t, 0, "the lock is given back", func() bool { return len(copies.kept(anyLock)) == 0 })
	sound(t, beside(t, database))
}

// A gateway that ends gives its locks back, so that another one need not wait
// for them to run out.
func TestFailure_Q37_AGatewayThatEndsKeepsNoLock(t *testing.T) {
	t.Parallel()
	inTime(t, testenv.Postgres(t), func(database string) bool { return endsWithoutALock(t, database) })
}

// inTime runs a scenario until Redis was in time for it, each time on a new
// database: one that is slow for a moment is done without.
func inTime(t *testing.T, database string, scenario func(database string) bool) {
	t.Helper()
	for range 3 {
		if scenario(database) {
			return
		}
		if onSQLite(database) {
			database = testenv.SQLite(t)
		} else {
			database = testenv.Postgres(t)
		}
	}
	t.Fatal("Redis was never in time")
}

// endsWithoutALock is false if the gateway that ends has left its lock: a call that
// Redis does not answer leaves it, and nobody is there any more to say so.
func endsWithoutALock(t *testing.T, database string) bool {
	t.Helper()
	r, receives := newOwnRedis(t), newHeldReceiver(t)
	config := r.config(receives.config(), byKey, "defaults: {lease: 1m}", "dispatcher: {shutdown_grace: 500ms}")
	first, second := start(t, database, config), start(t, database, both(t, config, "dispatcher: {slots: 0}"))
	key, lock, owner := r.holdingCall(first, receives)
	first.signal(syscall.SIGTERM)
	if code := first.wait(20 * time.Second); code != 0 {
		t.Errorf("exit code %d", code)
	}
	next(t, receives.left, 1, "been given up")
	if left := r.owner(lock); left != "" {
		t.Logf("the lock is still %q's, was %q's", left, owner)
		second.kill()
		return false
	}
	if j := second.get("/jobs/" + key).json(t); j["status"] != "pending" {
		t.Errorf("the job is %v", j)
	}
	third := start(t, database, config)
	next(t, receives.begun, 1, "begun") // the released attempt was not counted
	close(receives.let[1])
	if j := second.finished(key); j["status"] != "succeeded" || third.lockCalls("acquire", "held") != 0 {
		t.Errorf("the job is %v", j)
	}
	return true
}

// holdingOne is holding for a gate's job that takes a lock for itself, whose key
// begins with the name.
func (r *ownRedis) holdingOne(g *gateway, hold *gate, name string) (key string) {
	r.t.Helper()
	n := 0
	testenv.Eventually(r.t, 90*time.Second, "a job runs under its lock", func() bool {
		n++
		key = fmt.Sprint(name, "-", n)
		persist(r.t, key, `{"type":"hold"}`, g)
		hold.holds(r.t, key)
		if r.owner(g.lockOf(key)) != "" { // it was taken before the begin
			return true
		}
		g.cancel(key).want(r.t, http.StatusAccepted)
		g.finished(key)
		return false
	})
	return key
}

// holdingAt is holding for a job of one's own that calls a gate.
func (r *ownRedis) holdingAt(g *gateway, hold *gate, body string) (key string) {
	r.t.Helper()
	n := 0
	testenv.Eventually(r.t, 90*time.Second, "a job runs under its lock", func() bool {
		n++
		key = fmt.Sprint("under-a-lock-", n)
		g.submit(key, body).want(r.t, http.StatusAccepted)
		hold.holds(r.t, key)
		if len(r.kept(anyLock)) > 0 {
			return true
		}
		g.cancel(key).want(r.t, http.StatusAccepted)
		g.finished(key)
		return false
	})
	return key
}

// refusedLock submits jobs until one is refused its lock; one that was not may run
// only because Redis was slow.
func (g *gateway) refusedLock(t testing.TB, hold *gate, body string) (key string) {
	t.Helper()
	n := 0
	testenv.Eventually(t, 90*time.Second, "a job is refused its lock", func() bool {
		n++
		key = fmt.Sprint("refused-", n)
		unlocked, refused, runs := g.unlocked(), false, false
		g.submit(key, body).want(t, http.StatusAccepted)
		seldom(t, 30*time.Second, "it is refused its lock, or runs", func() bool {
			select {
			case <-hold.once(hold.arrived, key, false):
				runs = true
			default:
				refused = g.happened(key)["lock_refused"] > 0
			}
			return runs || refused
		})
		if !runs {
			return true
		}
		if g.unlocked() == unlocked {
			t.Error("two jobs run under one lock")
		}
		g.cancel(key).want(t, http.StatusAccepted)
		g.finished(key)
		return false
	})
	return key
}

// Locks by business key exclude where rows cannot: between gateways on databases
// of their own. Each type has its own.
func TestContract_SectionI_LocksByBusinessKeyExcludeAcrossDatabases(t *testing.T) {
	t.Parallel()
	r, hold := newOwnRedis(t), newGate(t)
	config := r.config(fmt.Sprintf(`
defaults: {lease: 20s}
job_types:
  one: {executor: http, lock: business_key, http: {url: %[1]q}}
  two: {executor: http, lock: business_key, http: {url: %[1]q}}
  free: {executor: http, http: {url: %[1]q}}
`, hold.URL))
	a, b := start(t, testenv.SQLite(t), config), start(t, testenv.Postgres(t), config)
	job := func(kind, business string) string {
		return fmt.Sprintf(`{"type":%q,"business_key":%q}`, kind, business)
	}
	first := r.holdingAt(a, hold, job("one", "B"))
	for key, body := range map[string]string{
		"another-type": job("two", "B"), "another-key": job("one", "C"), "no-lock": job("free", "B"), "no-business-key": `{"type":"one"}`, "another-case": job("one", "b"),
	} {
		b.submit(key, body).want(t, http.StatusAccepted)
		hold.holds(t, key)
	}
	second := b.refusedLock(t, hold, job("one", "B"))
	// The event may be stored before the job is put off, and a second later it asks again.
	testenv.Eventually(t, 0, "the job is put off", func() bool {
		j := b.get("/jobs/" + second).json(t)
		return j["status"] == "retrying" && fmt.Sprint(j["attempts"]) == "0"
	})
	if n := b.lockCalls("acquire", "held"); n < 1 {
		t.Errorf("%v refused locks are counted", n)
	}
	unlocked := b.unlocked()
	select {
	case <-hold.once(hold.arrived, second, false):
		if b.unlocked() == unlocked { // else Redis was slow
			t.Error("two jobs run under one lock")
		}
	case <-time.After(2500 * time.Millisecond): // it has asked again meanwhile
	}
	hold.release(first)
	a.finished(first)
	hold.holds(t, second)
	for _, key := range []string{second, "another-type", "another-key", "no-lock", "no-business-key", "another-case"} {
		hold.release(key)
		if j := b.finished(key); j["status"] != "succeeded" || fmt.Sprint(j["attempts"]) != "1" {
			t.Errorf("%s: %v", key, j)
		}
	}
	testenv.Eventually(t, 0, "no lock is left", func() bool { return len(r.kept(anyLock)) == 0 })
}
