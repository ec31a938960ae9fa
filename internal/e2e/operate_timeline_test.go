package e2e_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/testenv"
)

// told are the entries of that event.
func told(events []map[string]any, name string) []map[string]any {
	return slices.DeleteFunc(slices.Clone(events), func(e map[string]any) bool { return e["event"] != name })
}

func data(e map[string]any) map[string]any {
	d, _ := e["data"].(map[string]any)
	return d
}

func TestContract_Row113_AttemptsAndEventsOfAWholeLife(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		r := newBreakable(t)
		g := start(t, database, both(t, r.config("return"), "job_types: {call: {backoff: {base: 100ms, cap: 200ms}}}"))
		g.switchType("call", "pause").want(t, http.StatusOK) // the holder must not have ended when the other one comes
		g.submit("a/b", `{"type":"call","max_attempts":2,"business_key":"42"}`)
		g.submit("other", `{"type":"call","max_attempts":1,"business_key":"42","payload":1}`).want(t, http.StatusOK)
		g.switchType("call", "resume").want(t, http.StatusOK)
		g.finished("a%2Fb")
		r.mended.Store(true)
		g.retry("a%2Fb", "op").want(t, http.StatusAccepted)
		j := g.finished("a%2Fb")

		list := g.attempts(t, "a%2Fb")
		if column(list, "number") != "1 2 3" || column(list, "outcome") != "failed failed succeeded" {
			t.Errorf("attempts %v", list)
		}
		last := ""
		for _, a := range list {
			began, ended := fmt.Sprint(a["started_at"]), fmt.Sprint(a["finished_at"])
			if a["worker_id"] != g.workerID() || parsed(t, began).After(parsed(t, ended)) || last != "" && parsed(t, began).Before(parsed(t, last)) || a["duration_ms"] == nil {
				t.Errorf("attempt %v after %s", a, last)
			}
			if _, there := a["lease_expires_at"]; there {
				t.Errorf("an attempt that has ended shows a lease: %v", a)
			}
			e, _ := a["error"].(map[string]any)
			if failed := a["outcome"] == "failed"; failed != (e["code"] == "http-status" && fmt.Sprint(e["attempt"]) == fmt.Sprint(a["number"])) {
				t.Errorf("attempt %v", a)
			}
			last = ended
		}

		events := g.events(t, "a%2Fb")
		const life = "accepted claimed attempt_failed retry_scheduled claimed attempt_failed retried claimed attempt_succeeded succeeded"
		got := slices.DeleteFunc(strings.Fields(column(events, "event")), func(e string) bool { return e == "replayed" })
		if strings.Join(got, " ") != life {
			t.Errorf("events %s", column(events, "event"))
		}
		ids := map[string]bool{}
		for i, e := range events {
			ids[fmt.Sprint(e["id"])] = true
			if i > 1 && parsed(t, fmt.Sprint(events[i-1]["time"])).After(parsed(t, fmt.Sprint(e["time"]))) {
				t.Errorf("%v comes after %v", e, events[i-1])
			}
		}
		if again := g.events(t, "a%2Fb"); len(ids) != len(events) || column(again, "id") != column(events, "id") {
			t.Errorf("ids %s\nthen %s", column(events, "id"), column(again, "id"))
		}
		if c := told(events, "claimed"); data(c[2])["worker_id"] != g.workerID() || column(c, "attempt") != "1 2 3" || fmt.Sprint(data(c[2])["token"]) != "3" {
			t.Errorf("claims %v", c)
		}
		if e := told(events, "retried")[0]; data(e)["key"] != "op" || fmt.Sprint(data(e)["generation"]) != fmt.Sprint(j["generation"]) {
			t.Errorf("retried %v", e)
		}

		// Through the keys that are bound to the job, and through none.
		for _, path := range []string{"/jobs/op", "/jobs/other"} {
			a := g.get(path+"/attempts").want(t, http.StatusOK, "Content-Location: /jobs/a%2Fb/attempts")
			e := g.get(path+"/events").want(t, http.StatusOK, "Content-Location: /jobs/a%2Fb/events")
			if string(a.body) != string(g.get("/jobs/a%2Fb/attempts").body) || column(g.members(t, path+"/events", "events"), "id") != column(events, "id") {
				t.Errorf("%s: %s\n%s", path, a.body, e.body)
			}
		}
		for _, below := range []string{"/attempts", "/events"} {
			g.get("/jobs/unknown"+below).problem(t, http.StatusNotFound, "job-not-found")
			g.do(http.MethodPost, "/jobs/op"+below, "").problem(t, http.StatusMethodNotAllowed, "method-not-allowed")
			if a := g.do(http.MethodHead, "/jobs/op"+below, "").want(t, http.StatusOK); len(a.body) != 0 {
				t.Errorf("HEAD has a body: %s", a.body)
			}
		}
		// A job that has not run.
		g.submit("later", `{"type":"call","delay_seconds":3600}`).want(t, http.StatusAccepted)
		if a := g.get("/jobs/later/attempts"); strings.TrimSpace(string(a.body)) != `{"attempts":[]}` {
			t.Errorf("%s", a.body)
		}
		if e := g.events(t, "later"); len(e) != 1 || e[0]["event"] != "accepted" || e[0]["attempt"] != nil || data(e[0])["run_at"] == nil {
			t.Errorf("%v", e)
		}
	})
}

