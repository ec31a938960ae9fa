package e2e_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/sekali/sekali/internal/testenv"
)

const callbackSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// mailbox is a receiver of callbacks. It keeps what it took, checks each signature,
// and can be down.
type mailbox struct {
	*httptest.Server
	t       testing.TB
	webhook *standardwebhooks.Webhook
	down    atomic.Bool
	mu      sync.Mutex
	calls   []delivery
}

// delivery is one attempt at a callback, whether it was taken or not.
type delivery struct {
	id, attempt, body string
	at                time.Time
	taken             bool
	event             event
}

// event is what a callback says.
type event struct {
	Type      string         `json:"type"`
	Timestamp time.Time      `json:"timestamp"`
	Data      map[string]any `json:"data"`
}

func newMailbox(t testing.TB) *mailbox {
	t.Helper()
	webhook, err := standardwebhooks.NewWebhook(callbackSecret)
	if err != nil {
		t.Fatal(err)
	}
	m := &mailbox{t: t, webhook: webhook}
	m.Server = httptest.NewServer(m)
	t.Cleanup(func() {
		m.CloseClientConnections()
		m.Close()
	})
	return m
}

// ServeHTTP implements http.Handler.
func (m *mailbox) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // a gateway that was killed while it called
	}
	c := delivery{id: r.Header.Get("Webhook-Id"), attempt: r.Header.Get("Sekali-Attempt"), body: string(body), at: time.Now(), taken: !m.down.Load()}
	if err := m.webhook.Verify(body, r.Header); err != nil {
		m.t.Errorf("the signature of %s: %v", body, err)
	}
	if err := json.Unmarshal(body, &c.event); err != nil || c.id == "" {
		m.t.Errorf("callback %s: %v", body, err)
	}
	m.mu.Lock()
	m.calls = append(m.calls, c)
	m.mu.Unlock()
	if !c.taken {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_, _ = io.WriteString(w, "INTERNAL-TOKEN-42")
}

// all returns the calls so far; with taken, those that were not refused.
func (m *mailbox) all(taken bool) []delivery {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(m.calls), func(c delivery) bool { return taken && !c.taken })
}

// of returns the callbacks of the key's job that were taken, one for each id.
func (m *mailbox) of(key string) []delivery {
	var found []delivery
	for _, c := range m.all(true) {
		if c.event.Data["key"] == key && !slices.ContainsFunc(found, func(f delivery) bool { return f.id == c.id }) {
			found = append(found, c)
		}
	}
	return found
}

// got waits for so many callbacks of the key's job and returns them.
func (m *mailbox) got(key string, n int) []delivery {
	m.t.Helper()
	testenv.Eventually(m.t, 60*time.Second, fmt.Sprintf("%d callbacks of %s came", n, key), func() bool { return len(m.of(key)) >= n })
	return m.of(key)
}

// callbacks is configuration under which requests may name the mailbox.
func (m *mailbox) callbacks() string {
	return fmt.Sprintf("callbacks: {allow: [%q], secret: %q, backoff: {base: 100ms, cap: 1s}}\n", m.URL+"/hooks/", callbackSecret)
}

// callbackTypes end in every way.
const callbackTypes = fastKept + `
job_types:
  fails: {executor: http, http: {url: "%[1]s/status/400"}}
  retries: {executor: http, max_attempts: 2, http: {url: "%[1]s/status/503"}}
  slow: {executor: http, http: {url: "%[1]s/slow?ms=60000"}}
  text: {executor: http, http: {url: "%[1]s/bytes?mode=html"}}
  ledger: {executor: sql, sql: {setup: "create table if not exists ledger (entry text primary key)", statement: "insert into ledger (entry) values ({{ .payload.entry }}) returning entry", existing: "select entry from ledger where entry = {{ .payload.entry }}"}}
  breaks: {executor: sql, sql: {statement: "insert into ledger (entry) values ({{ .payload.entry }})"}}
  parks: {executor: http, on_unknown_outcome: park, http: {url: "%[2]s/done/reset"}}
  own: {executor: echo, callback_url: "%[3]s/elsewhere?of=type"}
`

