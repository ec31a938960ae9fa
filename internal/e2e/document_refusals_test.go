package e2e_test

import (
	"bytes"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/testenv"
)

// ask sends a request for the operation, one that is sound in itself: it is
// about the job k, an execution of no job, or the job type echo, and its own key is op, also where a key
// is ignored.
func (g *gateway) ask(op *apiOperation, headers ...string) answer {
	g.t.Helper()
	headers = append(headers, "Idempotency-Key: op")
	if body := bodies[op.id]; body != "" {
		return g.do(op.method, op.sample(), body, append(headers, jsonType)...)
	}
	return g.do(op.method, op.sample(), "", headers...)
}

var bodies = map[string]string{
	"submitJob": `{"type":"echo"}`, "submitBatch": `[{"key":"op","type":"echo"}]`, "resolveJob": `{"status":"failed"}`,
	"claimExecutions": `{"worker":"w","types":["outside"]}`, "heartbeatExecution": `{"lease_token":"1.x"}`, "completeExecution": `{"lease_token":"1.x"}`,
	"failExecution": `{"lease_token":"1.x","error":"x"}`, "releaseExecution": `{"lease_token":"1.x"}`,
}

func (op *apiOperation) sample() string {
	return strings.NewReplacer("{key}", "k", "{name}", "echo", "{id}", "019876a5-4c2e-7b1d-8f3a-2d5c9e7b1a40").Replace(strings.Join(op.path, "/"))
}

// documented returns the operations that list the problem.
func documented(t testing.TB, status int, code string) []*apiOperation {
	t.Helper()
	c, err := document()
	if err != nil {
		t.Fatal(err)
	}
	var found []*apiOperation
	for _, op := range c.operations {
		if slices.Contains(op.answers[status].codes, code) {
			found = append(found, op)
		}
	}
	if len(found) == 0 {
		t.Fatalf("nothing documents %d %s", status, code)
	}
	return found
}

// again lists statuses after which the same request may be sent again.
var again = []int{http.StatusRequestTimeout, http.StatusConflict, http.StatusTooManyRequests, http.StatusServiceUnavailable}

// refuses fails unless each operation that documents the problem answers with it,
// without the ones that are left out.
func (g *gateway) refuses(t testing.TB, status int, code string, without ...string) {
	t.Helper()
	for _, op := range documented(t, status, code) {
		if !slices.Contains(without, op.id) {
			g.ask(op).refused(t, status, code, slices.Contains(again, status))
		}
	}
}

// Every refusal that the document lists for an operation is one that a client can
// get. Those that hang on the state of a job are in the tests of its rows too.
func TestContract_Document_EveryRefusalOfEveryRoute(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(*testing.T){
		"nobody's request": refusedAsNobodys, "the rate": refusedByRate, "no database": refusedWithoutSchema, "draining": refusedWhileDraining,
		"lost answers": refusedInDoubt, "broken database": refusedByDefect, "bodies": refusedBodies, "stalled bodies": refusedStalledBodies,
		"nothing there": refusedAsUnknown, "wrong requests": refusedAsWrong, "expired": refusedAsExpired, "wrong state": refusedByState, "in use": refusedAsInUse,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t)
		})
	}
}

func refusedAsNobodys(t *testing.T) {
	database := testenv.SQLite(t)
	_, powerless := token(t, database, "--tenant", "one", "--permissions", "proxy")
	g := start(t, database, withKeys)
	g.refuses(t, http.StatusUnauthorized, "unauthenticated")
	for _, op := range documented(t, http.StatusForbidden, "forbidden") {
		g.ask(op, bearer(powerless)).refused(t, http.StatusForbidden, "forbidden", false)
	}
	c, _ := document()
	for _, op := range c.operations {
		if _, asked := op.answers[http.StatusUnauthorized]; !asked {
			if a := g.ask(op); a.StatusCode >= http.StatusBadRequest && op.id != "getReadiness" {
				t.Errorf("%s asks for a token: %d", op.id, a.StatusCode)
			}
		}
	}
}

func refusedByRate(t *testing.T) {
	g := start(t, testenv.SQLite(t), "limits: {rate: 1/h}")
	g.get("/jobs").want(t, http.StatusOK)
	g.refuses(t, http.StatusTooManyRequests, "rate-limited")
}

// A database without tables is, to all requests, one that is not there.
func refusedWithoutSchema(t *testing.T) {
	g := start(t, testenv.SQLite(t), "migrate: false")
	g.refuses(t, http.StatusServiceUnavailable, "idempotency-store-unavailable")
	g.refuses(t, http.StatusServiceUnavailable, "store-unavailable")
}