func parsed(t testing.TB, text string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || !strings.HasSuffix(text, "Z") {
		t.Errorf("time %q: %v", text, err)
	}
	return at
}

func TestContract_Row113_RunningAndReleasedAttempts(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		r := newHeldReceiver(t)
		config := both(t, r.config(), "dispatcher: {shutdown_grace: 500ms}", keptLease)
		first := start(t, database, config)
		first.submit("k", `{"type":"call"}`).want(t, http.StatusAccepted)
		next(t, r.begun, 1, "begun")
		running := func(g *gateway) map[string]any {
			list := g.attempts(t, "k")
			a := list[len(list)-1]
			if a["outcome"] != nil || a["finished_at"] != nil || a["duration_ms"] != nil || a["error"] != nil || fmt.Sprint(a["number"]) != "1" || a["worker_id"] != g.workerID() {
				t.Errorf("the running attempt is %v", a)
			}
			if lease := parsed(t, fmt.Sprint(a["lease_expires_at"])); !lease.After(parsed(t, fmt.Sprint(a["started_at"]))) {
				t.Errorf("the running attempt is %v", a)
			}
			return a
		}
		before := running(first)
		testenv.Eventually(t, 0, "the lease was extended", func() bool {
			return fmt.Sprint(running(first)["lease_expires_at"]) > fmt.Sprint(before["lease_expires_at"])
		})
		first.signal(syscall.SIGTERM)
		if code := first.wait(60 * time.Second); code != 0 {
			t.Errorf("exit code %d", code)
		}
		second := start(t, database, config)
		next(t, r.begun, 1, "begun again") // the released one is not counted
		running(second)
		close(r.let[1])
		is(t, second.finished("k"), "succeeded 1", "status", "attempts")
		list := second.attempts(t, "k")
		if column(list, "outcome") != "released succeeded" || column(list, "number") != "1 1" || list[0]["worker_id"] != first.workerID() {
			t.Errorf("attempts %v", list)
		}
		if events := column(second.events(t, "k"), "event"); events != "accepted claimed attempt_released claimed attempt_succeeded succeeded" {
			t.Errorf("events %s", events)
		}
		sound(t, beside(t, database))
	})
}

// What was counted is stored at once, once a minute, and when the process ends.
func TestContract_Row113_ReplaysAndMismatchesAreCounted(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		for round := range 5 {
			key, quiet := fmt.Sprint("k-", round), fmt.Sprint("quiet-", round)
			g := start(t, database, "")
			repeated(t, g, key, quiet)
			g.signal(syscall.SIGTERM)
			g.wait(60 * time.Second)
			if len(g.logLines("the last report was not stored")) > 0 {
				continue // an end does not wait for long: this machine was too slow, and it says so
			}
			g = start(t, database, "")
			if replays, mismatches := total(t, g, key, "replayed"), total(t, g, key, "mismatch_refused"); replays != 7 || mismatches != 5 {
				t.Errorf("%d replays and %d mismatches are told of: %v", replays, mismatches, g.events(t, key))
			}
			if e := g.events(t, quiet); column(e, "event") != "accepted claimed attempt_succeeded succeeded" {
				t.Errorf("a job whose key came once: %v", e)
			}
			return
		}
		t.Error("no last report was stored")
	})
}

// repeated sends seven replays and five mismatches of the key, of which one replay is
// stored at once.
func repeated(t *testing.T, g *gateway, key, quiet string) {
	t.Helper()
	g.submit(key, `{"type":"echo"}`)
	g.submit(quiet, `{"type":"echo"}`)
	g.finished(key)
	g.finished(quiet)
	g.submit(key, `{"type":"echo"}`).want(t, http.StatusAccepted, "Idempotent-Replayed: true")
	testenv.Eventually(t, 0, "the first replay is told of soon", func() bool { return total(t, g, key, "replayed") == 1 })
	for range 6 {
		g.submit(key, `{"type":"echo"}`)
	}
	for range 3 {
		g.isMismatch(t, key, "body", g.submit(key, `{"type":"echo","payload":2}`))
	}
	g.do(http.MethodPost, "/jobs/"+quiet+"/retry", "", "Idempotency-Key: "+key).problem(t, http.StatusUnprocessableEntity, "idempotency-key-reused") // of the other job
	g.submit(key, `{"type":"unknown"}`).problem(t, http.StatusUnprocessableEntity, "idempotency-key-reused")
	if n := len(told(g.events(t, key), "replayed")); n != 1 {
		t.Errorf("%d events within a minute", n)
	}
}

// total is what the events of that name count together.
func total(t *testing.T, g *gateway, key, name string) (n int) {
	t.Helper()
	for _, e := range told(g.events(t, key), name) {
		var count int
		_, _ = fmt.Sscan(fmt.Sprint(data(e)["count"]), &count)
		n += count
	}
	return n
}

