package e2e_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/sekali/sekali/internal/testenv"
)

// ledger is a receiver that tells its work from its answers. The path of a call
// says what the first one of a job does and how that ends, /done/reset; later
// ones work and answer. It recognises no repetition: each call that works is one
// more piece of work. Asked, it tells the truth, at once or later.
type ledger struct {
	*httptest.Server
	begun chan string // keys of calls and questions that are held

	mu           sync.Mutex
	calls, asked map[string]int             // by the client's key
	work         map[string]int             // likewise
	jobs         map[string]map[string]bool // path → Idempotency-Keys that worked
}

func newLedger(t testing.TB) *ledger {
	l := &ledger{
		begun: make(chan string, 64), calls: map[string]int{}, asked: map[string]int{}, work: map[string]int{},
		jobs: map[string]map[string]bool{},
	}
	l.Server = httptest.NewServer(http.HandlerFunc(l.serve))
	t.Cleanup(func() {
		l.CloseClientConnections()
		l.Close()
	})
	return l
}

func (l *ledger) serve(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	if r.Method == http.MethodGet {
		l.answer(w, r, parts[1])
		return
	}
	key := r.Header.Get("Sekali-Key")
	l.mu.Lock()
	l.calls[key]++
	n := l.calls[key]
	if parts[0] == "done" || n > 1 {
		l.work[key]++
		l.jobs[r.URL.Path] = with(l.jobs[r.URL.Path], r.Header.Get("Idempotency-Key"))
	}
	l.mu.Unlock()
	end := "ok"
	if n == 1 {
		end = parts[1]
	}
	l.end(w, r, end, n)
}

func with(set map[string]bool, member string) map[string]bool {
	if set == nil {
		set = map[string]bool{}
	}
	set[member] = true
	return set
}

// workers is how many jobs did work at the path.
func (l *ledger) workers(path string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.jobs[path])
}

func (l *ledger) end(w http.ResponseWriter, r *http.Request, end string, n int) {
	switch end {
	case "hold":
		l.begun <- r.Header.Get("Sekali-Key")
		<-r.Context().Done()
	case "silence":
		<-r.Context().Done()
	case "reset":
		conn, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			_ = conn.(*net.TCPConn).SetLinger(0)
			_ = conn.Close()
		}
	case "half":
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, `{"work":`)
		panic(http.ErrAbortHandler)
	case "500":
		w.WriteHeader(http.StatusInternalServerError)
	default:
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"work": %d}`, n)
	}
}

func (l *ledger) answer(w http.ResponseWriter, r *http.Request, say string) {
	key := r.Header.Get("Sekali-Key")
	l.mu.Lock()
	l.asked[key]++
	n, did := l.asked[key], l.work[key] > 0
	l.mu.Unlock()
	switch {
	case say == "late" && n <= 2:
		w.WriteHeader([]int{0, http.StatusAccepted, http.StatusServiceUnavailable}[n])
	case say == "hold" && n == 1:
		l.begun <- key
		<-r.Context().Done()
	case say == "members" && !did:
		_, _ = io.WriteString(w, `{"status":"not_done"}`)
	case say == "members":
		_, _ = io.WriteString(w, `{"status":"done","result":{ "receipt" : 1.0 }}`)
	case !did:
		w.WriteHeader(http.StatusNotFound)
	default:
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{ "receipt": 1.0 }`)
	}
}

// counts are the calls, questions and pieces of work of a key.
func (l *ledger) counts(key string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fmt.Sprint(l.calls[key], l.asked[key], l.work[key])
}

// doubt is one way to leave the outcome unknown, or not.
type doubt struct {
	policy   string
	max      int
	path     string // of the call, "" for a receiver that is not there
	say      string // how the question is answered
	job      string // status, outcome and attempts in the end
	attempts string // their outcomes
	code     string // of the first attempt's error
	answers  string // to the questions, as the timeline tells
	counts   string // calls, questions, pieces of work
	result   string
}

