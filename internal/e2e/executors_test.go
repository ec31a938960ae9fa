package e2e_test

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/sekali/sekali/internal/testenv"
)

// call is one request as a receiver got it.
type call struct {
	*http.Request
	body []byte
	at   time.Time
}

func (c call) key() string { return c.Header.Get("Sekali-Key") }

// receiver stores every call and answers as the test says; n counts the calls
// of the key, from 1.
type receiver struct {
	*httptest.Server
	mu    sync.Mutex
	calls map[string][]call
}

func newReceiver(t testing.TB, answer func(w http.ResponseWriter, c call, n int)) *receiver {
	r := &receiver{calls: map[string][]call{}}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		body, _ := io.ReadAll(request.Body)
		c := call{request, body, time.Now()}
		r.mu.Lock()
		r.calls[c.key()] = append(r.calls[c.key()], c)
		n := len(r.calls[c.key()])
		r.mu.Unlock()
		answer(w, c, n)
	}))
	t.Cleanup(func() {
		r.CloseClientConnections()
		r.Close()
	})
	return r
}

// called is how many jobs there were calls for.
func (r *receiver) called() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.calls)
}

func (r *receiver) of(key string) []call {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.calls[key])
}

// ended submits a job and waits for its end.
func (g *gateway) ended(t testing.TB, key, body string) map[string]any {
	t.Helper()
	g.submit(key, body).want(t, http.StatusAccepted)
	return g.finished(key)
}

// failure is the job's error as text: "code detail".
func failure(j map[string]any) string {
	e, _ := j["error"].(map[string]any)
	return fmt.Sprintln(e["code"], e["detail"])
}

const (
	secret  = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	fastTry = "defaults: {backoff: {base: 20ms, cap: 40ms}}\n"
	// fastKept besides keeps attempts through any slow moment: they are counted.
	fastKept = "defaults: {lease: 30s, backoff: {base: 20ms, cap: 40ms}}\n"
)

func TestExecutor_HTTP_TheRequest_Failure_BR71(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		// The first call is refused, the second is worked on beyond the timeout.
		r := newReceiver(t, func(w http.ResponseWriter, c call, n int) {
			switch {
			case c.key() == "basic":
			case n == 1:
				w.WriteHeader(http.StatusInternalServerError)
			case n == 2:
				<-c.Context().Done()
			}
		})
		g := start(t, database, fastKept+fmt.Sprintf(`
job_types:
  sign.me:
    executor: http
    timeout: 5s
    http: {url: %q, secret: %s, headers: {X-Source: sekali test, authorization: Bearer canary}}
  basic: {executor: http, http: {url: %q}}
`, r.URL+"/path?a=1&b=%2F", secret, strings.Replace(r.URL, "http://", "http://us%40er:pa%3Ass@", 1)))
		const payload = `{ "order":"\u00e9\/<>&" , "n":1.0 }`
		g.submit(`"k/1 x"`, `{"type":"sign.me","payload":  `+payload+`  }`).want(t, http.StatusAccepted)
		j, calls := g.finished("k%2F1%20x"), r.of("k/1 x")
		if j["status"] != "succeeded" || len(calls) != 3 {
			t.Fatalf("%d calls, job %v", len(calls), j)
		}
		webhook, err := standardwebhooks.NewWebhook(secret)
		if err != nil {
			t.Fatal(err)
		}
		token := int64(0)
		for i, c := range calls {
			for name, want := range map[string]string{
				"Content-Type": "application/json", "Idempotency-Key": fmt.Sprintf(`"%v"`, j["id"]), "Sekali-Attempt": strconv.Itoa(i + 1), "Sekali-Type": "sign.me",
				"X-Source": "sekali test", "Authorization": "Bearer canary", "Webhook-Id": fmt.Sprint(j["id"]), "Content-Length": strconv.Itoa(len(payload)), "Accept-Encoding": "identity",
			} {
				if got := c.Header.Values(name); len(got) != 1 || got[0] != want {
					t.Errorf("call %d: %s: %q, want %q", i+1, name, got, want)
				}
			}
			if c.Method != http.MethodPost || c.RequestURI != "/path?a=1&b=%2F" || string(c.body) != payload || len(c.TransferEncoding) > 0 {
				t.Errorf("call %d: %s %s %v %s", i+1, c.Method, c.RequestURI, c.TransferEncoding, c.body)
			}
			if err := webhook.Verify(c.body, c.Header); err != nil {
				t.Errorf("call %d: signature: %v", i+1, err)
			}
			next, err := strconv.ParseInt(c.Header.Get("Sekali-Fencing-Token"), 10, 64)
			if err != nil || next <= token {
				t.Errorf("call %d: fencing token %q after %d", i+1, c.Header.Get("Sekali-Fencing-Token"), token)
			}
			token = next
		}
		g.ended(t, "basic", `{"type":"basic"}`)
		user, password, ok := r.of("basic")[0].BasicAuth()
		if !ok || user != "us@er" || password != "pa:ss" || string(r.of("basic")[0].body) != "null" || r.of("basic")[0].Header.Get("Webhook-Id") != "" {
			t.Errorf("basic authentication %q %q, body %s", user, password, r.of("basic")[0].body)
		}
	})
}

