package e2e_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/testenv"
)

// atOnce is how long the program may take for what takes no time: it is built
// with the race detector and shares the processors with other tests.
const atOnce = 10 * time.Second

// draining sends SIGTERM and returns when the gateway has noticed.
func (g *gateway) draining() {
	g.t.Helper()
	g.signal(syscall.SIGTERM)
	testenv.Eventually(g.t, 0, "the gateway drains", func() bool { return strings.Contains(g.logged(), "shutting down") })
}

func TestContract_Row84_ADrainingGatewayRefusesWorkAndAnswersReads(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		r := newHeldReceiver(t)
		config := both(t, effects, r.config(), "dispatcher: {shutdown_grace: 30s}", "defaults: {lease: 30s}")
		g := start(t, database, config)
		g.submit("done", effect).want(t, http.StatusAccepted)
		g.finished("done")
		// The client of the running job waits for it.
		var waiting answer
		var wait sync.WaitGroup
		wait.Go(func() {
			waiting, _ = g.try(http.MethodPost, "/jobs", `{"type":"call"}`, jsonType, "Idempotency-Key: running", "Prefer: wait=30")
		})
		next(t, r.begun, 1, "begun")
		kept := keptConnection(t, g)
		defer kept.Close()

		g.draining()
		post := "POST /jobs HTTP/1.1\r\nHost: sekali\r\nContent-Type: application/json\r\nIdempotency-Key: refused\r\n" +
			fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(effect), effect)
		for range 3 { // new connections, which is what a listener is for
			refused := g.raw(post)
			refused.problem(t, http.StatusServiceUnavailable, "shutting-down")
			refused.want(t, http.StatusServiceUnavailable, "Retry-After: *", "Cache-Control: no-store")
			// net/http keeps the header Connection to itself, and tells by Close.
			if !refused.Close || refused.json(t)["retryable"] != true {
				t.Errorf("close %v: %s", refused.Close, refused.body)
			}
		}
		// A repetition is refused as well: another replica has the answer.
		g.submit("done", effect).problem(t, http.StatusServiceUnavailable, "shutting-down")
		if _, err := io.WriteString(kept, post); err != nil {
			t.Fatal(err)
		}
		rest := bufio.NewReader(kept)
		if status := statusOf(t, rest); status != http.StatusServiceUnavailable {
			t.Errorf("the kept connection: status %d", status)
		}
		if _, err := rest.ReadByte(); !errors.Is(err, io.EOF) {
			t.Errorf("the kept connection was not closed: %v", err)
		}
		if j := g.get("/jobs/running").want(t, http.StatusOK).json(t); j["status"] != "processing" {
			t.Errorf("the running job is %v", j)
		}
		g.get("/jobs/done/result").want(t, http.StatusOK)
		g.get("/jobs").want(t, http.StatusOK)
		g.get("/jobs/unknown").problem(t, http.StatusNotFound, "job-not-found")
		g.get("/healthz").want(t, http.StatusOK)
		g.get("/readyz").want(t, http.StatusServiceUnavailable)
		began := time.Now()
		g.get("/jobs/running", "Prefer: wait=25").want(t, http.StatusOK)
		wait.Wait()
		if took := time.Since(began); took > atOnce {
			t.Errorf("waiters were kept for %v", took)
		}
		if waiting.Response == nil || waiting.StatusCode != http.StatusAccepted {
			t.Errorf("who was waiting got %v", waiting.Response)
		}

		close(r.let[1])
		if code := g.wait(atOnce); code != 0 {
			t.Errorf("exit code %d", code)
		}
		if _, err := net.Dial("tcp", strings.TrimPrefix(g.url, "http://")); err == nil {
			t.Error("somebody still listens")
		}
		db := beside(t, database)
		if got := text(t, db, `select state from finished_jobs where key = 'running' and attempt = 1`); got != "succeeded" || len(r.begun) != 0 {
			t.Errorf("the job that ran is %q, %d more attempts", got, len(r.begun))
		}
		if n := count(t, db, `select count(*) from idempotency_keys where key = 'refused'`); n != 0 {
			t.Error("a refused key was used up")
		}
		g = start(t, database, config)
		g.submit("refused", effect).want(t, http.StatusAccepted, "Idempotent-Replayed: false")
	})
}

