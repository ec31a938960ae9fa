package middleware_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/middleware"
)

var errDown = errors.New("connection refused")

// down fails the named calls of a store, all of them if none is named.
func down(calls ...string) func(context.Context, string) error {
	return func(_ context.Context, call string) error {
		if len(calls) == 0 || strings.Contains(strings.Join(calls, " "), call) {
			return errDown
		}
		return nil
	}
}

// hangs lets every call of a store wait for the end of its context.
func hangs(ctx context.Context, _ string) error {
	<-ctx.Done()
	return ctx.Err()
}

// outcomes collects what Count is told.
type outcomes chan middleware.Outcome

func (o outcomes) want(t *testing.T, want ...middleware.Outcome) {
	t.Helper()
	var got []middleware.Outcome
	for len(o) > 0 {
		got = append(got, <-o)
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("outcomes are %v, want %v", got, want)
	}
}

// panics sends a request and returns what the handler panicked with.
func panics(h http.Handler, r *http.Request) (w *httptest.ResponseRecorder, value any) {
	w = httptest.NewRecorder()
	defer func() { value = recover() }()
	h.ServeHTTP(w, r)
	return w, nil
}

func TestContract_Row40_Panic(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, on5xx string
		value       any
		state       idempotency.State
	}{
		{"released", "", "boom", ""},
		{"nothing to store", "store", "boom", idempotency.Interrupted},
		{"interrupted", "interrupt", "boom", idempotency.Interrupted},
		{"ErrAbortHandler is untouched", "", http.ErrAbortHandler, ""},
		{"Goexit", "", nil, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s, seen := newStore(), make(outcomes, 9)
			h := protect(s, middleware.Options{On5xx: tt.on5xx, Count: func(o middleware.Outcome) { seen <- o }}, func(w http.ResponseWriter, _ *http.Request) {
				fmt.Fprint(w, "half an ans")
				if tt.value == nil {
					runtime.Goexit()
				}
				panic(tt.value)
			})
			ended := make(chan any)
			go func() {
				defer close(ended) // also after Goexit
				if w, value := panics(h, keyedAs("k", "{}")); value != tt.value || w != nil && w.Body.Len() > 0 {
					t.Errorf("panicked with %v, wrote %v", value, w)
				}
			}()
			<-ended
			if state := s.state("k"); state != tt.state {
				t.Errorf("state is %q, want %q", state, tt.state)
			}
			seen.want(t, map[idempotency.State]middleware.Outcome{"": middleware.Released, idempotency.Interrupted: middleware.Interrupted}[tt.state])
		})
	}
}

// C42: the panic becomes one clean 500, with nothing of the answer that broke.
func TestFailure_C42_RecoverAroundOnce(t *testing.T) {
	t.Parallel()
	h := middleware.Recover(slog.New(slog.DiscardHandler))(protect(newStore(), middleware.Options{}, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Set-Cookie", "s=1")
		fmt.Fprint(w, "half an ans")
		panic("boom")
	}))
	w := send(h, keyedAs("k", "{}"))
	answers(t, w, 500, "Set-Cookie", "", "Idempotency-Key", `"k"`)
	refusedByRecover := problem(t, w)
	if refusedByRecover.Code != "internal" {
		t.Errorf("problem is %+v", refusedByRecover)
	}
}

func TestContract_Row42_Row43_Interrupted(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"", "reexecute", "reject"} {
		t.Run("policy "+policy, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				var runs atomic.Int64
				s := newStore()
				h := protect(s, middleware.Options{
					Lease: 30 * time.Second, OnInterrupted: policy, Log: slog.New(slog.NewTextHandler(&log, nil)),
				}, counted(&runs, created))
				abandoned(t, s, "k")
				refused(t, send(h, keyedAs("k", "{}")), 409, "idempotency-key-in-use")
				<-time.NewTimer(30 * time.Second).C
				w := send(h, keyedAs("k", "{}"))
				if policy == "reject" {
					refused(t, w, 422, "idempotency-outcome-unknown")
					refused(t, send(h, keyedAs("k", "{}")), 422, "idempotency-outcome-unknown")
					return
				}
				answers(t, w, 201, "Idempotent-Replayed", "false")
				answers(t, send(h, keyedAs("k", "{}")), 201, "Idempotent-Replayed", "true")
				if runs.Load() != 1 || !strings.Contains(log.String(), "attempt=2 owner=000002") {
					t.Errorf("%d runs, log is %s", runs.Load(), &log)
				}
			})
		})
	}
}

