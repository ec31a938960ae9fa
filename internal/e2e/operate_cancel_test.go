package e2e_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/testenv"
)

func TestContract_Row102_Failure_BR84_Q16_AJobThatWaitsIsCancelledAtOnce(t *testing.T) {
	s := newSink(t)
	config := s.types(map[string]string{"ok": "/ok", "paused": "/ok", "down": "/status/500"})
	onGateway(t, both(t, config, "job_types: {down: {backoff: {base: 1h, cap: 2h}}}"), func(t *testing.T, g *gateway) {
		g.do(http.MethodPost, "/executors/paused/pause", "").want(t, http.StatusOK)
		engine := t.Name()[strings.LastIndex(t.Name(), "/")+1:] // the sink is shared
		for status, more := range map[string]string{"scheduled": `"type":"ok","delay_seconds":3600`, "pending": `"type":"paused"`, "retrying": `"type":"down"`} {
			key := engine + status
			body := `{` + more + `,"business_key":"b-` + status + `"}`
			first := g.submit(key, body).want(t, http.StatusAccepted)
			before := g.became(t, key, status)
			holder := `{` + more + `,"business_key":"b-` + status + `","priority":1}`
			if g.submit(key+"-next", holder).want(t, http.StatusOK).json(t)["key"] != key { // the holder is who waits
				t.Errorf("%s does not hold its business key", key)
			}
			a := g.cancel(key).want(t, http.StatusOK, "Location: /jobs/"+key, "Job-Status: cancelled", "Retry-After:", "Idempotency-Expires: *", "Cache-Control: no-store", "Idempotency-Status:")
			j := a.json(t)
			is(t, j, fmt.Sprint("cancelled ", before["attempts"], " <nil>"), "status", "attempts", "next_attempt_at")
			if now := g.get("/jobs/" + key); string(now.body) != string(a.body) || j["finished_at"] == nil {
				t.Errorf("the answer was\n%s\nand the job is\n%s", a.body, now.body)
			}
			again := g.cancel(key, "Idempotency-Key: any").want(t, http.StatusOK, "Job-Status: cancelled", "Idempotency-Status: ignored")
			if string(again.body) != string(a.body) {
				t.Errorf("cancelled twice it is\n%s\nand was\n%s", again.body, a.body)
			}
			g.get("/jobs/any").problem(t, http.StatusNotFound, "job-not-found")
			// The business key is free, and the key is not.
			if a := g.submit(key+"-free", holder).want(t, http.StatusAccepted, "Idempotent-Replayed: false"); a.json(t)["key"] != key+"-free" {
				t.Errorf("the business key is not free: %s", a.body)
			}
			if a := g.submit(key, body).want(t, http.StatusAccepted, "Idempotent-Replayed: true", "Job-Status: cancelled", "Retry-After:"); string(a.body) != string(first.body) {
				t.Errorf("the replay differs: %s", a.body)
			}
			g.isMismatch(t, key, "body", g.submit(key, holder))
			if n := len(s.of(key)); status != "retrying" && n != 0 || n > 1 {
				t.Errorf("a job that was cancelled as %s was called for %d times", status, n)
			}
			if events := column(g.events(t, key), "event"); !strings.Contains(events, "cancelled") || strings.Contains(events, "cancel_requested") {
				t.Errorf("events %s", events)
			}
			g.get("/jobs/"+key+"/result").problem(t, http.StatusNotFound, "job-has-no-result")
		}
		sound(t, g.beside(t))
	})
}

func TestContract_Row102_Failure_BR84_WhatCannotBeCancelled(t *testing.T) {
	s := newSink(t)
	onGateway(t, s.types(map[string]string{"wrong": "/status/400"}), func(t *testing.T, g *gateway) {
		g.ended(t, "succeeded", `{"type":"echo","payload":1}`)
		g.ended(t, "failed", `{"type":"wrong"}`)
		for _, status := range []string{"succeeded", "failed"} {
			before := g.get("/jobs/" + status)
			for range 2 {
				p := g.cancel(status).want(t, http.StatusUnprocessableEntity, "Retry-After:").problem(t, http.StatusUnprocessableEntity, "job-already-finished")
				if p["job"] != "/jobs/"+status || p["job_status"] != status || p["retryable"] != false {
					t.Errorf("%v", p)
				}
			}
			if after := g.get("/jobs/" + status); string(after.body) != string(before.body) {
				t.Errorf("the job was\n%s\nand is\n%s", before.body, after.body)
			}
		}
		g.cancel("unknown").problem(t, http.StatusNotFound, "job-not-found")
		g.do(http.MethodGet, "/jobs/succeeded/cancel", "").want(t, http.StatusMethodNotAllowed, "Allow: POST").problem(t, http.StatusMethodNotAllowed, "method-not-allowed")
	})
}

