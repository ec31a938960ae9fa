package e2e_test

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/testenv"
)

// keptLease is for jobs that nobody is to lose: a machine that stands still for a
// second or two costs their holder nothing.
const keptLease = "defaults: {lease: 30s}"

func (g *gateway) cancel(key string, headers ...string) answer {
	g.t.Helper()
	return g.do(http.MethodPost, "/jobs/"+key+"/cancel", "", headers...)
}

// retry brings the job back with a call of the name.
func (g *gateway) retry(key, name string, headers ...string) answer {
	g.t.Helper()
	return g.do(http.MethodPost, "/jobs/"+key+"/retry", "", append([]string{"Idempotency-Key: " + name}, headers...)...)
}

func (g *gateway) resolve(key, name, body string, headers ...string) answer {
	g.t.Helper()
	return g.do(http.MethodPost, "/jobs/"+key+"/resolve", body, append([]string{jsonType, "Idempotency-Key: " + name}, headers...)...)
}

// members reads the list of that name from the document at the path.
func (g *gateway) members(t testing.TB, path, name string, headers ...string) []map[string]any {
	t.Helper()
	a := g.get(path, headers...).want(t, http.StatusOK, "Content-Type: application/json")
	list, ok := a.json(t)[name].([]any)
	if !ok {
		t.Fatalf("GET %s: %s", path, a.body)
	}
	found := make([]map[string]any, len(list))
	for i := range list {
		found[i], _ = list[i].(map[string]any)
	}
	return found
}

func (g *gateway) attempts(t testing.TB, key string) []map[string]any {
	t.Helper()
	return g.members(t, "/jobs/"+key+"/attempts", "attempts")
}

func (g *gateway) events(t testing.TB, key string) []map[string]any {
	t.Helper()
	return g.members(t, "/jobs/"+key+"/events", "events")
}

// column writes one member of each entry behind the other.
func column(list []map[string]any, name string) string {
	var words []string
	for _, entry := range list {
		words = append(words, fmt.Sprint(entry[name]))
	}
	return strings.Join(words, " ")
}

// became waits until the job has the status.
func (g *gateway) became(t testing.TB, key, status string) map[string]any {
	t.Helper()
	var j map[string]any
	testenv.Eventually(t, 60*time.Second, key+" is "+status, func() bool {
		j = g.get("/jobs/"+key).want(t, http.StatusOK).json(t)
		return j["status"] == status
	})
	return j
}

// is fails unless the members of the job, as text, are as given.
func is(t testing.TB, j map[string]any, want string, names ...string) {
	t.Helper()
	var got []string
	for _, name := range names {
		got = append(got, fmt.Sprint(j[name]))
	}
	if text := strings.Join(got, " "); text != want {
		t.Errorf("%v of the job: %s, want %s: %v", names, text, want, j)
	}
}

// breakable is a receiver that fails until it is mended.
type breakable struct {
	*receiver
	mended atomic.Bool
}

