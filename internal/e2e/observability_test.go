package e2e_test

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/testenv"
)

// awaitReady waits for the first claim, before which a gateway is not ready.
func (g *gateway) awaitReady() {
	g.t.Helper()
	testenv.Eventually(g.t, 60*time.Second, "ready", func() bool { return g.get("/readyz").StatusCode == http.StatusOK })
}

// readiness reads /readyz.
func readiness(t testing.TB, g *gateway, status int) map[string]any {
	t.Helper()
	return g.get("/readyz").want(t, status, "Content-Type: application/json", "Cache-Control: no-store").json(t)
}

func TestContract_SectionH_Probes(t *testing.T) {
	// A grace that outlives the questions asked in it.
	onGate(t, both(t, keptLease, "dispatcher: {shutdown_grace: 60s}"), func(t *testing.T, g *gateway, hold *gate) {
		g.awaitReady()
		if ready := readiness(t, g, http.StatusOK); fmt.Sprint(ready["degraded"], ready["failed"]) != "[] []" {
			t.Errorf("a healthy gateway: %v", ready)
		}
		g.get("/healthz").want(t, http.StatusOK, "Content-Type: application/json", "Cache-Control: no-store")

		// The schema of another program: what goose says is not what we need.
		db := g.beside(t)
		if _, err := db.ExecContext(t.Context(), "alter table goose_db_version rename to away"); err != nil {
			t.Fatal(err)
		}
		if got := readiness(t, g, http.StatusServiceUnavailable); fmt.Sprint(got["failed"]) != "[migrations]" {
			t.Errorf("migrations missing: %v", got)
		}
		g.get("/healthz").want(t, http.StatusOK)
		if _, err := db.ExecContext(t.Context(), "alter table away rename to goose_db_version"); err != nil {
			t.Fatal(err)
		}
		g.awaitReady()

		hold.held(t, g, "k")
		g.signal(syscall.SIGTERM)
		testenv.Eventually(t, 0, "not ready while shutting down", func() bool { return g.get("/readyz").StatusCode == http.StatusServiceUnavailable })
		if got := readiness(t, g, http.StatusServiceUnavailable); !slices.Contains(got["failed"].([]any), any("shutdown")) {
			t.Errorf("shutting down: %v", got)
		}
		g.get("/healthz").want(t, http.StatusOK)
		hold.release("k")
		if code := g.wait(60 * time.Second); code != 0 {
			t.Errorf("exit code %d", code)
		}
	})
}

// A replica that may not migrate waits for whoever does, and says so.
func TestContract_SectionH_MigrationsMissingAtStart(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		g := start(t, database, "migrate: false")
		if got := readiness(t, g, http.StatusServiceUnavailable); !slices.Contains(got["failed"].([]any), any("migrations")) {
			t.Errorf("migrations missing: %v", got)
		}
		g.get("/healthz").want(t, http.StatusOK)
		a := g.submit("k", `{"type":"echo"}`).want(t, http.StatusServiceUnavailable, "Retry-After: *")
		a.problem(t, http.StatusServiceUnavailable, "idempotency-store-unavailable")
		g.get("/jobs/k").want(t, http.StatusServiceUnavailable, "Retry-After: *").problem(t, http.StatusServiceUnavailable, "store-unavailable")
		if out, errors, code := sekali(t, database, "migrate", "up"); code != 0 {
			t.Fatalf("migrate: %d %s%s", code, out, errors)
		}
		testenv.Eventually(t, 60*time.Second, "ready once migrated", func() bool { return g.get("/readyz").StatusCode == http.StatusOK })
		g.submit("k", `{"type":"echo"}`).want(t, http.StatusAccepted, "Idempotent-Replayed: false")
		if j := g.finished("k"); j["status"] != "succeeded" {
			t.Errorf("job %v", j)
		}
		if errors := errorLines(g); len(errors) > 0 {
			t.Errorf("errors in the log: %q", errors)
		}
	})
}

