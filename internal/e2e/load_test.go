package e2e_test

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/testenv"
)

// crowd is clients that ask for the paths, each twice a second, until stop.
// It fails on an answer with a status of 500 or more.
func crowd(t testing.TB, wg *sync.WaitGroup, g *gateway, p *pulse, clients int, stop <-chan struct{}, paths ...string) {
	for c := range clients {
		wg.Go(func() {
			ticker := time.NewTicker(500 * time.Millisecond)
			defer ticker.Stop()
			for i := c; ; i++ {
				select {
				case <-stop:
					return
				case <-ticker.C:
				}
				path, began := paths[i%len(paths)], time.Now()
				a, err := g.try(http.MethodGet, path, "")
				if err != nil {
					t.Errorf("GET %s: %v", path, err)
					return
				}
				if a.StatusCode >= http.StatusInternalServerError && (!a.comeAgain() || !p.stopped(began)) {
					t.Errorf("GET %s: %d %s", path, a.StatusCode, a.body)
				}
			}
		})
	}
}

// probe asks for /readyz until stop, as a platform does, and fails if an answer
// takes a second while the machine did not stand still.
func probe(t testing.TB, wg *sync.WaitGroup, g *gateway, p *pulse, stop <-chan struct{}) *atomic.Int64 {
	var ready atomic.Int64
	wg.Go(func() {
		impatient := &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
		ticker := time.NewTicker(100 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-stop:
				return
			case <-ticker.C:
			}
			began := time.Now()
			response, err := impatient.Get(g.url + "/readyz")
			if os.IsTimeout(err) && p.stopped(began) {
				continue // it is asked again
			}
			if err != nil {
				t.Errorf("/readyz: %v", err)
				continue
			}
			response.Body.Close()
			if response.StatusCode == http.StatusOK {
				ready.Add(1)
			}
		}
	})
	return &ready
}

// Not parallel: fifty clients, the race detector and other tests together would
// be more than two processors do within the time that an accept may take.
func TestFailure_BR78_SQLiteUnderLoadRefusesNobodyAndSurvivesAKill(t *testing.T) {
	database := testenv.SQLite(t)
	config := both(t, effects, "dispatcher: {slots: 8}")
	g := start(t, database, config)
	const clients, rounds = 50, 4
	var asking sync.WaitGroup
	stop := make(chan struct{})
	p := newPulse(t)
	crowd(t, &asking, g, p, 20, stop, "/jobs/br78-1-3", "/jobs/br78-0-7?wait=1", "/jobs/br78-2-9/result", "/jobs/br78-2-40", "/jobs?limit=5")
	ready := probe(t, &asking, g, p, stop)
	for round := range rounds {
		replayed := "false"
		if round == rounds-1 {
			round, replayed = 0, "true"
		}
		var submitting sync.WaitGroup
		for c := range clients {
			submitting.Go(func() {
				p.submit(t, g, fmt.Sprintf("br78-%d-%d", round, c), replayed)
			})
		}
		submitting.Wait()
	}
	close(stop)
	asking.Wait()
	if ready.Load() == 0 {
		t.Error("the gateway was never ready")
	}
	second := launch(t, database, config)
	if code := second.wait(60 * time.Second); code == 0 {
		t.Error("a second gateway ran on the file")
	}
	g.kill()
	db := beside(t, database)
	if got := text(t, db, `pragma integrity_check`); got != "ok" {
		t.Errorf("integrity check: %s", got)
	}
	start(t, database, config)
	allOnce(t, db, clients*(rounds-1))
}