var doubts = map[string]doubt{
	"retry-reset":            {"retry", 5, "/done/reset", "", "succeeded <nil> 2", "lost succeeded", "connection", "", "2 0 2", `{"work": 2}`},
	"retry-half":             {"retry", 5, "/done/half", "", "succeeded <nil> 2", "lost succeeded", "connection", "", "2 0 2", `{"work": 2}`},
	"retry-silence":          {"retry", 5, "/undone/silence", "", "succeeded <nil> 2", "lost succeeded", "timeout", "", "2 0 1", `{"work": 2}`},
	"reconcile-reset":        {"reconcile", 5, "/done/reset", "truth", "succeeded <nil> 2", "lost succeeded", "connection", "done", "1 1 1", `{ "receipt": 1.0 }`},
	"reconcile-undone":       {"reconcile", 5, "/undone/reset", "truth", "succeeded <nil> 2", "lost succeeded", "connection", "not_done", "2 1 1", `{"work": 2}`},
	"reconcile-silence":      {"reconcile", 5, "/done/silence", "members", "succeeded <nil> 2", "lost succeeded", "timeout", "done", "1 1 1", `{ "receipt" : 1.0 }`},
	"reconcile-half-undone":  {"reconcile", 5, "/undone/half", "members", "succeeded <nil> 2", "lost succeeded", "connection", "not_done", "2 1 1", `{"work": 2}`},
	"reconcile-late":         {"reconcile", 5, "/done/half", "late", "succeeded <nil> 2", "lost released released succeeded", "connection", "unknown unknown done", "1 3 1", `{ "receipt": 1.0 }`},
	"reconcile-late-undone":  {"reconcile", 2, "/undone/reset", "late", "succeeded <nil> 2", "lost released released succeeded", "connection", "unknown unknown not_done", "2 3 1", `{"work": 2}`},
	"reconcile-once":         {"reconcile", 1, "/done/reset", "truth", "succeeded <nil> 2", "lost succeeded", "connection", "done", "1 1 1", `{ "receipt": 1.0 }`},
	"reconcile-once-undone":  {"reconcile", 1, "/undone/silence", "truth", "failed <nil> 2", "lost failed", "timeout", "not_done", "1 1 0", ""},
	"park-reset":             {"park", 5, "/done/reset", "", "failed outcome_unknown 1", "lost", "connection", "", "1 0 1", ""},
	"park-silence":           {"park", 5, "/undone/silence", "", "failed outcome_unknown 1", "lost", "timeout", "", "1 0 0", ""},
	"park-answered":          {"park", 5, "/undone/500", "", "succeeded <nil> 2", "failed succeeded", "http-status", "", "2 0 1", `{"work": 2}`},
	"park-refused":           {"park", 2, "", "", "failed <nil> 2", "failed failed", "connection", "", "0 0 0", ""},
	"reconcile-refused":      {"reconcile", 2, "", "truth", "failed <nil> 2", "failed failed", "connection", "", "0 0 0", ""},
	"reconcile-answered-500": {"reconcile", 5, "/undone/500", "truth", "succeeded <nil> 2", "failed succeeded", "http-status", "", "2 0 1", `{"work": 2}`},
}

// config is a job type for each doubt, of its name.
func (l *ledger) config(t testing.TB, cases map[string]doubt) string {
	t.Helper()
	const nobody = "http://127.0.0.1:1" // nobody ever listens there, and the connection is refused
	var b strings.Builder
	b.WriteString("job_types:\n")
	for name, d := range cases {
		url, ask, timeout := l.URL+d.path, "", "1m"
		if strings.HasSuffix(d.path, "/silence") {
			timeout = "2s"
		}
		if d.path == "" {
			url = nobody
		}
		if d.say != "" {
			ask = fmt.Sprintf(", reconcile_url: %q", l.URL+"/asked/"+d.say)
		}
		fmt.Fprintf(&b, "  %s: {executor: http, timeout: %s, max_attempts: %d, on_unknown_outcome: %s, http: {url: %q%s}}\n", name, timeout, d.max, d.policy, url, ask)
	}
	return b.String()
}