func TestContract_SectionH_RedisAwayIsDegradedOnly(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		redis, err := testenv.StartRedis()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = redis.Stop() })
		g := start(t, database, "redis_url: "+redis.URL())
		g.awaitReady()
		if got := readiness(t, g, http.StatusOK); fmt.Sprint(got["degraded"]) != "[]" {
			t.Errorf("with Redis: %v", got)
		}
		if err := redis.Kill(); err != nil {
			t.Fatal(err)
		}
		if got := readiness(t, g, http.StatusOK); fmt.Sprint(got["degraded"], got["failed"]) != "[redis] []" {
			t.Errorf("without Redis: %v", got)
		}
		testenv.Eventually(t, 60*time.Second, "the gauge shows it", func() bool { return series(t, g)[`sekali_degraded{part="redis"}`] == "1" })
		g.submit("k", `{"type":"echo"}`).want(t, http.StatusAccepted)
		if j := g.finished("k"); j["status"] != "succeeded" {
			t.Errorf("job %v", j)
		}
		if err := redis.Restart(); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, 60*time.Second, "Redis is back", func() bool { return fmt.Sprint(readiness(t, g, http.StatusOK)["degraded"]) == "[]" })
		testenv.Eventually(t, 60*time.Second, "the gauge shows it", func() bool { return series(t, g)[`sekali_degraded{part="redis"}`] == "0" })
		for line := range strings.Lines(g.logged()) {
			if !json.Valid([]byte(line)) {
				t.Errorf("a line of the log that is no JSON: %s", line)
			}
		}
	})
}

// series are the samples of /metrics by name and labels.
func series(t testing.TB, g *gateway) map[string]string {
	t.Helper()
	found := map[string]string{}
	for line := range strings.Lines(string(g.get("/metrics").body)) {
		if at := strings.LastIndexByte(line, ' '); at > 0 && !strings.HasPrefix(line, "#") {
			found[line[:at]] = strings.TrimSpace(line[at:])
		}
	}
	return found
}

func TestContract_SectionH_MetricsCountWhatHappened(t *testing.T) {
	config := string(merge(t, invoices, "job_types: {fails: {executor: command, max_attempts: 1, command: {argv: [\"false\"]}}}"))
	onGateway(t, config, func(t *testing.T, g *gateway) {
		g.get("/metrics").want(t, http.StatusOK, "Content-Type: *")
		before := series(t, g)
		for _, name := range []string{
			`sekali_degraded{part="redis"}`, `sekali_stale_calls_total{call="extend"}`, `sekali_stale_calls_total{call="finish"}`,
			"sekali_replays_total", "sekali_mismatches_total", "sekali_duplicates_ignored_total", "sekali_jobs_rescued_total", "sekali_running_past_lease",
			`sekali_attempts_total{outcome="succeeded",type="echo"}`, `sekali_submissions_total{result="refused",type="unknown"}`,
		} {
			if before[name] != "0" {
				t.Errorf("%s is %q at start, want 0", name, before[name])
			}
		}
		g.ended(t, "k", `{"type":"echo","business_key":"free-again"}`)
		for range 3 {
			g.submit("k", `{"type":"echo","business_key":"free-again"}`)
		}
		for range 2 {
			g.submit("k", `{"type":"echo"}`).want(t, http.StatusUnprocessableEntity)
		}
		g.ended(t, "i1", `{"type":"invoice_generate","payload":{"order_id":"1","total":1}}`)
		g.ended(t, "i2", `{"type":"invoice_generate","payload":{"order_id":"1","total":1}}`)
		g.ended(t, "f", `{"type":"fails"}`)
		// An attempt is counted, and told by the log after that, when its job has ended.
		testenv.Eventually(t, 0, "all attempts are counted", func() bool { return len(g.logLines("attempt ended")) == 4 })
		g.submit("h1", `{"type":"echo","delay_seconds":3600,"business_key":"b"}`)
		g.submit("h2", `{"type":"echo","business_key":"b"}`).want(t, http.StatusOK, "Idempotency-Status: duplicate_ignored")
		g.submit("u", `{"type":"no_such_type"}`).want(t, http.StatusBadRequest)
		g.get("/jobs/h2").want(t, http.StatusOK)
		after := series(t, g)
		for name, want := range map[string]string{
			"sekali_replays_total": "3", "sekali_mismatches_total": "2", "sekali_duplicates_ignored_total": "2",
			`sekali_submissions_total{result="accepted",type="echo"}`: "2", `sekali_submissions_total{result="replayed",type="echo"}`: "3",
			`sekali_submissions_total{result="refused",type="echo"}`: "2", `sekali_submissions_total{result="duplicate_ignored",type="echo"}`: "1",
			`sekali_submissions_total{result="refused",type="unknown"}`: "1",
			`sekali_attempts_total{outcome="succeeded",type="echo"}`:    "1", `sekali_attempts_total{outcome="succeeded",type="invoice_generate"}`: "2",
			`sekali_attempts_total{outcome="failed",type="fails"}`: "1", `sekali_jobs_running{type="echo"}`: "0", `sekali_jobs_claimed_total{type="echo"}`: "1",
			`sekali_attempt_seconds_count{type="fails"}`: "1", `sekali_http_requests_total{method="POST",route="/jobs",status="422"}`: "2",
		} {
			if after[name] != want {
				t.Errorf("%s is %q, want %s", name, after[name], want)
			}
		}
		for name := range after {
			if strings.HasPrefix(name, "sekali_") && strings.Contains(name, "free-again") {
				t.Errorf("a business key in %s", name)
			}
		}
	})
}

