package e2e_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/testenv"
)

// gate is a receiver that holds each call until its key is released.
type gate struct {
	*httptest.Server
	mu      sync.Mutex
	arrived map[string]chan struct{}
	opened  map[string]chan struct{}
}

func newGate(t testing.TB) *gate {
	g := &gate{arrived: map[string]chan struct{}{}, opened: map[string]chan struct{}{}}
	g.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // the server sees a caller leave only after that
		key := r.Header.Get("Sekali-Key")
		g.once(g.arrived, key, true)
		select {
		case <-g.once(g.opened, key, false):
			fmt.Fprint(w, `"released"`)
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(func() {
		g.CloseClientConnections()
		g.Close()
	})
	return g
}

// once returns the channel of the key, closed if asked to.
func (g *gate) once(of map[string]chan struct{}, key string, closed bool) chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	c, ok := of[key]
	if !ok {
		c = make(chan struct{})
		of[key] = c
	}
	select {
	case <-c:
	default:
		if closed {
			close(c)
		}
	}
	return c
}

func (g *gate) release(key string) { g.once(g.opened, key, true) }

// holds waits until the gateway has called for the key.
func (g *gate) holds(t testing.TB, key string) {
	t.Helper()
	select {
	case <-g.once(g.arrived, key, false):
	case <-time.After(60 * time.Second):
		t.Fatalf("job %s was not started", key)
	}
}

func (g *gate) types() string {
	return fmt.Sprintf("job_types: {hold: {executor: http, http: {url: %q}}}", g.URL)
}

// held submits a job that runs until it is released.
func (g *gate) held(t testing.TB, gw *gateway, key string) {
	t.Helper()
	gw.submit(key, `{"type":"hold"}`).want(t, http.StatusAccepted)
	g.holds(t, key)
}

// onGate runs the test on each engine with a gateway whose type hold is held, and
// loses no lease.
func onGate(t *testing.T, config string, test func(t *testing.T, g *gateway, hold *gate)) {
	t.Helper()
	onEngines(t, func(t *testing.T, database string) {
		hold := newGate(t)
		test(t, start(t, database, both(t, keptLease, hold.types(), config)), hold)
	})
}

// pending is a job that does not start within any test.
const pending = `{"type":"echo","delay_seconds":3600}`

func TestContract_Row85_Row87_Row89_NonTerminalJob(t *testing.T) {
	onGate(t, "", func(t *testing.T, g *gateway, hold *gate) {
		hold.held(t, g, "running")
		first := g.get("/jobs/running").want(t, http.StatusOK, "Retry-After: 1", "Cache-Control: private, no-cache", "Vary: Prefer",
			"Content-Type: application/json", "Idempotency-Expires:", "Preference-Applied:", "X-Content-Type-Options: nosniff")
		etag := first.Header.Get("ETag")
		if version := first.json(t)["version"]; etag != fmt.Sprintf(`"%v"`, version) {
			t.Errorf("ETag %s of version %v", etag, version)
		}
		if status := first.json(t)["status"]; status != "processing" {
			t.Errorf("status %v", status)
		}
		for _, validator := range []string{etag, "W/" + etag, `"x", ` + etag + `, "y"`, "*"} {
			a := g.get("/jobs/running", "If-None-Match: "+validator)
			a.want(t, http.StatusNotModified, "ETag: "+etag, "Cache-Control: private, no-cache", "Vary: Prefer", "Retry-After: 1")
			if len(a.body) > 0 {
				t.Errorf("a 304 with the body %q", a.body)
			}
		}
		for _, validator := range []string{`"999"`, strings.Trim(etag, `"`), `"1`, `"x,` + strings.Trim(etag, `"`) + `"`} {
			a := g.get("/jobs/running", "If-None-Match: "+validator, "Prefer: wait=0").want(t, http.StatusOK, "ETag: "+etag)
			if !bytes.Equal(a.body, first.body) {
				t.Errorf("%s: %s", validator, a.body)
			}
		}
		// Four heartbeats come within two seconds: none of them is a new version.
		g.get("/jobs/running", "If-None-Match: "+etag, "Prefer: wait=2").
			want(t, http.StatusNotModified, "ETag: "+etag, "Preference-Applied: wait=2", "Retry-After: 0")
		changed := make(chan answer, 1)
		go func() {
			a, _ := g.try(http.MethodGet, "/jobs/running", "", "If-None-Match: "+etag, "Prefer: wait=50")
			changed <- a
		}()
		hold.release("running")
		select {
		case a := <-changed:
			a.want(t, http.StatusOK, "Preference-Applied: wait=50", "Retry-After:")
			if a.Header.Get("ETag") == etag || a.json(t)["status"] != "succeeded" {
				t.Errorf("woken with %s %s", a.Header.Get("ETag"), a.body)
			}
		case <-time.After(30 * time.Second): // sooner than the 50 that it may wait
			t.Error("a change did not end the wait")
		}
		g.get("/jobs/running", "If-None-Match: "+etag, "Prefer: wait=50").want(t, http.StatusOK, "Preference-Applied: wait=50")
	})
}