// wantedCallback is how the callbacks of a job look: type, status, attempts, error's
// code, outcome, result.
type wantedCallback struct{ kind, attempts, code, outcome, result string }

func (w wantedCallback) check(t testing.TB, key string, c delivery) {
	t.Helper()
	d := c.event.Data
	got := wantedCallback{kind: c.event.Type, attempts: fmt.Sprint(d["attempts"]), code: "<nil>", outcome: fmt.Sprint(d["outcome"])}
	if e, ok := d["error"].(map[string]any); ok {
		got.code = fmt.Sprint(e["code"])
	}
	_, got.result, _ = strings.Cut(c.body, `,"result":`)
	got.result = strings.TrimSuffix(got.result, "}}")
	if got != w {
		t.Errorf("%s: %+v, want %+v", key, got, w)
	}
	if d["url"] != "/jobs/"+key || d["key"] != key || "job."+fmt.Sprint(d["status"]) != c.event.Type || c.event.Timestamp.IsZero() {
		t.Errorf("%s: %s", key, c.body)
	}
	if _, leaks := d["payload"]; leaks || strings.Contains(c.body, "INTERNAL-TOKEN-42") {
		t.Errorf("%s: %s", key, c.body)
	}
}

func TestCallback_BR16_EachEndIsToldOnce(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		l, s, m, h := newLedger(t), newSink(t), newMailbox(t), newHeld(t)
		g := start(t, database, both(t, fmt.Sprintf(callbackTypes, s.URL, l.URL, m.URL), m.callbacks(), h.config("while")))
		hook := fmt.Sprintf(`,"callback_url":%q`, m.URL+"/hooks/a?of=job")
		submit := func(key, kind, payload, more string) {
			t.Helper()
			body := fmt.Sprintf(`{"type":%q,"payload":%s%s}`, kind, payload, more)
			for _, replayed := range []string{"false", "true", "true", "true"} { // BR-16: repetitions tell nobody
				g.submit(key, body).want(t, http.StatusAccepted, "Idempotent-Replayed: "+replayed)
			}
		}
		const payload = `{ "n" : 1.0, "text":"\u0000 \"result\": é" }`
		submit("works", "echo", payload, hook)
		submit("fails", "fails", `{}`, hook)
		submit("retries", "retries", `{}`, hook)
		submit("text", "text", `{}`, hook)
		submit("later", "echo", `{}`, hook+`,"delay_seconds":3600`)
		submit("late", "echo", `{}`, hook+`,"delay_seconds":3600,"expires_in_seconds":0`)
		submit("slow", "slow", `{}`, hook)
		submit("first", "ledger", `{"entry":"e"}`, hook)
		g.finished("first")
		submit("second", "ledger", `{"entry":"e"}`, hook)
		submit("breaks", "breaks", `{"entry":"e"}`, hook)
		submit("parks", "parks", `{}`, hook)
		submit("own", "own", `[1]`, "")
		submit("silent", "echo", `{}`, "")

		g.cancel("later").want(t, http.StatusOK)
		g.cancel("later").want(t, http.StatusOK)
		testenv.Eventually(t, 0, "the slow one runs", func() bool { return len(s.of("slow")) == 1 })
		g.cancel("slow").want(t, http.StatusAccepted)

		none := "<nil>"
		for key, w := range map[string]wantedCallback{
			"works":   {"job.succeeded", "1", none, none, payload},
			"fails":   {"job.failed", "1", "http-status", none, "null"},
			"retries": {"job.failed", "2", "http-status", none, "null"},
			"text":    {"job.succeeded", "1", none, none, "null"},
			"later":   {"job.cancelled", "0", none, none, "null"},
			"late":    {"job.failed", "0", "expired", none, "null"},
			"slow":    {"job.cancelled", "1", "cancelled", none, "null"},
			"first":   {"job.succeeded", "1", none, none, `{"entry":"e"}`},
			"second":  {"job.succeeded", "1", none, "duplicate_ignored", `{"entry":"e"}`},
			"breaks":  {"job.failed", "1", "unique-violation", none, "null"},
			"parks":   {"job.failed", "1", "connection", "outcome_unknown", "null"},
			"own":     {"job.succeeded", "1", none, none, `[1]`},
		} {
			c := m.got(key, 1)[0]
			w.check(t, key, c)
			j := g.finished(key)
			callback := g.finished(fmt.Sprint("callback:", j["id"]))
			is(t, callback, "succeeded sekali.callback <nil>", "status", "type", "result")
			if callback["id"] != c.id || fmt.Sprint(c.event.Data["version"]) != fmt.Sprint(j["version"]) {
				t.Errorf("%s: the callback is %v and its webhook-id %s; it tells of version %v, the job is at %v", key, callback["id"], c.id, c.event.Data["version"], j["version"])
			}
			sent, err := json.Marshal(callback["payload"])
			if err != nil || !sameJSON(t, string(sent), c.body) {
				t.Errorf("%s: stored %s, sent %s, %v", key, sent, c.body, err)
			}
		}
		callbackAgain(t, g, m, h)
		if n := len(m.of("silent")); n != 0 {
			t.Errorf("%d callbacks of a job that wants none", n)
		}
		// As many jobs as callbacks, and none of a callback.
		db := beside(t, database)
		want := 12 + 3
		if n := count(t, db, `select (select count(*) from jobs where type = 'sekali.callback') + (select count(*) from finished_jobs where type = 'sekali.callback')`); n != want {
			t.Errorf("%d callbacks, want %d", n, want)
		}
	})
}