func TestExecutor_HTTP_Outcomes_Failure_BR73_Security35(t *testing.T) {
	const token = "INTERNAL-TOKEN-42"
	onEngines(t, func(t *testing.T, database string) {
		elsewhere := newReceiver(t, func(http.ResponseWriter, call, int) {})
		r := newReceiver(t, func(w http.ResponseWriter, c call, _ int) {
			status, _ := strconv.Atoi(strings.TrimPrefix(c.URL.Path, "/"))
			w.Header().Set("Location", elsewhere.URL)
			w.WriteHeader(status)
			if status != http.StatusNoContent && status != http.StatusNotModified {
				_, _ = io.WriteString(w, `"`+token+`"`)
			}
		})
		type want struct {
			status string
			calls  int
		}
		table := map[int]want{}
		for _, status := range []int{200, 201, 202, 203, 204, 226, 299} {
			table[status] = want{"succeeded", 1}
		}
		for _, status := range []int{300, 304, 305, 399, 400, 401, 402, 403, 404, 405, 406, 410, 411, 412, 413, 415, 418, 422, 428, 451, 499} {
			table[status] = want{"failed", 1}
		}
		for _, status := range []int{301, 302, 303, 307, 308, 408, 409, 425, 429, 500, 501, 502, 503, 504, 507, 511, 599} {
			table[status] = want{"failed", 2}
		}
		var types strings.Builder
		for status := range table {
			fmt.Fprintf(&types, "  s%d: {executor: http, max_attempts: 2, http: {url: '%s/%d'}}\n", status, r.URL, status)
		}
		g := start(t, database, fastKept+"job_types:\n"+types.String()+
			fmt.Sprintf("  quoted: {executor: http, error_body: true, http: {url: '%s/422'}}\n", r.URL))
		for status := range table {
			g.submit(fmt.Sprint(status), fmt.Sprintf(`{"type":"s%d"}`, status))
		}
		for status, want := range table {
			j := g.finished(fmt.Sprint(status))
			calls := len(r.of(fmt.Sprint(status)))
			if j["status"] != want.status || calls != want.calls || fmt.Sprint(j["attempts"]) != fmt.Sprint(calls) {
				t.Errorf("%d: %d calls, job %v", status, calls, j)
			}
			if want.status == "failed" && (!strings.Contains(failure(j), strconv.Itoa(status)) || j["result"] != nil) {
				t.Errorf("%d: error %s, result %v", status, failure(j), j["result"])
			}
			if want.status == "failed" && bytes.Contains(g.get("/jobs/"+fmt.Sprint(status)).body, []byte(token)) {
				t.Errorf("%d: the receiver's answer is shown", status)
			}
		}
		for _, path := range []string{"/jobs?limit=200&status=failed", "/metrics"} {
			if bytes.Contains(g.get(path).body, []byte(token)) {
				t.Errorf("%s shows what a receiver answered", path)
			}
		}
		if strings.Contains(g.logged(), token) {
			t.Error("the log shows what a receiver answered")
		}
		if len(elsewhere.of("")) > 0 {
			t.Error("a redirect was followed")
		}
		if j := g.ended(t, "quoted", `{"type":"quoted"}`); !strings.Contains(failure(j), token) {
			t.Errorf("error_body: true quotes nothing: %v", j)
		}
	})
}

// The body of an error is quoted up to 1 KiB of clean text.
func TestExecutor_HTTP_QuotesAreCleanAndShort(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		r := newReceiver(t, func(w http.ResponseWriter, _ call, _ int) {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = w.Write(append([]byte("a\x00\x1b[31m\r\nb\xff\xfe\u202e"), bytes.Repeat([]byte("é"), 4000)...))
		})
		g := start(t, database, fmt.Sprintf("job_types: {quoted: {executor: http, error_body: true, http: {url: %q}}}", r.URL))
		detail, _ := g.ended(t, "k", `{"type":"quoted"}`)["error"].(map[string]any)["detail"].(string)
		if !utf8.ValidString(detail) || strings.ContainsAny(detail, "\x00\x1b\r") || len(detail) > 1200 || !strings.Contains(detail, "éé") {
			t.Errorf("%d bytes: %q", len(detail), detail)
		}
		for line := range strings.Lines(g.logged()) {
			if !strings.HasPrefix(line, "{") || strings.ContainsAny(line, "\x00\x1b\r") {
				t.Errorf("a raw line in the log: %q", line)
			}
		}
	})
}