func newBreakable(t testing.TB) *breakable {
	b := &breakable{}
	b.receiver = newReceiver(t, func(w http.ResponseWriter, c call, _ int) {
		if !b.mended.Load() {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	return b
}

// config is a type of that policy for business keys whose attempts follow each
// other quickly.
func (b *breakable) config(onConflict string) string {
	return fastTry + fmt.Sprintf(`job_types: {call: {executor: http, on_business_key_conflict: %s, http: {url: %q}}}`, onConflict, b.URL)
}

func TestContract_Row75_Failure_BR26_ARetryBringsAFailedJobBack(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		r := newBreakable(t)
		g := start(t, database, r.config("return"))
		const body = `{"type":"call","max_attempts":2,"payload":{"a":1}}`
		first := g.submit("k", body).want(t, http.StatusAccepted)
		is(t, g.finished("k"), "failed 2 2 1", "status", "attempts", "max_attempts", "generation")
		g.submit("other", body)
		g.finished("other")

		g.do(http.MethodPost, "/jobs/k/retry", "").refused(t, http.StatusBadRequest, "idempotency-key-missing", false)
		for _, wrong := range []string{`{"max_attempts":3}`, `[]`, `{`} { // none of them consumes the key
			a := g.do(http.MethodPost, "/jobs/k/retry", wrong, jsonType, "Idempotency-Key: op-1")
			if a.want(t, http.StatusBadRequest).json(t)["retryable"] != false {
				t.Errorf("%s: %s", wrong, a.body)
			}
		}
		r.mended.Store(true)
		back := g.retry("k", "op-1").keyed(t, "op-1", false).want(t, http.StatusAccepted, "Location: /jobs/k", "Job-Status: pending", "Retry-After: *", "Idempotency-Status:")
		is(t, back.json(t), "k pending 2 4 2 <nil> <nil>", "key", "status", "attempts", "max_attempts", "generation", "finished_at", "payload")
		is(t, g.finished("k"), "succeeded 3 4 2 <nil> map[a:1]", "status", "attempts", "max_attempts", "generation", "error", "payload")

		again := g.retry("k", "op-1").keyed(t, "op-1", true).want(t, http.StatusAccepted, "Location: /jobs/k", "Job-Status: succeeded", "Retry-After:", "Idempotency-Expires: *")
		if !bytes.Equal(again.body, back.body) {
			t.Errorf("the replay differs:\n%s\n%s", again.body, back.body)
		}
		if a := g.submit("k", body).want(t, http.StatusAccepted, "Idempotent-Replayed: true", "Job-Status: succeeded"); !bytes.Equal(a.body, first.body) {
			t.Errorf("the submission's replay differs:\n%s\n%s", a.body, first.body)
		}
		if list := g.attempts(t, "k"); column(list, "number") != "1 2 3" || column(list, "outcome") != "failed failed succeeded" {
			t.Errorf("attempts %v", list)
		}
		var told []string
		keys := map[string]bool{}
		for _, c := range r.of("k") {
			told = append(told, c.Header.Get("Sekali-Attempt")+c.Header.Get("Sekali-Fencing-Token"))
			keys[c.Header.Get("Idempotency-Key")] = true
		}
		if fmt.Sprint(told) != "[11 22 33]" || len(keys) != 1 {
			t.Errorf("the receiver was told of the attempts and tokens %v, with the keys %v", told, keys)
		}
		if events := g.events(t, "k"); !strings.Contains(column(events, "event"), "attempt_failed retried claimed attempt_succeeded") {
			t.Errorf("events %s", column(events, "event"))
		}

		// One key space: an operator's key is nobody else's.
		g.isMismatch(t, "op-1", "target", g.retry("other", "op-1"))
		g.isMismatch(t, "op-1", "target", g.submit("op-1", body))
		g.isMismatch(t, "op-1", "target", g.resolve("k", "op-1", `{"status":"failed"}`))
		g.isMismatch(t, "k", "target", g.retry("k", "k"))
		// And it leads to the job, but is not the job's own.
		g.get("/jobs/op-1").want(t, http.StatusOK, "Content-Location: /jobs/k")
		for _, a := range []answer{g.cancel("op-1"), g.retry("op-1", "op-2"), g.resolve("op-1", "op-2", `{"status":"failed"}`)} {
			if p := a.problem(t, http.StatusNotFound, "job-not-found"); p["job"] != "/jobs/k" {
				t.Errorf("through an alias: %s", a.body)
			}
		}
		if n := len(r.of("k")); n != 3 {
			t.Errorf("%d calls in the end, want 3", n)
		}
		sound(t, beside(t, database))
	})
}

func TestContract_Row75_WhatCannotBeRetried(t *testing.T) {
	s := newSink(t)
	config := s.types(map[string]string{"slow": "/slow?ms=60000", "down": "/status/500", "ok": "/ok", "wrong": "/status/400"}) + `
  brief: {executor: echo, retention: 1s}
`
	onGateway(t, both(t, config, keptLease, "job_types: {down: {backoff: {base: 1h, cap: 2h}}}"), func(t *testing.T, g *gateway) {
		g.submit("brief", `{"type":"brief"}`).want(t, http.StatusAccepted)
		g.do(http.MethodPost, "/executors/ok/pause", "").want(t, http.StatusOK)
		g.submit("pending", `{"type":"ok"}`)
		g.submit("scheduled", `{"type":"ok","delay_seconds":3600}`)
		g.submit("processing", `{"type":"slow"}`)
		g.submit("retrying", `{"type":"down"}`)
		g.submit("succeeded", `{"type":"echo"}`)
		// One key for all: a refusal consumes none.
		for _, status := range []string{"pending", "scheduled", "processing", "retrying", "succeeded"} {
			before := g.became(t, status, status)
			p := g.retry(status, "op").refused(t, http.StatusUnprocessableEntity, "job-not-retryable", false)
			if p["job"] != "/jobs/"+status || p["idempotency_key"] != "op" {
				t.Errorf("%v", p)
			}
			p = g.resolve(status, "op", `{"status":"failed"}`).refused(t, http.StatusUnprocessableEntity, "job-not-resolvable", false)
			if p["job"] != "/jobs/"+status {
				t.Errorf("%v", p)
			}
			if after := g.get("/jobs/" + status).json(t); fmt.Sprint(after) != fmt.Sprint(before) {
				t.Errorf("the job was %v\nand is %v", before, after)
			}
		}
		for _, key := range []string{"unknown", "%00", strings.Repeat("k", 300)} {
			g.retry(key, "op").refused(t, http.StatusNotFound, "job-not-found", false)
			g.resolve(key, "op", `{"status":"failed"}`).refused(t, http.StatusNotFound, "job-not-found", false)
			g.cancel(key).problem(t, http.StatusNotFound, "job-not-found")
		}
		until(t, g, "brief", http.StatusGone)
		for _, a := range []answer{g.retry("brief", "op"), g.resolve("brief", "op", `{"status":"failed"}`), g.cancel("brief")} {
			if p := a.problem(t, http.StatusGone, "job-expired"); p["job_status"] != "succeeded" || p["expired_at"] == nil {
				t.Errorf("%s", a.body)
			}
		}
		// The key is still free.
		g.ended(t, "failed", `{"type":"wrong"}`)
		is(t, g.retry("failed", "op").want(t, http.StatusAccepted, "Idempotent-Replayed: false").json(t), "2", "generation")
	})
}

func TestContract_Row75_EachRetryGivesAsManyAttempts(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		r := newBreakable(t)
		g := start(t, database, r.config("return"))
		g.ended(t, "k", `{"type":"call","max_attempts":3}`)
		for round := 2; round <= 4; round++ {
			g.retry("k", fmt.Sprint("op-", round)).want(t, http.StatusAccepted)
			is(t, g.finished("k"), fmt.Sprint("failed ", 3*round, " ", 3*round, " ", round), "status", "attempts", "max_attempts", "generation")
			if n := len(r.of("k")); n != 3*round {
				t.Errorf("%d calls after round %d", n, round)
			}
		}
		// A job that was cancelled before it ran has all its attempts yet, and waits for nothing.
		g.submit("c", `{"type":"call","max_attempts":2,"delay_seconds":3600}`).want(t, http.StatusAccepted)
		g.cancel("c").want(t, http.StatusOK)
		r.mended.Store(true)
		g.retry("c", "op-c", "Prefer: wait=30").want(t, http.StatusOK, "Preference-Applied: wait=30", "Job-Status: succeeded")
		is(t, g.finished("c"), "succeeded 1 2 2", "status", "attempts", "max_attempts", "generation")
		g.retry("c", "op-c").want(t, http.StatusAccepted, "Idempotent-Replayed: true")
		sound(t, beside(t, database))
	})
}