// abandoned claims a key as a process that dies then.
func abandoned(t *testing.T, s *store, key idempotency.Key) {
	t.Helper()
	fp := idempotency.NewFingerprint("POST", "/jobs", nil, "application/json", []byte("{}"))
	req := idempotency.Request{Tenant: idempotency.DefaultTenant, Key: key, Fingerprint: fp}
	if _, _, ok, err := s.Begin(t.Context(), req, idempotency.Beginning{Lease: 30 * time.Second}); !ok || err != nil {
		t.Fatalf("begin: %t, %v", ok, err)
	}
}

// C2: the claim lives as long as the handler, however short the lease.
func TestFailure_C2_HandlerOfFiveLeases(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var runs atomic.Int64
		s := newStore()
		h := protect(s, middleware.Options{Lease: 3 * time.Second}, counted(&runs, func(w http.ResponseWriter, r *http.Request) {
			<-time.NewTimer(15 * time.Second).C
			created(w, r)
		}))
		first := make(chan *httptest.ResponseRecorder)
		go func() { first <- send(h, keyedAs("k", "{}")) }()
		for range 50 {
			<-time.NewTimer(290 * time.Millisecond).C
			refused(t, send(h, keyedAs("k", "{}")), 409, "idempotency-key-in-use")
		}
		answers(t, <-first, 201, "Idempotency-Status", "")
		if runs.Load() != 1 || s.count("extend") < 14 {
			t.Errorf("%d runs, extended %d times", runs.Load(), s.count("extend"))
		}
	})
}

// A store that is away for a beat costs nothing if it is back before the end.
func TestOnce_ExtendsAgainAfterAFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		h := protect(s, middleware.Options{Lease: 9 * time.Second}, func(w http.ResponseWriter, r *http.Request) {
			s.set(down("extend"))
			<-time.NewTimer(4 * time.Second).C
			s.set(nil)
			<-time.NewTimer(20 * time.Second).C
			created(w, r)
		})
		answers(t, send(h, keyedAs("k", "{}")), 201, "Idempotency-Status", "")
	})
}

func TestContract_Row44_ClaimLost(t *testing.T) {
	t.Parallel()
	for _, status := range []int{201, 500} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			var log bytes.Buffer
			s, seen := newStore(), make(outcomes, 9)
			o := middleware.Options{Log: slog.New(slog.NewTextHandler(&log, nil)), RedactKeys: true, Count: func(o middleware.Outcome) { seen <- o }}
			h := protect(s, o, func(w http.ResponseWriter, r *http.Request) {
				s.stolen("k")
				w.WriteHeader(status)
			})
			answers(t, send(h, keyedAs("k", "{}")), status, "Idempotency-Status", "lease-lost", "Idempotent-Replayed", "false")
			if s.state("k") != idempotency.InProgress || s.records["k"].owner != "other" {
				t.Errorf("the other owner's record became %+v", s.records["k"])
			}
			if !strings.Contains(log.String(), "claim lost") || strings.Contains(log.String(), "idempotency_key=k") {
				t.Errorf("log is %s", &log)
			}
			seen.want(t, middleware.Lost)
		})
	}
}

func TestContract_Row46_NotRecorded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, seen := newStore(), make(outcomes, 9)
		var runs atomic.Int64
		h := protect(s, middleware.Options{Count: func(o middleware.Outcome) { seen <- o }}, counted(&runs, created))
		s.set(down("finish"))
		started := time.Now()
		first := send(h, keyedAs("k", "{}"))
		answers(t, first, 201, "Idempotency-Status", "not-recorded")
		if first.Body.Len() == 0 || time.Since(started) > 2100*time.Millisecond {
			t.Errorf("answer %q after %s", first.Body, time.Since(started))
		}
		seen.want(t, middleware.NotRecorded)
		s.set(nil)
		refused(t, send(h, keyedAs("k", "{}")), 409, "idempotency-key-in-use")
		<-time.NewTimer(30 * time.Second).C
		answers(t, send(h, keyedAs("k", "{}")), 201, "Idempotent-Replayed", "false")
	})
}

// A store that is away for a moment at the end does not make the handler run again.
func TestOnce_EndIsWrittenAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		h := protect(s, middleware.Options{}, created)
		s.set(func(_ context.Context, call string) error {
			if call == "finish" && s.count("finish") < 3 {
				return errDown
			}
			return nil
		})
		answers(t, send(h, keyedAs("k", "{}")), 201, "Idempotency-Status", "")
		answers(t, send(h, keyedAs("k", "{}")), 201, "Idempotent-Replayed", "true")
	})
}

