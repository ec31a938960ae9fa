package middleware_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/middleware"
)

// jobsPolicy is the one of POST /jobs.
var jobsPolicy = middleware.KeyPolicy{Required: true, BodyLimit: 100, MediaTypes: []string{"application/json"}}

func header(pairs ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(pairs); i += 2 {
		h.Add(pairs[i], pairs[i+1])
	}
	return h
}

func TestKey_Accepted(t *testing.T) {
	t.Parallel()
	const body = `{ "a" : 1 }`
	r := post(body, header("Content-Type", "application/json; charset=UTF-8", "Idempotency-Key", "abc", "Content-Encoding", "identity"))
	ctx, report := api.WithReport(idempotency.WithTenant(r.Context(), "acme"))
	reached := false
	w := through(middleware.Key(jobsPolicy), func(_ http.ResponseWriter, r *http.Request) {
		reached = true
		req, ok := idempotency.FromContext(r.Context())
		got, err := io.ReadAll(r.Body)
		if !ok || req.Tenant != "acme" || req.Key != "abc" || err != nil || string(got) != body || r.ContentLength != int64(len(body)) {
			t.Errorf("the handler gets %+v with %q of %d, %v", req, got, r.ContentLength, err)
		}
		if want := idempotency.NewFingerprint("POST", "/jobs", nil, "application/json", []byte(`{"a":1}`)); req.Fingerprint != want {
			t.Error("the fingerprint is not that of the canonical body")
		}
	}, r.WithContext(ctx))
	if !reached {
		t.Fatalf("refused: %s", w.Body)
	}
	for name, want := range map[string]string{
		"Idempotency-Key": `"abc"`, "Cache-Control": "no-store", "Vary": "Prefer", "Idempotent-Replayed": "false", "Idempotency-Status": "",
	} {
		if got := w.Header().Get(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if report.Request.Key != "abc" || report.Request.Tenant != "acme" {
		t.Errorf("report is %+v", report)
	}
}

func TestKey_Refused(t *testing.T) {
	t.Parallel()
	const json = "application/json"
	tests := []struct {
		name   string
		header http.Header
		body   string
		status int
		code   string
		reason string
	}{
		{"Contract_Row1 no key", header("Content-Type", json), `{}`, 400, "idempotency-key-missing", ""},
		{"Contract_Row3 empty key", header("Content-Type", json, "Idempotency-Key", ""), `{}`, 400, "idempotency-key-invalid", "empty"},
		{"Contract_Row7 malformed key", header("Content-Type", json, "Idempotency-Key", `"a`), `{}`, 400, "idempotency-key-invalid", "syntax"},
		{"Contract_Row8 two keys", header("Content-Type", json, "Idempotency-Key", "a", "Idempotency-Key", "a"), `{}`, 400, "idempotency-key-invalid", "multiple"},
		{"Contract_Row10 long key", header("Content-Type", json, "Idempotency-Key", strings.Repeat("k", 256)), `{}`, 400, "idempotency-key-invalid", "length"},
		{"Contract_Row12 bad byte", header("Content-Type", json, "Idempotency-Key", "a\xff"), `{}`, 400, "idempotency-key-invalid", "charset"},
		{"Contract_Row21 large body", header("Content-Type", json, "Idempotency-Key", "a"), `"` + strings.Repeat("x", 100) + `"`, 413, "request-too-large", ""},
		{"Contract_Row23 no media type", header("Idempotency-Key", "a"), `{}`, 415, "unsupported-media-type", ""},
		{"Contract_Row23 form", header("Content-Type", "application/x-www-form-urlencoded", "Idempotency-Key", "a"), `{}`, 415, "unsupported-media-type", ""},
		{"Contract_Row23 other JSON", header("Content-Type", "application/merge-patch+json", "Idempotency-Key", "a"), `{}`, 415, "unsupported-media-type", ""},
		{"Contract_Row23 two media types", header("Content-Type", json, "Content-Type", json, "Idempotency-Key", "a"), `{}`, 415, "unsupported-media-type", ""},
		{"Contract_Row23 malformed media type", header("Content-Type", "application/json;;", "Idempotency-Key", "a"), `{}`, 415, "unsupported-media-type", ""},
		{"Contract_Row23 charset", header("Content-Type", "application/json; charset=utf-16", "Idempotency-Key", "a"), `{}`, 415, "unsupported-media-type", ""},
		{"Contract_Row23 compressed", header("Content-Type", json, "Content-Encoding", "gzip", "Idempotency-Key", "a"), `{}`, 415, "unsupported-media-type", ""},
		{"Contract_Row23 before the key is looked at", header("Content-Type", "text/plain"), `{}`, 415, "unsupported-media-type", ""},
		{"Contract_Row25 duplicate member", header("Content-Type", json, "Idempotency-Key", "a"), `{"a":1,"a":2}`, 400, "validation-failed", ""},
		{"Failure_BR31 surrogate", header("Content-Type", json, "Idempotency-Key", "a"), `{"s":"\ud800"}`, 400, "validation-failed", ""},
		{"Failure_BR33 empty body", header("Content-Type", json, "Idempotency-Key", "a"), ``, 400, "validation-failed", ""},
		{"Failure_BR33 second document", header("Content-Type", json, "Idempotency-Key", "a"), `{} {}`, 400, "validation-failed", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := through(middleware.Key(jobsPolicy), unreachable(t), post(tt.body, tt.header))
			p := problem(t, w)
			if w.Code != tt.status || p.Code != tt.code || p.Reason != tt.reason || p.Retryable {
				t.Errorf("got %d %+v", w.Code, p)
			}
			if keyed := tt.code == "validation-failed"; keyed != (p.IdempotencyKey == "a") || keyed != (w.Header().Get("Idempotency-Key") == `"a"`) {
				t.Errorf("key is %q, echo is %q", p.IdempotencyKey, w.Header().Get("Idempotency-Key"))
			}
			if tt.status == 415 && tt.name != "Contract_Row23 compressed" && !strings.Contains(p.Detail, "curl --json") {
				t.Errorf("the detail does not say what to send: %s", p.Detail)
			}
		})
	}
}

func TestContract_Row2_KeyIsOptional(t *testing.T) {
	t.Parallel()
	optional := middleware.Key(middleware.KeyPolicy{MediaTypes: []string{"application/json"}})
	reached := false
	w := through(optional, func(_ http.ResponseWriter, r *http.Request) {
		req, ok := idempotency.FromContext(r.Context())
		reached = ok && req.Key == "" && req.Fingerprint.Version != 0
	}, post(`{}`, header("Content-Type", "application/json")))
	if !reached || w.Header().Get("Idempotency-Status") != "none" || w.Header().Get("Idempotency-Key") != "" {
		t.Errorf("reached: %t, headers %v", reached, w.Header())
	}
	w = through(optional, unreachable(t), post(`{}`, header("Content-Type", "application/json", "Idempotency-Key", "")))
	if w.Code != 400 {
		t.Errorf("an empty key runs unprotected: %d", w.Code)
	}
}

func TestContract_Row25_WhatTheFingerprintTellsApart(t *testing.T) {
	t.Parallel()
	of := func(method, target, mediaType, body string, pairs ...string) idempotency.Fingerprint {
		r := httptest.NewRequest(method, target, strings.NewReader(body))
		r.Header = header(append(pairs, "Content-Type", mediaType, "Idempotency-Key", "k")...)
		var fp idempotency.Fingerprint
		w := through(middleware.Key(middleware.KeyPolicy{}), func(_ http.ResponseWriter, r *http.Request) {
			req, _ := idempotency.FromContext(r.Context())
			fp = req.Fingerprint
		}, r)
		if fp.Version == 0 {
			t.Errorf("%s %s: %s", method, target, w.Body)
		}
		return fp
	}
	first := of("POST", "/jobs?a=1&b=2", "application/json", `{"x":1,"y":2}`)
	for name, fp := range map[string]idempotency.Fingerprint{
		"order of members":     of("POST", "/jobs?a=1&b=2", "application/json", `{ "y":2, "x":1 }`),
		"order of parameters":  of("POST", "/jobs?b=2&a=1", "application/json", `{"x":1,"y":2}`),
		"media type parameter": of("POST", "/jobs?a=1&b=2", "Application/JSON; charset=utf-8", `{"x":1,"y":2}`),
		"preferences":          of("POST", "/jobs?a=1&b=2", "application/json", `{"x":1,"y":2}`, "Prefer", "wait=5", "Traceparent", "00"),
	} {
		if part := first.Differs(fp); part != "" {
			t.Errorf("%s makes another %s", name, part)
		}
	}
	for name, tt := range map[string]struct {
		fp   idempotency.Fingerprint
		part string
	}{
		"method":         {of("PATCH", "/jobs?a=1&b=2", "application/json", `{"x":1,"y":2}`), idempotency.PartTarget},
		"path":           {of("POST", "/jobs%2F?a=1&b=2", "application/json", `{"x":1,"y":2}`), idempotency.PartTarget},
		"query":          {of("POST", "/jobs?a=1&b=3", "application/json", `{"x":1,"y":2}`), idempotency.PartTarget},
		"number":         {of("POST", "/jobs?a=1&b=2", "application/json", `{"x":1.0,"y":2}`), idempotency.PartBody},
		"media type":     {of("POST", "/jobs?a=1&b=2", "application/x+json", `{"x":1,"y":2}`), idempotency.PartBody},
		"bytes of +json": {of("POST", "/jobs?a=1&b=2", "text/plain", `{"x":1,"y":2}`), idempotency.PartBody},
	} {
		if part := first.Differs(tt.fp); part != tt.part {
			t.Errorf("another %s differs in %q, want %q", name, part, tt.part)
		}
	}
	if of("POST", "/x", "text/plain", "a b").Differs(of("POST", "/x", "text/plain", "a  b")) != idempotency.PartBody {
		t.Error("a body that is no JSON is not compared byte by byte")
	}
	w := through(middleware.Key(middleware.KeyPolicy{}), unreachable(t), httptest.NewRequest("POST", "/jobs?a;b", nil))
	if w.Code != 400 {
		t.Errorf("a query that cannot be read is answered %d", w.Code)
	}
}

func TestKey_WithoutABody(t *testing.T) {
	t.Parallel()
	reached := false
	r := httptest.NewRequest(http.MethodPost, "/jobs", nil)
	r.Header.Set("Idempotency-Key", "k")
	through(middleware.Key(jobsPolicy), func(http.ResponseWriter, *http.Request) { reached = true }, r)
	if !reached {
		t.Error("a request without a body needs no media type")
	}
}

type brokenBody struct{ err error }

func (b brokenBody) Read([]byte) (int, error) { return 0, b.err }

func TestContract_Row22_BodyBreaksOff(t *testing.T) {
	t.Parallel()
	r := httptest.NewRequest(http.MethodPost, "/jobs", brokenBody{io.ErrUnexpectedEOF})
	r.Header = header("Content-Type", "application/json", "Idempotency-Key", "k")
	w := through(middleware.Key(jobsPolicy), unreachable(t), r)
	if p := problem(t, w); w.Code != 400 || p.Code != "body-unreadable" {
		t.Errorf("got %d %+v", w.Code, p)
	}
}

// raw sends bytes over a real connection, and tells the answer's status and
// whether it ends the connection.
func raw(t *testing.T, h http.Handler, request string) (status int, closing bool) {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	connection, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	if err := connection.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(connection, request); err != nil {
		t.Fatal(err)
	}
	w, err := http.ReadResponse(bufio.NewReader(connection), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Body.Close()
	return w.StatusCode, w.Close
}

const rawHead = "POST /jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nIdempotency-Key: k\r\n"

func TestContract_Row22_SlowBody(t *testing.T) {
	t.Parallel()
	policy := jobsPolicy
	policy.BodyTimeout = 50 * time.Millisecond
	status, closing := raw(t, middleware.Key(policy)(unreachable(t)), rawHead+"Content-Length: 50\r\n\r\n{")
	if status != 408 || !closing {
		t.Errorf("got %d, close: %t", status, closing)
	}
}

func TestContract_Row21_RealBytesAreCounted(t *testing.T) {
	t.Parallel()
	chunk := fmt.Sprintf("%x\r\n%s\r\n", 90, strings.Repeat("x", 90))
	for name, request := range map[string]string{
		"chunked without end":    rawHead + "Transfer-Encoding: chunked\r\n\r\n" + chunk + chunk,
		"announced, never sent":  rawHead + "Content-Length: 9999999999\r\n\r\n",
		"one byte over, chunked": rawHead + "Transfer-Encoding: chunked\r\n\r\n" + fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", 101, strings.Repeat("x", 101)),
	} {
		status, closing := raw(t, middleware.Key(jobsPolicy)(unreachable(t)), request)
		if status != 413 || !closing {
			t.Errorf("%s: got %d, close: %t", name, status, closing)
		}
	}
}

// The time for the body ends with the body: a handler may wait much longer,
// and the connection stays good.
func TestKey_SlowHandlerIsNotASlowBody(t *testing.T) {
	t.Parallel()
	policy := jobsPolicy
	policy.BodyTimeout = 3 * time.Second // a machine under load may stand still for two
	h := middleware.Key(policy)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		longer := time.NewTimer(policy.BodyTimeout * 6 / 5)
		defer longer.Stop()
		select {
		case <-r.Context().Done():
			w.WriteHeader(http.StatusTeapot)
		case <-longer.C:
		}
	}))
	if status, closing := raw(t, h, rawHead+"Content-Length: 2\r\n\r\n{}"); status != 200 || closing {
		t.Errorf("got %d, close: %t", status, closing)
	}
}