func TestExecutor_HTTP_Results_Failure_BR30_BR82(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		type answer struct{ mediaType, body string }
		limit := strings.Repeat("x", 1022)
		answers := map[string]answer{
			"unsuccessful": {"application/json", `{"success":false}`}, "empty": {"application/json", ""}, "html": {"text/html; charset=utf-8", "<script>alert(1)</script>"},
			"nul": {"application/json", `{"r":"x\u0000y"}`}, "surrogate": {"application/json", `{"r":"\ud800"}`}, "spaces": {"application/problem+json", " { \"a\" : 1.0 }\n"},
			"notjson": {"application/json", `{"a":`}, "bytes": {"application/octet-stream", "\x00\xff\xfe"}, "badutf8": {"application/json", "{\"a\":\"\xff\"}"},
			"rawnul": {"text/plain", "a\x00b"}, "limit": {"application/json", `"` + limit + `"`}, "over": {"application/json", `"` + limit + `x"`}, "chunked": {"application/json", `"` + limit + `x"`},
			"badtype": {"text/\xe9; =;", "x"}, "array": {"application/json", `[1,2]`}, "null": {"application/json", `null`},
		}
		r := newReceiver(t, func(w http.ResponseWriter, c call, _ int) {
			a := answers[c.key()]
			w.Header()["Content-Type"] = []string{a.mediaType}
			if c.key() == "chunked" {
				_ = http.NewResponseController(w).Flush()
			}
			_, _ = io.WriteString(w, a.body)
		})
		g := start(t, database, fmt.Sprintf("limits: {result: 1KiB}\njob_types: {call: {executor: http, http: {url: %q}}}", r.URL))
		for key := range answers {
			g.submit(key, `{"type":"call"}`)
		}
		for key, want := range answers {
			j := g.finished(key)
			result := g.get("/jobs/" + key + "/result")
			switch key {
			case "over", "chunked":
				if j["status"] != "failed" || !strings.HasPrefix(failure(j), "result-too-large ") || len(r.of(key)) != 1 {
					t.Errorf("%s: %v", key, j)
				}
				continue
			case "empty":
				result.problem(t, http.StatusNotFound, "job-has-no-result")
			default:
				if string(result.body) != want.body || result.StatusCode != http.StatusOK {
					t.Errorf("%s: result %d %q", key, result.StatusCode, result.body)
				}
				if got := result.Header.Get("Content-Type"); got != want.mediaType && (key != "badtype" || got != "application/octet-stream") {
					t.Errorf("%s: media type %q", key, got)
				}
			}
			if j["status"] != "succeeded" {
				t.Errorf("%s: %v", key, j)
			}
			whole := g.get("/jobs/" + key)
			member := []byte(`"result":` + want.body + `,"error":`)
			if slices.Contains([]string{"empty", "html", "notjson", "bytes", "badutf8", "rawnul", "badtype"}, key) {
				member = []byte(`"result":null,"error":`)
			}
			if !bytes.Contains(whole.body, member) || !utf8.Valid(whole.body) {
				t.Errorf("%s: document %q has no %q", key, whole.body, member)
			}
			whole.json(t)
		}
	})
}

// A kept connection that breaks is where Go's transport sends a request with
// an Idempotency-Key a second time.
func TestExecutor_HTTP_OneCallOnTheWirePerAttempt(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = listener.Close() })
		var mu sync.Mutex
		seen := map[string]int{} // by key and attempt
		kept := 0                // calls that came on a connection used before
		go func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				go func() {
					defer conn.Close()
					reader := bufio.NewReader(conn)
					for n := 1; ; n++ {
						request, err := http.ReadRequest(reader)
						if err != nil {
							return
						}
						_, _ = io.ReadAll(request.Body)
						mu.Lock()
						seen[request.Header.Get("Sekali-Key")+" "+request.Header.Get("Sekali-Attempt")]++
						if n > 1 {
							kept++
						}
						mu.Unlock()
						if n == 2 { // worked on, and no answer
							return
						}
						_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
					}
				}()
			}
		}()
		g := start(t, database, fastKept+fmt.Sprintf("job_types: {call: {executor: http, http: {url: 'http://%s/'}}}", listener.Addr()))
		broken := 0
		for i := range 12 {
			// Payloads with and without anything in them: the transport treats a request without a body in another way.
			j := g.ended(t, fmt.Sprint("k", i), []string{`{"type":"call","payload":{}}`, `{"type":"call"}`}[i%2])
			if j["status"] != "succeeded" {
				t.Errorf("job %v", j)
			}
			if fmt.Sprint(j["attempts"]) != "1" {
				broken++
			}
		}
		mu.Lock()
		defer mu.Unlock()
		for attempt, times := range seen {
			if times != 1 {
				t.Errorf("attempt %s: %d calls on the wire", attempt, times)
			}
		}
		if kept == 0 || broken == 0 {
			t.Errorf("no kept connection was broken: %v", seen)
		}
	})
}

