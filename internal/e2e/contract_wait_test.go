package e2e_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/testenv"
)

// held is a receiver that keeps each job's call until the job is released.
type held struct {
	*httptest.Server
	mu   sync.Mutex
	jobs map[string]*heldJob
}

type heldJob struct {
	calls   int
	arrived chan struct{}
	free    chan struct{}
}

func newHeld(t testing.TB) *held {
	h := &held{jobs: map[string]*heldJob{}}
	h.Server = httptest.NewServer(http.HandlerFunc(h.serve))
	t.Cleanup(func() {
		h.CloseClientConnections()
		h.Close()
	})
	return h
}

func (h *held) job(key string) *heldJob {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.jobs[key] == nil {
		h.jobs[key] = &heldJob{arrived: make(chan struct{}), free: make(chan struct{})}
	}
	return h.jobs[key]
}

func (h *held) serve(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	j := h.job(r.Header.Get("Sekali-Key"))
	h.mu.Lock()
	if j.calls++; j.calls == 1 {
		close(j.arrived)
	}
	h.mu.Unlock()
	select {
	case <-j.free:
	case <-r.Context().Done():
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, `{"held":true}`)
}

// called waits for the first call of the job.
func (h *held) called(t testing.TB, key string) {
	t.Helper()
	select {
	case <-h.job(key).arrived:
	case <-time.After(30 * time.Second):
		t.Fatalf("job %s was not started", key)
	}
}

// callsOf returns how often the job was called.
func (h *held) callsOf(key string) int {
	j := h.job(key)
	h.mu.Lock()
	defer h.mu.Unlock()
	return j.calls
}

func (h *held) release(key string) { close(h.job(key).free) }

// config makes the receiver a job type, whose jobs are kept through any slow moment:
// they are held for long, and are to be called once.
func (h *held) config(name string) string {
	return fmt.Sprintf("job_types: {%s: {executor: http, lease: 30s, http: {url: %q}}}\n", name, h.URL)
}

// applied fails unless Preference-Applied names exactly these.
func (a answer) applied(t testing.TB, preferences ...string) answer {
	t.Helper()
	got := map[string]bool{}
	for name := range strings.SplitSeq(strings.Join(a.Header.Values("Preference-Applied"), ","), ",") {
		if name = strings.TrimSpace(name); name != "" {
			got[name] = true
		}
	}
	want := map[string]bool{}
	for _, name := range preferences {
		want[name] = true
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("Preference-Applied %v, want %v", a.Header.Values("Preference-Applied"), preferences)
	}
	return a
}

const heldBody = `{"type":"held","payload":{"a":1}}`

func TestContract_Row76_Row77_Row78_Preferences(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		receiver := newHeld(t)
		flaky := newSink(t).types(map[string]string{"flaky": "/flaky?fail=1"})
		g := start(t, database, string(merge(t, receiver.config("held"), flaky)))
		t.Run("Row76 respond-async", func(t *testing.T) {
			g.submit("async", heldBody, "Prefer: respond-async").want(t, http.StatusAccepted, "Retry-After: *", "Job-Status: pending").applied(t, "respond-async")
			receiver.called(t, "async")
			g.submit("async", heldBody, "Prefer: respond-async").want(t, http.StatusAccepted, "Idempotent-Replayed: true", "Job-Status: processing").applied(t, "respond-async")
		})
		t.Run("Row77 the wait runs out", func(t *testing.T) { rowWaitRunsOut(t, g, receiver) })
		t.Run("Row77 finished in time", func(t *testing.T) { rowFinishedInTime(t, g, receiver) })
		t.Run("Row77 malformed and unknown", func(t *testing.T) {
			for _, prefer := range []string{"wait", "wait=", "wait=x", "wait=-1", "wait=1.5", "wait=1s", "wait 1", "foo=bar", "handling=lenient", "return=all", `wait="`, ",", ""} {
				a := g.submit("async", heldBody, "Prefer: "+prefer).want(t, http.StatusAccepted, "Preference-Applied:", "Vary: Prefer")
				if len(a.body) == 0 {
					t.Errorf("Prefer: %s: no body", prefer)
				}
			}
		})
		t.Run("Row78 return=minimal", func(t *testing.T) { rowMinimal(t, g) })
	})
}