func TestContract_Row88_Row99_WaitingForTheEnd(t *testing.T) {
	onGate(t, "limits: {wait: 40s}", func(t *testing.T, g *gateway, hold *gate) {
		g.submit("later", `{"type":"hold","delay_seconds":1}`)
		hold.release("later")
		a := g.get("/jobs/later", "Prefer: wait=30").want(t, http.StatusOK, "Preference-Applied: wait=30", "Retry-After:")
		if got := a.json(t)["status"]; got != "succeeded" {
			t.Errorf("the wait ended with %v: it lasts until the job has finished", got)
		}
		g.get("/jobs/later", "Prefer: wait=100000").want(t, http.StatusOK, "Preference-Applied: wait=40")

		hold.held(t, g, "held")
		for _, c := range []struct{ path, prefer, applied, after string }{
			{"/jobs/held", "wait=1", "wait=1", "0"},
			{"/jobs/held?wait=1", "", "wait=1", "0"},
			{"/jobs/held?wait=40", "wait=1", "wait=1", "0"},
			{"/jobs/held?wait=1", "wait=x", "wait=1", "0"},
			{"/jobs/held", `foo=bar, wait="1"; x=y`, "wait=1", "0"},
			{"/jobs/held", "wait=0", "wait=0", "*"},
			{"/jobs/held", "wait=-1", "", "*"},
			{"/jobs/held", "wait=1.5", "", "*"},
			{"/jobs/held", "waits=1", "", "*"},
		} {
			a := g.get(c.path, "Prefer: "+c.prefer)
			a.want(t, http.StatusOK, "Preference-Applied: "+c.applied, "Retry-After: "+c.after)
			if got := a.json(t)["status"]; got != "processing" {
				t.Errorf("%s %s: status %v", c.path, c.prefer, got)
			}
			if c.after == "*" && a.Header.Get("Retry-After") == "0" {
				t.Errorf("%s %s: told to ask again at once without having waited", c.path, c.prefer)
			}
		}
		begun := time.Now()
		g.do(http.MethodHead, "/jobs/held", "", "Prefer: wait=30").want(t, http.StatusOK, "Preference-Applied:", "Retry-After: *")
		g.do(http.MethodHead, "/jobs/held?wait=30", "").want(t, http.StatusOK, "Preference-Applied:", "Retry-After: *")
		if took := time.Since(begun); took > 20*time.Second {
			t.Errorf("two HEADs waited: %v", took)
		}
	})
}

func TestContract_Row86_Row95_Row96_Row97_FinishedJobsAndResults(t *testing.T) {
	sink := newSink(t)
	config := sink.types(map[string]string{"bad": "/status/422", "html": "/bytes?mode=html", "none": "/bytes?mode=none"})
	onGate(t, config, func(t *testing.T, g *gateway, hold *gate) {
		const payload = `{ "b" : [1.0, 1e400],"a":"\u00e9\/<&>"  }`
		g.submit("echo", `{"type":"echo","payload":`+payload+`}`)
		for key, want := range map[string]string{"echo": "succeeded", "bad": "failed", "html": "succeeded", "none": "succeeded"} {
			if key != "echo" {
				g.submit(key, `{"type":"`+key+`"}`)
			}
			if j := g.finished(key); j["status"] != want {
				t.Errorf("%s: %v", key, j)
			}
			a := g.get("/jobs/"+key).want(t, http.StatusOK, "Retry-After:", "Idempotency-Expires: *", "Error-Source:")
			j := a.json(t)
			if a.Header.Get("Idempotency-Expires") != j["expires_at"] || instant(t, j["expires_at"]).Sub(instant(t, j["finished_at"])) != 168*time.Hour {
				t.Errorf("%s: Idempotency-Expires %s of %s", key, a.Header.Get("Idempotency-Expires"), a.body)
			}
			g.get("/jobs/"+key, "If-None-Match: "+a.Header.Get("ETag")).want(t, http.StatusNotModified, "Retry-After:", "ETag: *")
		}
		sum := sha256.Sum256([]byte(payload))
		etag := `"` + hex.EncodeToString(sum[:]) + `"`
		for range 2 {
			a := g.get("/jobs/echo/result").want(t, http.StatusOK, "Content-Type: application/json", "ETag: "+etag, "X-Content-Type-Options: nosniff")
			if string(a.body) != payload {
				t.Errorf("result %s", a.body)
			}
		}
		g.get("/jobs/echo/result", "If-None-Match: "+etag).want(t, http.StatusNotModified, "ETag: "+etag)
		g.get("/jobs/html/result").want(t, http.StatusOK, "Content-Type: text/html; charset=utf-8", "Content-Security-Policy: *", "X-Content-Type-Options: nosniff")
		for _, key := range []string{"bad", "none"} {
			p := g.get("/jobs/"+key+"/result").problem(t, http.StatusNotFound, "job-has-no-result")
			if p["job"] != "/jobs/"+key || p["retryable"] != false {
				t.Errorf("problem %v", p)
			}
		}
		hold.held(t, g, "held")
		p := g.get("/jobs/held/result").want(t, http.StatusConflict, "Retry-After: 1").problem(t, http.StatusConflict, "job-not-finished")
		if p["retryable"] != true || p["job"] != "/jobs/held" || fmt.Sprint(p["retry_after_ms"]) != "1000" {
			t.Errorf("problem %v", p)
		}
		g.get("/jobs/unknown/result").problem(t, http.StatusNotFound, "job-not-found")
	})
}

