package executor_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/sekali/sekali/executor"
	"github.com/sekali/sekali/idempotency"
)

// hit is one request as the receiver got it.
type hit struct {
	method string
	header http.Header
	body   []byte
}

// sink counts requests and answers them.
type sink struct {
	*httptest.Server
	mu   sync.Mutex
	hits []hit
}

func newSink(t *testing.T, answer http.HandlerFunc) *sink {
	t.Helper()
	s := &sink{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		s.hits = append(s.hits, hit{r.Method, r.Header.Clone(), body})
		s.mu.Unlock()
		answer(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *sink) all() []hit {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]hit(nil), s.hits...)
}

func newHTTP(t *testing.T, cfg executor.HTTPConfig) *executor.HTTP {
	t.Helper()
	h, err := executor.NewHTTP(cfg)
	if err != nil {
		t.Fatalf("NewHTTP: %v", err)
	}
	t.Cleanup(h.Close)
	return h
}

func status(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
}

func TestContract_SectionI_HTTPRequest(t *testing.T) {
	t.Parallel()
	s := newSink(t, status(http.StatusNoContent))
	h := newHTTP(t, executor.HTTPConfig{URL: s.URL, Headers: map[string]string{"x-source": "sekali", "Authorization": "Bearer b"}})
	c := claimed(`{"order_id": "42", "total": 10.50}`)
	c.Key = `"quoted" \ {,;} ~`

	if result, err := h.Execute(t.Context(), c); err != nil || result != nil {
		t.Fatalf("Execute = %v, %v, want no result of a 204", result, err)
	}
	got := s.all()[0]
	if got.method != http.MethodPost || string(got.body) != string(c.Payload) {
		t.Errorf("sent %s %q, want a POST of the payload's bytes", got.method, got.body)
	}
	for name, want := range map[string]string{
		"Idempotency-Key":      `"` + jobID + `"`,
		"Sekali-Key":           `"quoted" \ {,;} ~`,
		"Sekali-Attempt":       "3",
		"Sekali-Fencing-Token": "17",
		"Sekali-Type":          "invoice_generate",
		"Content-Type":         "application/json",
		"Content-Length":       "34",
		"Accept-Encoding":      "identity",
		"X-Source":             "sekali",
		"Authorization":        "Bearer b",
		"Webhook-Id":           "",
	} {
		if values := got.header.Values(name); strings.Join(values, "|") != want {
			t.Errorf("%s = %q, want %q", name, values, want)
		}
	}
}

func TestContract_SectionI_HTTPKeyMayHoldAnyPrintableCharacter(t *testing.T) {
	t.Parallel()
	s := newSink(t, status(http.StatusOK))
	h := newHTTP(t, executor.HTTPConfig{URL: s.URL})
	for b := byte('!'); b <= '~'; b++ {
		key := "a" + string(b) + " " + string(b)
		c := claimed("{}")
		c.Key = idempotency.Key(key)
		if _, err := h.Execute(t.Context(), c); err != nil {
			t.Fatalf("key %q: %v", key, err)
		}
		hits := s.all()
		if got := hits[len(hits)-1].header.Get("Sekali-Key"); got != key {
			t.Errorf("Sekali-Key = %q, want %q", got, key)
		}
	}
}

func TestContract_SectionI_HTTPSignature(t *testing.T) {
	t.Parallel()
	secret := "whsec_" + base64.StdEncoding.EncodeToString([]byte("0123456789abcdef01234567"))
	s := newSink(t, status(http.StatusOK))
	h := newHTTP(t, executor.HTTPConfig{URL: s.URL, Secret: secret})
	if _, err := h.Execute(t.Context(), claimed(`{"a":1}`)); err != nil {
		t.Fatalf("Execute: %v", err)
	}
	got := s.all()[0]
	webhook, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		t.Fatal(err)
	}
	if err := webhook.Verify(got.body, got.header); err != nil {
		t.Errorf("the signature does not verify: %v", err)
	}
	if id := got.header.Get("Webhook-Id"); id != jobID {
		t.Errorf("webhook-id = %q, want the job's id", id)
	}
}

func TestFailure_BR71_EveryAttemptCarriesTheSameKeyAndBody(t *testing.T) {
	t.Parallel()
	s := newSink(t, status(http.StatusServiceUnavailable))
	h := newHTTP(t, executor.HTTPConfig{URL: s.URL})
	c := claimed(`{"z":1,"a":[1.0]}`)
	for attempt := range 3 {
		c.Attempts, c.Lease.Token = attempt+1, int64(attempt+1)
		_, err := h.Execute(t.Context(), c)
		wantFailure(t, err, executor.CodeHTTPStatus, false)
	}
	first := s.all()[0]
	for i, got := range s.all() {
		if got.header.Get("Idempotency-Key") != first.header.Get("Idempotency-Key") {
			t.Errorf("attempt %d has another Idempotency-Key", i+1)
		}
		if sha256.Sum256(got.body) != sha256.Sum256(first.body) {
			t.Errorf("attempt %d has another body", i+1)
		}
		if want := fmt.Sprint(i + 1); got.header.Get("Sekali-Attempt") != want {
			t.Errorf("Sekali-Attempt = %q, want %q", got.header.Get("Sekali-Attempt"), want)
		}
	}
}

