package middleware_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/middleware"
)

// protect puts a handler behind Key and Once, as a program would.
func protect(s idempotency.Store, o middleware.Options, h http.HandlerFunc) http.Handler {
	return middleware.Tenant(middleware.Key(middleware.KeyPolicy{Required: true})(middleware.Once(s, o)(h)))
}

// counted counts the runs of a handler.
func counted(runs *atomic.Int64, h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		runs.Add(1)
		h(w, r)
	}
}

func send(h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// keyedAs is a request with a key, a body and a preference.
func keyedAs(key, body string, prefer ...string) *http.Request {
	h := header("Content-Type", "application/json", "Idempotency-Key", key)
	if len(prefer) > 0 {
		h["Prefer"] = prefer
	}
	return post(body, h)
}

// answers checks status, and headers where a header that is "" must be absent.
func answers(t *testing.T, w *httptest.ResponseRecorder, status int, headers ...string) {
	t.Helper()
	if w.Code != status {
		t.Errorf("status is %d, want %d: %s", w.Code, status, w.Body)
	}
	for i := 0; i < len(headers); i += 2 {
		if got := w.Header().Get(headers[i]); got != headers[i+1] {
			t.Errorf("%s is %q, want %q", headers[i], got, headers[i+1])
		}
	}
}

func refused(t *testing.T, w *httptest.ResponseRecorder, status int, code string) api.Problem {
	t.Helper()
	answers(t, w, status, "Error-Source", "gateway")
	p := problem(t, w)
	if p.Code != code || p.IdempotencyKey == "" || p.Job != "" {
		t.Errorf("problem is %+v, want %s", p, code)
	}
	return p
}

func created(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Location", "/things/1")
	w.Header().Set("ETag", `"1"`)
	w.WriteHeader(http.StatusCreated)
	_, _ = fmt.Fprint(w, `{ "id" : 1 }`)
}

func TestContract_Row26_Row29_FirstAndReplay(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	h := protect(newStore(), middleware.Options{}, counted(&runs, created))
	first, again := send(h, keyedAs("k", `{"a":1}`)), send(h, keyedAs(`"k"`, `{ "a": 1 }`))
	answers(t, first, 201, "Idempotent-Replayed", "false", "Idempotency-Key", `"k"`, "Cache-Control", "no-store", "Vary", "Prefer", "Location", "/things/1", "Idempotency-Status", "")
	answers(t, again, 201, "Idempotent-Replayed", "true", "Idempotency-Key", `"k"`, "Cache-Control", "no-store", "Vary", "Prefer", "Location", "/things/1",
		"ETag", `"1"`, "Content-Type", "application/json", "Content-Length", "12")
	if again.Header().Get("Idempotency-Expires") == "" {
		t.Error("the replay does not tell until when")
	}
	if runs.Load() != 1 || first.Body.String() != again.Body.String() {
		t.Errorf("%d runs; %q and %q", runs.Load(), first.Body, again.Body)
	}
}

func TestContract_Row27_MismatchInEveryState(t *testing.T) {
	t.Parallel()
	s := newStore()
	h := protect(s, middleware.Options{}, created)
	send(h, keyedAs("k", `{"secret":"zz-91"}`))
	for _, state := range []idempotency.State{idempotency.Completed, idempotency.InProgress, idempotency.Interrupted, idempotency.Retired} {
		s.records["k"].rec.State, s.records["k"].until = state, time.Now().Add(time.Hour)
		w := send(h, keyedAs("k", `{"b":1}`))
		if p := refused(t, w, 422, "idempotency-key-reused"); p.Retryable || !strings.Contains(p.Detail, "body") || strings.Contains(w.Body.String(), "zz-91") {
			t.Errorf("%s: problem is %+v", state, p)
		}
	}
	r := keyedAs("k", `{"secret":"zz-91"}`)
	r.URL.Path = "/other"
	if p := refused(t, send(h, r), 422, "idempotency-key-reused"); !strings.Contains(p.Detail, "target") {
		t.Errorf("Contract_Row28: problem is %+v", p)
	}
}

func TestContract_Row30_InFlight(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		entered, end := make(chan struct{}), make(chan struct{})
		h := protect(newStore(), middleware.Options{Lease: 3500 * time.Millisecond}, func(w http.ResponseWriter, r *http.Request) {
			close(entered)
			<-end
			created(w, r)
		})
		first := make(chan *httptest.ResponseRecorder)
		go func() { first <- send(h, keyedAs("k", "{}")) }()
		<-entered
		w := send(h, keyedAs("k", "{}"))
		answers(t, w, 409, "Retry-After", "4", "Idempotent-Replayed", "false")
		if p := refused(t, w, 409, "idempotency-key-in-use"); !p.Retryable || p.RetryAfterMS != 3500 {
			t.Errorf("problem is %+v", p)
		}
		refused(t, send(h, keyedAs("k", `{"other":1}`)), 422, "idempotency-key-reused")
		close(end)
		answers(t, <-first, 201)
		answers(t, send(h, keyedAs("k", "{}")), 201, "Idempotent-Replayed", "true")
	})
}