// What cannot be told apart from outside: another tenant's key, one that was
// never used, and one that cannot exist.
func TestContract_Row91_Security14_Security16_Failure_BR34_UnknownKeys(t *testing.T) {
	onGateway(t, "", func(t *testing.T, g *gateway) {
		g.submit("secret", pending)
		var bodies []string
		for _, path := range []string{
			"/jobs/unknown", "/jobs/%00", "/jobs/a%00b", "/jobs/%ff", "/jobs/a%FFb", "/jobs/%C3%28", "/jobs/" + strings.Repeat("k", 300),
			"/jobs/" + strings.Repeat("k", 9000), "/jobs/..%2f..%2fetc%2fpasswd", "/jobs/%22secret%22", "/jobs/Secret", "/jobs/secret%20", "/jobs/%E2%80%AE",
			"/jobs/'); drop table jobs;--", "/jobs/%27%20or%20%271%27=%271", "/jobs/secret;x=1",
		} {
			a := g.raw("GET " + strings.ReplaceAll(path, " ", "%20") + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
			p := a.problem(t, http.StatusNotFound, "job-not-found")
			instance, _ := p["instance"].(string)
			bodies = append(bodies, strings.ReplaceAll(string(a.body), instance, "-"))
		}
		if distinct := slices.Compact(bodies); len(distinct) != 1 {
			t.Errorf("answers differ: %q", distinct)
		}
		g.raw("GET /jobs/%zz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").want(t, http.StatusBadRequest)
		g.get("/jobs/secret").want(t, http.StatusOK)
		if errors := errorLines(g); len(errors) > 0 {
			t.Errorf("errors in the log: %q", errors)
		}
	})
}

func TestContract_Row94_Security15_KeysInPaths(t *testing.T) {
	onGateway(t, "", func(t *testing.T, g *gateway) {
		base, err := url.Parse(g.url)
		if err != nil {
			t.Fatal(err)
		}
		// In the Idempotency-Key header: all printable ASCII is a key within quotes.
		keys := []string{
			"a/b", "a%2Fb", "a%252Fb", "a b", "a+b", "a?b=c", "a#b", "a;b=c", "%00", "%", "%zz", "...", "a/../b", "./a", "/", "//", "/a", "a/",
			"x", "x/result", `q"u\o`, "~!*'()@:&=$,[]{}|^`<>", "result", strings.Repeat("/", 255), strings.Repeat("%", 255),
		}
		for _, key := range keys {
			header := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key) + `"`
			accepted := g.submit(header, pending).want(t, http.StatusAccepted, "Idempotency-Key: "+header)
			location, err := url.Parse(accepted.Header.Get("Location"))
			if err != nil {
				t.Errorf("%q: %v", key, err)
				continue
			}
			// As it stands, and as a client resolves it against the address.
			for _, target := range []string{accepted.Header.Get("Location"), base.ResolveReference(location).RequestURI()} {
				a := g.raw("GET "+target+" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").want(t, http.StatusOK)
				if a.StatusCode == http.StatusOK && a.json(t)["key"] != key {
					t.Errorf("%s of %q leads to %s", target, key, a.body)
				}
			}
		}
		// No client would ask for these two as they stand: they are no keys.
		for _, key := range []string{".", ".."} {
			g.submit(key, pending).problem(t, http.StatusBadRequest, "idempotency-key-invalid")
		}
		for path, key := range map[string]string{"/jobs/a%2Fb": "a/b", "/jobs/a%2fb": "a/b", "/jobs/a%252Fb": "a%2Fb", "/jobs/%61%20b": "a b", "/jobs/a+b": "a+b", "/jobs/x%2Fresult": "x/result"} {
			if got := g.get(path).json(t)["key"]; got != key {
				t.Errorf("%s leads to %v, want %s", path, got, key)
			}
		}
		g.get("/jobs/x/result").problem(t, http.StatusConflict, "job-not-finished")
		g.get("/jobs/x%2Fresult/result").problem(t, http.StatusConflict, "job-not-finished")
		g.get("/jobs/a/b").problem(t, http.StatusNotFound, "route-not-found")
	})
}