func rowWaitRunsOut(t *testing.T, g *gateway, receiver *held) {
	began := time.Now()
	first := g.submit("out", heldBody, "Prefer: wait=1").want(t, http.StatusAccepted, "Idempotent-Replayed: false", "Retry-After: *", "Location: /jobs/out").applied(t, "wait=1")
	if waited := time.Since(began); waited < time.Second {
		t.Errorf("waited %v of a second", waited)
	}
	receiver.called(t, "out")
	both := [][]string{
		{"Prefer: wait=1, respond-async"}, {"Prefer: respond-async", "Prefer: wait=1"}, {`Prefer: Respond-Async;x="a,b", WAIT="1"`},
	}
	answers := make(chan answer, len(both))
	for _, prefer := range both {
		go func() {
			a, _ := g.try(http.MethodPost, "/jobs", heldBody, append(prefer, jsonType, "Idempotency-Key: out")...)
			answers <- a
		}()
	}
	for range both {
		a := <-answers
		if a.Response == nil {
			t.Fatal("a waiting client got no answer")
		}
		a.want(t, http.StatusAccepted, "Idempotent-Replayed: true", "Job-Status: processing", "Retry-After: *").applied(t, "respond-async", "wait=1")
		if !bytes.Equal(a.body, first.body) {
			t.Errorf("after the wait: %s", a.body)
		}
	}
	// What is given twice counts once; no time at all is a time too.
	g.submit("out", heldBody, "Prefer: wait=0", "Prefer: wait=30").want(t, http.StatusAccepted, "Idempotent-Replayed: true").applied(t, "wait=0")
	g.submit("later", `{"type":"echo","delay_seconds":600}`, "Prefer: wait=0").want(t, http.StatusAccepted, "Job-Status: scheduled").applied(t, "wait=0")
}

func rowFinishedInTime(t *testing.T, g *gateway, receiver *held) {
	a := g.submit("quick", echoBody, "Prefer: wait=500").want(t, http.StatusOK, "Idempotent-Replayed: false", "Retry-After:", "Job-Status: succeeded",
		"Location: /jobs/quick", "Idempotency-Expires: *", "Content-Type: application/json").applied(t, "wait=60")
	if current := g.get("/jobs/quick"); !bytes.Equal(a.body, current.body) {
		t.Errorf("not the current job:\n%s\n%s", a.body, current.body)
	}
	// What is stored is row 64 all the same.
	stored := g.submit("quick", echoBody).want(t, http.StatusAccepted, "Idempotent-Replayed: true", "Job-Status: succeeded").applied(t)
	if doc := stored.json(t); doc["status"] != "pending" || doc["result"] != nil {
		t.Errorf("stored: %s", stored.body)
	}
	const huge = "Prefer: respond-async, wait=99999999999999999999"
	g.submit("quick", echoBody, huge).want(t, http.StatusOK, "Idempotent-Replayed: true", "Job-Status: succeeded").applied(t, "wait=60")
	g.submit("quick", echoBody, "Prefer: wait=0").want(t, http.StatusOK, "Idempotent-Replayed: true").applied(t, "wait=0")
	g.submit("quick", `{"type":"echo"}`, "Prefer: wait=30").refused(t, http.StatusUnprocessableEntity, "idempotency-key-reused", false)

	// A failed attempt is no end.
	retried := g.submit("retried", `{"type":"flaky"}`, "Prefer: wait=30").want(t, http.StatusOK, "Job-Status: succeeded").applied(t, "wait=30")
	if attempts := fmt.Sprint(retried.json(t)["attempts"]); attempts != "2" {
		t.Errorf("%s attempts", attempts)
	}
	// Several wait for one job, first and duplicates, and the end wakes them all.
	answers := make(chan answer, 4)
	for range cap(answers) {
		go func() {
			a, _ := g.try(http.MethodPost, "/jobs", heldBody, jsonType, "Idempotency-Key: woken", "Prefer: wait=60")
			answers <- a
		}()
	}
	receiver.called(t, "woken")
	receiver.release("woken")
	fresh := 0
	for range cap(answers) {
		woken := <-answers
		if woken.Response == nil {
			t.Fatal("a waiting client got no answer")
		}
		woken.want(t, http.StatusOK, "Job-Status: succeeded", "Retry-After:").applied(t, "wait=60")
		if woken.Header.Get("Idempotent-Replayed") == "false" {
			fresh++
		}
		if result := fmt.Sprint(woken.json(t)["result"]); result != "map[held:true]" {
			t.Errorf("result %s", result)
		}
	}
	if fresh != 1 || receiver.callsOf("woken") != 1 {
		t.Errorf("%d fresh answers, %d calls", fresh, receiver.callsOf("woken"))
	}
}