// C7, C8, row 33: whoever loses a race gets a replay or 409.
func TestContract_Row33_OneRunOfManyAtOnce(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	h := protect(newStore(), middleware.Options{}, counted(&runs, created))
	var group sync.WaitGroup
	for range 100 {
		group.Go(func() {
			if w := send(h, keyedAs("k", "{}")); w.Code != 201 && w.Code != 409 {
				t.Errorf("status is %d: %s", w.Code, w.Body)
			}
		})
	}
	group.Wait()
	if runs.Load() != 1 {
		t.Errorf("%d runs", runs.Load())
	}
}

func TestContract_Row34to39_WhatIsStored(t *testing.T) {
	t.Parallel()
	const stored, released, interrupted = "stored", "released", "interrupted"
	tests := []struct {
		name   string
		status int
		on5xx  string
		optOut bool
		want   string
	}{
		{"Row34 200", 200, "", false, stored},
		{"Row34 204", 204, "", false, stored},
		{"Row34 303", 303, "", false, stored},
		{"Row35 400", 400, "", false, stored},
		{"Row35 404", 404, "", false, stored},
		{"Row35 409", 409, "", false, stored},
		{"Row36 401", 401, "", false, released},
		{"Row36 403", 403, "", false, released},
		{"Row36 408", 408, "", false, released},
		{"Row36 425", 425, "", false, released},
		{"Row36 429", 429, "store", false, released},
		{"Row38 500", 500, "", false, released},
		{"Row38 500 release", 500, "release", false, released},
		{"Row38 503 store", 503, "store", false, stored},
		{"Row38 500 interrupt", 500, "interrupt", false, interrupted},
		{"Row39 opted out", 200, "store", true, released},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var runs atomic.Int64
			h := protect(newStore(), middleware.Options{On5xx: tt.on5xx}, counted(&runs, func(w http.ResponseWriter, _ *http.Request) {
				if tt.optOut {
					w.Header().Set("Idempotency-Store", "no")
				}
				w.WriteHeader(tt.status)
			}))
			source := map[bool]string{true: "handler"}[tt.status >= 400]
			answers(t, send(h, keyedAs("k", "{}")), tt.status, "Idempotency-Store", "", "Idempotent-Replayed", "false", "Error-Source", source)
			again := send(h, keyedAs("k", "{}"))
			switch tt.want {
			case stored:
				answers(t, again, tt.status, "Idempotent-Replayed", "true", "Error-Source", source)
			case released:
				answers(t, again, tt.status, "Idempotent-Replayed", "false")
			case interrupted:
				if p := refused(t, again, 422, "idempotency-outcome-unknown"); p.Retryable {
					t.Errorf("problem is %+v", p)
				}
			}
			if want := map[string]int64{stored: 1, released: 2, interrupted: 1}[tt.want]; runs.Load() != want {
				t.Errorf("%d runs, want %d", runs.Load(), want)
			}
		})
	}
}

func TestContract_Row41_Reject(t *testing.T) {
	t.Parallel()
	h := protect(newStore(), middleware.Options{On5xx: "store"}, func(w http.ResponseWriter, r *http.Request) {
		body := make([]byte, 10)
		n, _ := r.Body.Read(body)
		switch string(body[:n]) {
		case `{"bad":1}`:
			middleware.Reject(w, r, errors.New("bad must not be there"))
		case `{"bad":2}`:
			middleware.Reject(w, r, &api.ValidationError{Errors: []api.FieldError{{Pointer: "/bad"}}})
		default:
			created(w, r)
		}
	})
	w := send(h, keyedAs("k", `{"bad":1}`))
	answers(t, w, 400, "Idempotency-Store", "")
	if p := refused(t, w, 400, "request-rejected"); p.Detail != "bad must not be there" {
		t.Errorf("problem is %+v", p)
	}
	refused(t, send(h, keyedAs("k", `{"bad":2}`)), 400, "validation-failed")
	answers(t, send(h, keyedAs("k", `{}`)), 201, "Idempotent-Replayed", "false")
}

