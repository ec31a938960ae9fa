package e2e_test

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/testenv"
)

// lockedEffects are effects under a lock, a job that runs until it is let, and
// one that fails for good.
func lockedEffects(t testing.TB, hold *gate, s *sink) string {
	return both(t, effects, hold.types(), s.types(map[string]string{"fails": "/status/422"}),
		"job_types: {effect: {lock: key}, hold: {lock: key}, fails: {lock: key}}")
}

// ailment is one way in which Redis is of no use, and how it passes.
type ailment struct {
	name    string
	sickens func(r *ownRedis)
	heals   func(r *ownRedis)
	// silent: it does not answer, so that whoever asks it loses a tenth of a second.
	silent bool
}

// says is a command that Redis must take.
func says(words ...any) func(*ownRedis) { return func(r *ownRedis) { r.command(words...) } }

func restarts(r *ownRedis) { do(r.t, r.server.Restart) }

// ailments are told apart by engine only to save time: Redis knows no engine.
var ailments = map[string][]ailment{
	"SQLite": {
		{"killed", func(r *ownRedis) { do(r.t, r.server.Kill) }, restarts, false},
		{"frozen", func(r *ownRedis) { do(r.t, r.server.Freeze) }, func(r *ownRedis) { do(r.t, r.server.Thaw) }, true},
		{"full", says("config", "set", "maxmemory", "1", "maxmemory-policy", "noeviction"), says("config", "set", "maxmemory", "0"), false},
		{"forbidding", func(r *ownRedis) { says("acl", "setuser", "default", "-@scripting", "-set", "-hget")(r) }, says("acl", "setuser", "default", "+@all"), false},
	},
	"Postgres": {
		// A pause holds up its own end as well.
		{"paused", says("client", "pause", "60000", "all"), restarts, true},
		{"another-password", func(r *ownRedis) {
			r.command("config", "set", "requirepass", "another")
			r.command("client", "kill", "type", "normal", "skipme", "yes")
		}, says("config", "set", "requirepass", ""), false},
		{"read-only", says("replicaof", "127.0.0.1", "1"), says("replicaof", "no", "one"), false},
		{"without-replicas", says("config", "set", "min-replicas-to-write", "1"), says("config", "set", "min-replicas-to-write", "0"), false},
	},
}

func TestContract_Row49_WhateverAilsRedisTheServiceIsTheSame(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		r, hold, s := newOwnRedis(t), newGate(t), newSink(t)
		all, lease := ailments["Postgres"], keptLease
		if onSQLite(database) { // with a short lease, which no wait for Redis may outlast
			all, lease = ailments["SQLite"], ""
		}
		g := start(t, database, r.config(lockedEffects(t, hold, s), lease))
		g.hasRedis()
		written := 0
		for _, a := range all {
			through := r.holdingOne(g, hold, "through-"+a.name)
			usual := g.ordinary(t, "before-"+a.name)
			before := g.unlocked()
			a.sickens(r)
			if took := g.ordinary(t, "during-"+a.name); took > 3*usual+5*time.Second {
				t.Errorf("%s: requests took %v, before that %v", a.name, took, usual)
			}
			written += 2 * ordinaryJobs
			if a.silent {
				g.leavesAlone(t, through, usual)
			}
			g.lacksRedis()
			if n := g.unlocked() - before; n < ordinaryJobs {
				t.Errorf("%s: %v attempts are counted as unlocked, want all %d", a.name, n, ordinaryJobs)
			}
			a.heals(r)
			g.hasRedis()
			g.locksAgain(t, "after-"+a.name, "fails")
			hold.release(through)
			if j := g.finished(through); j["status"] != "succeeded" || fmt.Sprint(j["attempts"]) != "1" {
				t.Errorf("%s: the job that ran through it is %v", a.name, j)
			}
		}
		db := beside(t, database)
		for what, query := range map[string]string{"effects": `select count(*) from effects`, "jobs with effects": `select count(distinct job) from effects`} {
			if n := count(t, db, query); n != written {
				t.Errorf("%d %s, want %d", n, what, written)
			}
		}
		if len(g.logLines("lock not available; running on the lease alone")) == 0 {
			t.Error("the log does not say that jobs run on their lease alone")
		}
		if lines := errorLines(g); len(lines) > 0 {
			t.Errorf("errors in the log: %q", lines)
		}
		sound(t, db)
	})
}