func sameJSON(t testing.TB, a, b string) bool {
	t.Helper()
	var x, y any
	if json.Unmarshal([]byte(a), &x) != nil || json.Unmarshal([]byte(b), &y) != nil {
		t.Errorf("%s or %s is no JSON", a, b)
	}
	return fmt.Sprint(x) == fmt.Sprint(y)
}

// callbackAgain ends jobs another time, and one whose callback's key is taken.
func callbackAgain(t *testing.T, g *gateway, m *mailbox, h *held) {
	t.Helper()
	g.resolve("parks", "op-1", `{"status":"succeeded","result":{"found":true}}`).want(t, http.StatusOK)
	g.resolve("parks", "op-1", `{"status":"succeeded","result":{"found":true}}`).want(t, http.StatusOK, "Idempotent-Replayed: true")
	resolved := m.got("parks", 2)[1]
	wantedCallback{"job.succeeded", "1", "<nil>", "<nil>", `{"found":true}`}.check(t, "parks", resolved)
	is(t, g.finished(fmt.Sprint("callback:", g.finished("parks")["id"], ":resolved")), "succeeded "+resolved.id, "status", "id")

	g.retry("fails", "op-2").want(t, http.StatusAccepted)
	again := m.got("fails", 2)[1]
	is(t, again.event.Data, "2 2", "generation", "attempts")
	is(t, g.finished(fmt.Sprint("callback:", g.finished("fails")["id"], ":2")), "succeeded "+again.id, "status", "id")

	taken := g.submit("while", fmt.Sprintf(`{"type":"while","callback_url":%q}`, m.URL+"/hooks/")).json(t)
	g.submit(fmt.Sprint("callback:", taken["id"]), `{"type":"echo","payload":"mine"}`).want(t, http.StatusAccepted)
	h.release("while") // its end comes after the key was taken, however slow that was
	c := m.got("while", 1)[0]
	if c.event.Type != "job.succeeded" {
		t.Errorf("%s", c.body)
	}
	is(t, g.finished(fmt.Sprint("callback:", taken["id"])), "echo mine", "type", "payload")
}

