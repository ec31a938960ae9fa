package e2e_test

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/testenv"
)

// Row 83, where the answer to an accept is lost: once, which the gateway finds
// out about by itself, and every time, which only the client can.
func TestContract_Row83_TheAnswerToAnAcceptIsLost(t *testing.T) {
	t.Parallel()
	database := testenv.Postgres(t)
	w := newWire(t, database)
	accepts := start(t, w.url, both(t, effects, "dispatcher: {slots: 0}"))
	start(t, database, effects)
	db := beside(t, database)
	jobs := 0
	for _, c := range []struct {
		name     string
		fate     fate
		times    int64
		known    bool   // the answer is known at once
		replayed string // by the repetition
	}{
		{"once before it was carried out", cut, 1, true, "true"},
		{"once after it was carried out", cutAfter, 1, true, "true"},
		{"always before it was carried out", cut, 1000, false, "false"},
		{"always after it was carried out", cutAfter, 1000, false, "true"},
	} {
		key := strings.ReplaceAll(c.name, " ", "-")
		var cuts atomic.Int64
		w.rule(func(sent []byte) fate {
			if bytes.Contains(sent, []byte(key)) && cuts.Add(1) <= c.times {
				return c.fate
			}
			return pass
		})
		first := accepts.submit(key, effect)
		w.rule(nil)
		if cuts.Load() == 0 {
			t.Fatalf("%s: the wire was not cut", c.name)
		}
		if c.known {
			first.want(t, http.StatusAccepted, "Idempotent-Replayed: false")
		} else {
			first.problem(t, http.StatusServiceUnavailable, "idempotency-outcome-unknown-retry")
			first.want(t, http.StatusServiceUnavailable, "Retry-After: 1")
			if first.json(t)["retryable"] != true {
				t.Errorf("%s: %s", c.name, first.body)
			}
		}
		again := accepts.submit(key, effect).want(t, http.StatusAccepted, "Idempotent-Replayed: "+c.replayed)
		if c.known && string(again.body) != string(first.body) {
			t.Errorf("%s: the answers differ:\n%s\n%s", c.name, first.body, again.body)
		}
		if j := accepts.finished(key); j["status"] != "succeeded" {
			t.Errorf("%s: the job is %v", c.name, j)
		}
		jobs++
		allOnce(t, db, jobs)
	}
}

// The answer to the commit of an effect and its job's end is lost, before and
// after the commit; the effect is there once all the same.
func TestFailure_BR80_Q2_Q39_TheAnswerToACommitIsLost(t *testing.T) {
	t.Parallel()
	database := testenv.Postgres(t)
	w := newWire(t, database)
	g := start(t, w.url, both(t, effects, keptLease))
	db := beside(t, database)
	commit := func(each fate, every int64) (*atomic.Int64, func(sent []byte) fate) {
		var commits, cuts atomic.Int64
		return &cuts, func(sent []byte) fate {
			if !bytes.Contains(sent, []byte("COMMIT")) || commits.Add(1)%every != 0 {
				return pass
			}
			cuts.Add(1)
			return each
		}
	}
	jobs := 0
	for _, each := range []fate{cutAfter, cut} {
		cuts, rule := commit(each, 3)
		w.rule(rule)
		for i := range 15 {
			persist(t, fmt.Sprintf("commit-%d-%d", each, i), effect, g)
			jobs++
		}
		allOnce(t, db, jobs)
		w.rule(nil)
		if cuts.Load() == 0 {
			t.Fatal("no commit was cut")
		}
		if more := count(t, db, `select count(*) from finished_jobs where attempt > 1`); each == cutAfter && more != 0 {
			t.Errorf("%d jobs were tried again although their commit had worked", more)
		}
	}
	g.submit("healed", effect).want(t, http.StatusAccepted)
	allOnce(t, db, jobs+1)
}

func private(t *testing.T) *testenv.PostgresServer {
	t.Helper()
	server, err := testenv.StartPostgres()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	return server
}

