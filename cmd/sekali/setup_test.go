package main_test

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	sekali "github.com/sekali/sekali/cmd/sekali"
)

// request is what a gateway was asked.
type request struct {
	line, key, token, mediaType, body string

	prefer, match string // the headers Prefer and If-None-Match
}

// answerOf is what it answers: a status, a document and headers in pairs.
type answerOf struct {
	status int
	body   string
	header []string
}

// double stands in for a gateway: it answers what the tests say, by method and
// path, the last answer again and again.
type double struct {
	*httptest.Server
	mu      sync.Mutex
	asked   []request
	answers map[string][]answerOf
	before  func(line string) // nil, or called before a request is answered
}

// nowhere is the address of no gateway: nobody listens at this port. One that was
// free a moment ago may be another test's by now.
const nowhere = "http://127.0.0.1:1"

func newDouble(t *testing.T, answers map[string][]answerOf) *double {
	t.Helper()
	d := &double{answers: answers}
	d.Server = httptest.NewServer(d)
	t.Cleanup(d.Close)
	return d
}

func (d *double) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	line := r.Method + " " + r.URL.RequestURI()
	if d.before != nil {
		d.before(line)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked = append(d.asked, request{line, r.Header.Get("Idempotency-Key"), r.Header.Get("Authorization"), r.Header.Get("Content-Type"), string(body), r.Header.Get("Prefer"), r.Header.Get("If-None-Match")})
	answers := d.answers[line]
	if len(answers) == 0 {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"code":"route-not-found","title":"There is nothing at this path","detail":"x"}`)
		return
	}
	if len(answers) > 1 {
		d.answers[line] = answers[1:]
	}
	a := answers[0]
	w.Header().Set("Content-Type", mediaTypeOf(a))
	for i := 0; i < len(a.header); i += 2 {
		w.Header().Set(a.header[i], a.header[i+1])
	}
	if a.status == 0 { // breaks off
		panic(http.ErrAbortHandler)
	}
	w.WriteHeader(a.status)
	_, _ = io.WriteString(w, a.body)
}

// mediaTypeOf is what a gateway says of such a body; of another program's it says
// nothing.
func mediaTypeOf(a answerOf) string {
	switch {
	case !strings.HasPrefix(a.body, "{"):
		return "text/html"
	case a.status >= http.StatusBadRequest:
		return "application/problem+json"
	}
	return "application/json"
}

// once is a gateway that always answers the same.
func once(t *testing.T, line string, status int, body string, header ...string) *double {
	t.Helper()
	return newDouble(t, map[string][]answerOf{line: {{status, body, header}}})
}

func run(args ...string) (out, notes string, code int) { return runWith("", args...) }

func runWith(in string, args ...string) (out, notes string, code int) {
	var o, n bytes.Buffer
	code = sekali.Run(strings.NewReader(in), &o, &n, args...)
	return o.String(), n.String(), code
}

// requests are what the gateway was asked.
func (d *double) requests() []request {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.asked)
}

// has reports which of the texts are missing.
func has(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("no %q in\n%s", part, text)
		}
	}
}

const pending = `{"id":"0198","key":"order-42","type":"pay","status":"pending","attempts":4,"max_attempts":8,"error":{"code":"timeout","detail":"d","attempt":4},"payload":{"n": 1.50}}`
