package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/testenv"
)

// remote has a type for workers outside. The lease is long enough for a slow machine
// to keep it, and short enough to wait for.
const remote = "job_types: {outside: {executor: remote, lease: 3s}}"

// longHeld is the same type for what does not wait for the end of a lease: none ends
// while a machine is slow.
const longHeld = "job_types: {outside: {executor: remote, lease: 1m}}"

// keyless is said of a key that a call has and does not need.
const keyless = "Idempotency-Status: ignored"

// execution is a claimed job as its worker got it.
type execution struct {
	g      *gateway
	ID     string
	Key    string
	Token  string `json:"lease_token"`
	Fence  int    `json:"fencing_token"`
	Left   int64  `json:"lease_ms"`
	Ends   time.Time
	Number int `json:"attempt"`
	whole  map[string]any
}

// claim sends a claim.
func (g *gateway) claim(body string, headers ...string) answer {
	g.t.Helper()
	return g.do(http.MethodPost, "/executions/claim", body, append(headers, jsonType, "Idempotency-Key: op")...)
}

// claimed claims one job of the type outside, waiting for it.
func (g *gateway) claimed(worker string, headers ...string) execution {
	g.t.Helper()
	for range 3 {
		a := g.claim(fmt.Sprintf(`{"worker":%q,"types":["outside"],"wait_seconds":20}`, worker), headers...).want(g.t, http.StatusOK)
		if list := a.executions(g); len(list) > 0 {
			return list[0]
		}
	}
	g.t.Fatalf("%s gets no job", worker)
	return execution{}
}

func (a answer) executions(g *gateway) []execution {
	g.t.Helper()
	var list struct {
		Executions []json.RawMessage `json:"executions"`
	}
	if err := json.Unmarshal(a.body, &list); err != nil {
		g.t.Fatalf("%d %s: %v", a.StatusCode, a.body, err)
	}
	executions := make([]execution, len(list.Executions))
	for i, text := range list.Executions {
		e := execution{g: g}
		if err := json.Unmarshal(text, &e); err != nil {
			g.t.Fatal(err)
		}
		_ = json.Unmarshal(text, &e.whole)
		e.Ends, _ = time.Parse(time.RFC3339, fmt.Sprint(e.whole["lease_expires_at"]))
		executions[i] = e
	}
	return executions
}

// say makes a call about the execution, with more members of its body.
func (e execution) say(call, more string, headers ...string) answer {
	e.g.t.Helper()
	body := fmt.Sprintf(`{"lease_token":%q%s}`, e.Token, more)
	return e.g.do(http.MethodPost, "/executions/"+e.ID+"/"+call, body, append(headers, jsonType, "Idempotency-Key: op")...)
}

// moreOf is what each call about an execution needs beside the token.
var moreOf = map[string]string{"heartbeat": "", "complete": `,"result":"late"`, "fail": `,"error":"late"`, "release": ""}

// lost fails unless all calls about the execution get 410 and change nothing.
func (e execution) lost(t testing.TB) {
	t.Helper()
	before := string(e.g.get("/jobs/" + e.Key).body)
	for call, more := range moreOf {
		e.say(call, more).want(t, http.StatusGone, keyless).refused(t, http.StatusGone, "lease-lost", false)
	}
	if after := string(e.g.get("/jobs/" + e.Key).body); after != before {
		t.Errorf("stale calls changed the job:\n%s\n%s", before, after)
	}
}

func (g *gateway) outside(key string, more ...string) {
	g.t.Helper()
	g.submit(key, `{"type":"outside","payload":{"n" : 1.50,"of":"`+key+`"}`+strings.Join(more, "")+`}`).want(g.t, http.StatusAccepted)
}