func rowMinimal(t *testing.T, g *gateway) {
	minimal := g.submit("min", echoBody, "Prefer: return=minimal").
		want(t, http.StatusAccepted, "Location: /jobs/min", "Retry-After: *", "Job-Status: pending", "Content-Type: application/json").
		keyed(t, "min", false).applied(t, "return=minimal")
	finished := g.submit("min", echoBody, "Prefer: wait=20, return=minimal").
		want(t, http.StatusOK, "Location: /jobs/min", "Job-Status: succeeded", "Idempotency-Expires: *").
		keyed(t, "min", true).applied(t, "wait=20", "return=minimal")
	if len(minimal.body)+len(finished.body) > 0 {
		t.Errorf("bodies %q and %q", minimal.body, finished.body)
	}
	full := g.submit("min", echoBody).want(t, http.StatusAccepted).keyed(t, "min", true).applied(t)
	if doc := full.json(t); doc["key"] != "min" || doc["status"] != "pending" {
		t.Errorf("what is stored is %s", full.body)
	}
	g.submit("min", echoBody, "Prefer: return=representation").want(t, http.StatusAccepted).applied(t)
	if p := g.submit("min", `{"type":"echo"}`, "Prefer: return=minimal"); len(p.body) == 0 {
		t.Error("a problem without its document")
	}
}

func TestContract_Row77_TheConfiguredCapIsGranted(t *testing.T) {
	onGateway(t, "limits: {wait: 1s}", func(t *testing.T, g *gateway) {
		const scheduled = `{"type":"echo","delay_seconds":600}`
		g.submit("k", scheduled, "Prefer: wait=30").want(t, http.StatusAccepted, "Idempotent-Replayed: false").applied(t, "wait=1")
		g.submit("k", scheduled, "Prefer: wait=30").want(t, http.StatusAccepted, "Idempotent-Replayed: true").applied(t, "wait=1")
	})
}

func TestContract_Row79_AClientThatLeavesTakesNothingWithIt(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		receiver := newHeld(t)
		g := start(t, database, receiver.config("held"))
		ctx, leave := context.WithCancel(t.Context())
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, g.url+"/jobs", strings.NewReader(heldBody))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Content-Type", "application/json")
		request.Header.Set("Idempotency-Key", "left")
		request.Header.Set("Prefer", "wait=60")
		left := make(chan error, 1)
		go func() {
			response, err := client.Do(request)
			if err == nil {
				response.Body.Close()
			}
			left <- err
		}()
		receiver.called(t, "left")
		leave()
		if err := <-left; err == nil {
			t.Fatal("the client was answered before it left")
		}
		testenv.Eventually(t, 0, "the gateway lets go of the waiting request", func() bool { return len(g.answered("left")) == 1 })
		g.get("/jobs/left").want(t, http.StatusOK)
		again := make(chan answer, 1)
		go func() {
			a, _ := g.try(http.MethodPost, "/jobs", heldBody, jsonType, "Idempotency-Key: left", "Prefer: wait=60")
			again <- a
		}()
		receiver.release("left")
		a := <-again
		if a.Response == nil {
			t.Fatal("the retry got no answer")
		}
		a.want(t, http.StatusOK, "Idempotent-Replayed: true", "Job-Status: succeeded").applied(t, "wait=60")
		if n := receiver.callsOf("left"); n != 1 {
			t.Errorf("%d calls", n)
		}
	})
}

