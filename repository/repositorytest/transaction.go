package repositorytest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/sekali/sekali/idempotency/storetest"
	"github.com/sekali/sekali/job"
)

var transacting = cases{
	"the effect and the end are one commit":                  testTxTogether,
	"an error keeps nothing and comes back as it is":         testTxError,
	"a lost lease keeps nothing":                             testTxLost,
	"BR-80 an error that was swallowed does not succeed":     testTxSwallowed,
	"BR-80 an error after a failed statement is the error":   testTxErrorAfterFailure,
	"BR-80 a function that ends its transaction has failed":  testTxEnded,
	"BR-80 a function that outlives its time keeps nothing":  testTxTimeout,
	"BR-80 a function that saw its end first keeps nothing":  testTxSawItsEnd,
	"BR-80 a context that has ended before is told":          testTxEndedBefore,
	"a panic and Goexit keep nothing and leak no connection": testTxPanic,
	"placeholders and unique violations":                     testTxPlaceholders,
	"permanent errors are told from passing ones":            testTxPermanent,
	"BR-76 heartbeats and polls pass transactions that last": testTxStarvation,
}

// run is what FinishTx is given.
type run = func(context.Context, *sql.Tx) (job.Ending, error)

// effect writes a row and then does as it is told.
func effect(then func(context.Context, *sql.Tx) (job.Ending, error)) run {
	return func(ctx context.Context, tx *sql.Tx) (job.Ending, error) {
		if _, err := tx.ExecContext(ctx, `insert into effects (n) values (1)`); err != nil {
			return job.Ending{}, err
		}
		if then == nil {
			return succeed(job.Lease{}), nil
		}
		return then(ctx, tx)
	}
}

// claimed is a job in processing, and a table for effects.
func claimed(t *testing.T, w World) job.Claimed {
	t.Helper()
	execute(t, w, `create table effects (n integer not null)`)
	execute(t, w, `create table once (n integer primary key)`)
	execute(t, w, `insert into once (n) values (1)`)
	accept(t, w, submission(w, "k", `{}`))
	return claim(t, w, "w", lease)
}

func wantEffects(t *testing.T, w World, want int) {
	t.Helper()
	if n := count(t, w, `select count(*) from effects`); n != want {
		t.Errorf("%d effects, want %d", n, want)
	}
}

// wantUntouched: nothing of the attempt was kept, and its lease can still be settled.
func wantUntouched(t *testing.T, w World, l job.Lease) {
	t.Helper()
	wantEffects(t, w, 0)
	if j := now(t, w, "k"); j.Status != job.Processing {
		t.Errorf("the job is %s", j.Status)
	}
	if !requeue(t, w, retry(l, 0)) {
		t.Error("the lease cannot be settled")
	}
}

func testTxTogether(t *testing.T, w World) {
	c := claimed(t, w)
	err := w.Repo.FinishTx(t.Context(), c, effect(func(context.Context, *sql.Tx) (job.Ending, error) {
		e := succeed(job.Lease{})
		e.Result = &job.Result{Body: []byte("done"), MediaType: "text/plain"}
		return e, nil
	}))
	if err != nil {
		t.Fatal(err)
	}
	wantEffects(t, w, 1)
	if j := now(t, w, "k"); j.Status != job.Succeeded || j.Result == nil || string(j.Result.Body) != "done" || j.Version != 3 {
		t.Errorf("job: %+v", j)
	}
	if !finish(t, w, succeed(c.Lease)) {
		t.Error("the end is not found again")
	}
	if err = w.Repo.FinishTx(t.Context(), c, effect(nil)); !errors.Is(err, job.ErrLeaseLost) {
		t.Errorf("a second run: %v", err)
	}
	wantEffects(t, w, 1)
}

func testTxError(t *testing.T, w World) {
	c := claimed(t, w)
	mine := &job.AttemptError{Code: "mine", Permanent: true}
	err := w.Repo.FinishTx(t.Context(), c, effect(func(context.Context, *sql.Tx) (job.Ending, error) {
		return job.Ending{}, mine
	}))
	if !errors.Is(err, mine) {
		t.Errorf("error: %v", err)
	}
	wantUntouched(t, w, c.Lease)
}