func TestContract_Row84_AnIdleGatewayExitsAtOnce(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
			g := start(t, database, "dispatcher: {shutdown_grace: 60s}")
			g.submit("later", `{"type":"echo","delay_seconds":3600}`).want(t, http.StatusAccepted)
			idle := keptConnection(t, g)
			defer idle.Close()
			var waiting answer
			var wait sync.WaitGroup
			wait.Go(func() { waiting, _ = g.try(http.MethodGet, "/jobs/later?wait=50", "") })
			testenv.Eventually(t, 0, "somebody waits", func() bool { return g.get("/readyz").StatusCode == http.StatusOK })
			g.signal(s)
			if code := g.wait(atOnce); code != 0 {
				t.Errorf("%v: exit code %d", s, code)
			}
			wait.Wait()
			// Who came too late for an answer was refused the connection instead.
			if waiting.Response != nil && waiting.StatusCode != http.StatusOK {
				t.Errorf("%v: who was waiting got %d", s, waiting.StatusCode)
			}
			if strings.Contains(g.logged(), "panic") {
				t.Errorf("%v: a panic", s)
			}
		}
	})
}

// keptConnection is a connection that the client keeps open after an answer.
func keptConnection(t testing.TB, g *gateway) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(g.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: sekali\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if status := statusOf(t, bufio.NewReader(conn)); status != http.StatusOK {
		t.Fatalf("status %d", status)
	}
	return conn
}

// statusOf reads one response from a connection to its end.
func statusOf(t testing.TB, from *bufio.Reader) int {
	t.Helper()
	response, err := http.ReadResponse(from, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		t.Fatal(err)
	}
	return response.StatusCode
}

// One who is told twice does not wait; the job is found by the next gateway.
func TestContract_Row84_BR62_ASecondSignalEndsAtOnce(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		r := newHeldReceiver(t)
		config := both(t, r.config(), "dispatcher: {shutdown_grace: 60s}")
		g := start(t, database, config)
		g.submit("running", `{"type":"call"}`).want(t, http.StatusAccepted)
		next(t, r.begun, 1, "begun")
		g.draining()
		g.signal(syscall.SIGTERM)
		if code := g.wait(atOnce); code == 0 {
			t.Error("exit code 0 although a job was left behind")
		}
		close(r.let[2])
		if j := start(t, database, config).finished("running"); j["status"] != "succeeded" || fmt.Sprint(j["attempts"]) != "2" {
			t.Errorf("the job is %v", j)
		}
		sound(t, beside(t, database))
	})
}

// BR-61, BR-63, BR-66: programs that ignore what they are told do not keep the
// gateway beyond its grace, and their jobs are handed back, not tried; jobs that
// wait stay where they are.
func TestFailure_BR61_BR63_BR66_Q9_StopIsBoundedAndHandsJobsBack(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		let := filepath.Join(t.TempDir(), "let")
		config := both(t, effects, fmt.Sprintf(`
dispatcher: {slots: 2, shutdown_grace: 1s}
defaults: {lease: 30s}
job_types:
  stubborn:
    executor: command
    timeout: 1h
    command:
      argv: [sh, -c, 'trap "" TERM INT HUP; test -e "$LET" || sleep 60']
      env: {LET: %q}
`, let))
		g := start(t, database, config)
		for _, key := range []string{"one", "two", "three"} {
			g.submit(key, `{"type":"stubborn"}`).want(t, http.StatusAccepted)
		}
		testenv.Eventually(t, 0, "two jobs run", func() bool { return g.measured("sekali_jobs_running") == 2 })
		told := time.Now()
		g.signal(syscall.SIGTERM)
		code := g.wait(30 * time.Second)
		if took := time.Since(told); took < time.Second || took > time.Second+2*time.Second+atOnce {
			t.Errorf("the gateway took %v, its grace is 1 s", took)
		}
		if code != 0 && !strings.Contains(g.logged(), "could not be handed back") {
			t.Errorf("exit code %d without a word", code)
		}
		db := beside(t, database)
		if n := count(t, db, `select count(*) from jobs where state = 'pending' and attempt = 0 and locked_until is null`); n != 3 {
			t.Errorf("%d jobs wait untried, want 3", n)
		}
		if n := count(t, db, `select count(*) from job_attempts where outcome = 'released'`); n != 2 {
			t.Errorf("%d attempts released, want 2", n)
		}
		if err := os.WriteFile(let, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		g = start(t, database, config)
		began := time.Now()
		for _, key := range []string{"one", "two", "three"} {
			if j := g.finished(key); j["status"] != "succeeded" || fmt.Sprint(j["attempts"]) != "1" {
				t.Errorf("job %s is %v", key, j)
			}
		}
		if took := time.Since(began); took > 20*time.Second { // the lease would be 30
			t.Errorf("the jobs came back after %v", took)
		}
		sound(t, db)
	})
}

