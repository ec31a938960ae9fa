package storetest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sekali/sekali/idempotency"
)

// TxWorld is an empty TxStore for one case, and the effects of its handlers.
type TxWorld struct {
	Store idempotency.TxStore
	// DB is the store's database. It has a table effects (name text), and a
	// second connection can read while a transaction is open.
	DB *sql.DB
}

// RunTx runs the contract of stores whose records share a transaction with the
// handler's effect. The stores wait for locks for a second, and keep tombstones
// for Tombstone.
func RunTx(t *testing.T, open func(t *testing.T) TxWorld) {
	for name, check := range map[string]func(t *testing.T, w TxWorld){
		"Row26 Row29 effect and response are kept together":    testTxCommit,
		"Row37 C18 a run that fails leaves nothing":            testTxFails,
		"Row40 C42 a run that panics leaves nothing":           testTxPanics,
		"Row56 a client that leaves before the end":            testTxCancelled,
		"Row56 a run that saw the client leave first":          testTxSawClientLeave,
		"Row27 another request gets the record":                testTxMismatch,
		"Row44 a second request waits for the first one":       testTxWaits,
		"Row30 it does not wait for ever":                      testTxWaitsLong,
		"Row33 C7 of fifty at once one runs":                   testTxOneRuns,
		"Row37 a second request runs when the first one fails": testTxSecondRuns,
		"Row51 a body that was not retained":                   testTxNotRetained,
		"Row57 Row58 expiry":                                   testTxExpiry,
		"C20 a run that goes on after an error keeps nothing":  testTxAborted,
		"a run that ends its transaction is not run again":     testTxEndsItself,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			check(t, open(t))
		})
	}
}

// effect is a run that writes one row and answers.
func effect(name string) func(context.Context, *sql.Tx) (idempotency.Response, error) {
	return func(ctx context.Context, tx *sql.Tx) (idempotency.Response, error) {
		return answer(name), insert(ctx, tx, name)
	}
}

func insert(ctx context.Context, tx *sql.Tx, name string) error {
	_, err := tx.ExecContext(ctx, `insert into effects (name) values ('`+name+`')`)
	return err
}

// unwanted is a run that must not be.
func unwanted(t *testing.T) func(context.Context, *sql.Tx) (idempotency.Response, error) {
	return func(context.Context, *sql.Tx) (idempotency.Response, error) {
		t.Error("the request ran again")
		return idempotency.Response{}, nil
	}
}