func testTxLost(t *testing.T, w World) {
	execute(t, w, `create table effects (n integer not null)`)
	accept(t, w, submission(w, "k", `{}`))
	stale := lose(t, w)
	back := retry(stale.Lease, 0)
	back.Attempt, back.IfExpired = job.AttemptLost, true
	if !requeue(t, w, back) {
		t.Fatal("not rescued")
	}
	promote(t, w, 5)
	holder := claim(t, w, "w2", lease)
	if err := w.Repo.FinishTx(t.Context(), stale, effect(nil)); !errors.Is(err, job.ErrLeaseLost) {
		t.Errorf("error: %v", err)
	}
	wantEffects(t, w, 0)
	if err := w.Repo.FinishTx(t.Context(), holder, effect(nil)); err != nil {
		t.Errorf("the holder: %v", err)
	}
	wantEffects(t, w, 1)
}

// testTxSwallowed: where a failed statement aborts the transaction, going on is
// refused; where it does not, what succeeded is kept, all of it.
func testTxSwallowed(t *testing.T, w World) {
	c := claimed(t, w)
	err := w.Repo.FinishTx(t.Context(), c, effect(func(ctx context.Context, tx *sql.Tx) (job.Ending, error) {
		_, _ = tx.ExecContext(ctx, `insert into once (n) values (1)`)
		return succeed(job.Lease{}), nil
	}))
	if !w.AbortsOnError {
		if err != nil {
			t.Error(err)
		}
		wantEffects(t, w, 1)
		return
	}
	failed := wantError[*job.AttemptError](t, err)
	if failed.Code != "transaction-aborted" || failed.Permanent || !strings.Contains(failed.Error(), "23505") {
		t.Errorf("error: %+v, want the statement's own among it", failed)
	}
	wantUntouched(t, w, c.Lease)
}

func testTxErrorAfterFailure(t *testing.T, w World) {
	c := claimed(t, w)
	err := w.Repo.FinishTx(t.Context(), c, effect(func(ctx context.Context, tx *sql.Tx) (job.Ending, error) {
		_, err := tx.ExecContext(ctx, `insert into once (n) values (1)`)
		return job.Ending{}, err
	}))
	if !w.Repo.IsUniqueViolation(err) {
		t.Errorf("error: %v", err)
	}
	wantUntouched(t, w, c.Lease)
}

func testTxEnded(t *testing.T, w World) {
	c := claimed(t, w)
	for name, end := range map[string]func(context.Context, *sql.Tx) error{
		"commits":    func(_ context.Context, tx *sql.Tx) error { return tx.Commit() },
		"rolls back": func(_ context.Context, tx *sql.Tx) error { return tx.Rollback() },
	} {
		err := w.Repo.FinishTx(t.Context(), c, func(ctx context.Context, tx *sql.Tx) (job.Ending, error) {
			return succeed(job.Lease{}), end(ctx, tx)
		})
		if failed := wantError[*job.AttemptError](t, err); failed.Code != "transaction-ended" || !failed.Permanent {
			t.Errorf("a function that %s: %+v", name, failed)
		}
	}
	wantUntouched(t, w, c.Lease)
}

func testTxTimeout(t *testing.T, w World) {
	c := claimed(t, w)
	// Long enough for the effect to be written before: a statement that is cut off has
	// an error of its own.
	ctx, cancel := context.WithTimeoutCause(t.Context(), 2*time.Second, job.ErrTimeout)
	defer cancel()
	err := w.Repo.FinishTx(ctx, c, effect(func(ctx context.Context, _ *sql.Tx) (job.Ending, error) {
		<-ctx.Done()
		return succeed(job.Lease{}), nil
	}))
	if !errors.Is(err, job.ErrTimeout) {
		t.Errorf("error: %v", err)
	}
	wantUntouched(t, w, c.Lease)
}

func testTxSawItsEnd(t *testing.T, w World) {
	c := claimed(t, w)
	ctx, end := storetest.Unheard(t.Context())
	err := w.Repo.FinishTx(ctx, c, effect(func(context.Context, *sql.Tx) (job.Ending, error) {
		end()
		return succeed(job.Lease{}), nil
	}))
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error: %v", err)
	}
	wantUntouched(t, w, c.Lease)
}