// A write whose answer was lost has been made: its repetition meets no claim,
// and that is neither a loss nor a failure (C9).
func TestFailure_C9_LostAnswerOfTheStore(t *testing.T) {
	t.Parallel()
	tests := []struct {
		call, on5xx string
		status      int
	}{{"finish", "", 201}, {"release", "", 500}, {"interrupt", "interrupt", 500}}
	for _, tt := range tests {
		t.Run(tt.call, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s, seen := newStore(), make(outcomes, 9)
				s.lateFail = func(call string) error {
					if call == tt.call {
						return errDown
					}
					return nil
				}
				h := protect(s, middleware.Options{On5xx: tt.on5xx, Count: func(o middleware.Outcome) { seen <- o }}, func(w http.ResponseWriter, _ *http.Request) {
					w.WriteHeader(tt.status)
				})
				answers(t, send(h, keyedAs("k", "{}")), tt.status, "Idempotency-Status", "")
				if len(seen) != 1 {
					t.Errorf("%d outcomes", len(seen))
				}
				if o := <-seen; o == middleware.Lost || o == middleware.NotRecorded {
					t.Errorf("outcome is %s", o)
				}
			})
		})
	}
}

func TestContract_Row47_Row50_StoreAway(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(context.Context, string) error{
		"Row47 down": down(), "Row50 slow": hangs,
		"Row47 down at the commit": func(context.Context, string) error { return idempotency.ErrOutcomeUnknown },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newStore()
				var runs atomic.Int64
				h := protect(s, middleware.Options{StoreTimeout: time.Second}, counted(&runs, created))
				s.set(fail)
				started := time.Now()
				w := send(h, keyedAs("k", "{}"))
				answers(t, w, 503, "Retry-After", "2")
				if p := refused(t, w, 503, "idempotency-store-unavailable"); !p.Retryable || runs.Load() != 0 {
					t.Errorf("problem is %+v after %d runs", p, runs.Load())
				}
				if took := time.Since(started); took > time.Second {
					t.Errorf("it took %s", took)
				}
				s.set(nil)
				answers(t, send(h, keyedAs("k", "{}")), 201, "Idempotent-Replayed", "false")
			})
		})
	}
}

func TestContract_Row48_FailOpen(t *testing.T) {
	t.Parallel()
	s, seen := newStore(), make(outcomes, 9)
	var log bytes.Buffer
	h := protect(s, middleware.Options{FailOpen: true, Log: slog.New(slog.NewTextHandler(&log, nil)), Count: func(o middleware.Outcome) { seen <- o }}, created)
	s.set(down())
	answers(t, send(h, keyedAs("k", "{}")), 201, "Idempotency-Status", "unprotected", "Location", "/things/1")
	seen.want(t, middleware.Unprotected)
	if !strings.Contains(log.String(), "level=WARN") || !strings.Contains(log.String(), "idempotency_key=k") {
		t.Errorf("log is %s", &log)
	}
}

// What is known to run already is not run again because the store is away.
func TestContract_Row48_FailOpenWhileWaiting(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		var runs atomic.Int64
		h := protect(s, middleware.Options{FailOpen: true}, counted(&runs, created))
		abandoned(t, s, "k")
		s.set(func(_ context.Context, call string) error {
			if call == "begin" && s.count("begin") > 2 {
				return errDown
			}
			return nil
		})
		refused(t, send(h, keyedAs("k", "{}", "wait=5")), 503, "idempotency-store-unavailable")
		if runs.Load() != 0 {
			t.Error("the handler ran")
		}
	})
}

func TestContract_Row56_ClientLeaves(t *testing.T) {
	t.Parallel()
	for _, cancels := range []bool{false, true} {
		t.Run(fmt.Sprintf("cancels %t", cancels), func(t *testing.T) {
			t.Parallel()
			s := newStore()
			s.set(func(ctx context.Context, _ string) error { return ctx.Err() })
			ctx, leave := context.WithCancel(context.Background())
			defer leave()
			h := protect(s, middleware.Options{CancelWithClient: cancels}, func(w http.ResponseWriter, r *http.Request) {
				if r.Context().Value(leaveKey{}) != "kept" {
					t.Error("the handler's context lacks what was in the request's")
				}
				leave()
				if ended := r.Context().Err() != nil; ended != cancels {
					t.Errorf("the handler's context has ended: %t", ended)
				}
				created(w, r)
			})
			send(h, keyedAs("k", "{}").WithContext(context.WithValue(ctx, leaveKey{}, "kept")))
			answers(t, send(protect(s, middleware.Options{}, created), keyedAs("k", "{}")), 201, "Idempotent-Replayed", "true")
		})
	}
	t.Run("before it begins", func(t *testing.T) {
		t.Parallel()
		s := newStore()
		s.set(func(ctx context.Context, _ string) error { return ctx.Err() })
		ctx, leave := context.WithCancel(context.Background())
		leave()
		answers(t, send(protect(s, middleware.Options{}, created), keyedAs("k", "{}").WithContext(ctx)), 201)
	})
}

type leaveKey struct{}