func (w TxWorld) effects(t *testing.T) int {
	t.Helper()
	var n int
	if err := w.DB.QueryRowContext(t.Context(), `select count(*) from effects`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// runs runs a request that must be a first one.
func (w TxWorld) runs(t *testing.T, req idempotency.Request, name string) {
	t.Helper()
	before := w.effects(t)
	rec, err := w.Store.Do(t.Context(), req, time.Hour, effect(name))
	if err != nil || !rec.Fresh || rec.State != idempotency.Completed || rec.Request != req || !equal(rec.Response, answer(name)) {
		t.Fatalf("first request: %+v, %v", rec, err)
	}
	if n := w.effects(t); n != before+1 {
		t.Fatalf("%d effects, want %d", n, before+1)
	}
}

// replays sends a request that must get the answer of an earlier one.
func (w TxWorld) replays(t *testing.T, req idempotency.Request, name string) {
	t.Helper()
	rec, err := w.Store.Do(t.Context(), req, time.Hour, unwanted(t))
	if err != nil || rec.Fresh || rec.State != idempotency.Completed || !equal(rec.Response, answer(name)) {
		t.Fatalf("repeated request: %+v, %v", rec, err)
	}
}

// do is Store.Do of a client that comes again when it was told, after a wait, that the
// first request still runs: on a machine that stood still that may be said of one that
// has ended.
func (w TxWorld) do(t *testing.T, req idempotency.Request, run func(context.Context, *sql.Tx) (idempotency.Response, error)) (rec idempotency.Record, err error) {
	t.Helper()
	for range 20 {
		began := time.Now() //nolint:forbidigo // how long a caller had to wait
		rec, err = w.Store.Do(t.Context(), req, time.Hour, run)
		late := errors.As(err, new(*idempotency.InProgressError)) || errors.Is(err, idempotency.ErrUnavailable)
		if !late || time.Since(began) < 500*time.Millisecond {
			break
		}
	}
	return rec, err
}

func testTxCommit(t *testing.T, w TxWorld) {
	req := request("k", "body")
	w.runs(t, req, "a")
	for range 2 {
		w.replays(t, req, "a")
	}
	rec, err := w.Store.Do(t.Context(), req, time.Hour, unwanted(t))
	if in := time.Until(rec.ExpiresAt); err != nil || in < 59*time.Minute || in > 61*time.Minute {
		t.Errorf("expires in %v, %v", in, err)
	}
}

func testTxFails(t *testing.T, w TxWorld) {
	req, failure := request("k", "body"), errors.New("no")
	_, err := w.Store.Do(t.Context(), req, time.Hour, func(ctx context.Context, tx *sql.Tx) (idempotency.Response, error) {
		return answer("a"), errors.Join(insert(ctx, tx, "a"), failure)
	})
	if !errors.Is(err, failure) {
		t.Fatalf("error %v, want the run's", err)
	}
	if n := w.effects(t); n != 0 {
		t.Errorf("%d effects of a failed run", n)
	}
	w.runs(t, request("k", "corrected body"), "b")
}

func testTxPanics(t *testing.T, w TxWorld) {
	req := request("k", "body")
	func() {
		defer func() {
			if p := recover(); p != "boom" {
				t.Errorf("panic %v", p)
			}
		}()
		_, _ = w.Store.Do(t.Context(), req, time.Hour, func(ctx context.Context, tx *sql.Tx) (idempotency.Response, error) {
			if err := insert(ctx, tx, "a"); err != nil {
				t.Error(err)
			}
			panic("boom")
		})
	}()
	if n := w.effects(t); n != 0 {
		t.Errorf("%d effects of a run that panicked", n)
	}
	w.runs(t, req, "b")
}

func testTxCancelled(t *testing.T, w TxWorld) {
	req := request("k", "body")
	ctx, leave := context.WithCancel(t.Context())
	_, err := w.Store.Do(ctx, req, time.Hour, func(ctx context.Context, tx *sql.Tx) (idempotency.Response, error) {
		err := insert(ctx, tx, "a")
		leave()
		return answer("a"), err
	})
	if err == nil {
		t.Error("no error although the client left before the commit")
	}
	if n := w.effects(t); n != 0 {
		t.Errorf("%d effects", n)
	}
	w.runs(t, req, "b")
}

func testTxSawClientLeave(t *testing.T, w TxWorld) {
	ctx, leave := Unheard(t.Context())
	_, err := w.Store.Do(ctx, request("k", "body"), time.Hour, func(ctx context.Context, tx *sql.Tx) (idempotency.Response, error) {
		err := insert(context.WithoutCancel(ctx), tx, "a")
		leave()
		return answer("a"), err
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error: %v", err)
	}
	if n := w.effects(t); n != 0 {
		t.Errorf("%d effects", n)
	}
}

func testTxMismatch(t *testing.T, w TxWorld) {
	req, other := request("k", "body"), request("k", "another body")
	w.runs(t, req, "a")
	rec, err := w.Store.Do(t.Context(), other, time.Hour, unwanted(t))
	if err != nil {
		t.Fatal(err)
	}
	var mismatch *idempotency.MismatchError
	if _, err := idempotency.Answer(rec, other); !errors.As(err, &mismatch) {
		t.Errorf("answer %v", err)
	}
	other.Tenant = "other"
	w.runs(t, other, "b")
}

// testTxWaits: the second request comes while the first one runs, and gets its
// answer.
func testTxWaits(t *testing.T, w TxWorld) {
	req := request("k", "body")
	running, end, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		_, err := w.Store.Do(t.Context(), req, time.Hour, func(ctx context.Context, tx *sql.Tx) (idempotency.Response, error) {
			close(running)
			<-end
			return effect("a")(ctx, tx)
		})
		done <- err
	}()
	<-running
	second := make(chan struct{})
	go func() {
		defer close(second)
		rec, err := w.do(t, req, unwanted(t))
		if err != nil || rec.Fresh || !equal(rec.Response, answer("a")) {
			t.Errorf("second request: %+v, %v", rec, err)
		}
	}()
	close(end)
	if err := <-done; err != nil {
		t.Error(err)
	}
	<-second
}

func testTxWaitsLong(t *testing.T, w TxWorld) {
	req := request("k", "body")
	running, end, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		_, err := w.Store.Do(t.Context(), req, time.Hour, func(ctx context.Context, tx *sql.Tx) (idempotency.Response, error) {
			close(running)
			<-end
			return effect("a")(ctx, tx)
		})
		done <- err
	}()
	<-running
	began := time.Now() //nolint:forbidigo // how long a caller had to wait
	_, err := w.Store.Do(t.Context(), req, time.Hour, unwanted(t))
	var inProgress *idempotency.InProgressError
	if !errors.As(err, &inProgress) {
		t.Errorf("second request: %v", err)
	}
	if waited := time.Since(began); waited > 15*time.Second { // a second, and a machine that stands still
		t.Errorf("it waited %v", waited)
	}
	close(end)
	if err := <-done; err != nil {
		t.Error(err)
	}
	w.replays(t, req, "a")
}

func testTxOneRuns(t *testing.T, w TxWorld) {
	req := request("k", "body")
	var ran atomic.Int32
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			rec, err := w.Store.Do(t.Context(), req, time.Hour, func(ctx context.Context, tx *sql.Tx) (idempotency.Response, error) {
				ran.Add(1)
				return effect("a")(ctx, tx)
			})
			// On a machine that is too busy one may have waited long enough.
			if errors.As(err, new(*idempotency.InProgressError)) {
				return
			}
			if err != nil || !equal(rec.Response, answer("a")) {
				t.Errorf("%+v, %v", rec, err)
			}
		})
	}
	wg.Wait()
	if n := ran.Load(); n != 1 {
		t.Errorf("%d runs", n)
	}
	if n := w.effects(t); n != 1 {
		t.Errorf("%d effects", n)
	}
}