// do fails the test if the server cannot do what it is told.
func do(t testing.TB, what func() error) {
	t.Helper()
	if err := what(); err != nil {
		t.Fatal(err)
	}
}

func TestContract_Row47_Row50_Row82_Row101_Q2_Q8_Q34_Q35_TheDatabaseIsAwayForAWhile(t *testing.T) {
	t.Parallel()
	server, r := private(t), newHeldReceiver(t)
	database := server.Database(t)
	g := start(t, database, both(t, effects, r.config(), "defaults: {lease: 30s}"))
	g.submit("done", effect).want(t, http.StatusAccepted)
	g.finished("done")
	g.submit("later", `{"type":"effect","delay_seconds":3600}`).want(t, http.StatusAccepted)
	g.submit("running", `{"type":"call"}`).want(t, http.StatusAccepted)
	next(t, r.begun, 1, "begun")
	var waiting answer
	var wait sync.WaitGroup
	wait.Go(func() { waiting, _ = g.try(http.MethodGet, "/jobs/later", "", "Prefer: wait=2") })

	do(t, server.Shutdown)
	down := time.Now()
	close(r.let[1]) // the work ends while its end cannot be written
	for _, key := range []string{"new", "done", "later"} {
		asked := time.Now()
		a := g.submit(key, effect)
		a.problem(t, http.StatusServiceUnavailable, "idempotency-store-unavailable")
		a.want(t, http.StatusServiceUnavailable, "Retry-After: *", "Idempotency-Key: *")
		if a.json(t)["retryable"] != true {
			t.Errorf("POST %s: %s", key, a.body)
		}
		if took := time.Since(asked); took > 8*time.Second {
			t.Errorf("POST %s took %v", key, took)
		}
	}
	for _, path := range []string{"/jobs/done", "/jobs/later", "/jobs/running", "/jobs/unknown", "/jobs/done/result", "/jobs/unknown/result", "/jobs", "/jobs/later?wait=30"} {
		asked := time.Now()
		a := g.get(path)
		a.problem(t, http.StatusServiceUnavailable, "store-unavailable")
		a.want(t, http.StatusServiceUnavailable, "Retry-After: *")
		if took := time.Since(asked); took > 8*time.Second {
			t.Errorf("GET %s took %v", path, took)
		}
	}
	g.get("/readyz").want(t, http.StatusServiceUnavailable)
	g.get("/healthz").want(t, http.StatusOK)
	wait.Wait()
	if waiting.Response == nil || waiting.StatusCode != http.StatusOK && waiting.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("who was waiting got %v", waiting.Response)
	}
	testenv.Eventually(t, 0, "the end of the work could not be written", func() bool {
		return len(g.logLines("attempt's end not written yet")) > 0
	})
	testenv.Eventually(t, 0, "the failed claims were counted and logged", func() bool {
		return g.measured("sekali_loop_errors_total", `loop="claim"`) > 0 && len(g.logLines("dispatcher loop failed")) > 0
	})
	// Errors come after 0.1, 0.3, 0.7, 1.5, 3.1, 6.3 … seconds, not at each poll.
	if n, most := g.measured("sekali_loop_errors_total", `loop="claim"`), 5+time.Since(down).Seconds()/2; n > most {
		t.Errorf("claiming failed %v times in %v", n, time.Since(down))
	}

	do(t, server.Restart)
	db := beside(t, database)
	if n := count(t, db, `select count(*) from idempotency_keys where key in ('new', 'unknown')`); n != 0 {
		t.Errorf("%d keys were written by refused requests", n)
	}
	testenv.Eventually(t, 0, "the gateway is ready again", func() bool { return g.get("/readyz").StatusCode == http.StatusOK })
	g.submit("new", effect).want(t, http.StatusAccepted, "Idempotent-Replayed: false")
	g.submit("done", effect).want(t, http.StatusAccepted, "Idempotent-Replayed: true")
	if j := g.finished("running"); j["status"] != "succeeded" || fmt.Sprint(j["attempts"]) != "1" {
		t.Errorf("the job that ran is %v", j)
	}
	if n := len(r.begun); n != 0 {
		t.Errorf("the work was done again %d times", n)
	}
	change(t, db, `delete from jobs where key = 'later'`)
	change(t, db, `delete from idempotency_keys where key = 'later'`)
	testenv.Eventually(t, 0, "the new job ran", func() bool { return count(t, db, `select count(*) from effects`) == 2 })
	sound(t, db)
}