func TestContract_Row75_ABusinessKeyThatAnotherJobHoldsByNow(t *testing.T) {
	for _, policy := range []string{"return", "reject"} {
		t.Run(policy, func(t *testing.T) {
			onEngines(t, func(t *testing.T, database string) {
				r := newBreakable(t)
				g := start(t, database, r.config(policy))
				g.ended(t, "a", `{"type":"call","max_attempts":1,"business_key":"42"}`)
				g.submit("b/1", `{"type":"call","business_key":"42","delay_seconds":3600}`).want(t, http.StatusAccepted)
				for range 2 {
					p := g.retry("a", "op").want(t, http.StatusConflict, "Retry-After: *").refused(t, http.StatusConflict, "business-key-conflict", true)
					if p["job"] != "/jobs/b%2F1" {
						t.Errorf("the holder is told as %v", p["job"])
					}
				}
				is(t, g.finished("a"), "failed 1 1", "status", "attempts", "generation")
				r.mended.Store(true)
				g.cancel("b%2F1").want(t, http.StatusOK) // a holder that ended holds nothing
				g.retry("a", "op").want(t, http.StatusAccepted, "Idempotent-Replayed: false")
				is(t, g.finished("a"), "succeeded 2 2", "status", "attempts", "generation")
				p := g.retry("b%2F1", "op").problem(t, http.StatusUnprocessableEntity, "idempotency-key-reused")
				if p["retryable"] != false {
					t.Errorf("%v", p)
				}
			})
		})
	}
}