func testTxSecondRuns(t *testing.T, w TxWorld) {
	req := request("k", "body")
	running, end, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		_, err := w.Store.Do(t.Context(), req, time.Hour, func(ctx context.Context, tx *sql.Tx) (idempotency.Response, error) {
			close(running)
			<-end
			return idempotency.Response{}, errors.Join(insert(ctx, tx, "a"), errors.New("no"))
		})
		done <- err
	}()
	<-running
	second := make(chan idempotency.Record)
	go func() {
		rec, err := w.do(t, req, effect("b"))
		if err != nil {
			t.Errorf("second request: %v", err)
		}
		second <- rec
	}()
	close(end)
	if err := <-done; err == nil {
		t.Error("the failed run has no error")
	}
	if rec := <-second; !rec.Fresh || !equal(rec.Response, answer("b")) {
		t.Errorf("second request: %+v", rec)
	}
	if n := w.effects(t); n != 1 {
		t.Errorf("%d effects", n)
	}
}

func testTxNotRetained(t *testing.T, w TxWorld) {
	req := request("k", "body")
	_, err := w.Store.Do(t.Context(), req, time.Hour, func(ctx context.Context, tx *sql.Tx) (idempotency.Response, error) {
		return idempotency.Response{Status: 201, NotRetained: true}, insert(ctx, tx, "a")
	})
	if err != nil {
		t.Fatal(err)
	}
	rec, err := w.Store.Do(t.Context(), req, time.Hour, unwanted(t))
	if err != nil || !rec.Response.NotRetained || rec.Response.Status != 201 {
		t.Errorf("%+v, %v", rec, err)
	}
}

func testTxExpiry(t *testing.T, w TxWorld) {
	for n, keep := range []time.Duration{-time.Second, -2 * Tombstone} {
		req := request(fmt.Sprint("k", n), "body")
		if _, err := w.Store.Do(t.Context(), req, keep, effect("old")); err != nil {
			t.Fatal(err)
		}
		if keep == -2*Tombstone {
			w.runs(t, req, "new")
			continue
		}
		rec, err := w.Store.Do(t.Context(), req, time.Hour, unwanted(t))
		if err != nil || rec.State != idempotency.Retired {
			t.Errorf("%+v, %v", rec, err)
		}
	}
}

// testTxAborted: the run does not look at the error of its statement. What it
// wrote before is kept only if its response is, and both only if the database
// still has the transaction.
func testTxAborted(t *testing.T, w TxWorld) {
	req := request("k", "body")
	_, err := w.Store.Do(t.Context(), req, time.Hour, func(ctx context.Context, tx *sql.Tx) (idempotency.Response, error) {
		err := insert(ctx, tx, "a")
		_, _ = tx.ExecContext(ctx, `insert into no_such_table (name) values ('a')`)
		return answer("a"), err
	})
	if kept := w.effects(t); (err == nil) != (kept == 1) {
		t.Errorf("%d effects with the error %v", kept, err)
	}
	if err != nil {
		w.runs(t, req, "b")
	} else {
		w.replays(t, req, "a")
	}
}

// testTxEndsItself: nobody can tell what such a run has left, so the key must
// not run again.
func testTxEndsItself(t *testing.T, w TxWorld) {
	req := request("k", "body")
	_, err := w.Store.Do(t.Context(), req, time.Hour, func(ctx context.Context, tx *sql.Tx) (idempotency.Response, error) {
		return answer("a"), errors.Join(insert(ctx, tx, "a"), tx.Commit())
	})
	if err == nil {
		t.Error("no error although the record has no response")
	}
	rec, err := w.Store.Do(t.Context(), req, time.Hour, unwanted(t))
	if err != nil || rec.State != idempotency.Interrupted {
		t.Errorf("%+v, %v", rec, err)
	}
}