func TestContract_Row102_ARunningJobIsToldWithinAHeartbeat(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		r, pid := newHeldReceiver(t), filepath.Join(t.TempDir(), "pid")
		g := start(t, database, both(t, r.config(), slowEffects, keptLease, fmt.Sprintf(`
job_types:
  program: {executor: command, command: {argv: [sh, -c, 'echo $$ > "$FILE.new"; mv "$FILE.new" "$FILE"; exec sleep 600'], env: {FILE: %q}}}
`, pid)))
		g.submit("call", `{"type":"call","max_attempts":5}`)
		next(t, r.begun, 1, "begun")
		g.submit("program", `{"type":"program","max_attempts":5}`)
		testenv.Eventually(t, 60*time.Second, "the program runs", func() bool { _, err := os.Stat(pid); return err == nil })
		text, err := os.ReadFile(pid)
		if err != nil {
			t.Fatal(err)
		}
		process := "/proc/" + strings.TrimSpace(string(text))

		asked := time.Now()
		a := g.cancel("call").want(t, http.StatusAccepted, "Location: /jobs/call", "Job-Status: processing", "Retry-After: *")
		is(t, a.json(t), "processing 1", "status", "attempts")
		next(t, r.left, 1, "been given up")
		if took := time.Since(asked); took > 10*time.Second { // a heartbeat is half a second
			t.Errorf("the receiver was let go after %v", took)
		}
		g.cancel("program").want(t, http.StatusAccepted)
		for _, key := range []string{"call", "program"} {
			is(t, g.finished(key), "cancelled 1", "status", "attempts")
			g.cancel(key).want(t, http.StatusOK, "Job-Status: cancelled")
			// A call that was cut off may have done its work; a program that was killed has not ended it.
			outcome := map[string]string{"call": "lost", "program": "cancelled"}[key]
			if list := g.attempts(t, key); column(list, "outcome") != outcome {
				t.Errorf("%s: attempts %v", key, list)
			}
			if events := column(g.events(t, key), "event"); events != "accepted claimed cancel_requested attempt_"+outcome+" cancelled" {
				t.Errorf("%s: events %s", key, events)
			}
		}
		if _, err := os.Stat(process); err == nil {
			t.Error("the program still runs")
		}
		if !onSQLite(database) { // there a statement that runs is waited for: it holds the only writer
			cancelsStatement(t, g)
		}
		// No attempt follows a cancellation.
		g.get("/jobs/call", "Prefer: wait=1", `If-None-Match: "x"`).want(t, http.StatusOK)
		if n := len(r.seen()); n != 1 {
			t.Errorf("%d calls", n)
		}
		sound(t, beside(t, database))
	})
}

// cancelsStatement cancels a job whose statement runs in the database.
func cancelsStatement(t *testing.T, g *gateway) {
	t.Helper()
	db := g.beside(t)
	running := func() int {
		return count(t, db, `select count(*) from pg_stat_activity
			where datname = current_database() and state = 'active' and query like 'insert into effects%'`)
	}
	g.submit("statement", `{"type":"effect","payload":{"seconds":600}}`).want(t, http.StatusAccepted)
	testenv.Eventually(t, 0, "the statement runs", func() bool { return running() == 1 })
	g.cancel("statement").want(t, http.StatusAccepted)
	is(t, g.finished("statement"), "cancelled 1", "status", "attempts")
	testenv.Eventually(t, 0, "the statement is given up", func() bool { return running() == 0 })
	if n := count(t, db, `select count(*) from effects`); n != 0 {
		t.Errorf("%d effects of a cancelled job", n)
	}
}

// Nothing tells one replica what happens at another but the database.
func TestContract_Row102_Failure_Q10_TheOtherReplicaIsTold(t *testing.T) {
	t.Parallel()
	database, r := testenv.Postgres(t), newHeldReceiver(t)
	config := both(t, r.config(), keptLease)
	runs, accepts := start(t, database, config), start(t, database, both(t, config, "dispatcher: {slots: 0}"))
	accepts.submit("k", `{"type":"call"}`).want(t, http.StatusAccepted)
	next(t, r.begun, 1, "begun") // also within a poll
	is(t, accepts.get("/jobs/k").json(t), runs.workerID(), "worker_id")
	asked := time.Now()
	accepts.cancel("k").want(t, http.StatusAccepted, "Job-Status: processing")
	// Asked for already, and by now it may have been heard.
	if again := accepts.cancel("k"); again.StatusCode != http.StatusAccepted {
		again.want(t, http.StatusOK, "Job-Status: cancelled")
	}
	next(t, r.left, 1, "been given up")
	if took := time.Since(asked); took > 10*time.Second {
		t.Errorf("the other replica was told after %v", took)
	}
	is(t, accepts.finished("k"), "cancelled 1", "status", "attempts")
	is(t, runs.finished("k"), "cancelled 1", "status", "attempts")
	if n := strings.Count(column(runs.events(t, "k"), "event"), "cancel_requested"); n != 1 {
		t.Errorf("%d events tell of the request", n)
	}
	sound(t, beside(t, database))
}