func TestExecutor_HTTP_BrokenReceivers(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		r := newReceiver(t, func(w http.ResponseWriter, c call, n int) {
			if n > 1 {
				return
			}
			conn, buffer, err := http.NewResponseController(w).Hijack()
			if err != nil {
				return
			}
			defer conn.Close()
			switch c.key() {
			case "half":
				_, _ = buffer.WriteString("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"half\":")
			case "garbage":
				_, _ = buffer.WriteString("SSH-2.0-OpenSSH\r\n")
			case "headers":
				_, _ = buffer.WriteString("HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 1<<20) + "\r\n\r\n")
			case "switch":
				_, _ = buffer.WriteString("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n")
			}
			_ = buffer.Flush()
		})
		closed := "http://127.0.0.1:" + freePort(t) // nobody else comes to listen there
		g := start(t, database, fastKept+fmt.Sprintf("job_types: {call: {executor: http, timeout: 5s, http: {url: %q}}, closed: {executor: http, max_attempts: 2, http: {url: %q}}}", r.URL, closed))
		for _, key := range []string{"half", "garbage", "headers", "nothing"} {
			g.submit(key, `{"type":"call"}`)
		}
		for _, key := range []string{"half", "garbage", "headers", "nothing"} {
			if j := g.finished(key); j["status"] != "succeeded" || fmt.Sprint(j["attempts"]) != "2" || len(r.of(key)) != 2 || j["error"] != nil {
				t.Errorf("%s: %v", key, j)
			}
			if logged := g.failedAttempt(key); !strings.HasPrefix(logged, "connection: ") {
				t.Errorf("%s: the attempt's error in the log is %q", key, logged)
			}
		}
		if j := g.ended(t, "switch", `{"type":"call"}`); j["status"] != "failed" || len(r.of("switch")) != 1 {
			t.Errorf("switch: %v", j)
		}
		j := g.ended(t, "closed", `{"type":"closed"}`)
		if j["status"] != "failed" || fmt.Sprint(j["attempts"]) != "2" || !strings.HasPrefix(failure(j), "connection ") || strings.Contains(failure(j), "127.0.0.1") {
			t.Errorf("closed: %v", j)
		}
	})
}

func TestFailure_BR68_RetryAfterIsHonouredAndCapped(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		r := newReceiver(t, func(w http.ResponseWriter, c call, n int) {
			if n > 1 {
				return
			}
			after := c.URL.Query().Get("after")
			if after == "date" {
				after = time.Now().Add(4 * time.Second).UTC().Format(http.TimeFormat)
			}
			w.Header().Set("Retry-After", after)
			w.WriteHeader(http.StatusServiceUnavailable)
		})
		types := fastKept + "job_types:\n"
		cases := map[string]struct{ least, most time.Duration }{
			"2": {2 * time.Second, 9 * time.Second}, "date": {2900 * time.Millisecond, 9 * time.Second},
			"999999": {10 * time.Second, 30 * time.Second}, "99999999999999999999": {10 * time.Second, 30 * time.Second},
			"-5": {0, 9 * time.Second}, "abc": {0, 9 * time.Second}, "1e9": {0, 9 * time.Second}, "Mon, 02 Jan 2006 15:04:05 GMT": {0, 9 * time.Second},
		}
		names := map[string]string{}
		for after := range cases {
			names[after] = fmt.Sprint("t", len(names))
			types += fmt.Sprintf("  %s: {executor: http, backoff: {cap: 10s}, http: {url: %q}}\n", names[after], r.URL+"/?after="+strings.NewReplacer(" ", "%20", ",", "%2C").Replace(after))
		}
		g := start(t, database, types)
		for after := range cases {
			g.submit(names[after], `{"type":"`+names[after]+`"}`)
		}
		for after, want := range cases {
			j := g.finished(names[after])
			calls := r.of(names[after])
			if j["status"] != "succeeded" || len(calls) != 2 {
				t.Errorf("%s: %d calls, %v", after, len(calls), j)
				continue
			}
			if gap := calls[1].at.Sub(calls[0].at); gap < want.least || gap > want.most {
				t.Errorf("Retry-After: %s: called again after %v", after, gap)
			}
		}
	})
}

func TestFailure_BR69_RetriesAreSpread(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		r := newReceiver(t, func(w http.ResponseWriter, _ call, _ int) { w.WriteHeader(http.StatusServiceUnavailable) })
		g := start(t, database, fmt.Sprintf("defaults: {backoff: {base: 10s, cap: 1m}}\njob_types: {down: {executor: http, http: {url: %q}}}", r.URL))
		const jobs = 100
		for i := range jobs {
			g.submit(fmt.Sprint("k", i), `{"type":"down"}`)
		}
		var planned map[string]map[string]any
		testenv.Eventually(t, 30*time.Second, "every job has failed once", func() bool {
			planned = g.listed(t, "status=retrying&limit=200").docs
			return len(planned) == jobs
		})
		var delays []time.Duration
		for key, j := range planned {
			delays = append(delays, instant(t, j["next_attempt_at"]).Sub(r.of(key)[0].at))
		}
		slices.Sort(delays)
		if delays[0] < 4900*time.Millisecond {
			t.Errorf("a retry after %v: half of the delay is the least", delays[0])
		}
		if spread := delays[jobs*9/10] - delays[jobs/10]; spread < 3*time.Second {
			t.Errorf("of a delay of 10 s, retries are spread over %v: %v", spread, delays)
		}
		for first := range delays { // a window of 1/100 of the delay
			last := first
			for last < jobs && delays[last]-delays[first] < 100*time.Millisecond {
				last++
			}
			if last-first > jobs/5 {
				t.Fatalf("%d retries within 100 ms: %v", last-first, delays)
			}
		}
	})
}