func TestContract_Row53_Row54_Headers(t *testing.T) {
	t.Parallel()
	replayed := header("Content-Type", "text/plain", "Content-Language", "en", "Content-Disposition", "inline", "Content-Location", "/c", "Location", "/l",
		"ETag", `W/"2"`, "Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT", "Link", "</x>; rel=next", "X-Mine", "mine")
	never := header("Set-Cookie", "s=1", "Authorization", "x", "WWW-Authenticate", "Basic", "Proxy-Authenticate", "Basic", "Keep-Alive", "timeout=5",
		"Date", "then", "Server", "apache", "RateLimit-Remaining", "1", "RateLimit", "x", "X-RateLimit-Limit", "2", "Retry-After", "9",
		"Traceparent", "00-1", "Access-Control-Expose-Headers", "X", "X-Other", "other")
	var also []string
	for name := range never {
		if name != "X-Other" {
			also = append(also, name) // the denial wins
		}
	}
	h := middleware.RequestID(protect(newStore(), middleware.Options{ReplayHeaders: append(also, "x-mine")}, func(w http.ResponseWriter, _ *http.Request) {
		for _, each := range []http.Header{replayed, never} {
			for name, values := range each {
				w.Header()[name] = values
			}
		}
		w.Header().Set("Vary", "Accept")
		w.Header().Set("Idempotency-Status", "forged")
		w.Header().Set("Idempotent-Replayed", "forged")
		w.Header().Set("Cache-Control", "max-age=60")
		w.Header().Set("X-Request-Id", "the handler's")
	}))
	first, again := send(h, keyedAs("k", "{}")), send(h, keyedAs("k", "{}"))
	for name, values := range replayed {
		answers(t, first, 200, name, values[0])
		answers(t, again, 200, name, values[0])
	}
	for name, values := range never {
		answers(t, first, 200, name, values[0])
		answers(t, again, 200, name, "")
	}
	for _, w := range []*httptest.ResponseRecorder{first, again} {
		answers(t, w, 200, "Idempotency-Status", "", "Cache-Control", "no-store")
		if id := w.Header().Values("X-Request-Id"); len(id) != 1 || id[0] == "the handler's" {
			t.Errorf("X-Request-Id is %q", id)
		}
	}
	if vary := strings.Join(first.Header().Values("Vary"), ","); vary != "Prefer,Accept" {
		t.Errorf("Vary is %s", vary)
	}
}

func TestContract_Row57to59_Expiry(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, afterExpiry, code string }{
		{"Row57 refused", "", "idempotency-key-retired"},
		{"Row57 executed", "execute", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var runs atomic.Int64
				h := protect(newStore(), middleware.Options{Keep: time.Minute, AfterExpiry: tt.afterExpiry}, counted(&runs, created))
				answers(t, send(h, keyedAs("k", "{}")), 201)
				<-time.NewTimer(time.Minute).C
				w := send(h, keyedAs("k", "{}"))
				if tt.code == "" {
					answers(t, w, 201, "Idempotent-Replayed", "false")
				} else if p := refused(t, w, 422, tt.code); p.ExpiredAt == nil || p.Retryable || runs.Load() != 1 {
					t.Errorf("problem is %+v after %d runs", p, runs.Load())
				}
			})
		})
	}
}

func TestContract_Row60_CorruptRecord(t *testing.T) {
	t.Parallel()
	for _, o := range []middleware.Options{{}, {FailOpen: true}} {
		s := newStore()
		h := protect(s, o, created)
		answers(t, send(h, keyedAs("k", "{}")), 201)
		s.records["k"].rec.State = "odd"
		if p := refused(t, send(h, keyedAs("k", "{}")), 500, "idempotency-record-corrupt"); p.Retryable {
			t.Errorf("problem is %+v", p)
		}
	}
}

func TestOnce_WithoutAKey(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	handler := counted(&runs, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Idempotency-Store", "no") })
	h := middleware.Tenant(middleware.Key(middleware.KeyPolicy{})(middleware.Once(newStore(), middleware.Options{})(handler)))
	t.Run("Contract_Row2 optional", func(t *testing.T) {
		answers(t, send(h, post("{}", header("Content-Type", "application/json"))), 200, "Idempotency-Status", "none", "Idempotency-Store", "")
	})
	t.Run("Contract_Row17 Contract_Row18 other methods", func(t *testing.T) {
		for _, method := range []string{"GET", "HEAD", "OPTIONS", "PUT", "DELETE"} {
			r := keyedAs("k", "")
			r.Method = method
			answers(t, send(h, r), 200, "Idempotency-Status", "ignored", "Idempotency-Key", "")
		}
		r := keyedAs("k", "{}")
		r.Method = "PATCH"
		answers(t, send(h, r), 200, "Idempotency-Status", "", "Idempotency-Key", `"k"`)
	})
	t.Run("without Key around it nothing runs", func(t *testing.T) {
		before := runs.Load()
		answers(t, send(middleware.Once(newStore(), middleware.Options{})(handler), keyedAs("k", "{}")), 500)
		if runs.Load() != before {
			t.Error("the handler ran")
		}
	})
}

func TestOnce_RefusesImpossibleOptions(t *testing.T) {
	t.Parallel()
	for _, o := range []middleware.Options{{On5xx: "retry"}, {OnInterrupted: "x"}, {AfterExpiry: "x"}, {Lease: -1}, {Keep: -1}, {ResponseLimit: -1}, {StoreTimeout: -1}, {MaxWait: -1}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%+v is taken", o)
				}
			}()
			middleware.Once(newStore(), o)
		}()
	}
}

// A first answer that is stored says until when, as its replays do.
func TestContract_KeyedResponses_AFirstAnswerTellsItsExpiry(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	options := middleware.Options{Keep: time.Hour, Now: func() time.Time { return now }}
	h := protect(newStore(), options, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Idempotency-Key") == "broken" {
			w.WriteHeader(http.StatusBadGateway)
		}
	})
	answers(t, send(h, keyedAs("k", "{}")), 200, "Idempotency-Expires", "2026-03-01T13:00:00Z")
	answers(t, send(h, keyedAs("broken", "{}")), 502, "Idempotency-Expires", "")
}