func TestContract_Row102_WorkThatCommitsFirstHasSucceeded(t *testing.T) {
	t.Parallel()
	database, r := testenv.Postgres(t), newHeldReceiver(t)
	// So that nobody learns of it in time: no heartbeat, and no connection for notices.
	config := both(t, r.config(), "defaults: {lease: 60s, heartbeat: 20s}", "database_max_conns: 4")
	runs, other := start(t, database, config), start(t, database, both(t, config, "dispatcher: {slots: 0}"))
	runs.submit("k", `{"type":"call"}`).want(t, http.StatusAccepted)
	next(t, r.begun, 1, "begun")
	other.cancel("k").want(t, http.StatusAccepted)
	close(r.let[1])
	is(t, other.finished("k"), "succeeded 1 map[attempt:1] <nil>", "status", "attempts", "result", "error")
	if events := column(other.events(t, "k"), "event"); !strings.HasPrefix(events, "accepted claimed cancel_requested") || strings.Count(events, "cancel_too_late") != 1 || strings.Contains(events, "cancelled") {
		t.Errorf("events %s", events)
	}
	for _, g := range []*gateway{runs, other} {
		if p := g.cancel("k").problem(t, http.StatusUnprocessableEntity, "job-already-finished"); p["job_status"] != "succeeded" {
			t.Errorf("%v", p)
		}
	}
	sound(t, beside(t, database))
}

// Whoever was asked to stop may never hear of it.
func TestContract_Row102_Failure_BR83_ALostAttemptThatWasToBeCancelledIsNotTriedAgain(t *testing.T) {
	t.Parallel()
	database, r := testenv.Postgres(t), newHeldReceiver(t)
	config := both(t, r.config(), "defaults: {lease: 5s}") // longer than it takes to cancel at the other one
	runs, other := start(t, database, config), start(t, database, config)
	other.submit("k", `{"type":"call","max_attempts":5}`).want(t, http.StatusAccepted)
	next(t, r.begun, 1, "begun")
	if other.get("/jobs/k").json(t)["worker_id"] == other.workerID() {
		runs, other = other, runs
	}
	runs.pause()
	other.cancel("k").want(t, http.StatusAccepted, "Job-Status: processing")
	runs.kill()
	is(t, other.finished("k"), "cancelled 1", "status", "attempts")
	if list := other.attempts(t, "k"); column(list, "outcome") != "lost" {
		t.Errorf("attempts %v", list)
	}
	other.get("/jobs/k", "Prefer: wait=1", `If-None-Match: "x"`).want(t, http.StatusOK)
	if n := len(r.seen()); n != 1 {
		t.Errorf("%d calls", n)
	}
	sound(t, beside(t, database))
}

// A stop hands running jobs back: one that was to be cancelled must not come back
// to life with that.
func TestContract_Row102_AStopInTheMiddleOfACancellation(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		config := `
dispatcher: {shutdown_grace: 200ms}
job_types: {program: {executor: command, command: {argv: [sleep, "600"]}}}
`
		g := start(t, database, config)
		var keys []string
		for i := range 10 {
			keys = append(keys, fmt.Sprint("k-", i))
			g.submit(keys[i], `{"type":"program"}`).want(t, http.StatusAccepted)
		}
		for _, key := range keys {
			g.became(t, key, "processing")
		}
		accepted := map[string]bool{}
		var mu sync.Mutex
		var wg sync.WaitGroup
		for i, key := range keys {
			wg.Go(func() {
				if i == 5 {
					_ = g.cmd.Process.Signal(os.Interrupt)
				}
				if a, err := g.try(http.MethodPost, "/jobs/"+key+"/cancel", ""); err == nil && a.StatusCode < 300 {
					mu.Lock()
					defer mu.Unlock()
					accepted[key] = true
				}
			})
		}
		wg.Wait()
		g.wait(60 * time.Second)
		g = start(t, database, config)
		for _, key := range keys {
			if accepted[key] {
				is(t, g.finished(key), "cancelled", "status")
				continue
			}
			// Nobody was told that it is cancelled: it may be, or run again.
			if status := g.get("/jobs/" + key).json(t)["status"]; status != "cancelled" {
				g.became(t, key, "processing")
				g.cancel(key).want(t, http.StatusAccepted)
			}
			is(t, g.finished(key), "cancelled", "status")
		}
		if len(accepted) == 0 {
			t.Error("no cancellation was accepted: the test shows less than it should")
		}
		sound(t, beside(t, database))
	})
}

