package middleware_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/middleware"
)

// txStore is a hand-written idempotency.TxStore. Its transactions are counted,
// not real: what was written is kept by commit alone.
type txStore struct {
	mu        sync.Mutex
	records   map[idempotency.Key]idempotency.Record
	busy      map[idempotency.Key]bool
	commitErr error
	beginErr  error
}

func newTxStore() *txStore {
	return &txStore{records: map[idempotency.Key]idempotency.Record{}, busy: map[idempotency.Key]bool{}}
}

func (s *txStore) Do(ctx context.Context, req idempotency.Request, keep time.Duration, run func(context.Context, *sql.Tx) (idempotency.Response, error)) (idempotency.Record, error) {
	rec, found, err := s.begin(req)
	if err != nil || found {
		return rec, err
	}
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.busy, req.Key)
	}()
	response, err := run(ctx, &sql.Tx{})
	if err != nil {
		return rec, fmt.Errorf("do: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.commitErr != nil {
		return rec, s.commitErr
	}
	rec = idempotency.Record{Request: req, State: idempotency.Completed, Response: response, ExpiresAt: time.Now().Add(keep)}
	s.records[req.Key] = rec
	rec.Fresh = true
	return rec, nil
}

func (s *txStore) begin(req idempotency.Request) (rec idempotency.Record, found bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.beginErr != nil {
		return rec, false, s.beginErr
	}
	if s.busy[req.Key] {
		return rec, false, &idempotency.InProgressError{RetryIn: time.Second}
	}
	rec, found = s.records[req.Key]
	s.busy[req.Key] = !found
	return rec, found, nil
}

func protectTx(s idempotency.TxStore, o middleware.Options, h http.HandlerFunc) http.Handler {
	return middleware.Tenant(middleware.Key(middleware.KeyPolicy{Required: true})(middleware.OnceTx(s, o)(h)))
}

func TestOnceTx_FirstAndReplay(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	seen := make(outcomes, 9)
	h := protectTx(newTxStore(), middleware.Options{Count: func(o middleware.Outcome) { seen <- o }}, counted(&runs, func(w http.ResponseWriter, r *http.Request) {
		if tx, ok := idempotency.TxOf(r.Context()); !ok || tx == nil {
			t.Error("the handler has no transaction")
		}
		if r.Body == nil {
			t.Error("the handler has no body")
		}
		created(w, r)
	}))
	first, again := send(h, keyedAs("k", "{}")), send(h, keyedAs("k", "{}"))
	answers(t, first, 201, "Idempotent-Replayed", "false", "Location", "/things/1")
	answers(t, again, 201, "Idempotent-Replayed", "true", "Location", "/things/1")
	if first.Header().Get("Idempotency-Expires") == "" || first.Body.String() != again.Body.String() || runs.Load() != 1 {
		t.Errorf("%v; %d runs", first.Header(), runs.Load())
	}
	refused(t, send(h, keyedAs("k", `{"a":1}`)), 422, "idempotency-key-reused")
	seen.want(t, middleware.Stored)
}

func TestContract_Row37_RolledBack(t *testing.T) {
	t.Parallel()
	for name, fails := range map[string]http.HandlerFunc{
		"Row37 500": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) },
		"Row36 429": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(429) },
		"Row39 opted out": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Idempotency-Store", "no")
			w.WriteHeader(202)
		},
		"Row41 rejected": func(w http.ResponseWriter, r *http.Request) { middleware.Reject(w, r, errors.New("no")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newTxStore()
			first := send(protectTx(s, middleware.Options{On5xx: "store"}, fails), keyedAs("k", "{}"))
			if first.Code == 503 || first.Code == 201 || len(s.records) != 0 {
				t.Errorf("status is %d, records are %v", first.Code, s.records)
			}
			answers(t, first, first.Code, "Idempotent-Replayed", "false", "Idempotency-Store", "")
			answers(t, send(protectTx(s, middleware.Options{}, created), keyedAs("k", "{}")), 201, "Idempotent-Replayed", "false")
		})
	}
	t.Run("Row40 panic", func(t *testing.T) {
		t.Parallel()
		s := newTxStore()
		h := protectTx(s, middleware.Options{}, func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, "half")
			w.(http.Flusher).Flush()
			panic("boom")
		})
		if _, value := panics(h, keyedAs("k", "{}")); value != "boom" || len(s.records) != 0 {
			t.Errorf("panicked with %v", value)
		}
		answers(t, send(protectTx(s, middleware.Options{}, created), keyedAs("k", "{}")), 201)
	})
}

// C20: nobody gets an answer whose commit is not known.
func TestContract_Row45_CommitFails(t *testing.T) {
	t.Parallel()
	s, seen := newTxStore(), make(outcomes, 9)
	h := protectTx(s, middleware.Options{Count: func(o middleware.Outcome) { seen <- o }}, created)
	s.commitErr = errDown
	w := send(h, keyedAs("k", "{}"))
	answers(t, w, 503, "Retry-After", "1", "Location", "")
	if p := refused(t, w, 503, "idempotency-outcome-unknown-retry"); !p.Retryable {
		t.Errorf("problem is %+v", p)
	}
	s.commitErr = nil
	answers(t, send(h, keyedAs("k", "{}")), 201)
	seen.want(t, middleware.NotRecorded, middleware.Stored)
}

func TestContract_Row47_TxStoreAway(t *testing.T) {
	t.Parallel()
	s := newTxStore()
	s.beginErr = errDown
	refused(t, send(protectTx(s, middleware.Options{}, created), keyedAs("k", "{}")), 503, "idempotency-store-unavailable")
}

func TestContract_Row30_Row31_OnceTxInFlight(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var runs atomic.Int64
		h := protectTx(newTxStore(), middleware.Options{}, counted(&runs, func(w http.ResponseWriter, r *http.Request) {
			asleep(4 * time.Second)
			created(w, r)
		}))
		first := running(h)
		refused(t, send(h, keyedAs("k", "{}")), 409, "idempotency-key-in-use")
		answers(t, send(h, keyedAs("k", "{}", "wait=2")), 409, "Preference-Applied", "wait=2")
		answers(t, send(h, keyedAs("k", "{}", "wait=20")), 201, "Idempotent-Replayed", "true", "Preference-Applied", "wait=20")
		answers(t, <-first, 201)
		if runs.Load() != 1 {
			t.Errorf("%d runs", runs.Load())
		}
	})
}

// Nothing leaves before the commit, whatever the handler does.
func TestContract_Row51_OnceTxHoldsEverythingBack(t *testing.T) {
	t.Parallel()
	var w *httptest.ResponseRecorder
	h := protectTx(newTxStore(), middleware.Options{ResponseLimit: 10}, func(rw http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(rw, "more than ten bytes")
		rw.(http.Flusher).Flush()
		if _, _, err := rw.(http.Hijacker).Hijack(); !errors.Is(err, http.ErrNotSupported) {
			t.Errorf("hijack: %v", err)
		}
		if w.Body.Len() > 0 || w.Flushed {
			t.Error("the answer has begun")
		}
	})
	w = httptest.NewRecorder()
	h.ServeHTTP(w, keyedAs("k", "{}"))
	answers(t, w, 200)
	if w.Body.String() != "more than ten bytes" {
		t.Errorf("body is %q", w.Body)
	}
	refused(t, send(h, keyedAs("k", "{}")), 422, "idempotency-response-not-retained")
}