// SQLite has one writer. Who has to wait for it too long is told so, and who got
// it at the last moment is not cut off in the middle.
func TestFailure_BR78_AQueueForTheOneWriterIsAnsweredHonestly(t *testing.T) {
	t.Parallel()
	database := testenv.SQLite(t)
	g := start(t, database, both(t, effects, `
job_types:
  holds:
    executor: sql
    timeout: 2450ms
    max_attempts: 1
    sql: {statement: "insert into effects (job) with recursive n (i) as (select 1 union all select i + 1 from n) select {{ .key }} from n where i < 0"}
`))
	holder, n := "", 0
	testenv.Eventually(t, 60*time.Second, "the writer is held", func() bool {
		if n == 0 || g.get("/jobs/" + holder).json(t)["status"] == "failed" { // over before anybody saw it
			n++
			holder = fmt.Sprint("holds-", n)
			persist(t, holder, `{"type":"holds"}`, g)
		}
		return g.measured("sekali_jobs_running", `type="holds"`) == 1
	})
	const clients = 150
	var wg sync.WaitGroup
	for c := range clients {
		wg.Go(func() {
			a := g.submit(fmt.Sprint("queue-", c), effect)
			if a.StatusCode != http.StatusAccepted {
				a.problem(t, http.StatusServiceUnavailable, "idempotency-store-unavailable")
			}
			persist(t, fmt.Sprint("queue-", c), effect, g)
		})
	}
	wg.Wait()
	if j := g.finished(holder); j["status"] != "failed" {
		t.Errorf("the job that held the writer is %v", j)
	}
	db := beside(t, database)
	testenv.Eventually(t, 30*time.Second, "all effects are there", func() bool { return count(t, db, `select count(*) from effects`) == clients })
	sound(t, db)
}

// Not parallel either: it looks at how soon a probe is answered.
func TestFailure_BR76_FewConnectionsServeManyJobs(t *testing.T) {
	for _, conns := range []int{4, 6} {
		t.Run(fmt.Sprint(conns, " connections"), func(t *testing.T) {
			database := testenv.Postgres(t)
			g := start(t, database, both(t, slowEffects, keptLease, fmt.Sprintf("database_max_conns: %d\ndispatcher: {slots: 8}", conns)))
			db := beside(t, database)
			const jobs = 150
			var asking sync.WaitGroup
			stop := make(chan struct{})
			p := newPulse(t)
			crowd(t, &asking, g, p, 8, stop, "/jobs/br76-1", "/jobs/br76-100?wait=1", "/jobs?limit=5")
			ready := probe(t, &asking, g, p, stop)
			persistAll(t, jobs, func(i int) (string, string) {
				return fmt.Sprint("br76-", i), `{"type":"effect","payload":{"seconds":0.02}}`
			}, g)
			most := 0
			testenv.Eventually(t, 60*time.Second, "all jobs ended", func() bool {
				most = max(most, count(t, db, `select count(*) from pg_stat_activity where datname = current_database() and application_name = 'sekali'`))
				return count(t, db, `select count(*) from jobs`) == 0
			})
			close(stop)
			asking.Wait()
			allOnce(t, db, jobs)
			if most > conns {
				t.Errorf("%d connections were open", most)
			}
			if ready.Load() == 0 {
				t.Error("the gateway was never ready")
			}
			if n := count(t, db, `select count(*) from job_attempts where outcome <> 'succeeded'`); n != 0 {
				t.Errorf("%d attempts did not succeed", n)
			}
		})
	}
	t.Run("3 connections are refused", func(t *testing.T) {
		g := launch(t, testenv.Postgres(t), "database_max_conns: 3")
		if code := g.wait(60 * time.Second); code != 2 || !strings.Contains(g.logged(), "database_max_conns") {
			t.Errorf("exit code %d: %s", code, g.logged())
		}
	})
}