func TestContract_Row104_AClaimHandsOutJobsUnderALease(t *testing.T) {
	onGateway(t, both(t, longHeld, "job_types: {other: {executor: remote, lease: 1m}}"), func(t *testing.T, g *gateway) {
		if list := g.claim(`{"worker":"w1","types":["outside","other"],"wait_seconds":1}`).want(t, http.StatusOK, keyless, "Cache-Control: no-store", "Retry-After:").executions(g); len(list) != 0 {
			t.Fatalf("%+v", list)
		}
		g.outside("a", `,"timeout_seconds":67`)
		first := g.claimed("w 1")
		is(t, first.whole, "a outside default 1 10 1", "key", "type", "tenant", "attempt", "max_attempts", "fencing_token")
		if first.Left <= 0 || first.Left > 61_000 { // its end is the database's reckoning, and what is left the gateway's
			t.Errorf("the lease of a minute lasts %d ms", first.Left)
		}
		j := g.get("/jobs/a").json(t)
		is(t, j, "processing w 1 1", "status", "worker_id", "attempts")
		if first.ID != j["id"] || string(payloadOf(t, g, "a")) != `{"n" : 1.50,"of":"a"}` {
			t.Errorf("%+v of %v", first, j)
		}
		deadline, _ := time.Parse(time.RFC3339, fmt.Sprint(first.whole["deadline"]))
		// SQLite reads the clock for each of the two: a millisecond may lie between.
		if left := deadline.Sub(first.Ends).Round(100 * time.Millisecond); left != 7*time.Second {
			t.Errorf("the attempt of 67 seconds ends %v after its lease of 60", left)
		}
		for i := range 5 {
			g.outside(fmt.Sprint("b", i))
		}
		g.submit("c", `{"type":"other"}`).want(t, http.StatusAccepted)
		list := g.claim(`{"worker":"w2","types":["outside","other","outside"],"max":4}`).want(t, http.StatusOK).executions(g)
		types := map[any]int{}
		for _, e := range list {
			types[e.whole["type"]]++
		}
		if types["outside"] != 3 || types["other"] != 1 {
			t.Errorf("four jobs of two types: %v", types)
		}
		rest := g.claim(`{"worker":"w3","types":["outside"],"max":100}`).want(t, http.StatusOK).executions(g)
		seen := map[string]bool{first.ID: true}
		for _, e := range append(list, rest...) {
			if seen[e.ID] {
				t.Errorf("%s was handed out twice", e.Key)
			}
			seen[e.ID] = true
		}
		if len(seen) != 7 {
			t.Errorf("%d jobs were handed out", len(seen))
		}
		g.tellsOfWorkers(t)
	})
}

// payloadOf is the payload of the job as it stands in its document.
func payloadOf(t testing.TB, g *gateway, key string) json.RawMessage {
	t.Helper()
	var j struct{ Payload json.RawMessage }
	if err := json.Unmarshal(g.get("/jobs/"+key).body, &j); err != nil {
		t.Fatal(err)
	}
	return j.Payload
}

// tellsOfWorkers looks for the workers of the test above in the overview.
func (g *gateway) tellsOfWorkers(t testing.TB) {
	t.Helper()
	testenv.Eventually(t, 0, "the overview has all that runs", func() bool {
		x := g.get("/executors/outside").want(t, http.StatusOK).json(t)
		running, _ := x["running"].([]any)
		names := map[any]int{}
		for _, r := range running {
			names[r.(map[string]any)["worker_id"]]++
		}
		return x["executor"] == "remote" && names["w 1"] == 1 && names["w2"] == 3 && names["w3"] == 2
	})
}

func TestContract_Row104_WrongClaimsAreRefused(t *testing.T) {
	t.Parallel()
	g := start(t, testenv.SQLite(t), both(t, remote, "limits: {waiters: 0}"))
	long := strings.Repeat("w", 101)
	for body, pointer := range map[string]string{
		`{"types":["outside"]}`:                                 "/worker",
		`{"worker":"","types":["outside"]}`:                     "/worker",
		`{"worker":"` + long + `","types":["outside"]}`:         "/worker",
		`{"worker":"\u00e9","types":["outside"]}`:               "/worker",
		`{"worker":"a\nb","types":["outside"]}`:                 "/worker",
		`{"worker":"w"}`:                                        "/types",
		`{"worker":"w","types":[]}`:                             "/types",
		`{"worker":"w","types":"outside"}`:                      "/types",
		`{"worker":"w","types":["outside",1]}`:                  "/types",
		`{"worker":"w","types":["outside","nobody"]}`:           "/types/1",
		`{"worker":"w","types":["echo"]}`:                       "/types/0",
		`{"worker":"w","types":["outside"],"max":0}`:            "/max",
		`{"worker":"w","types":["outside"],"max":101}`:          "/max",
		`{"worker":"w","types":["outside"],"wait_seconds":61}`:  "/wait_seconds",
		`{"worker":"w","types":["outside"],"wait_seconds":-1}`:  "/wait_seconds",
		`{"worker":"w","types":["outside"],"wait_seconds":1.5}`: "/wait_seconds",
		`{"worker":"w","types":["outside"],"wait":1}`:           "/wait",
		`{"worker":"w","worker":"v","types":["outside"]}`:       "",
		`["w"]`:                                "",
		`{"worker":"w","types":["outside"]} x`: "",
	} {
		p := g.claim(body).problem(t, http.StatusBadRequest, "validation-failed")
		errs, _ := p["errors"].([]any)
		if len(errs) == 0 || pointer != "" && errs[0].(map[string]any)["pointer"] != pointer {
			t.Errorf("%s: %v", body, errs)
		}
	}
	// Nobody may wait here.
	a := g.claim(`{"worker":"w1","types":["outside"],"wait_seconds":60}`).want(t, http.StatusOK, "Retry-After: *")
	if list := a.executions(g); len(list) != 0 {
		t.Errorf("%+v", list)
	}
}