func TestFailure_BR82_What2xxMeans(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		answer    http.HandlerFunc
		body      string
		mediaType string
	}{
		"a body that says failure is a result": {answer("application/json", `{"success":false}`), `{"success":false}`, "application/json"},
		"HTML is a result":                     {answer("text/html; charset=utf-8", "<p>hi"), "<p>hi", "text/html; charset=utf-8"},
		"JSON with an escaped NUL is kept (BR-30)": {
			answer("application/json", `{"r":"x\u0000y"}`), `{"r":"x\u0000y"}`, "application/json",
		},
		"an undeclared JSON type is found": {answer("-", `{"a":1}`), `{"a":1}`, "application/json"},
		"an undeclared text type is found": {answer("-", `hi`), `hi`, "text/plain; charset=utf-8"},
		"an unreadable type is not kept":   {answer("a b c", `hi`), `hi`, "application/octet-stream"},
		"a type beyond ASCII is not kept":  {answer("text/plain; x=\"\xff\"", `hi`), `hi`, "application/octet-stream"},
		"a coded body is only bytes":       {coded, gzipped("hello"), "application/octet-stream"},
		"an empty body is no result":       {answer("text/plain", ""), "", ""},
		"neither is a 204":                 {status(http.StatusNoContent), "", ""},
		"any 2xx succeeds":                 {status(http.StatusAccepted), "", ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSink(t, test.answer)
			result, err := newHTTP(t, executor.HTTPConfig{URL: s.URL}).Execute(t.Context(), claimed("{}"))
			if test.body == "" {
				if err != nil || result != nil {
					t.Errorf("Execute = %v, %v, want neither", result, err)
				}
				return
			}
			wantResult(t, result, err, test.body, test.mediaType)
		})
	}
}

// answer writes a body; "-" sends no media type at all.
func answer(mediaType, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Content-Type"] = []string{mediaType}
		if mediaType == "-" {
			w.Header()["Content-Type"] = nil
		}
		_, _ = io.WriteString(w, body)
	}
}

func coded(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain")
	w.Header().Set("Content-Encoding", "gzip")
	_, _ = io.WriteString(w, gzipped("hello"))
}

func gzipped(text string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = io.WriteString(z, text)
	_ = z.Close()
	return b.String()
}

func TestContract_SectionI_HTTPResultTooLarge(t *testing.T) {
	t.Parallel()
	stopped := make(chan struct{}, 2)
	tests := map[string]http.HandlerFunc{
		"announced": answer("text/plain", strings.Repeat("x", 101)),
		"endless": func(w http.ResponseWriter, r *http.Request) {
			chunk := bytes.Repeat([]byte("x"), 64<<10)
			for r.Context().Err() == nil {
				if _, err := w.Write(chunk); err != nil {
					break
				}
			}
			stopped <- struct{}{}
		},
	}
	for name, answer := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSink(t, answer)
			_, err := newHTTP(t, executor.HTTPConfig{URL: s.URL, ResultLimit: 100}).Execute(t.Context(), claimed("{}"))
			wantFailure(t, err, executor.CodeResultTooLarge, true)
			if name == "endless" {
				receive(t, stopped, "the endless answer was given up")
			}
		})
	}
	t.Run("exactly the limit is none too large", func(t *testing.T) {
		t.Parallel()
		body := strings.Repeat("x", 100)
		s := newSink(t, answer("text/plain", body))
		result, err := newHTTP(t, executor.HTTPConfig{URL: s.URL, ResultLimit: 100}).Execute(t.Context(), claimed("{}"))
		wantResult(t, result, err, body, "text/plain")
	})
}

func receive[T any](t *testing.T, from <-chan T, what string) T {
	t.Helper()
	timer := time.NewTimer(hangs)
	defer timer.Stop()
	select {
	case got := <-from:
		return got
	case <-timer.C:
		t.Fatalf("%s: nothing came", what)
		panic("unreachable")
	}
}

func TestFailure_BR63_AnEndedAttemptSaysWhy(t *testing.T) {
	t.Parallel()
	answers := map[string]func(w http.ResponseWriter){
		"no answer":   func(http.ResponseWriter) {},
		"slow answer": func(w http.ResponseWriter) { _, _ = io.WriteString(w, "x"); w.(http.Flusher).Flush() },
	}
	for name, begin := range answers {
		for _, test := range causes {
			t.Run(name+"/"+test.cause.Error(), func(t *testing.T) {
				t.Parallel()
				begun := make(chan struct{})
				s := newSink(t, func(w http.ResponseWriter, r *http.Request) {
					begin(w)
					close(begun)
					<-r.Context().Done()
				})
				ctx, cancel := context.WithCancelCause(t.Context())
				go func() { <-begun; cancel(test.cause) }()
				_, err := newHTTP(t, executor.HTTPConfig{URL: s.URL}).Execute(ctx, claimed("{}"))
				wantFailure(t, err, test.code, false)
				wantUnknown(t, err, true)
				if !errors.Is(err, test.cause) {
					t.Errorf("error = %v, want it to wrap the cause", err)
				}
			})
		}
	}
}

// nowhere is an address at which nobody listens. One that was free a moment ago may
// be another test's by now, which then gets the call.
const nowhere = "127.0.0.1:1"

func TestHTTP_AnUnreachableReceiver(t *testing.T) {
	t.Parallel()
	_, err := newHTTP(t, executor.HTTPConfig{URL: "http://u:p@" + nowhere + "/?token=t"}).Execute(t.Context(), claimed("{}"))
	e := wantFailure(t, err, executor.CodeConnection, false)
	if strings.Contains(e.Detail, nowhere) || strings.Contains(err.Error(), "token") {
		t.Errorf("detail %q or log text %q shows the URL", e.Detail, err)
	}
}