// leavesAlone fails if reads of the key wait for a Redis that does not answer,
// each of them, after so many have. A round of ordinary requests took usual, when
// all was well. The slowest ones are left out: a machine that stands still for a
// while makes a few reads slow, and a wait for Redis makes all of them slow.
func (g *gateway) leavesAlone(t testing.TB, key string, usual time.Duration) {
	t.Helper()
	const reads, quickest = 2 * ordinaryJobs, 40 // half as many as there are requests in a round
	var each []time.Duration
	for range reads {
		asked := time.Now()
		g.get("/jobs/"+key).want(t, http.StatusOK)
		each = append(each, time.Since(asked))
	}
	slices.Sort(each)
	took := time.Duration(0)
	for _, one := range each[:quickest] {
		took += one
	}
	if took > usual+quickest*50*time.Millisecond {
		t.Errorf("the quickest %d of %d reads took %v: %v", quickest, reads, took, each)
	}
}

// ordinaryJobs is how many jobs a round of ordinary requests submits.
const ordinaryJobs = 25

// ordinary makes one round of what clients and operators do, fails where an answer
// is not the usual one, and tells how long the requests took.
func (g *gateway) ordinary(t testing.TB, round string) (took time.Duration) {
	t.Helper()
	timed := func(method, path, body string, headers ...string) answer {
		asked := time.Now()
		a := g.do(method, path, body, headers...)
		took += time.Since(asked)
		return a
	}
	for i := range ordinaryJobs {
		key := fmt.Sprint(round, "-", i)
		first := timed(http.MethodPost, "/jobs", effect, jsonType, "Idempotency-Key: "+key).want(t, http.StatusAccepted, "Idempotent-Replayed: false")
		again := timed(http.MethodPost, "/jobs", effect, jsonType, "Idempotency-Key: "+key).want(t, http.StatusAccepted, "Idempotent-Replayed: true", "Job-Status: *")
		if string(first.body) != string(again.body) {
			t.Errorf("%s: the answers differ:\n%s\n%s", key, first.body, again.body)
		}
		timed(http.MethodGet, "/jobs/"+key, "").want(t, http.StatusOK, "ETag: *")
		timed(http.MethodGet, "/jobs/unknown-"+key, "").problem(t, http.StatusNotFound, "job-not-found")
	}
	scheduled, fails := round+"-scheduled", round+"-fails"
	timed(http.MethodPost, "/jobs", `{"type":"effect","delay_seconds":3600}`, jsonType, "Idempotency-Key: "+scheduled).want(t, http.StatusAccepted)
	if j := timed(http.MethodPost, "/jobs/"+scheduled+"/cancel", "").want(t, http.StatusOK).json(t); j["status"] != "cancelled" {
		t.Errorf("the cancelled job is %v", j)
	}
	if j := g.ended(t, fails, `{"type":"fails"}`); j["status"] != "failed" {
		t.Errorf("the job that fails is %v", j)
	}
	timed(http.MethodPost, "/jobs/"+fails+"/retry", "", "Idempotency-Key: retry-"+fails).want(t, http.StatusAccepted)
	if j := g.finished(fails); j["status"] != "failed" || fmt.Sprint(j["generation"]) != "2" {
		t.Errorf("the retried job is %v", j)
	}
	for i := range ordinaryJobs {
		if j := g.finished(fmt.Sprint(round, "-", i)); j["status"] != "succeeded" || fmt.Sprint(j["attempts"]) != "1" {
			t.Errorf("job %d of %s is %v", i, round, j)
		}
	}
	return took
}

// loadingRedis answers each command as a Redis that reads its data.
func loadingRedis(t testing.TB) (url string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				for lines := bufio.NewScanner(conn); lines.Scan(); {
					if strings.HasPrefix(lines.Text(), "*") {
						_, _ = conn.Write([]byte("-LOADING Redis is loading the dataset in memory\r\n"))
					}
				}
			}()
		}
	}()
	return "redis://" + listener.Addr().String() + "/0"
}