func TestContract_Row105_AHeartbeatKeepsTheLeaseUpToTheDeadline(t *testing.T) {
	onGateway(t, remote, func(t *testing.T, g *gateway) {
		g.outside("a", `,"timeout_seconds":4`)
		e := g.claimed("w1")
		claimedAt := e.Ends.Add(-3 * time.Second)
		last := time.Time{}
		// The claim's end is by the clock of the database, and a heartbeat's by what the
		// gateway takes for that: until they are apart, the one may look earlier.
		testenv.Eventually(t, 0, "heartbeats let the lease end later", func() bool {
			beat := e.say("heartbeat", "").want(t, http.StatusOK, keyless, "Cache-Control: no-store").json(t)
			ends, err := time.Parse(time.RFC3339, fmt.Sprint(beat["lease_expires_at"]))
			if err != nil || ends.Before(last) || beat["cancel_requested"] != false {
				t.Errorf("%v after %v: %v", beat, last, err)
			}
			last = ends
			return ends.After(e.Ends)
		})
		g.cancel("a").want(t, http.StatusAccepted)
		is(t, e.say("heartbeat", "").want(t, http.StatusOK).json(t), "true", "cancel_requested")
		slowest := time.Duration(0) // what is left is reckoned before the lease is written: it may end so much later
		testenv.Eventually(t, 30*time.Second, "the lease is lost in spite of heartbeats", func() bool {
			asked := time.Now()
			a := e.say("heartbeat", "")
			slowest = max(slowest, time.Since(asked))
			if a.StatusCode == http.StatusOK {
				if ends, _ := time.Parse(time.RFC3339, fmt.Sprint(a.json(t)["lease_expires_at"])); ends.Sub(claimedAt) > 4100*time.Millisecond+slowest {
					t.Errorf("a lease goes on for %v", ends.Sub(claimedAt))
				}
			}
			return a.StatusCode == http.StatusGone
		})
		j := g.finished("a")
		is(t, j, "cancelled", "status") // since somebody had asked for that
		if text := failure(j); !strings.HasPrefix(text, "timeout ") {
			t.Errorf("error %s", text)
		}
		e.lost(t)
	})
}

func TestContract_Row106_CompleteEndsTheJobOnce(t *testing.T) {
	onGateway(t, both(t, longHeld, "limits: {result: 1KiB}"), func(t *testing.T, g *gateway) {
		g.outside("a")
		e := g.claimed("w1")
		const result = `{"total" : 4200.00, "of":[1,2]}`
		first := e.say("complete", `,"result":`+result).want(t, http.StatusOK, keyless, "Job-Status: succeeded", "Cache-Control: no-store")
		is(t, first.json(t), "a succeeded w1 1", "key", "status", "worker_id", "attempts")
		if got := g.get("/jobs/a/result").want(t, http.StatusOK, "Content-Type: application/json"); string(got.body) != result {
			t.Errorf("result %s", got.body)
		}
		for range 2 {
			if again := e.say("complete", `,"result":`+result).want(t, http.StatusOK); string(again.body) != string(first.body) {
				t.Errorf("again:\n%s\n%s", again.body, first.body)
			}
		}
		for _, other := range []string{`{"total":4200.00,"of":[1,2]}`, "null", `"x"`} {
			e.say("complete", `,"result":`+other).want(t, http.StatusUnprocessableEntity, keyless).refused(t, http.StatusUnprocessableEntity, "execution-already-finished", false)
		}
		e.say("complete", "").refused(t, http.StatusUnprocessableEntity, "execution-already-finished", false)
		forged := e
		forged.Token = "1.AAAAAAAAAAAAAAAAAAAAAA"
		forged.say("complete", `,"result":"x"`).refused(t, http.StatusGone, "lease-lost", false)
		for _, call := range []string{"heartbeat", "fail", "release"} {
			e.say(call, moreOf[call]).refused(t, http.StatusGone, "lease-lost", false)
		}

		g.outside("b")
		e = g.claimed("w1")
		p := e.say("complete", `,"result":"`+strings.Repeat("x", 1023)+`"`).refused(t, http.StatusRequestEntityTooLarge, "request-too-large", false)
		if text := fmt.Sprint(p["detail"]); p["limit"] != json.Number("1024") || !strings.Contains(text, "limits.result") {
			t.Errorf("%v", p)
		}
		e.say("complete", `,"result":"`+strings.Repeat("x", 100_000)+`"`).refused(t, http.StatusRequestEntityTooLarge, "request-too-large", false)
		is(t, g.get("/jobs/b").json(t), "processing 2", "status", "version")
		e.say("complete", "").want(t, http.StatusOK)
		e.say("complete", `,"result":null`).want(t, http.StatusOK)
		g.get("/jobs/b/result").problem(t, http.StatusNotFound, "job-has-no-result")
		is(t, g.events(t, "b")[len(g.events(t, "b"))-1], "succeeded", "event")
	})
}