// BR-80 for sql: whatever becomes of the transaction, its job says so, and says
// succeeded only with the effect.
func TestFailure_BR80_ABrokenTransactionIsRecordedAndLeavesNothing(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		endless := `insert into effects (job) select {{ .key }} from pg_sleep(30)`
		if onSQLite(database) {
			endless = `insert into effects (job) with recursive n (i) as (select 1 union all select i + 1 from n) select {{ .key }} from n where i < 0`
		}
		g := start(t, database, both(t, effects, fmt.Sprintf(`
defaults: {max_attempts: 2, backoff: {base: 50ms, cap: 100ms}}
job_types:
  violates: {executor: sql, sql: {statement: "insert into taken (n) values (1)", setup: "create table if not exists taken (n int primary key)"}}
  deferred:
    executor: sql
    sql:
      setup: create table if not exists parents (n int primary key); create table if not exists children (n int references parents deferrable initially deferred)
      statement: insert into children (n) values (7)
  wrong: {executor: sql, sql: {statement: "insert into effects (nothing) values (1)"}}
  endless: {executor: sql, timeout: 700ms, sql: {statement: %q}}
`, endless)))
		db := beside(t, database)
		change(t, db, `insert into taken (n) values (1)`)
		for _, c := range []struct {
			kind, code string
			attempts   string
		}{
			{"violates", "unique-violation", "1"},
			{"wrong", "sql", "1"},
			{"deferred", "", ""},
			{"endless", "timeout", "2"},
		} {
			g.submit(c.kind, `{"type":"`+c.kind+`"}`).want(t, http.StatusAccepted)
			j := g.finished(c.kind)
			problem, _ := j["error"].(map[string]any)
			if j["status"] != "failed" || c.code != "" && problem["code"] != c.code || c.attempts != "" && fmt.Sprint(j["attempts"]) != c.attempts {
				t.Errorf("%s: the job is %v", c.kind, j)
			}
		}
		for _, table := range []string{"effects", "children"} {
			if n := count(t, db, `select count(*) from `+table); n != 0 {
				t.Errorf("%d rows in %s", n, table)
			}
		}
		g.submit("after", effect).want(t, http.StatusAccepted)
		if j := g.finished("after"); j["status"] != "succeeded" {
			t.Errorf("the next job is %v", j)
		}
		sound(t, db)
	})
}

func TestFailure_BR67_TheDelayIsBoundedAfterAnyNumberOfAttempts(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		s := newSink(t)
		config := s.types(map[string]string{"fails": "/status/500"})
		g := start(t, database, both(t, config, "defaults: {backoff: {base: 200ms, cap: 20m}}"))
		db := beside(t, database)
		attempts := []int{35, 40, 63, 64, 100, 900}
		for _, n := range attempts {
			key := fmt.Sprint("br67-", n)
			g.submit(key, `{"type":"fails","max_attempts":1000,"delay_seconds":3600}`).want(t, http.StatusAccepted)
			change(t, db, `update jobs set attempt = $1, run_at = created_at where key = $2`, n, key)
		}
		for _, n := range attempts {
			key := fmt.Sprint("br67-", n)
			testenv.Eventually(t, 0, "the attempt failed", func() bool { return g.get("/jobs/" + key).json(t)["status"] == "retrying" })
			next, err := time.Parse(time.RFC3339Nano, fmt.Sprint(g.get("/jobs/" + key).json(t)["next_attempt_at"]))
			if err != nil {
				t.Fatal(err)
			}
			calls := s.of(key)
			if len(calls) != 1 || calls[0].header.Get("Sekali-Attempt") != fmt.Sprint(n+1) {
				t.Errorf("%s: %d calls", key, len(calls))
				continue
			}
			if wait := next.Sub(calls[0].at); wait < 10*time.Minute-time.Second || wait > 21*time.Minute { // half to all of the cap, and the time that passed
				t.Errorf("%s: the next attempt comes %v after the last one", key, wait)
			}
		}
		refused := launch(t, testenv.SQLite(t), "defaults: {backoff: {base: 2h, cap: 1h}}")
		if code := refused.wait(60 * time.Second); code != 2 || !strings.Contains(refused.logged(), "backoff.base") {
			t.Errorf("a base above the cap: exit code %d: %s", code, refused.logged())
		}
	})
}