// insist posts until the answer is not "send this again".
func insist(g *gateway, path string, headers ...string) answer {
	for deadline := time.Now().Add(60 * time.Second); ; {
		a, err := g.try(http.MethodPost, path, "", headers...)
		if err != nil || a.StatusCode != http.StatusServiceUnavailable || time.Now().After(deadline) {
			return a
		}
		<-time.After(100 * time.Millisecond) // less patient than Retry-After asks for
	}
}

func TestContract_Row102_Failure_BR83_ThreeHundredJobsCancelledAtRandomMoments(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		jobs := 300
		if onSQLite(database) {
			jobs = 120 // one writer takes longer
		}
		s := newSink(t)
		config := both(t, s.types(map[string]string{"slow": "/slow?ms=20"}), "dispatcher: {slots: 64}", keptLease)
		gateways := []*gateway{start(t, database, config)}
		if !onSQLite(database) {
			gateways = append(gateways, start(t, database, config))
		}
		answers := make([]answer, jobs)
		limit := make(chan struct{}, 24)
		var wg sync.WaitGroup
		for i := range jobs {
			wg.Go(func() {
				limit <- struct{}{}
				defer func() { <-limit }()
				key, there, here := fmt.Sprint("br83-", i), gateways[i%len(gateways)], gateways[i/2%len(gateways)]
				persist(t, key, `{"type":"slow","max_attempts":5}`, there)
				<-time.After(rand.N(40 * time.Millisecond)) // the random moment is what is tested
				answers[i] = insist(here, "/jobs/"+key+"/cancel")
			})
		}
		wg.Wait()
		db, g := beside(t, database), gateways[0]
		testenv.Eventually(t, 60*time.Second, "all jobs ended", func() bool { return count(t, db, `select count(*) from jobs`) == 0 })
		counts := map[string]int{}
		for i, a := range answers {
			key := fmt.Sprint("br83-", i)
			if a.Response == nil {
				t.Fatal("a cancellation got no answer")
			}
			j := g.get("/jobs/" + key).json(t)
			status, hits := fmt.Sprint(j["status"]), len(s.of(key))
			counts[fmt.Sprint(a.StatusCode, " ", status, " after ", j["attempts"])]++
			switch {
			case a.StatusCode == http.StatusOK && status != "cancelled",
				a.StatusCode == http.StatusAccepted && status != "cancelled" && status != "succeeded",
				a.StatusCode == http.StatusUnprocessableEntity && status != "succeeded",
				a.StatusCode == http.StatusUnprocessableEntity && a.json(t)["job_status"] != status,
				a.StatusCode >= 400 && a.StatusCode != http.StatusUnprocessableEntity:
				t.Errorf("%s: answered with %d %s, and is %s", key, a.StatusCode, a.body, status)
			case status == "succeeded" && hits != 1, hits > 1, fmt.Sprint(j["attempts"]) == "0" && hits != 0:
				t.Errorf("%s: %d calls, and is %v", key, hits, j)
			}
			tooLate := count(t, db, `select count(*) from job_events e join finished_jobs f on f.id = e.job_id where f.key = $1 and e.event = 'cancel_too_late'`, key)
			if overtaken := a.StatusCode == http.StatusAccepted && status == "succeeded"; overtaken != (tooLate == 1) {
				t.Errorf("%s: answered with %d, %s, %d events cancel_too_late", key, a.StatusCode, status, tooLate)
			}
		}
		t.Logf("%v", counts)
		if n := count(t, db, `select count(*) from job_attempts where number > 1`); n != 0 {
			t.Errorf("%d attempts after a cancellation", n)
		}
		if n := count(t, db, `select count(*) from job_attempts a join finished_jobs f on f.slot = a.slot and f.id = a.job_id
			where f.state = 'cancelled' and a.outcome not in ('cancelled', 'lost', 'released')`); n != 0 {
			t.Errorf("%d attempts of cancelled jobs ended in another way", n)
		}
		sound(t, db)
	})
}