// settled fails unless the job of the name has ended as the doubt says.
func (l *ledger) settled(t testing.TB, g *gateway, name string, d doubt) {
	t.Helper()
	j := g.finished(name)
	is(t, j, d.job, "status", "outcome", "attempts")
	if got := l.counts(name); got != d.counts {
		t.Errorf("%s: calls, questions and work %s, want %s", name, got, d.counts)
	}
	attempts := g.attempts(t, name)
	if got := column(attempts, "outcome"); got != d.attempts {
		t.Errorf("%s: attempts %s, want %s", name, got, d.attempts)
	}
	if e, _ := attempts[0]["error"].(map[string]any); d.code != "" && e["code"] != d.code {
		t.Errorf("%s: the first attempt ended with %v, want %s", name, attempts[0]["error"], d.code)
	}
	result := g.get("/jobs/" + name + "/result")
	if d.result == "" {
		result.problem(t, http.StatusNotFound, "job-has-no-result")
	} else if string(result.body) != d.result {
		t.Errorf("%s: the result is %s, want %s", name, result.body, d.result)
	}
	told := ""
	testenv.Eventually(t, 0, name+" tells the answers to its questions", func() bool {
		var answers []string
		for _, e := range g.events(t, name) {
			if e["event"] == "reconciled" {
				answers = append(answers, fmt.Sprint(e["data"].(map[string]any)["answer"]))
			}
		}
		told = strings.Join(answers, " ")
		return len(told) >= len(d.answers)
	})
	if told != d.answers {
		t.Errorf("%s: the questions were answered %q, want %q", name, told, d.answers)
	}
}

func TestContract_Row75a_BR57_BR71_WhatBecomesOfAnUnknownOutcome(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		l := newLedger(t)
		g := start(t, database, both(t, fastTry, l.config(t, doubts), "defaults: {lease: 30s}")) // none ends by its lease here
		for name := range doubts {
			g.submit(name, fmt.Sprintf(`{"type":%q}`, name)).want(t, http.StatusAccepted)
		}
		for name, d := range doubts {
			l.settled(t, g, name, d)
		}
		if n := g.measured("sekali_reconciled_total", `answer="unknown"`); n != 4 {
			t.Errorf("%v questions are counted as answered unknown, want 4", n)
		}

		// Who has looked says so: with the result, byte for byte, or that it failed.
		a := g.resolve("park-reset", "op-1", `{"status":"succeeded","result":{ "seen" : 1.0 }}`).want(t, http.StatusOK, "Idempotent-Replayed: false")
		is(t, a.json(t), "succeeded <nil> <nil> 1", "status", "outcome", "error", "attempts")
		if got := g.get("/jobs/park-reset/result").want(t, http.StatusOK); string(got.body) != `{ "seen" : 1.0 }` {
			t.Errorf("the resolved result is %s", got.body)
		}
		g.resolve("park-silence", "op-2", `{"status":"failed"}`).want(t, http.StatusOK)
		is(t, g.get("/jobs/park-silence").json(t), "failed <nil>", "status", "outcome")
		g.retry("park-silence", "op-3").want(t, http.StatusAccepted)
		is(t, g.finished("park-silence"), "succeeded <nil> 2", "status", "outcome", "attempts")
		for name, counts := range map[string]string{"park-reset": "1 0 1", "park-silence": "2 0 1"} {
			if got := l.counts(name); got != counts {
				t.Errorf("%s: calls, questions and work %s, want %s", name, got, counts)
			}
		}
		// What had an outcome is not for operators to settle.
		g.resolve("park-refused", "op-4", `{"status":"succeeded"}`).problem(t, http.StatusUnprocessableEntity, "job-not-resolvable")
		sound(t, beside(t, database))
	})
}