func TestFailure_BR63_TheEndOfATimeIsRecordedInTime(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		s := newSink(t)
		config := both(t, s.types(map[string]string{"slow": "/slow?ms=20000"}), keptLease, "defaults: {timeout: 3s, backoff: {base: 60s, cap: 60s}}")
		g := start(t, database, config)
		g.submit("br63", `{"type":"slow"}`).want(t, http.StatusAccepted)
		testenv.Eventually(t, 0, "the call came", func() bool { return len(s.of("br63")) == 1 })
		testenv.Eventually(t, 3*time.Second+2*time.Second+atOnce, "the job waits for its next attempt", func() bool {
			return g.get("/jobs/br63").json(t)["status"] == "retrying"
		})
		j := g.get("/jobs/br63").json(t)
		if problem, _ := j["error"].(map[string]any); problem["code"] != "timeout" || fmt.Sprint(problem["attempt"]) != "1" {
			t.Errorf("the error is %v", j["error"])
		}
		g.signal(syscall.SIGTERM)
		if code := g.wait(atOnce); code != 0 { // a job that waits is nobody's to wait for
			t.Errorf("exit code %d", code)
		}
	})
}

// Queues 8: everything that ends while the gateway stops under load is recorded,
// so that nothing of it runs again.
func TestFailure_Q8_AStopUnderLoadRecordsWhatEnded(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		s := newSink(t)
		// Long enough for what runs to end, and to be recorded, on a slow machine.
		config := both(t, s.types(map[string]string{"slow": "/slow?ms=30"}), "{dispatcher: {shutdown_grace: 30s}, defaults: {lease: 30s}}")
		g := start(t, database, config)
		const jobs = 150
		var wg sync.WaitGroup
		var mu sync.Mutex
		var left []string
		for c := range 5 {
			wg.Go(func() {
				for i := c; i < jobs; i += 5 {
					key := fmt.Sprint("q8-", i)
					a, err := g.try(http.MethodPost, "/jobs", `{"type":"slow"}`, jsonType, "Idempotency-Key: "+key)
					if err == nil && a.StatusCode == http.StatusAccepted {
						continue
					}
					if err == nil {
						a.problem(t, http.StatusServiceUnavailable, "shutting-down")
					}
					mu.Lock()
					left = append(left, key)
					mu.Unlock()
				}
			})
		}
		testenv.Eventually(t, 0, "work is going on", func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return len(s.hits) > 20
		})
		g.signal(syscall.SIGTERM)
		if code := g.wait(time.Minute); code != 0 {
			t.Errorf("exit code %d", code)
		}
		wg.Wait()
		if strings.Contains(g.logged(), "panic") {
			t.Error("a panic")
		}
		db := beside(t, database)
		if n := count(t, db, `select count(*) from jobs where state = 'processing'`); n != 0 {
			t.Errorf("%d jobs still process after the end of their gateway", n)
		}
		if n := count(t, db, `select count(*) from finished_jobs`) + count(t, db, `select count(*) from jobs`); n != jobs-len(left) {
			t.Errorf("%d jobs, but %d were accepted", n, jobs-len(left))
		}
		g = start(t, database, config)
		for _, key := range left {
			g.submit(key, `{"type":"slow"}`).want(t, http.StatusAccepted, "Idempotent-Replayed: false")
		}
		testenv.Eventually(t, 30*time.Second, "all jobs ended", func() bool { return count(t, db, `select count(*) from jobs`) == 0 })
		for i := range jobs {
			if n := len(s.of(fmt.Sprint("q8-", i))); n != 1 {
				t.Errorf("job %d was done %d times", i, n)
			}
		}
		sound(t, db)
	})
}