func TestExecutor_Command_Failure_BR82(t *testing.T) {
	folder := t.TempDir()
	script := filepath.Join(folder, "exits.sh")
	// Exits with the payload on the first attempt, and with 0 after that.
	if err := os.WriteFile(script, []byte("#!/bin/sh\nread code\necho SECRET-OUTPUT >&2\n[ \"$SEKALI_ATTEMPT\" = 1 ] && exit \"$code\"\necho done\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	config := fastKept + fmt.Sprintf(`
job_types:
  env: {executor: command, command: {argv: [/usr/bin/env], env: {SIZE: "2 00", EMPTY: ""}}}
  cat: {executor: command, command: {argv: [cat]}}
  args: {executor: command, command: {argv: [printf, '%%s|', '$(id)', ';rm -rf /', "a\nb", '-x', '*', "$HOME"]}}
  pwd: {executor: command, command: {argv: [pwd], dir: %q}}
  exits: {executor: command, command: {argv: [%q]}}
  relative: {executor: command, command: {argv: [./exits.sh], dir: %q}}
  loud: {executor: command, max_attempts: 1, error_body: true, command: {argv: [sh, -c, 'echo SECRET-OUTPUT >&2; exit 3']}}
  quiet: {executor: command, command: {argv: [sh, -c, 'echo SECRET-OUTPUT >&2']}}
  missing: {executor: command, max_attempts: 2, command: {argv: [./no-such-program]}}
  killed: {executor: command, max_attempts: 1, command: {argv: [sh, -c, 'kill -9 $$']}}
  nothing: {executor: command, command: {argv: ["true"]}}
  text: {executor: command, command: {argv: [echo, "not json"]}}
`, folder, script, folder)
	onGateway(t, config, func(t *testing.T, g *gateway) {
		j := g.ended(t, "env", `{"type":"env"}`)
		lines := strings.Split(strings.TrimSpace(string(g.get("/jobs/env/result").body)), "\n")
		slices.Sort(lines)
		token := ""
		for i, line := range lines {
			if name, value, _ := strings.Cut(line, "="); name == "SEKALI_FENCING_TOKEN" {
				token, lines[i] = value, name
			}
		}
		if _, err := strconv.ParseInt(token, 10, 64); err != nil {
			t.Errorf("SEKALI_FENCING_TOKEN is %q", token)
		}
		if want := []string{"EMPTY=", "PATH=" + os.Getenv("PATH"), "SEKALI_ATTEMPT=1", "SEKALI_FENCING_TOKEN", fmt.Sprint("SEKALI_JOB_ID=", j["id"]), "SEKALI_KEY=env", "SEKALI_TENANT=default", "SIZE=2 00"}; !slices.Equal(lines, want) {
			t.Errorf("environment %q, want %q", lines, want)
		}
		for key, want := range map[string]string{
			"args": "$(id)|;rm -rf /|a\nb|-x|*|$HOME|", "pwd": folder + "\n", "text": "not json\n",
		} {
			if j := g.ended(t, key, `{"type":"`+key+`"}`); j["status"] != "succeeded" {
				t.Errorf("%s: %v", key, j)
			}
			if got := g.get("/jobs/" + key + "/result"); string(got.body) != want || got.Header.Get("Content-Type") != "text/plain; charset=utf-8" {
				t.Errorf("%s: %s %q", key, got.Header.Get("Content-Type"), got.body)
			}
		}
		const payload = `{ "a":"$(id) ; rm" , "n":1e400}`
		g.ended(t, "cat", `{"type":"cat","payload":`+payload+`}`)
		if got := g.get("/jobs/cat/result").want(t, http.StatusOK, "Content-Type: application/json"); string(got.body) != payload {
			t.Errorf("stdin and stdout: %q", got.body)
		}
		for _, key := range []string{"nothing", "quiet"} { // exit 0 succeeds, whatever was printed on stderr
			if j := g.ended(t, key, `{"type":"`+key+`"}`); j["status"] != "succeeded" || j["result"] != nil || j["error"] != nil {
				t.Errorf("%s: %v", key, j)
			}
			g.get("/jobs/"+key+"/result").problem(t, http.StatusNotFound, "job-has-no-result")
		}
		for _, code := range []string{"1", "75", "127", "255"} {
			if j := g.ended(t, "exit-"+code, `{"type":"exits","payload":`+code+`}`); j["status"] != "succeeded" || fmt.Sprint(j["attempts"]) != "2" || j["error"] != nil {
				t.Errorf("exit code %s: %v", code, j)
			}
			if logged := g.failedAttempt("exit-" + code); !strings.HasPrefix(logged, "exit-code: ") {
				t.Errorf("exit code %s: the attempt's error in the log is %q", code, logged)
			}
		}
		if j := g.ended(t, "relative", `{"type":"relative","payload":1}`); j["status"] != "succeeded" {
			t.Errorf("argv relative to dir: %v", j)
		}
		for key, code := range map[string]string{"missing": "command-not-started", "killed": "signal", "loud": "exit-code"} {
			if j := g.ended(t, key, `{"type":"`+key+`"}`); j["status"] != "failed" || !strings.HasPrefix(failure(j), code+" ") || strings.Contains(failure(j), "SECRET-OUTPUT") != (key == "loud") {
				t.Errorf("%s: %v", key, j)
			}
		}
	})
}

// gone reports whether the process has ended.
func gone(pid int) bool { return syscall.Kill(pid, 0) != nil }

// pidIn reads the number that a program has written into a file.
func pidIn(t testing.TB, file string) int {
	t.Helper()
	pid := 0
	testenv.Eventually(t, 20*time.Second, "a process number in "+file, func() bool {
		text, _ := os.ReadFile(file)
		pid, _ = strconv.Atoi(strings.TrimSpace(string(text)))
		return pid > 0 && bytes.HasSuffix(text, []byte("\n"))
	})
	return pid
}

func TestFailure_BR74_CommandsLeaveNothingBehind(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		folder := t.TempDir()
		// A slow moment is over before the timeout, and the program has said its number.
		g := start(t, database, fmt.Sprintf(`
dispatcher: {slots: 1}
defaults: {timeout: 3s, max_attempts: 1}
job_types:
  waits: {executor: command, command: {argv: [sh, -c, 'sleep 300 & echo $! > waits; wait'], dir: %[1]q}}
  leaves: {executor: command, timeout: 20s, command: {argv: [sh, -c, 'sleep 300 & echo $! > leaves; exit 0'], dir: %[1]q}}
  traps: {executor: command, command: {argv: [sh, -c, 'trap "" TERM INT HUP; sleep 300 & echo $! > traps; wait; wait'], dir: %[1]q}}
  flood: {executor: command, timeout: 60s, command: {argv: [sh, -c, 'yes | head -c 200000000']}}
  stderr: {executor: command, timeout: 60s, error_body: true, command: {argv: [sh, -c, 'yes | head -c 20000000 >&2; exit 1']}}
  stays: {executor: command, timeout: 60s, command: {argv: [sh, -c, 'echo $$ > stays; exec sleep 300'], dir: %[1]q}}
`, folder))
		for key, want := range map[string]string{"waits": "timeout ", "leaves": "", "traps": "timeout ", "flood": "result-too-large ", "stderr": "exit-code "} {
			begun := time.Now()
			j := g.ended(t, key, `{"type":"`+key+`"}`)
			if (want == "") != (j["status"] == "succeeded") || want != "" && !strings.HasPrefix(failure(j), want) {
				t.Errorf("%s: %v", key, j)
			}
			if took := instant(t, j["finished_at"]).Sub(instant(t, j["started_at"])); took > 15*time.Second && key != "stderr" {
				t.Errorf("%s took %v of %v", key, took, time.Since(begun))
			}
			if key == "flood" || key == "stderr" {
				continue
			}
			pid := pidIn(t, filepath.Join(folder, key))
			testenv.Eventually(t, 0, key+": the grandchild has ended", func() bool { return gone(pid) })
		}
		if peak := peakMemory(t, g); peak > 300<<10 { // of a program with the race detector, in KiB
			t.Errorf("200 MB of output took %d KiB", peak)
		}
		g.submit("stays", `{"type":"stays"}`)
		pid := pidIn(t, filepath.Join(folder, "stays"))
		g.kill()
		testenv.Eventually(t, 0, "the program has ended with its gateway", func() bool { return gone(pid) })
	})
}

// peakMemory is the most that the gateway has had in memory, in KiB.
func peakMemory(t testing.TB, g *gateway) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", g.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err) // the tests run on Linux
	}
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	kib, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return kib
}

const sqlTypes = `
limits: {result: 1KiB}
job_types:
  kinds:
    executor: sql
    sql:
      setup: create table if not exists kinds (id text, key text, tenant text, s text, i bigint, big numeric, d numeric, b boolean, n text, o text, a text, e text, whole text)
      statement: >-
        insert into kinds (id, key, tenant, s, i, big, d, b, n, o, a, e, whole)
        values ({{ .id }}, {{.key}}, {{ .tenant }}, {{ .payload.s }}, {{ .payload.i }}, {{ .payload.big }}, {{ .payload.d }}, {{ .payload.b }}, {{ .payload.n }},
          {{ .payload.o }}, {{ .payload.a }}, {{ .payload.a[1].x }}, {{ .payload }})
        returning id, key, tenant, s, i, b, n, o, a, e, whole
  kinds_count: {executor: sql, sql: {statement: 'select count(*) as n from kinds'}}
  text: {executor: sql, sql: {statement: 'insert into kinds (s, key) values ({{ .payload }}, {{ .key }})'}}
  update: {executor: sql, sql: {statement: 'update kinds set n = {{ .payload }}'}}
  cte: {executor: sql, sql: {statement: 'with x as (select s from kinds where key = {{ .payload }}) select s from x'}}
  sums: {executor: sql, sql: {statement: 'select i + {{ .payload }} as sum from kinds where i is not null'}}
  broken: {executor: sql, sql: {statement: 'insert into no_such_table (x) values (1)'}}
  unique:
    executor: sql
    sql:
      setup: create table if not exists once (k text primary key, v text)
      statement: insert into once (k, v) values ({{ .payload.k }}, {{ .payload.v }})
  once:
    executor: sql
    sql:
      statement: insert into once (k, v) values ({{ .payload.k }}, {{ .payload.v }}) returning k, v
      existing: select k, v from once where k = {{ .payload.k }} and v <> {{ .payload.hide }}
  wide: {executor: sql, sql: {statement: 'insert into once (k, v) values ({{ .key }}, {{ .payload }}) returning v'}}
  once_count: {executor: sql, sql: {statement: 'select count(*) as n from once'}}
`

func TestExecutor_SQL(t *testing.T) {
	onGateway(t, sqlTypes, func(t *testing.T, g *gateway) {
		result := func(key string) string { return string(g.get("/jobs/" + key + "/result").body) }
		const nasty = `'); drop table kinds;-- $1 ? {{ .key }} \\ é`
		payload := `{"s":"` + nasty + `","i":9223372036854775807,"big":9223372036854775808,"d":1.50,"b":true,"n":null,"o":{"x" : 1.0},"a":[1, {"x":"y"}]}`
		j := g.ended(t, "kinds", `{"type":"kinds","payload":`+payload+`}`)
		quoted := func(s string) string { return strings.ReplaceAll(s, `"`, `\"`) }
		want := fmt.Sprintf(`{"id":"%v","key":"kinds","tenant":"default","s":"%s","i":9223372036854775807,"b":true,"n":null,"o":"{\"x\" : 1.0}","a":"[1, {\"x\":\"y\"}]","e":"y","whole":"%s"}`,
			j["id"], nasty, quoted(strings.ReplaceAll(payload, `\\`, `\\\\`)))
		if got := result("kinds"); got != want || j["status"] != "succeeded" {
			t.Errorf("%v\n got %s\nwant %s", j, got, want)
		}
		for _, c := range []struct{ key, body, want string }{
			{"affected", `{"type":"update","payload":"x"}`, `{"rows_affected":1}`},
			{"sum", `{"type":"sums","payload":-7}`, `{"sum":9223372036854775800}`},
			{"text", `{"type":"text","payload":"plain"}`, `{"rows_affected":1}`},
			{"cte", `{"type":"cte","payload":"text"}`, `{"s":"plain"}`},
			{"none", `{"type":"cte","payload":"nobody"}`, `{"rows_affected":0}`},
			{"two", `{"type":"update","payload":1}`, `{"rows_affected":2}`},
			{"count", `{"type":"kinds_count"}`, `{"n":2}`},
			{"unique", `{"type":"unique","payload":{"k":"1","v":"a"}}`, `{"rows_affected":1}`},
			{"once", `{"type":"once","payload":{"k":"2","v":"b","hide":""}}`, `{"k":"2","v":"b"}`},
		} {
			if j := g.ended(t, c.key, c.body); j["status"] != "succeeded" || j["outcome"] != nil || result(c.key) != c.want {
				t.Errorf("%s: %s, %v", c.key, result(c.key), j)
			}
		}
		again := g.ended(t, "again", `{"type":"once","payload":{"k":"2","v":"other","hide":""}}`)
		if again["status"] != "succeeded" || again["outcome"] != "duplicate_ignored" || result("again") != `{"k":"2","v":"b"}` {
			t.Errorf("existing: %s, %v", result("again"), again)
		}
		for key, body := range map[string]string{
			"no-existing": `{"type":"unique","payload":{"k":"1","v":"z"}}`, "no-existing-row": `{"type":"once","payload":{"k":"2","v":"z","hide":"b"}}`,
		} {
			if j := g.ended(t, key, body); j["status"] != "failed" || fmt.Sprint(j["attempts"]) != "1" || !strings.HasPrefix(failure(j), "unique-violation ") {
				t.Errorf("%s: %v", key, j)
			}
		}
		broken := g.ended(t, "broken", `{"type":"broken"}`)
		if broken["status"] != "failed" || fmt.Sprint(broken["attempts"]) != "1" || strings.Contains(failure(broken), "no_such_table") {
			t.Errorf("a statement that can never work: %v", broken)
		}
		// The row would be too large a result: it must not stay behind either.
		wide := g.ended(t, "wide", `{"type":"wide","payload":"`+strings.Repeat("x", 1100)+`"}`)
		if wide["status"] != "failed" || fmt.Sprint(wide["attempts"]) != "1" || !strings.HasPrefix(failure(wide), "result-too-large ") {
			t.Errorf("result over the limit: %v", wide)
		}
		g.ended(t, "rows", `{"type":"once_count"}`)
		if got := result("rows"); got != `{"n":2}` {
			t.Errorf("the table holds %s", got)
		}
	})
}