// What ails Redis before the gateway starts holds up neither the start nor
// anything after it, nor the end; and what is told of it tells neither its
// password nor, where they are redacted, keys.
func TestContract_Row49_Row62_ARedisThatIsNotThereAtTheStart(t *testing.T) {
	t.Parallel()
	nothing := func(*ownRedis) {}
	for _, c := range []struct {
		name, engine string
		url          func(r *ownRedis) string
		heals        func(r *ownRedis) // nil: never
	}{
		{"killed", "SQLite", func(r *ownRedis) string { do(r.t, r.server.Kill); return r.server.URL() }, restarts},
		{"frozen", "Postgres", func(r *ownRedis) string { do(r.t, r.server.Freeze); return r.server.URL() }, nil},
		{"loading", "SQLite", func(r *ownRedis) string { return loadingRedis(r.t) }, nil},
		{"another password", "Postgres", func(r *ownRedis) string {
			r.command("config", "set", "requirepass", "right")
			return strings.Replace(r.server.URL(), "redis://", "redis://:canary-wrong@", 1)
		}, nil},
		{"no such database", "SQLite", func(r *ownRedis) string { return strings.Replace(r.server.URL(), "/0", "/999", 1) }, nil},
		{"password right", "Postgres", func(r *ownRedis) string {
			r.command("config", "set", "requirepass", "canary-right")
			return strings.Replace(r.server.URL(), "redis://", "redis://:canary-right@", 1)
		}, nothing},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newOwnRedis(t)
			database := engines[c.engine](t)
			g := start(t, database, both(t, effects, "log: {redact_keys: true}",
				"job_types: {effect: {lock: key}, named: {executor: echo, lock: business_key}}", fmt.Sprintf("redis_url: %q", c.url(r))))
			g.submit("first", effect).want(t, http.StatusAccepted)
			g.submit("first", effect).want(t, http.StatusAccepted, "Idempotent-Replayed: true")
			if j := g.finished("first"); j["status"] != "succeeded" || fmt.Sprint(j["attempts"]) != "1" {
				t.Errorf("the job is %v", j)
			}
			allOnce(t, beside(t, database), 1)
			if j := g.ended(t, "named", `{"type":"named","business_key":"canary-b"}`); j["status"] != "succeeded" {
				t.Errorf("the job is %v", j)
			}
			// A Redis that is well may be slow for a tenth of a second, and is done without
			// then: that jobs take locks is seen below.
			if well := c.name == "password right"; !well {
				if g.unlocked() == 0 {
					t.Error("no attempt was unlocked")
				}
				g.awaitReady()
				g.lacksRedis()
			}
			if c.heals != nil {
				c.heals(r)
				g.hasRedis()
				g.locksAgain(t, "healed", "effect")
			}
			g.signal(syscall.SIGTERM)
			stopping := time.Now()
			if code := g.wait(60 * time.Second); code != 0 || time.Since(stopping) > 10*time.Second {
				t.Errorf("exit code %d after %v", code, time.Since(stopping))
			}
			if strings.Contains(g.logged(), "canary") {
				t.Errorf("a password of Redis, or a key that is to be redacted, in the log:\n%s", g.logged())
			}
			if lines := errorLines(g); len(lines) > 0 {
				t.Errorf("errors in the log: %q", lines)
			}
		})
	}
}

// A Redis that is away opens no door, and makes no submit count twice.
func TestFailure_BR28_ARedisThatIsAwayOpensNoDoor(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		_, all := token(t, database, "--tenant", "one")
		_, reads := token(t, database, "--tenant", "one", "--permissions", "read")
		r, behind := newOwnRedis(t), newUpstream(t, func(w http.ResponseWriter, _ *http.Request, _ int) { fmt.Fprint(w, "done") })
		g := start(t, database, r.config(withKeys, effects, "job_types: {effect: {lock: key}}",
			fmt.Sprintf("proxy: [{match: POST /v1/charges, upstream: %q}]", behind.URL)))
		for _, sickens := range []func() error{func() error { return nil }, r.server.Freeze, r.server.Kill} {
			do(t, sickens)
			for _, route := range []string{
				"GET /jobs", "GET /jobs/k", "HEAD /jobs/k", "GET /jobs/k/result", "GET /jobs/k/attempts", "GET /jobs/k/events", "GET /executors", "GET /executors/effect",
				"POST /jobs", "POST /jobs/batch", "POST /jobs/k/cancel", "POST /jobs/k/retry", "POST /jobs/k/resolve",
				"POST /executors/effect/pause", "POST /executors/effect/resume", "POST /v1/charges",
			} {
				method, path, _ := strings.Cut(route, " ")
				g.do(method, path, "", "Idempotency-Key: k").want(t, http.StatusUnauthorized, "WWW-Authenticate: *")
				if method == http.MethodPost {
					g.do(method, path, "{}", jsonType, "Idempotency-Key: k", bearer(reads)).problem(t, http.StatusForbidden, "forbidden")
				}
			}
		}
		answers := make([]answer, 20)
		var wg sync.WaitGroup
		for i := range answers {
			wg.Go(func() {
				answers[i], _ = g.try(http.MethodPost, "/jobs", effect, jsonType, "Idempotency-Key: k", bearer(all))
			})
		}
		wg.Wait()
		fresh := 0
		for _, a := range answers {
			if a.Response == nil {
				t.Fatal("a submit got no answer")
			}
			if a.want(t, http.StatusAccepted).Header.Get("Idempotent-Replayed") == "false" {
				fresh++
			}
		}
		if fresh != 1 {
			t.Errorf("%d answers say that they are the first one", fresh)
		}
		for range 3 {
			g.do(http.MethodPost, "/v1/charges", "{}", jsonType, "Idempotency-Key: charge", bearer(all)).want(t, http.StatusOK)
		}
		if behind.executed["charge"] != 1 || behind.executed["k"] != 0 {
			t.Errorf("behind the proxy was executed: %v", behind.executed)
		}
		g.lacksRedis()
		testenv.Eventually(t, 60*time.Second, "the job ran", func() bool { return count(t, beside(t, database), `select count(*) from jobs`) == 0 })
		if n := count(t, beside(t, database), `select count(*) from effects`); n != 1 {
			t.Errorf("%d effects", n)
		}
	})
}