func TestFailure_BR89_SeriesDoNotGrowWithWhatClientsSend(t *testing.T) {
	onGateway(t, "", func(t *testing.T, g *gateway) {
		const rounds = 120
		ask := func(i int) {
			g.get(fmt.Sprintf("/canary-path-%d", i))
			g.get(fmt.Sprintf("/jobs/canary-key-%d", i))
			g.get(fmt.Sprintf("/jobs/canary-key-%d/result", i))
			g.get(fmt.Sprintf("/jobs/canary-key-%d/x/%d", i, i))
			g.get(fmt.Sprintf("/jobs?canary-%d=1", i))
			g.do(fmt.Sprintf("CANARY%d", i), "/jobs", "")
			g.do(fmt.Sprintf("CANARY%d", i), fmt.Sprintf("/canary-path-%d", i), "")
			g.submit(fmt.Sprintf("canary-key-%d", i), fmt.Sprintf(`{"type":"canary_type_%d"}`, i))
		}
		ask(0)
		g.get("/metrics")
		before := len(series(t, g))
		for i := range rounds {
			ask(i + 1)
		}
		after := series(t, g)
		if growth := len(after) - before; growth > 10 {
			t.Errorf("%d more series after %d rounds", growth, rounds)
		}
		for name := range after {
			if strings.Contains(strings.ToLower(name), "canary") {
				t.Errorf("a client's text in %s", name)
			}
		}
	})
}

func TestContract_Row115_Failure_BR38_UnknownRoutesAndMethods(t *testing.T) {
	onGateway(t, "", func(t *testing.T, g *gateway) {
		g.submit("k", pending)
		for _, c := range []struct{ method, path, allow string }{
			{"DELETE", "/jobs", "GET, HEAD, POST"},
			{"PUT", "/jobs/k", "GET, HEAD"},
			{"POST", "/jobs/k", "GET, HEAD"},
			{"PATCH", "/jobs/k/result", "GET, HEAD"},
			{"DELETE", "/jobs/a%2Fb", "GET, HEAD"},
			{"POST", "/healthz", "GET, HEAD"},
			{"DELETE", "/readyz", "GET, HEAD"},
			{"PUT", "/metrics", "GET, HEAD"},
			{"BREW", "/jobs", "GET, HEAD, POST"},
			{"TRACE", "/jobs/k", "GET, HEAD"},
			{"get", "/jobs", "GET, HEAD, POST"},
		} {
			a := g.do(c.method, c.path, "").want(t, http.StatusMethodNotAllowed, "Allow: "+c.allow)
			if p := a.problem(t, http.StatusMethodNotAllowed, "method-not-allowed"); p["retryable"] != false {
				t.Errorf("%s %s: %v", c.method, c.path, p)
			}
		}
		for _, c := range []struct{ method, path string }{
			{"GET", "/"},
			{"GET", "/nowhere"},
			{"POST", "/nowhere"},
			{"BREW", "/nowhere"},
			{"GET", "/jobs/k/results"},
			{"GET", "/jobs/k/result/"},
			{"GET", "/jobs//result"},
			{"GET", "/jobs/"},
			{"GET", "//jobs"},
			{"GET", "/Jobs"},
			{"GET", "/jobs/k/"},
			{"GET", "/debug/pprof/"},
			{"GET", "/debug/vars"},
			{"GET", "/healthz/"},
			{"GET", "/jobs%2Fk"},
		} {
			a := g.do(c.method, c.path, "").want(t, http.StatusNotFound, "Content-Type: application/problem+json", "Allow:")
			if code := a.json(t)["code"]; code != "route-not-found" && code != "job-not-found" {
				t.Errorf("%s %s: %v", c.method, c.path, code)
			}
		}
		g.awaitReady()
		for _, path := range []string{"/jobs/k", "/healthz", "/readyz", "/metrics", "/jobs"} {
			if a := g.do(http.MethodHead, path, "").want(t, http.StatusOK); len(a.body) > 0 {
				t.Errorf("HEAD %s has a body", path)
			}
		}
		// A key on a read is nothing special (row 17).
		g.get("/jobs/k", "Idempotency-Key: other").want(t, http.StatusOK, "Idempotency-Status: ignored", "Idempotent-Replayed:")
		g.get("/jobs/other").problem(t, http.StatusNotFound, "job-not-found")
	})
}