func testTxEndedBefore(t *testing.T, w World) {
	c := claimed(t, w)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(job.ErrShutdown)
	err := w.Repo.FinishTx(ctx, c, effect(nil))
	if !errors.Is(err, job.ErrShutdown) {
		t.Errorf("error: %v", err)
	}
	wantUntouched(t, w, c.Lease)
}

// testTxPanic panics more often than there are connections.
func testTxPanic(t *testing.T, w World) {
	c := claimed(t, w)
	for i := range 30 {
		ended := make(chan any, 1)
		go func() {
			defer func() { ended <- recover() }()
			_ = w.Repo.FinishTx(t.Context(), c, effect(func(context.Context, *sql.Tx) (job.Ending, error) {
				if i%2 == 0 {
					panic("mine")
				}
				runtime.Goexit()
				return job.Ending{}, nil
			}))
		}()
		if got := <-ended; i%2 == 0 && got != "mine" {
			t.Fatalf("recovered %v", got)
		}
	}
	wantUntouched(t, w, c.Lease)
}

func testTxPlaceholders(t *testing.T, w World) {
	c := claimed(t, w)
	query := fmt.Sprintf(`insert into once (n) values (cast(%s as integer) + cast(%s as integer))`, w.Repo.Placeholder(1), w.Repo.Placeholder(2))
	err := w.Repo.FinishTx(t.Context(), c, func(ctx context.Context, tx *sql.Tx) (job.Ending, error) {
		_, err := tx.ExecContext(ctx, query, int64(20), int64(22))
		return succeed(job.Lease{}), err
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := count(t, w, `select count(*) from once where n = 42`); n != 1 {
		t.Errorf("%d rows", n)
	}
}

func testTxPermanent(t *testing.T, w World) {
	c := claimed(t, w)
	for statement, want := range map[string]struct{ unique, permanent bool }{
		`insert into once (n) values (1)`:          {unique: true, permanent: true},
		`insert into effects (n) values (null)`:    {permanent: true},
		`insert into no_such_table (n) values (1)`: {permanent: true},
		`this is not SQL`:                          {permanent: true},
	} {
		err := w.Repo.FinishTx(t.Context(), c, func(ctx context.Context, tx *sql.Tx) (job.Ending, error) {
			_, err := tx.ExecContext(ctx, statement)
			return job.Ending{}, err
		})
		if w.Repo.IsUniqueViolation(err) != want.unique || w.Repo.Permanent(err) != want.permanent {
			t.Errorf("%s: %v", statement, err)
		}
	}
	for _, err := range []error{context.DeadlineExceeded, sql.ErrConnDone, errors.New("any"), nil} {
		if w.Repo.IsUniqueViolation(err) || w.Repo.Permanent(err) {
			t.Errorf("%v counts as permanent", err)
		}
	}
}

// testTxStarvation holds every connection that transactions of attempts can
// have, and more ask for one.
func testTxStarvation(t *testing.T, w World) {
	acceptN(t, w, 40)
	all, err := w.Repo.Claim(t.Context(), job.Claiming{Type: kind, Max: 40, Worker: "w", Lease: lease})
	if err != nil || len(all) != 40 {
		t.Fatalf("%d claimed, %v", len(all), err)
	}
	leases := make([]job.Lease, len(all))
	running, end, results := make(chan struct{}, len(all)), make(chan struct{}), make(chan error, len(all))
	for i, c := range all {
		leases[i] = c.Lease
		go func() {
			results <- w.Repo.FinishTx(detached(t), c, func(context.Context, *sql.Tx) (job.Ending, error) {
				running <- struct{}{}
				<-end
				return succeed(c.Lease), nil
			})
		}()
	}
	<-running
	kept, err := w.Repo.Extend(t.Context(), leases, lease)
	if err != nil || len(kept) != len(leases) {
		t.Errorf("%d of %d leases kept, %v", len(kept), len(leases), err)
	}
	if j := now(t, w, all[0].Key); j.Status != job.Processing {
		t.Errorf("job: %+v", j)
	}
	if err := errors.Join(patiently(func() error { return w.Repo.Ping(t.Context()) }), patiently(func() error { return w.Repo.CheckSchema(t.Context()) })); err != nil {
		t.Error(err)
	}
	close(end)
	for range all {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
}