// answered returns the log's lines about answered submissions of the key.
func (g *gateway) answered(key string) []map[string]any {
	var found []map[string]any
	for _, line := range g.logLines("request answered") {
		if line["idempotency_key"] == key && line["method"] == http.MethodPost {
			found = append(found, line)
		}
	}
	return found
}

const businessBody = `{"type":"held","business_key":"order 7","payload":%d}`

func TestContract_Row80_ABusinessKeyReturnsItsHolder(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		receiver := newHeld(t)
		g := start(t, database, receiver.config("held"))
		body := func(n int) string { return fmt.Sprintf(businessBody, n) }
		holder := g.submit("hold/er", body(1)).want(t, http.StatusAccepted, "Idempotency-Status:", "Location: /jobs/hold%2Fer")
		receiver.called(t, "hold/er")
		second := g.submit("second", body(2)).want(t, http.StatusOK, "Job-Status: processing", "Retry-After: *").keyed(t, "second", false)
		isAlias(t, g, "second", second)
		isAlias(t, g, "second", g.submit("second", body(2)).want(t, http.StatusOK).keyed(t, "second", true))
		g.isMismatch(t, "second", "body", g.submit("second", body(3)))
		g.submit("second", body(2), "Prefer: return=minimal").want(t, http.StatusOK, "Location: /jobs/hold%2Fer").applied(t, "return=minimal")
		out := g.submit("second", body(2), "Prefer: wait=1").want(t, http.StatusOK, "Job-Status: processing").applied(t, "wait=1")
		isAlias(t, g, "second", out)
		// The holder's own repetition does not meet itself.
		if a := g.submit("hold/er", body(1)).want(t, http.StatusAccepted, "Idempotent-Replayed: true", "Idempotency-Status:"); !bytes.Equal(a.body, holder.body) {
			t.Errorf("the holder's replay differs:\n%s\n%s", a.body, holder.body)
		}
		// Another type has business keys of its own.
		g.submit("echoed", `{"type":"echo","business_key":"order 7"}`).want(t, http.StatusAccepted)

		receiver.release("hold/er")
		ended := g.submit("second", body(2), "Prefer: wait=30").want(t, http.StatusOK, "Job-Status: succeeded", "Retry-After:", "Idempotency-Expires: *").applied(t, "wait=30")
		isAlias(t, g, "second", ended)
		// The holder has ended: its key is free for others, not for the bound one.
		isAlias(t, g, "second", g.submit("second", body(2)).want(t, http.StatusOK).keyed(t, "second", true))
		g.get("/jobs/second/result").want(t, http.StatusOK, "Content-Location: /jobs/hold%2Fer/result", "Idempotency-Status: duplicate_ignored")
		third := g.submit("third", body(3)).want(t, http.StatusAccepted, "Location: /jobs/third", "Idempotency-Status:")
		if third.json(t)["key"] != "third" {
			t.Errorf("third: %s", third.body)
		}
		if n := receiver.callsOf("hold/er") + receiver.callsOf("second"); n != 1 {
			t.Errorf("%d calls for the holder and its alias", n)
		}
	})
}

// isAlias fails unless the answer is the holder's job as it is now.
func isAlias(t testing.TB, g *gateway, alias string, a answer) {
	t.Helper()
	a.want(t, http.StatusOK, "Location: /jobs/hold%2Fer", "Idempotency-Status: duplicate_ignored")
	got := g.get("/jobs/"+alias).want(t, http.StatusOK, "Content-Location: /jobs/hold%2Fer", "Idempotency-Status: duplicate_ignored")
	if direct := g.get("/jobs/hold%2Fer"); !bytes.Equal(got.body, direct.body) || !bytes.Equal(a.body, direct.body) {
		t.Errorf("three accounts of one job:\n%s\n%s\n%s", a.body, got.body, direct.body)
	}
}