// Texts that a database may refuse end in a terminal state at once, and are
// what they were where they are shown.
func TestFailure_BR29_BR31_TextsThroughEveryExecutor(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		r := newReceiver(t, func(w http.ResponseWriter, c call, _ int) {
			w.Header().Set("Content-Type", c.Header.Get("Content-Type"))
			_, _ = w.Write(c.body)
		})
		g := start(t, database, string(merge(t, sqlTypes, "limits: {result: 1MiB}", fmt.Sprintf("job_types: {http: {executor: http, http: {url: %q}}, command: {executor: command, command: {argv: [cat]}}}", r.URL))))
		for name, payload := range map[string]string{"nul": `{"s":"a\u0000b"}`, "text": `{"s":"\\u0000"}`, "high": `{"s":"\ud83d\ude00 \u2028 \u202e"}`, "controls": `{"s":"\u0001\u001f\u007f"}`} {
			for _, kind := range []string{"echo", "http", "command", "text", "kinds"} {
				key := name + "-" + kind
				j := g.ended(t, key, `{"type":"`+kind+`","payload":`+payload+`}`)
				if !bytes.Contains(g.get("/jobs/"+key).body, []byte(`"payload":`+payload+`,`)) {
					t.Errorf("%s: %s", key, g.get("/jobs/"+key).body)
				}
				switch {
				case kind == "kinds" && name == "nul" && strings.HasPrefix(database, "postgres"): // its text cannot hold a NUL
					if j["status"] != "failed" || fmt.Sprint(j["attempts"]) != "1" {
						t.Errorf("%s: %v", key, j)
					}
				case j["status"] != "succeeded":
					t.Errorf("%s: %v", key, j)
				case kind != "text" && kind != "kinds" && string(g.get("/jobs/"+key+"/result").body) != payload:
					t.Errorf("%s: result %s", key, g.get("/jobs/"+key+"/result").body)
				}
			}
		}
	})
}