// Whatever a client sends, the answer is a problem of the 4xx or the handler's.
func FuzzKey(f *testing.F) {
	f.Add("k", "application/json", `{"a":1}`)
	f.Add(`"k`, "text/plain;", "\xff")
	f.Fuzz(func(t *testing.T, key, mediaType, body string) {
		w := through(middleware.Key(jobsPolicy), nothing, post(body, header("Idempotency-Key", key, "Content-Type", mediaType)))
		if w.Code >= 500 {
			t.Errorf("got %d: %s", w.Code, w.Body)
		}
	})
}

// No body and {} say the same, so that a double click is one request whichever
// client sends it.
func TestContract_Row75_BodilessRoutes(t *testing.T) {
	t.Parallel()
	policy := jobsPolicy
	policy.Bodiless = true
	seen := map[idempotency.Fingerprint]bool{}
	send := func(body string, h http.Header) *httptest.ResponseRecorder {
		r := post(body, h)
		return through(middleware.Key(policy), func(w http.ResponseWriter, r *http.Request) {
			req, _ := idempotency.FromContext(r.Context())
			seen[req.Fingerprint] = true
		}, r)
	}
	const json = "application/json"
	for _, tt := range []struct {
		body   string
		header http.Header
	}{
		{"", header("Idempotency-Key", "a")},
		{"", header("Idempotency-Key", "a", "Content-Type", json)},
		{"{}", header("Idempotency-Key", "a", "Content-Type", json)},
		{" { }\n", header("Idempotency-Key", "a", "Content-Type", "application/json; charset=utf-8")},
	} {
		if w := send(tt.body, tt.header); w.Code != http.StatusOK {
			t.Errorf("%q with %v: %d %s", tt.body, tt.header, w.Code, w.Body)
		}
	}
	if len(seen) != 1 {
		t.Errorf("%d fingerprints for one request", len(seen))
	}
	if w := send(`{"a":1}`, header("Idempotency-Key", "a", "Content-Type", json)); w.Code != http.StatusOK || len(seen) != 2 {
		t.Errorf("a body goes to the handler as another request: %d, %d fingerprints", w.Code, len(seen))
	}
	for body, status := range map[string]int{"{": 400, "{{}": 400, `{"a":1,"a":1}`: 400} {
		if w := send(body, header("Idempotency-Key", "a", "Content-Type", json)); w.Code != status {
			t.Errorf("%q: %d", body, w.Code)
		}
	}
	if w := send("{}", header("Idempotency-Key", "a", "Content-Type", "text/plain")); w.Code != http.StatusUnsupportedMediaType {
		t.Errorf("text: %d", w.Code)
	}
	if w := send("", nil); w.Code != http.StatusBadRequest {
		t.Errorf("no key: %d", w.Code)
	}
}