func TestContract_Row113_TheLateEndOfAStoppedReplicaIsTold(t *testing.T) {
	t.Parallel()
	r := newHeldReceiver(t)
	database, stopped, heir := zombie(t, r)
	close(r.let[1]) // its answer waits for it
	stopped.resume()
	nearMiss(t, heir, "zombie", stopped, "stale_completion_refused")
	endedBy(t, r, database, heir)
	lostOnce(t, heir, "zombie", stopped.workerID()+" "+heir.workerID())
}

// The lease is over by the database's clock, long before its holder expects it.
func TestContract_Row113_AHeartbeatThatFindsNoLeaseIsTold(t *testing.T) {
	t.Parallel()
	database, r := testenv.Postgres(t), newHeldReceiver(t)
	config := both(t, r.config(), "defaults: {lease: 60s, heartbeat: 1s}")
	holder := start(t, database, config)
	holder.submit("k", `{"type":"call"}`).want(t, http.StatusAccepted)
	next(t, r.begun, 1, "begun")
	other := start(t, database, config)
	db := beside(t, database)
	testenv.Eventually(t, 30*time.Second, "the job was rescued", func() bool {
		change(t, db, `update jobs set locked_until = now() - interval '5 seconds' where token = 1 and state = 'processing'`)
		return count(t, db, `select count(*) from job_attempts where outcome = 'lost'`) == 1
	})
	nearMiss(t, other, "k", holder, "heartbeat_lost")
	next(t, r.left, 1, "been given up")
	next(t, r.begun, 2, "begun")
	close(r.let[2])
	is(t, other.finished("k"), "succeeded 2", "status", "attempts")
	heir, _ := other.finished("k")["worker_id"].(string)
	lostOnce(t, other, "k", holder.workerID()+" "+heir)
	sound(t, db)
}

// nearMiss waits for the event about the first attempt of that worker.
func nearMiss(t *testing.T, g *gateway, key string, worker *gateway, name string) {
	t.Helper()
	testenv.Eventually(t, 60*time.Second, name+" is told", func() bool {
		events := told(g.events(t, key), name)
		return len(events) == 1 && fmt.Sprint(events[0]["attempt"]) == "1" && data(events[0])["worker_id"] == worker.workerID()
	})
}

// lostOnce fails unless the ordinary life of the job is that of one whose first
// attempt was lost.
func lostOnce(t *testing.T, g *gateway, key, workers string) {
	t.Helper()
	events := g.events(t, key)
	words := slices.DeleteFunc(strings.Fields(column(events, "event")), func(e string) bool {
		return e == "heartbeat_lost" || e == "stale_completion_refused"
	})
	if got := strings.Join(words, " "); got != "accepted claimed attempt_lost retry_scheduled claimed attempt_succeeded succeeded" {
		t.Errorf("events %s", column(events, "event"))
	}
	if list := g.attempts(t, key); column(list, "worker_id") != workers {
		t.Errorf("attempts %v", list)
	}
}

func TestContract_Row113_NearMissesOfOperationsAndDoubts(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		held := newHeldReceiver(t)
		d := newDoubtful(t)
		answers := newReceiver(t, func(w http.ResponseWriter, c call, n int) {
			if c.Method == http.MethodGet {
				w.Header().Set("Content-Type", "application/json")
				_, _ = fmt.Fprint(w, `{"status":"done","result":{"r":1}}`)
			}
		})
		g := start(t, database, both(t, held.config(), keptLease, fmt.Sprintf(`
job_types:
  call: {operation_key: "{{ .payload.n }}"}
  ask: {executor: http, on_unknown_outcome: reconcile, http: {url: "%s/ask", reconcile_url: "%s/asked"}}
`, d.URL, answers.URL)))
		g.submit("one", `{"type":"call","payload":{"n":1}}`).want(t, http.StatusAccepted)
		next(t, held.begun, 1, "begun")
		g.submit("two", `{"type":"call","payload":{"n":1}}`).want(t, http.StatusAccepted)
		var busy []map[string]any
		testenv.Eventually(t, 60*time.Second, "the second job waits for the first", func() bool {
			busy = told(g.events(t, "two"), "operation_busy")
			return len(busy) > 0
		})
		if data(busy[0])["held_by"] != "one" || data(busy[0])["worker_id"] != g.workerID() {
			t.Errorf("%v", busy)
		}
		close(held.let[1])
		j := g.finished("two")
		is(t, j, "succeeded duplicate_ignored one", "status", "outcome", "duplicate_of")
		if e := told(g.events(t, "two"), "duplicate_ignored"); len(e) != 1 || data(e[0])["duplicate_of"] != "one" {
			t.Errorf("%v", e)
		}
		j = g.ended(t, "doubt", `{"type":"ask"}`)
		is(t, j, "succeeded map[r:1] 2", "status", "result", "attempts")
		testenv.Eventually(t, 0, "the answer is told", func() bool {
			e := told(g.events(t, "doubt"), "reconciled")
			return len(e) == 1 && data(e[0])["answer"] == "done" && fmt.Sprint(data(e[0])["asks"]) == "1" && fmt.Sprint(e[0]["attempt"]) == "2"
		})
	})
}