// Connections to Redis are as few after trouble as before it, and none is for
// messages; a storm costs no job.
func TestFailure_Q15_Q18_AStormInRedisLosesNoJobAndLeaksNoConnection(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		const jobs, most = 250, 8 + 3 // the gateway's, ours, and one that asks whether Redis is back
		r := newOwnRedis(t)
		forbid := func() { r.command("acl", "setuser", "default", "-@pubsub") }
		forbid()
		g := start(t, database, r.config(effects, keptLease, "job_types: {effect: {lock: key}}"))
		g.hasRedis()
		persistAll(t, 50, func(i int) (string, string) { return fmt.Sprint("calm-", i), effect }, g)
		db := beside(t, database)
		allOnce(t, db, 50)
		routines := g.measured("go_goroutines")
		connected := func() { // Redis sees one that was given up as long as it has not heard of that
			t.Helper()
			testenv.Eventually(t, 0, fmt.Sprint("no more than ", most, " connections to Redis"), func() bool {
				n, err := strconv.Atoi(r.told("clients", "connected_clients"))
				return err == nil && n <= most
			})
		}
		rounds := 0
		undisturbed(t, jobs, func(done <-chan struct{}) {
			ticker := time.NewTicker(40 * time.Millisecond)
			defer ticker.Stop()
			for ; ; rounds++ {
				connected()
				switch rounds % 8 {
				case 1, 3, 5:
					r.command("flushall")
				case 2:
					r.command("script", "flush")
				case 4, 6:
					r.command("client", "kill", "type", "normal", "skipme", "yes")
				case 7:
					do(t, r.server.Restart)
					testenv.Eventually(t, 0, "Redis is back", func() bool { return r.client.Ping(t.Context()).Err() == nil })
					forbid()
				}
				select {
				case <-done:
					return
				case <-ticker.C:
				}
			}
		}, g)
		if rounds < 8 {
			t.Errorf("the storm took %d rounds only", rounds)
		}
		allOnce(t, db, jobs+50)
		if n := count(t, db, `select count(*) from finished_jobs where attempt <> 1`); n != 0 {
			t.Errorf("%d jobs had more than one attempt", n)
		}
		g.hasRedis()
		for range 5 { // what leaks, leaks with each call
			g.ordinaryReads(t)
			connected()
		}
		seldom(t, 0, "as many goroutines as before", func() bool { return g.measured("go_goroutines") < routines+20 })
	})
}

func (g *gateway) ordinaryReads(t testing.TB) {
	t.Helper()
	var wg sync.WaitGroup
	for i := range 30 {
		wg.Go(func() {
			if a, err := g.try(http.MethodGet, fmt.Sprint("/jobs/e-", i), ""); err != nil || a.StatusCode != http.StatusOK {
				t.Errorf("GET: %v %v", a.Response, err)
			}
		})
	}
	wg.Wait()
}

// Without a Redis there are locks all the same, within the process.
func TestContract_Row49_LocksWithoutARedis(t *testing.T) {
	onGateway(t, both(t, effects, "job_types: {effect: {lock: key}}"), func(t *testing.T, g *gateway) {
		const jobs = 40
		persistAll(t, jobs, func(i int) (string, string) { return fmt.Sprint("k-", i), effect }, g)
		allOnce(t, beside(t, g.database), jobs)
		seldom(t, 0, "each job took its lock and gave it back", func() bool {
			return g.lockCalls("acquire", "done") == jobs && g.lockCalls("release", "done") == jobs
		})
		if n := g.unlocked(); n != 0 {
			t.Errorf("%v attempts were unlocked", n)
		}
		g.hasRedis()
	})
}