// ask polls a path until the test says stop, and fails on an answer that is
// neither a success nor an honest 503.
func ask(t testing.TB, g *gateway, path func() string, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		default:
		}
		where := path()
		a, err := g.try(http.MethodGet, where, "")
		if err != nil {
			t.Errorf("GET %s: %v", where, err)
			return
		}
		if a.StatusCode != http.StatusOK && (a.StatusCode != http.StatusServiceUnavailable || a.Header.Get("Retry-After") == "") {
			t.Errorf("GET %s: %d %s", where, a.StatusCode, a.body)
			return
		}
	}
}

// undisturbed submits n effects and asks for accepted ones meanwhile, with
// trouble going on beside it.
func undisturbed(t *testing.T, n int, trouble func(done <-chan struct{}), gateways ...*gateway) {
	t.Helper()
	var accepted atomic.Int64
	var asking, submitting sync.WaitGroup
	done := make(chan struct{})
	persist(t, "e-0", effect, gateways...)
	for _, g := range gateways {
		asking.Go(func() { ask(t, g, func() string { return "/jobs/e-" + fmt.Sprint(accepted.Load()) }, done) })
	}
	asking.Go(func() { trouble(done) })
	for c := range 6 {
		submitting.Go(func() {
			for i := 1 + c; i < n; i += 6 {
				persist(t, fmt.Sprint("e-", i), effect, gateways...)
				accepted.Store(int64(i))
			}
		})
	}
	submitting.Wait()
	close(done)
	asking.Wait()
}

func TestFailure_Row83_Q2_Q39_ACrashOfTheDatabaseUnderLoadLosesAndDoublesNothing(t *testing.T) {
	t.Parallel()
	server := private(t)
	database := server.Database(t)
	a, b := start(t, database, effects), start(t, database, effects)
	const jobs = 400
	undisturbed(t, jobs, func(<-chan struct{}) {
		for range 2 {
			testenv.Eventually(t, 0, "work is going on", func() bool { return a.measured("sekali_attempts_total", `outcome="succeeded"`) > 20 })
			do(t, server.Kill)
			do(t, server.Restart)
		}
	}, a, b)
	allOnce(t, beside(t, database), jobs)
}

func TestFailure_Q39_Q2_AStormOfTerminatedConnectionsHeals(t *testing.T) {
	t.Parallel()
	database := testenv.Postgres(t)
	a, b := start(t, database, effects), start(t, database, effects)
	db := beside(t, database)
	const jobs = 400
	const terminate = `select count(pg_terminate_backend(pid)) from pg_stat_activity where datname = current_database() and application_name = 'sekali'`
	terminated := 0
	undisturbed(t, jobs, func(done <-chan struct{}) {
		ticker := time.NewTicker(100 * time.Millisecond)
		defer ticker.Stop()
		for range 12 {
			select {
			case <-done:
				return
			case <-ticker.C:
				terminated += count(t, db, terminate)
			}
		}
	}, a, b)
	allOnce(t, db, jobs)
	terminated += count(t, db, terminate)
	if terminated == 0 {
		t.Fatal("nothing was terminated")
	}
	// Every pooled connection is broken now; the next query of each kind must
	// find one that is not.
	for i, g := range []*gateway{a, b} {
		g.get("/jobs/e-0").want(t, http.StatusOK)
		g.submit(fmt.Sprint("healed-", i), effect).want(t, http.StatusAccepted)
	}
	allOnce(t, db, jobs+2)
	quiet(t, db)
}