func TestFailure_BR85_EveryKindOfJSONGoesRoundUnchanged(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		r := newReceiver(t, func(w http.ResponseWriter, c call, _ int) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(c.body)
		})
		g := start(t, database, fmt.Sprintf("job_types: {http: {executor: http, http: {url: %q}}, command: {executor: command, command: {argv: [cat]}}}", r.URL))
		for name, payload := range map[string]string{
			"object": `{"b":1,"a":{}}`, "array": `[ 1,[ ],{} ]`, "string": `"\u0041\/ "`, "number": `-0.10e-5`, "null": `null`, "true": `true`, "false": `false`, "zero": `0`, "empty": `""`,
			"digits": `123456789012345678901234567890.000`, "bytes": `"` + base64.StdEncoding.EncodeToString([]byte("\x00\xff")) + `"`,
		} {
			for _, kind := range []string{"echo", "http", "command"} {
				key := name + "-" + kind
				if j := g.ended(t, key, `{"type":"`+kind+`","payload":`+payload+`}`); j["status"] != "succeeded" {
					t.Errorf("%s: %v", key, j)
				}
				if a := g.get("/jobs/" + key); !bytes.Contains(a.body, []byte(`"payload":`+payload+`,"result":`+payload+`,"error"`)) {
					t.Errorf("%s: %s", key, a.body)
				}
				if a := g.get("/jobs/"+key+"/result").want(t, http.StatusOK, "Content-Type: application/json"); string(a.body) != payload {
					t.Errorf("%s: result %s", key, a.body)
				}
			}
		}
	})
}

// failedAttempt returns the error in the log of the first attempt that failed:
// a job that has succeeded does not show it any more. The line is written after the
// attempt's end, when the next one may have begun, and ended.
func (g *gateway) failedAttempt(key string) (text string) {
	g.t.Helper()
	testenv.Eventually(g.t, 0, "the log has the failed attempt of "+key, func() bool {
		for _, line := range g.logLines("attempt ended") {
			if line["idempotency_key"] == key && (line["outcome"] == "failed" || line["outcome"] == "lost") {
				text, _ = line["error"].(string)
				return true
			}
		}
		return false
	})
	return text
}