func TestContract_Row99_HeadIsGetWithoutBody(t *testing.T) {
	sink := newSink(t)
	onGateway(t, sink.types(map[string]string{"bad": "/status/422"}), func(t *testing.T, g *gateway) {
		g.submit("done", `{"type":"echo","payload":[1,2]}`)
		g.submit("bad", `{"type":"bad"}`)
		g.submit("waits", pending)
		g.finished("done")
		g.finished("bad")
		for _, path := range []string{
			"/jobs", "/jobs?limit=0", "/jobs/done", "/jobs/waits", "/jobs/bad", "/jobs/unknown", "/jobs/done/result", "/jobs/waits/result",
			"/jobs/bad/result", "/healthz", "/readyz", "/nowhere",
		} {
			got, head := g.get(path), g.do(http.MethodHead, path, "")
			for _, a := range []answer{got, head} {
				maps.DeleteFunc(a.Header, func(name string, _ []string) bool {
					return slices.Contains([]string{"Date", "X-Request-Id", "Connection"}, name)
				})
			}
			if got.StatusCode != head.StatusCode || !maps.EqualFunc(got.Header, head.Header, slices.Equal) {
				t.Errorf("%s: GET %d %v, HEAD %d %v", path, got.StatusCode, got.Header, head.StatusCode, head.Header)
			}
			if got.Header.Get("Content-Length") != fmt.Sprint(len(got.body)) {
				t.Errorf("%s: Content-Length %s of %d bytes", path, got.Header.Get("Content-Length"), len(got.body))
			}
		}
		conn, err := net.Dial("tcp", strings.TrimPrefix(g.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(60 * time.Second))
		if _, err := io.WriteString(conn, "HEAD /jobs/done HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		sent, err := io.ReadAll(conn)
		if err != nil || !bytes.HasPrefix(sent, []byte("HTTP/1.1 200 OK\r\n")) || !bytes.HasSuffix(sent, []byte("\r\n\r\n")) || bytes.Contains(sent, []byte("{")) {
			t.Errorf("HEAD is answered with %q, %v", sent, err)
		}
	})
}

var (
	wireTime    = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$`)
	listMembers = []string{
		"attempts", "business_key", "created_at", "duplicate_of", "error", "expires_at", "finished_at", "generation", "id", "key", "max_attempts",
		"next_attempt_at", "operation_key", "outcome", "priority", "run_at", "started_at", "status", "type", "version", "worker_id",
	}
)

// instant reads a time of a document.
func instant(t testing.TB, value any) time.Time {
	t.Helper()
	text, _ := value.(string)
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || !wireTime.MatchString(text) {
		t.Errorf("%q is not a time in UTC with Z", text)
	}
	return at
}

func TestContract_SectionG_JobDocument(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		sink := newSink(t)
		types := sink.types(map[string]string{"flaky": "/flaky?fail=1", "bad": "/status/404"})
		g := start(t, database, string(merge(t, types, invoices)))
		accepted := g.submit("g", `{"type":"flaky","business_key":"b 1","priority":-3,"max_attempts":7,"payload": { "x" : 1.0 } }`).want(t, http.StatusAccepted).json(t)
		j := g.finished("g")
		list := g.get("/jobs?key_prefix=g").json(t)["jobs"].([]any)[0].(map[string]any)
		bodies := slices.Sorted(slices.Values(append(slices.Clone(listMembers), "payload", "result")))
		for where, of := range map[string]struct {
			doc  map[string]any
			want []string
		}{"202": {accepted, listMembers}, "list": {list, listMembers}, "status": {j, bodies}} {
			if got := slices.Sorted(maps.Keys(of.doc)); !slices.Equal(got, of.want) {
				t.Errorf("%s has the members %q", where, got)
			}
		}
		for name, want := range map[string]any{
			"key": "g", "type": "flaky", "status": "succeeded", "business_key": "b 1", "operation_key": nil, "outcome": nil, "duplicate_of": nil, "next_attempt_at": nil,
		} {
			if j[name] != want {
				t.Errorf("%s is %v, want %v", name, j[name], want)
			}
		}
		if got := fmt.Sprintln(j["attempts"], j["max_attempts"], j["generation"], j["priority"]); got != "2 7 1 -3\n" {
			t.Errorf("attempts, max_attempts, generation, priority: %s", got)
		}
		order := []string{"created_at", "started_at", "finished_at", "expires_at"}
		for i := 1; i < len(order); i++ {
			if instant(t, j[order[i]]).Before(instant(t, j[order[i-1]])) {
				t.Errorf("%s is before %s: %v", order[i], order[i-1], j)
			}
		}
		if instant(t, j["run_at"]).Before(instant(t, j["created_at"])) {
			t.Errorf("run_at is before created_at: %v", j)
		}
		if !bytes.Contains(g.get("/jobs/g").body, []byte(`"payload":{ "x" : 1.0 },"result":{"received":"g"},`)) {
			t.Errorf("payload and result are not byte for byte: %s", g.get("/jobs/g").body)
		}
		// Absent and null are the same, and a payload that was not given is null.
		g.submit("bad", `{"type":"bad","business_key":null,"run_at":null,"payload":null}`)
		failed := g.finished("bad")
		e, _ := failed["error"].(map[string]any)
		if e["code"] != "http-status" || !strings.Contains(fmt.Sprint(e["detail"]), "404") || fmt.Sprint(e["attempt"]) != "1" || failed["business_key"] != nil {
			t.Errorf("job %v", failed)
		}
		g.submit("i1", `{"type":"invoice_generate","payload":{"order_id":"9","total":1}}`)
		g.finished("i1")
		g.submit("i2", `{"type":"invoice_generate","payload":{"order_id":"9","total":2}}`)
		if j := g.finished("i2"); j["status"] != "succeeded" || j["outcome"] != "duplicate_ignored" {
			t.Errorf("the second invoice of an order: %v", j)
		}
	})
}

// errorLines are the lines of the log at level error.
func errorLines(g *gateway) []string {
	var found []string
	for line := range strings.Lines(g.logged()) {
		if strings.Contains(line, `"level":"ERROR"`) {
			found = append(found, line)
		}
	}
	return found
}

// version is waited for in turn: what a client sees of a job that retries. It waits
// for its next attempt long enough to be seen by one whose machine is busy.
func TestFailure_BR70_AttemptsAreSeenAndSurviveKill(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		sink := newSink(t)
		config := sink.types(map[string]string{"flaky": "/flaky?fail=3"}) + "defaults: {backoff: {base: 5s, cap: 5s}}"
		g := start(t, database, config)
		g.submit("k", `{"type":"flaky"}`)
		seen := map[string]bool{}
		for etag, status := `"0"`, any(""); status != "succeeded"; {
			a := g.get("/jobs/k", "If-None-Match: "+etag, "Prefer: wait=30")
			if a.StatusCode != http.StatusOK {
				t.Fatalf("no change within 30 s: %d %s", a.StatusCode, a.body)
			}
			j := a.json(t)
			etag, status = a.Header.Get("ETag"), j["status"]
			seen[fmt.Sprint(status, " ", j["attempts"])] = true
			if status != "retrying" {
				continue
			}
			e, _ := j["error"].(map[string]any)
			if fmt.Sprint(e["attempt"]) != fmt.Sprint(j["attempts"]) || e["code"] != "http-status" || !instant(t, j["next_attempt_at"]).After(instant(t, j["started_at"])) {
				t.Errorf("a retrying job shows no error or no time: %s", a.body)
			}
			if fmt.Sprint(j["attempts"]) == "2" {
				g.kill()
				g = start(t, database, config)
			}
		}
		for _, want := range []string{"retrying 1", "retrying 2", "retrying 3", "succeeded 4"} {
			if !seen[want] {
				t.Errorf("not seen: %s; seen: %v", want, slices.Sorted(maps.Keys(seen)))
			}
		}
		testenv.Eventually(t, 0, "four calls", func() bool { return len(sink.of("k")) == 4 })
	})
}
