package middleware_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/middleware"
)

func TestContract_Row51_OversizedAnswer(t *testing.T) {
	t.Parallel()
	body := strings.Repeat("x", 101)
	for name, write := range map[string]func(w http.ResponseWriter){
		"in one write":   func(w http.ResponseWriter) { fmt.Fprint(w, body) },
		"byte by byte":   func(w http.ResponseWriter) { oneByOne(w, body) },
		"read from":      func(w http.ResponseWriter) { _, _ = w.(io.ReaderFrom).ReadFrom(strings.NewReader(body)) },
		"declared":       func(w http.ResponseWriter) { w.Header().Set("Content-Length", "101"); oneByOne(w, body) },
		"a whole buffer": func(w http.ResponseWriter) { fmt.Fprint(w, body[:100]); fmt.Fprint(w, body[100:]) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var runs atomic.Int64
			seen := make(outcomes, 9)
			h := protect(newStore(), middleware.Options{ResponseLimit: 100, Count: func(o middleware.Outcome) { seen <- o }}, counted(&runs, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Location", "/big")
				write(w)
			}))
			first := send(h, keyedAs("k", "{}"))
			answers(t, first, 200, "Location", "/big")
			if first.Body.String() != body {
				t.Errorf("the first client got %d bytes", first.Body.Len())
			}
			seen.want(t, middleware.NotRetained)
			again := send(h, keyedAs("k", "{}"))
			answers(t, again, 422, "Location", "/big")
			if p := refused(t, again, 422, "idempotency-response-not-retained"); p.OriginalStatus != 200 || p.Retryable || runs.Load() != 1 {
				t.Errorf("problem is %+v after %d runs", p, runs.Load())
			}
		})
	}
	t.Run("exactly as large as is stored", func(t *testing.T) {
		t.Parallel()
		h := protect(newStore(), middleware.Options{ResponseLimit: 101}, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, body) })
		send(h, keyedAs("k", "{}"))
		again := send(h, keyedAs("k", "{}"))
		answers(t, again, 200, "Idempotent-Replayed", "true", "Content-Type", "text/plain; charset=utf-8")
		if again.Body.String() != body {
			t.Errorf("the replay has %d bytes", again.Body.Len())
		}
	})
}

func oneByOne(w http.ResponseWriter, body string) {
	for i := range len(body) {
		_, _ = w.Write([]byte{body[i]})
	}
}

// A stream is never run again, also when its client has left in its middle.
func TestContract_Row52_Streams(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name     string
		stream   func(w http.ResponseWriter)
		code     string
		habitual bool // IgnoreFlush
	}{
		{"flushed", func(w http.ResponseWriter) { fmt.Fprint(w, "a"); w.(http.Flusher).Flush(); fmt.Fprint(w, "b") }, "idempotency-response-not-retained", false},
		{"flushed by a controller", func(w http.ResponseWriter) { _ = http.NewResponseController(w).Flush(); fmt.Fprint(w, "ab") }, "idempotency-response-not-retained", false},
		{"events", func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
			fmt.Fprint(w, "ab")
		}, "idempotency-response-not-retained", true},
		{"events, flushed before the first", func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "text/event-stream")
			w.(http.Flusher).Flush()
			if client, ok := w.(interface{ Unwrap() http.ResponseWriter }).Unwrap().(*httptest.ResponseRecorder); ok && client.Flushed {
				fmt.Fprint(w, "ab")
			}
		}, "idempotency-response-not-retained", true},
		{"flushed, then aborted", func(w http.ResponseWriter) {
			fmt.Fprint(w, "ab")
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}, "idempotency-response-not-retained", false},
		{"flushed out of habit", func(w http.ResponseWriter) { fmt.Fprint(w, "a"); w.(http.Flusher).Flush(); fmt.Fprint(w, "b") }, "", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var runs atomic.Int64
			h := protect(newStore(), middleware.Options{IgnoreFlush: tt.habitual}, counted(&runs, func(w http.ResponseWriter, _ *http.Request) { tt.stream(w) }))
			first := httptest.NewRecorder()
			func() {
				defer func() { _ = recover() }()
				h.ServeHTTP(first, keyedAs("k", "{}"))
			}()
			answers(t, first, 200, "Idempotent-Replayed", "false")
			if first.Body.String() != "ab" || tt.code == "" && first.Flushed {
				t.Errorf("body is %q, flushed %t", first.Body, first.Flushed)
			}
			again := send(h, keyedAs("k", "{}"))
			if tt.code == "" {
				answers(t, again, 200, "Idempotent-Replayed", "true", "Content-Length", "2")
			} else {
				refused(t, again, 422, tt.code)
			}
			if runs.Load() != 1 {
				t.Errorf("%d runs", runs.Load())
			}
		})
	}
}

// An answer that broke off before its promised end is neither stored nor whole.
func TestFailure_C24_ShortAnswer(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"release", "store"} {
		s := newStore()
		h := protect(s, middleware.Options{On5xx: policy}, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			fmt.Fprint(w, "only this")
		})
		answers(t, send(h, keyedAs("k", "{}")), 200, "Content-Length", "100")
		if state := s.state("k"); state == idempotency.Completed {
			t.Errorf("%s: the record is %s", policy, state)
		}
	}
}

func TestOnce_ProblemsOfTheHandlerAreReplayed(t *testing.T) {
	t.Parallel()
	h := protect(newStore(), middleware.Options{}, func(w http.ResponseWriter, r *http.Request) { api.WriteError(w, r, api.ErrRouteNotFound) })
	first, again := send(h, keyedAs("k", "{}")), send(h, keyedAs("k", "{}"))
	answers(t, first, 404, "Error-Source", "gateway")
	answers(t, again, 404, "Idempotent-Replayed", "true", "Content-Type", "application/problem+json")
	if first.Body.String() != again.Body.String() {
		t.Errorf("%s and %s", first.Body, again.Body)
	}
}

// Events without end are made for the client that watches them: when it leaves,
// the handler is told, or it would go on for nobody.
func TestContract_Row52_Row56_EventsEndWithTheirClient(t *testing.T) {
	t.Parallel()
	told := make(chan struct{})
	server := httptest.NewServer(protect(newStore(), middleware.Options{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "data: 1\n\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		close(told)
	}))
	defer server.Close()
	ctx, leave := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL, strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	r.Header = header("Content-Type", "application/json", "Idempotency-Key", "k")
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	leave()
	select {
	case <-told:
	case <-time.After(30 * time.Second):
		t.Error("the handler was not told that its client has left")
	}
}