// Invariant I3 of the contract: work that is done stays done, although its lease
// ended before the end could be written. Work that was not done is given up,
// counts as lost, and begins again.
func TestFailure_Q2_LeasesEndWhileTheDatabaseIsAway(t *testing.T) {
	t.Parallel()
	server, done, undone := private(t), newHeldReceiver(t), newHeldReceiver(t)
	database := server.Database(t)
	g := start(t, database, both(t, done.config(), fmt.Sprintf("job_types: {undone: {executor: http, http: {url: %q}}}", undone.URL)))
	g.submit("done", `{"type":"call"}`).want(t, http.StatusAccepted)
	g.submit("undone", `{"type":"undone"}`).want(t, http.StatusAccepted)
	next(t, done.begun, 1, "begun")
	next(t, undone.begun, 1, "begun")
	do(t, server.Shutdown)
	close(done.let[1])
	next(t, undone.left, 1, "been given up")
	<-time.After(1500 * time.Millisecond) // what is left of the lease, and the grace after it
	do(t, server.Restart)
	if j := g.finished("done"); j["status"] != "succeeded" || fmt.Sprint(j["attempts"]) != "1" {
		t.Errorf("the job whose work was done is %v", j)
	}
	if n := len(done.begun); n != 0 {
		t.Errorf("work that was done began again %d times", n)
	}
	next(t, undone.begun, 2, "begun")
	close(undone.let[2])
	if j := g.finished("undone"); j["status"] != "succeeded" || fmt.Sprint(j["attempts"]) != "2" {
		t.Errorf("the job whose work was given up is %v", j)
	}
	sound(t, beside(t, database))
}

// A primary that has become a standby answers, and takes no writes. (Here it is the
// setting of a database, which refuses with the same error and is told by the same
// question.)
func TestContract_SectionH_Row47_ADatabaseThatTakesNoWrites(t *testing.T) {
	t.Parallel()
	database := testenv.Postgres(t)
	g := start(t, database, "")
	g.submit("before", `{"type":"echo"}`).want(t, http.StatusAccepted)
	g.finished("before")
	admin, err := beside(t, database).Conn(t.Context()) // its session began before, and may write
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	writes := func(change string) {
		t.Helper()
		for _, statement := range []string{
			"do $$ begin execute format('alter database %I " + change + "', current_database()); end $$",
			"select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and application_name = 'sekali'",
		} {
			if _, err := admin.ExecContext(t.Context(), statement); err != nil {
				t.Fatal(err)
			}
		}
	}

	writes("set default_transaction_read_only = on")
	testenv.Eventually(t, 60*time.Second, "the gateway is not ready", func() bool {
		return slices.Contains(g.get("/readyz").json(t)["failed"].([]any), any("database"))
	})
	a := g.submit("while", `{"type":"echo"}`).want(t, http.StatusServiceUnavailable, "Retry-After: *")
	if detail := fmt.Sprint(a.problem(t, http.StatusServiceUnavailable, "idempotency-store-unavailable")["detail"]); !strings.Contains(detail, "takes no writes") {
		t.Errorf("detail: %s", detail)
	}
	g.get("/jobs/before").want(t, http.StatusOK)
	if failed := readiness(t, g, http.StatusServiceUnavailable)["failed"].([]any); !slices.Contains(failed, any("database")) {
		t.Errorf("it answers, and what failed is %v", failed)
	}
	g.get("/healthz").want(t, http.StatusOK)

	writes("reset default_transaction_read_only")
	testenv.Eventually(t, 60*time.Second, "the gateway is ready again", func() bool { return g.get("/readyz").StatusCode == http.StatusOK })
	g.submit("while", `{"type":"echo"}`).want(t, http.StatusAccepted, "Idempotent-Replayed: false")
	if j := g.finished("while"); j["status"] != "succeeded" {
		t.Errorf("job %v", j)
	}
}