// TestFailure_BR72_WhatRequestsMayName: nothing but what the list says; and the
// built-in type is no client's.
func TestFailure_BR72_WhatRequestsMayName(t *testing.T) {
	m := newMailbox(t)
	config := both(t, m.callbacks(), fmt.Sprintf("job_types: {own: {executor: echo, callback_url: %q}}\n", m.URL+"/own"))
	onGateway(t, config, func(t *testing.T, g *gateway) {
		port := m.URL[strings.LastIndex(m.URL, ":"):]
		for i, url := range []string{
			m.URL, m.URL + "/own", m.URL + "/hooks", m.URL + "/hooks/../own", m.URL + "/hooks/%2e%2e/own", "http://127.0.0.1" + port + "0/hooks/",
			"http://[::1]" + port + "/hooks/", "http://0x7f000001" + port + "/hooks/", "http://169.254.169.254/hooks/", "http://127.0.0.1.nip.io" + port + "/hooks/",
			"http://ok@127.0.0.1" + port + "/hooks/", "http://localhost" + port + "/hooks/", m.URL + "/hooks/#f", m.URL + `\hooks\`, "x",
			m.URL + "/hooks/" + strings.Repeat("x", 2048),
		} {
			key := fmt.Sprintf("bad-%d", i)
			body, _ := json.Marshal(map[string]any{"type": "echo", "callback_url": url})
			p := g.submit(key, string(body)).problem(t, http.StatusBadRequest, "validation-failed")
			if errors := fmt.Sprint(p["errors"]); !strings.Contains(errors, "/callback_url") || !strings.Contains(errors, "must ") {
				t.Errorf("%s: %s", url, errors)
			}
			g.submit(key, fmt.Sprintf(`{"type":"echo","callback_url":%q}`, m.URL+"/hooks/"+key)).want(t, http.StatusAccepted) // the key was not used up
			m.got(key, 1)
		}
		for _, value := range []string{`""`, `7`, `["x"]`} {
			g.submit("bad", `{"type":"echo","callback_url":`+value+`}`).problem(t, http.StatusBadRequest, "validation-failed")
		}
		g.submit("null", `{"type":"echo","callback_url":null}`).want(t, http.StatusAccepted)

		g.submit("mine", `{"type":"sekali.callback"}`).problem(t, http.StatusBadRequest, "unknown-job-type")
		batch := g.do(http.MethodPost, "/jobs/batch", fmt.Sprintf(`[{"key":"b1","type":"echo","callback_url":"http://evil.example/"},{"key":"b2","type":"echo","callback_url":%q},{"key":"b3","type":"sekali.callback"}]`, m.URL+"/hooks/b"), jsonType)
		results := batch.want(t, http.StatusMultiStatus).json(t)["results"].([]any)
		for i, want := range []string{"400", "202", "400"} {
			if got := fmt.Sprint(results[i].(map[string]any)["status"]); got != want {
				t.Errorf("item %d of the batch: %s, want %s", i, got, want)
			}
		}
		m.got("b2", 1)

		// The fingerprint has it.
		g.submit("print", fmt.Sprintf(`{"type":"echo","callback_url":%q}`, m.URL+"/hooks/1")).want(t, http.StatusAccepted)
		g.submit("print", fmt.Sprintf(`{"type":"echo","callback_url":%q}`, m.URL+"/hooks/2")).problem(t, http.StatusUnprocessableEntity, "idempotency-key-reused")

		// Callbacks are jobs like others: they can be paused.
		g.do(http.MethodPost, "/executors/sekali.callback/pause", "").want(t, http.StatusOK)
		j := g.submit("paused", fmt.Sprintf(`{"type":"own","callback_url":%q}`, m.URL+"/hooks/p")).want(t, http.StatusAccepted).json(t)
		is(t, g.finished("paused"), "succeeded", "status")
		is(t, g.get("/jobs/callback:"+fmt.Sprint(j["id"])).json(t), "pending", "status")
		is(t, g.get("/executors/sekali.callback").json(t), "sekali.callback callback", "name", "executor")
		g.do(http.MethodPost, "/executors/sekali.callback/resume", "").want(t, http.StatusOK)
		m.got("paused", 1)
	})
}