func refusedWhileDraining(t *testing.T) {
	r := newHeldReceiver(t)
	g := start(t, testenv.SQLite(t), both(t, r.config(), "dispatcher: {shutdown_grace: 30s}"))
	g.submit("running", `{"type":"call"}`).want(t, http.StatusAccepted)
	next(t, r.begun, 1, "begun")
	g.draining()
	g.refuses(t, http.StatusServiceUnavailable, "shutting-down")
	close(r.let[1])
}

// refusedInDoubt loses the answers to what is written: from the statement that
// writes, or from the commit after it, nothing comes back any more.
func refusedInDoubt(t *testing.T) {
	database, d := testenv.Postgres(t), newDoubtful(t)
	w := newWire(t, database)
	works := start(t, database, d.config())
	works.ended(t, "wrong", `{"type":"wrong"}`)
	works.park(t, "doubt", `{"type":"pay"}`)
	id, _ := works.submit("waits", `{"type":"wrong","delay_seconds":3600}`).json(t)["id"].(string)
	g := start(t, w.url, both(t, d.config(), outsideOfOddLease, "dispatcher: {slots: 0}"))
	refusedWorkersInDoubt(t, w, g)
	const typeAlone = "\x00\x00\x00\x05wrong" // as a parameter, not in a list of types
	for name, c := range map[string]struct{ path, written, from string }{
		"submitJob":      {"/jobs", "key-submitJob", "key-submitJob"},
		"retryJob":       {"/jobs/wrong/retry", "key-retryJob", "COMMIT"},
		"resolveJob":     {"/jobs/doubt/resolve", "key-resolveJob", "COMMIT"},
		"cancelJob":      {"/jobs/waits/cancel", id, id},
		"pauseExecutor":  {"/executors/wrong/pause", typeAlone, typeAlone},
		"resumeExecutor": {"/executors/wrong/resume", typeAlone, typeAlone},
	} {
		call := func() answer {
			return g.do(http.MethodPost, c.path, bodies[name], jsonType, "Idempotency-Key: key-"+name)
		}
		w.rule(losing(c.written, c.from))
		a := call()
		w.rule(nil)
		a.refused(t, http.StatusServiceUnavailable, "idempotency-outcome-unknown-retry", true)
		testenv.Eventually(t, 20*time.Second, name+" works again", func() bool { return call().StatusCode < http.StatusMultipleChoices })
	}
}

// outsideOfOddLease is a type of jobs for workers whose lease is in no other
// statement than a claim and a heartbeat.
const outsideOfOddLease = "job_types: {outside: {executor: remote, lease: 54321ms}}"

// refusedWorkersInDoubt loses the answers to what workers say, each at the statement
// that writes it: what is said is known by something that only that one has.
func refusedWorkersInDoubt(t *testing.T, w *wire, g *gateway) {
	for call, written := range map[string]string{
		"heartbeat": "54321", "complete": "\x00\x00\x00\x09succeeded", "fail": `"failed"`, "release": `"released"`,
	} {
		g.outside("for-" + call)
		e := g.claimed("w-" + call)
		w.rule(losing(written, written))
		a := e.say(call, moreOf[call])
		w.rule(nil)
		a.refused(t, http.StatusServiceUnavailable, "idempotency-outcome-unknown-retry", true)
		testenv.Eventually(t, 20*time.Second, call+" works again", func() bool { return e.say(call, moreOf[call]).StatusCode < http.StatusMultipleChoices })
		e.say("complete", "") // where it has not ended
		testenv.Eventually(t, 20*time.Second, "nothing waits", func() bool {
			return len(g.claim(`{"worker":"w","types":["outside"],"max":100}`).executions(g)) == 0
		})
	}
	const claim = `{"worker":"w-of-no-other-call","types":["outside"]}`
	w.rule(losing("w-of-no-other-call", "w-of-no-other-call"))
	a := g.claim(claim)
	w.rule(nil)
	a.refused(t, http.StatusServiceUnavailable, "idempotency-outcome-unknown-retry", true)
	testenv.Eventually(t, 20*time.Second, "claims work again", func() bool { return g.claim(claim).StatusCode == http.StatusOK })
}

// losing hands nothing on any more once something has been written, from the
// bytes that decide on it.
func losing(written, from string) func(sent []byte) fate {
	var begun, lost atomic.Bool
	return func(sent []byte) fate {
		begun.CompareAndSwap(false, bytes.Contains(sent, []byte(written)))
		if begun.Load() && bytes.Contains(sent, []byte(from)) {
			lost.Store(true)
		}
		if lost.Load() {
			return cut
		}
		return pass
	}
}