// Queues 7: with many finished jobs nothing that runs all the time reads them.
func TestFailure_Q7_NothingHotReadsFinishedJobs(t *testing.T) {
	t.Parallel()
	database := testenv.Postgres(t)
	g := start(t, database, both(t, effects, "dispatcher: {poll_interval: 50ms}\ndefaults: {lease: 2s}"))
	db := beside(t, database)
	const old = 20000
	change(t, db, `insert into finished_jobs (slot, id, tenant, key, key_slot, type, state, payload, priority, run_at, timeout_ms, max_attempts,
			attempt, generation, version, token, created_at, finished_at, expires_at)
		select n % 256, gen_random_uuid(), 'default', 'old-' || n, n % 256, 'effect', 'succeeded', 'null', 0, now(), 1000, 1, 1, 1, 3, 1, now(), now(), now() + interval '1 day'
		from generate_series(1, $1) n`, old)
	change(t, db, `analyze`)
	reads := func() (scans, rows int) {
		const sum = ` from pg_stat_user_tables where relname like 'finished_jobs%'`
		return count(t, db, `select coalesce(sum(seq_scan), 0)`+sum), count(t, db, `select coalesce(sum(seq_tup_read + idx_tup_fetch), 0)`+sum)
	}
	const jobs = 100
	claims := g.measured("sekali_jobs_claimed_total")
	<-time.After(11 * time.Second) // a connection that rests tells what it did, at the start, only after ten
	scansBefore, rowsBefore := reads()
	for i := range jobs {
		key := fmt.Sprint("q7-", i)
		g.submit(key, effect).want(t, http.StatusAccepted)
		g.submit(key, effect).want(t, http.StatusAccepted)
		g.finished(key)
		if i%10 == 0 {
			g.get("/metrics").want(t, http.StatusOK)
			g.get("/readyz").want(t, http.StatusOK)
			g.get("/jobs?limit=10").want(t, http.StatusOK)
			g.get("/jobs?status=pending").want(t, http.StatusOK)
		}
	}
	if g.measured("sekali_jobs_claimed_total")-claims != jobs {
		t.Error("the jobs were not claimed in this test")
	}
	// Backends tell what they did at most every second.
	testenv.Eventually(t, 0, "the statistics arrived", func() bool {
		_, rows := reads()
		return rows > rowsBefore
	})
	<-time.After(1500 * time.Millisecond) // for the rest of the backends to tell
	scans, rows := reads()
	if scans != scansBefore {
		t.Errorf("finished jobs were scanned %d times", scans-scansBefore)
	}
	// By their keys a replay and two or three looks per job, and ten pages of ten.
	if read := rows - rowsBefore; read > 10*jobs+10*100 {
		t.Errorf("%d finished jobs were read for %d jobs", read, jobs)
	}
}

// BR-05's second half: what a gateway remembers of keys does not grow with them.
func TestFailure_BR05_MemoryDoesNotGrowWithKeys(t *testing.T) {
	t.Parallel()
	g := start(t, testenv.Postgres(t), "dispatcher: {slots: 4}")
	padding := strings.Repeat("x", 230)
	submit := func(round, n int) float64 {
		persistAll(t, n, func(i int) (string, string) {
			return fmt.Sprintf("br05-%d-%d-%s", round, i, padding), `{"type":"echo","business_key":"` + fmt.Sprint(round, i) + padding + `"}`
		}, g)
		// The collector's next goal is about twice what lives: it moves far less
		// than the heap itself.
		return g.measured("go_memstats_next_gc_bytes")
	}
	before := submit(0, 300)
	const keys = 1500
	var grown [3]float64
	for i := range grown { // what is kept of keys adds up; how the goal moves by itself does not
		grown[i] = submit(i+1, keys) - before
		if grown[i] <= float64(1024*keys*(i+1)) { // twice the key and the business key, kept once
			return
		}
	}
	t.Errorf("each %d keys more, the heap had grown by %.0f bytes", keys, grown)
}