func TestContract_Row75_Row80_WithQueueARetryWaitsBehindTheHolder(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		r := newBreakable(t)
		g := start(t, database, r.config("queue"))
		g.ended(t, "a", `{"type":"call","max_attempts":1,"business_key":"42"}`)
		g.submit("b", `{"type":"call","business_key":"42","delay_seconds":3600}`).want(t, http.StatusAccepted)
		r.mended.Store(true)
		g.retry("a", "op").want(t, http.StatusAccepted, "Job-Status: pending")
		g.submit("c", `{"type":"call","business_key":"42"}`).want(t, http.StatusAccepted)
		g.get("/jobs/a", "Prefer: wait=1").want(t, http.StatusOK) // several polls, in which nothing may happen
		is(t, g.get("/jobs/a").json(t), "pending 1", "status", "attempts")
		g.cancel("b").want(t, http.StatusOK)
		is(t, g.finished("a"), "succeeded 2", "status", "attempts")
		is(t, g.finished("c"), "succeeded 1", "status", "attempts")
		if a, c := r.of("a"), r.of("c"); len(a) != 2 || len(c) != 1 || !a[1].at.Before(c[0].at) || len(r.of("b")) != 0 {
			t.Errorf("calls for a at %v, for c at %v", a, c)
		}
		sound(t, beside(t, database))
	})
}

func TestContract_Row75_DoubleClicksChangeOnce(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		s := newSink(t)
		config := s.types(map[string]string{"wrong": "/status/400"})
		gateways := []*gateway{start(t, database, config)}
		if !onSQLite(database) {
			gateways = append(gateways, start(t, database, config))
		}
		g := gateways[0]
		g.ended(t, "one", `{"type":"wrong"}`)
		g.ended(t, "many", `{"type":"wrong"}`)
		g.do(http.MethodPost, "/executors/wrong/pause", "").want(t, http.StatusOK) // what comes back stays pending
		const clicks = 16
		click := func(key string, name func(i int) string) []answer {
			answers := make([]answer, clicks)
			var wg sync.WaitGroup
			for i := range answers {
				wg.Go(func() {
					answers[i], _ = gateways[i%len(gateways)].try(http.MethodPost, "/jobs/"+key+"/retry", "", "Idempotency-Key: "+name(i))
				})
			}
			wg.Wait()
			return answers
		}
		fresh := 0
		answers := click("one", func(int) string { return "op-one" })
		for _, a := range answers {
			a.want(t, http.StatusAccepted)
			if !bytes.Equal(a.body, answers[0].body) {
				t.Errorf("answers differ:\n%s\n%s", a.body, answers[0].body)
			}
			if a.Header.Get("Idempotent-Replayed") == "false" {
				fresh++
			}
		}
		accepted := 0
		for _, a := range click("many", func(i int) string { return fmt.Sprint("op-many-", i) }) {
			if a.StatusCode == http.StatusAccepted {
				accepted++
				continue
			}
			a.problem(t, http.StatusUnprocessableEntity, "job-not-retryable")
		}
		if fresh != 1 || accepted != 1 {
			t.Errorf("%d of the calls with one key changed something, and %d of those with many", fresh, accepted)
		}
		g.do(http.MethodPost, "/executors/wrong/resume", "").want(t, http.StatusOK)
		for _, key := range []string{"one", "many"} {
			is(t, g.finished(key), "failed 2 2", "status", "attempts", "generation")
			if n := strings.Count(column(g.events(t, key), "event"), "retried"); n != 1 {
				t.Errorf("%s: %d events tell of a retry", key, n)
			}
		}
		sound(t, beside(t, database))
	})
}