var (
	problemInstance = regexp.MustCompile(`^urn:uuid:[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	problemMembers  = []string{"code", "detail", "errors", "expired_at", "idempotency_key", "instance", "job", "job_status", "limit", "reason", "retry_after_ms", "retryable", "status", "title", "type"}
)

func TestContract_SectionH_Problems(t *testing.T) {
	config := "limits: {body: 1KiB}\njob_types: {solo: {executor: echo, on_business_key_conflict: reject}}"
	onGateway(t, config, func(t *testing.T, g *gateway) {
		g.submit("k", pending)
		g.submit("holder", `{"type":"solo","business_key":"b","delay_seconds":3600}`)
		const body = `{"type":"echo"}`
		retryable := []string{"job-not-finished", "business-key-conflict"}
		instances := map[any]bool{}
		for code, a := range map[string]answer{
			"idempotency-key-missing": g.do("POST", "/jobs", body, jsonType), "idempotency-key-invalid": g.submit("", body), "idempotency-key-reused": g.submit("k", body),
			"validation-failed": g.submit("v", `{"type":"echo","priority":1000,"nope":1}`), "unknown-job-type": g.submit("v", `{"type":"nope"}`), "job-not-found": g.get("/jobs/v"),
			"job-not-finished": g.get("/jobs/k/result"), "request-too-large": g.submit("v", strings.Repeat(" ", 2000)), "unsupported-media-type": g.do("POST", "/jobs", body, "Idempotency-Key: v"),
			"route-not-found": g.get("/v"), "method-not-allowed": g.do("PUT", "/jobs", ""), "business-key-conflict": g.submit("v", `{"type":"solo","business_key":"b"}`),
		} {
			p := a.problem(t, a.StatusCode, code)
			detail, _ := p["detail"].(string)
			title, _ := p["title"].(string)
			instance, _ := p["instance"].(string)
			if p["type"] != "https://sekali.github.io/sekali/problems/"+code || fmt.Sprint(p["status"]) != fmt.Sprint(a.StatusCode) || title == "" || detail == "" ||
				!problemInstance.MatchString(instance) || instances[instance] {
				t.Errorf("%s: %s", code, a.body)
			}
			instances[instance] = true
			if p["retryable"] != slices.Contains(retryable, code) {
				t.Errorf("%s: retryable is %v", code, p["retryable"])
			}
			after, ms := a.Header.Get("Retry-After"), p["retry_after_ms"]
			if (after == "") != (ms == nil) || ms != nil && fmt.Sprint(ms) != after+"000" || slices.Contains(retryable, code) != (after != "") {
				t.Errorf("%s: Retry-After %q, retry_after_ms %v", code, after, ms)
			}
			if about := strings.Contains(a.Header.Get("Link"), `rel="describedby"`); about != strings.HasPrefix(code, "idempotency-") {
				t.Errorf("%s: Link %q", code, a.Header.Get("Link"))
			}
			for member := range p {
				if !slices.Contains(problemMembers, member) {
					t.Errorf("%s: unknown member %s", code, member)
				}
			}
			a.want(t, a.StatusCode, "Cache-Control: no-store", "X-Content-Type-Options: nosniff")
			if !strings.Contains(g.logged(), instance) {
				testenv.Eventually(t, 0, code+" is in the log", func() bool { return strings.Contains(g.logged(), instance) })
			}
		}
		g.submit("v", body).want(t, http.StatusAccepted, "Idempotent-Replayed: false") // none of it used the key up
	})
}

func TestSecurity40_OneCleanLogLineForEachRequest(t *testing.T) {
	onGateway(t, "log: {format: json}", func(t *testing.T, g *gateway) {
		const nasty = "a%0d%0a%7b%22level%22%3a%22ERROR%22%7d%1b%5b31m%e2%80%ae"
		for _, path := range []string{"/jobs/" + nasty, "/" + nasty, "/jobs?status=" + nasty, "/jobs?" + nasty + "=1", "/jobs/x?wait=" + nasty} {
			if a := g.get(path, "X-Request-Id: id\tforged=1 \"}"); a.StatusCode >= 500 || strings.ContainsAny(a.Header.Get("X-Request-Id"), "\t\x1b ") {
				t.Errorf("%s: %d, X-Request-Id %q", path, a.StatusCode, a.Header.Get("X-Request-Id"))
			}
		}
		g.submit(`"{\"level\":\"ERROR\"}"`, `{"type":"echo","business_key":"\"}{\"level\":\"ERROR"}`).want(t, http.StatusAccepted)
		g.get("/jobs", "X-Request-Id: plain-1").want(t, http.StatusOK, "X-Request-Id: plain-1")
		g.get("/jobs", "X-Request-Id: "+strings.Repeat("x", 65)).want(t, http.StatusOK, "X-Request-Id: *")
		testenv.Eventually(t, 0, "the last request is in the log", func() bool { return len(g.logLines("request answered")) == 8 })
		for line := range strings.Lines(g.logged()) {
			if !json.Valid([]byte(line)) || strings.ContainsAny(strings.TrimSuffix(line, "\n"), "\n\r\x1b") || strings.Contains(line, `"level":"ERROR"`) {
				t.Errorf("log line %q", line)
			}
		}
		if a := g.raw("GET /jobs HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("x", 64<<10) + "\r\n\r\n"); a.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("64 KiB of header: %d", a.StatusCode)
		}
	})
}

// Keys are in the log in full, unless a short hash is asked for.
func TestContract_Row62_KeysInTheLog(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		for _, redact := range []bool{false, true} {
			g := start(t, database, fmt.Sprintf("log: {redact_keys: %v}", redact))
			key := "canary-" + strings.ToLower(rand.Text())
			g.ended(t, key, `{"type":"echo","business_key":"b-`+key+`"}`)
			g.submit(key, `{"type":"echo"}`)
			g.get("/jobs?key_prefix=" + key)
			testenv.Eventually(t, 0, "the attempt is in the log", func() bool { return len(g.logLines("attempt ended")) == 1 })
			if shown := strings.Contains(g.logged(), key); shown == redact {
				t.Errorf("redact_keys: %v, and the log shows the key: %v", redact, shown)
			}
			line := g.logLines("attempt ended")[0]
			want := []string{"attempt", "business_key", "duration_ms", "external_job_id", "idempotency_key", "level", "msg", "outcome", "status_after", "status_before", "time", "type", "worker_id"}
			if got := slices.Sorted(maps.Keys(line)); !slices.Equal(got, want) {
				t.Errorf("fields %q", got)
			}
			g.signal(syscall.SIGTERM)
			g.wait(60 * time.Second)
		}
	})
}

// upkeepDone waits for the first look at the partitions: ends of jobs that meet its
// locks are written again, and the first try is an error in Postgres's log.
func upkeepDone(t testing.TB, g *gateway) {
	t.Helper()
	db := g.beside(t)
	const made = `select count(*) from pg_inherits i join pg_class c on c.oid = i.inhrelid join pg_class p on p.oid = i.inhparent
		where p.relname in ('finished_jobs', 'job_attempts', 'job_events') and c.relname = p.relname
			|| to_char(to_timestamp((floor(extract(epoch from now()) / 604800) + 2) * 604800) at time zone 'UTC', '_YYYYMMDD')`
	const locked = `select count(*) from pg_locks l join pg_database d on d.oid = l.database where d.datname = current_database()
		and l.relation in ('finished_jobs'::regclass, 'job_attempts'::regclass, 'job_events'::regclass) and (not l.granted or l.mode = 'AccessExclusiveLock')`
	testenv.Eventually(t, 60*time.Second, "the partitions of the last of the weeks ahead are there", func() bool {
		return count(t, db, made) == 3 && count(t, db, locked) == 0
	})
}

func TestFailure_BR90_OrdinaryLifeIsNoError(t *testing.T) {
	t.Parallel()
	server, err := testenv.StartPostgres()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Stop() })
	for name, database := range map[string]string{"SQLite": testenv.SQLite(t), "Postgres": server.URL()} {
		t.Run(name, func(t *testing.T) {
			hold := newGate(t)
			config := both(t, invoices, hold.types(), keptLease)
			g := start(t, database, config)
			if !onSQLite(database) {
				upkeepDone(t, g)
			}
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(func() {
					for range 25 {
						for { // a machine that is busy may have no time for it at once
							if a, err := g.try("POST", "/jobs", `{"type":"echo"}`, jsonType, "Idempotency-Key: k"); err == nil && a.StatusCode == http.StatusAccepted {
								break
							}
						}
					}
				})
			}
			wg.Wait()
			if got := series(t, g)["sekali_replays_total"]; got != "99" {
				t.Errorf("%s replays are counted", got)
			}
			g.ended(t, "i1", `{"type":"invoice_generate","payload":{"order_id":"1","total":1}}`)
			hold.held(t, g, "busy")
			g.signal(syscall.SIGTERM) // longer busy than the grace: handed back
			if code := g.wait(60 * time.Second); code != 0 {
				t.Errorf("busy: exit code %d", code)
			}
			idle := start(t, database, config)
			hold.release("busy")
			idle.finished("busy")
			idle.signal(syscall.SIGTERM)
			if code := idle.wait(60 * time.Second); code != 0 {
				t.Errorf("idle: exit code %d", code)
			}
			for _, one := range []*gateway{g, idle} {
				if errors := errorLines(one); len(errors) > 0 || len(one.logLines("stopped")) != 1 {
					t.Errorf("errors of ordinary life: %q", errors)
				}
			}
			if j := hold.once(hold.arrived, "busy", false); j == nil {
				t.Error("the job did not run")
			}
		})
	}
	log, err := server.Log()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(log) {
		if strings.Contains(line, "ERROR:") || strings.Contains(line, "FATAL:") {
			t.Errorf("in Postgres's log: %s", line)
		}
	}
}

// Scaled down: polls stay quick with a queue behind them, and a database that
// is away is never an unknown job.
func TestFailure_BR81_PollsDoNotDependOnTheQueue(t *testing.T) {
	t.Parallel()
	server, err := testenv.StartPostgres()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Stop() })
	g, idle := start(t, server.URL(), ""), start(t, server.Database(t), "")
	const keys = 20
	for i := range keys {
		g.submit(fmt.Sprint("k", i), pending)
		idle.submit(fmt.Sprint("k", i), pending)
	}
	const queue = `
insert into jobs (slot, id, tenant, key, key_slot, type, state, payload, run_at, claim_at, timeout_ms, max_attempts, created_at)
select slot, ('ffffffff-ffff-4fff-8fff-' || lpad(n::text, 12, '0'))::uuid, tenant, key || '-' || n, key_slot, type, state, payload, run_at, claim_at, timeout_ms, max_attempts, created_at
from jobs, generate_series(1, 20000) as n where key = 'k0'`
	if _, err := beside(t, server.URL()).ExecContext(t.Context(), queue); err != nil {
		t.Fatal(err)
	}
	timed := func(at *gateway, i int) time.Duration {
		begun := time.Now()
		at.get(fmt.Sprint("/jobs/k", i%keys)).want(t, http.StatusOK)
		return time.Since(begun)
	}
	var behind, without []time.Duration
	for i := range 200 { // by turns: what slows one down slows the other
		behind, without = append(behind, timed(g, i)), append(without, timed(idle, i))
	}
	if with, usual := median(behind), median(without); with > 2*usual+10*time.Millisecond {
		t.Errorf("a poll takes %v with a queue and %v without one", with, usual)
	}
	if err := server.Shutdown(); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/jobs/k0", "/jobs/unknown", "/jobs/k0/result", "/jobs"} {
		g.get(path).want(t, http.StatusServiceUnavailable, "Retry-After: *").problem(t, http.StatusServiceUnavailable, "store-unavailable")
	}
	if got := readiness(t, g, http.StatusServiceUnavailable); !slices.Contains(got["failed"].([]any), any("database")) {
		t.Errorf("the database is away: %v", got)
	}
	g.get("/healthz").want(t, http.StatusOK)
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	g.awaitReady()
	for i := range 200 {
		timed(g, i)
	}
}