func TestContract_Row80_ABusinessKeyRejects(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		receiver := newHeld(t)
		g := start(t, database, string(merge(t, receiver.config("held"), "job_types: {held: {on_business_key_conflict: reject}}")))
		body := func(n int) string { return fmt.Sprintf(businessBody, n) }
		g.submit("hold/er", body(1)).want(t, http.StatusAccepted)
		receiver.called(t, "hold/er")
		for range 2 {
			a := g.submit("second", body(2)).want(t, http.StatusConflict, "Retry-After: *", "Location:", "Link:").keyed(t, "second", false)
			if p := a.refused(t, http.StatusConflict, "business-key-conflict", true); p["job"] != "/jobs/hold%2Fer" || p["idempotency_key"] != "second" {
				t.Errorf("problem %v", p)
			}
		}
		g.get("/jobs/second").want(t, http.StatusNotFound)
		if n := stored(t, g.beside(t), "second"); n != 0 {
			t.Errorf("%d records of the refused key", n)
		}
		g.submit("hold/er", body(1)).want(t, http.StatusAccepted, "Idempotent-Replayed: true")
		g.isMismatchOfHolder(t, g.submit("hold/er", body(2)))
		receiver.release("hold/er")
		g.finished("hold%2Fer")
		// Not consumed: even another body is welcome now.
		g.submit("second", body(5)).want(t, http.StatusAccepted, "Idempotent-Replayed: false", "Location: /jobs/second")
	})
}

// isMismatchOfHolder: the record comes before the business key.
func (g *gateway) isMismatchOfHolder(t testing.TB, a answer) {
	t.Helper()
	if p := a.refused(t, http.StatusUnprocessableEntity, "idempotency-key-reused", false); p["job"] != "/jobs/hold%2Fer" {
		t.Errorf("job %v", p["job"])
	}
}

// Many new keys race for one business key: one job, and all others get it.
func TestContract_Row80_ARaceForOneBusinessKey(t *testing.T) {
	raceForBusinessKey(t, "return", 1, func(t *testing.T, a answer) {
		a.want(t, http.StatusOK, "Idempotency-Status: duplicate_ignored", "Idempotent-Replayed: false")
	})
}

// The same where all others are refused: a problem has no id.
func TestContract_Row80_ARaceForOneRejectingBusinessKey(t *testing.T) {
	raceForBusinessKey(t, "reject", 2, func(t *testing.T, a answer) { a.refused(t, http.StatusConflict, "business-key-conflict", true) })
}

// raceForBusinessKey lets new keys race for one business key and gives the answers of those
// who lost to other; jobs is how many ids there are in all answers.
func raceForBusinessKey(t *testing.T, policy string, jobs int, other func(*testing.T, answer)) {
	onEngines(t, func(t *testing.T, database string) {
		receiver := newHeld(t)
		g := start(t, database, string(merge(t, receiver.config("held"), "job_types: {held: {on_business_key_conflict: "+policy+"}}")))
		const rivals = 20
		answers := make(chan answer, rivals)
		begin := make(chan struct{})
		for i := range rivals {
			go func() {
				<-begin
				a, _ := g.try(http.MethodPost, "/jobs", fmt.Sprintf(businessBody, i), jsonType, fmt.Sprintf("Idempotency-Key: rival-%d", i))
				answers <- a
			}()
		}
		close(begin)
		accepted, ids := 0, map[any]bool{}
		for range rivals {
			a := <-answers
			if a.Response == nil {
				t.Fatal("a submit got no answer")
			}
			ids[a.json(t)["id"]] = true
			if a.StatusCode == http.StatusAccepted {
				accepted++
				continue
			}
			other(t, a)
		}
		if accepted != 1 || len(ids) != jobs {
			t.Errorf("%d accepted, jobs %v", accepted, ids)
		}
	})
}
