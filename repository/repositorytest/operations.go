package repositorytest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"

	"github.com/sekali/sekali/job"
)

var operations = cases{
	"one job takes an operation, and again in its next attempt": testTake,
	"a job without an operation has nothing to take":            testTakeNone,
	"what was done gives its result to others":                  testTakeDone,
	"an operation whose job has ended is taken over":            testTakeOver,
	"an operation in doubt waits until that is resolved":        testTakeDoubt,
	"an operation outlives its job":                             testTakeReaped,
	"operations are of their type and tenant":                   testTakeScope,
	"Q1 a stale attempt takes nothing back":                     testTakeStale,
	"a transaction does its operation":                          testTxOperation,
	"a transaction that keeps nothing keeps no operation":       testTxOperationFailed,
	"a transaction does not do what another job has":            testTxOperationTaken,
}

func withOperation(key string) func(*job.Submission) {
	return func(s *job.Submission) { s.Job.OperationKey = key }
}

// contender is a claimed job of the operation.
func contender(t *testing.T, w World, key, operation string) job.Claimed {
	t.Helper()
	accept(t, w, submission(w, key, `{}`, withOperation(operation)))
	return claim(t, w, "w", lease)
}

// take takes the claimed job's operation, which must succeed.
func take(t *testing.T, w World, c job.Claimed) {
	t.Helper()
	if taken := tryTake(t, w, c); !taken.Mine || taken.Done {
		t.Fatalf("%s took %+v", c.Key, taken)
	}
}

func tryTake(t *testing.T, w World, c job.Claimed) job.OperationTaken {
	t.Helper()
	taken, err := w.Repo.Take(t.Context(), c)
	if err != nil {
		t.Fatalf("%s: %v", c.Key, err)
	}
	return taken
}

// refused is what a job gets whose operation another one has.
func refused(t *testing.T, w World, c job.Claimed, by string) {
	t.Helper()
	if taken := tryTake(t, w, c); taken.Mine || taken.Done || string(taken.By) != by {
		t.Errorf("%s took %+v, want it to be %s's", c.Key, taken, by)
	}
}

// operation tells how the operation stands.
func operation(t *testing.T, w World, key string) string {
	t.Helper()
	var state, by string
	var result []byte
	err := w.DB.QueryRowContext(t.Context(), `select state, job_key, result from processed_operations where operation_key = $1`, key).Scan(&state, &by, &result)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%s by %s: %s", state, by, result)
}

// done ends the job successfully, with its operation.
func done(t *testing.T, w World, c job.Claimed, result string) {
	t.Helper()
	e := succeed(c.Lease)
	e.Operation, e.Result = c.Operation(), &job.Result{Body: []byte(result), MediaType: "text/plain"}
	if !finish(t, w, e) {
		t.Fatalf("%s was not finished", c.Key)
	}
}

func testTake(t *testing.T, w World) {
	first, second := contender(t, w, "first", "op"), contender(t, w, "second", "op")
	take(t, w, first)
	take(t, w, first)
	refused(t, w, second, "first")
	if !requeue(t, w, retry(first.Lease, 0)) {
		t.Fatal("not requeued")
	}
	refused(t, w, second, "first")
	promote(t, w, 5)
	first = claim(t, w, "w", lease)
	take(t, w, first)
	refused(t, w, second, "first")
	if n := count(t, w, `select count(*) from processed_operations where token = 2`); n != 1 {
		t.Errorf("%d operations under the token of the second attempt", n)
	}
}

func testTakeNone(t *testing.T, w World) {
	accept(t, w, submission(w, "k", `{}`))
	take(t, w, claim(t, w, "w", lease))
	if n := count(t, w, `select count(*) from processed_operations`); n != 0 {
		t.Errorf("%d operations", n)
	}
}

func testTakeDone(t *testing.T, w World) {
	first, second := contender(t, w, "first", "op"), contender(t, w, "second", "op")
	take(t, w, first)
	done(t, w, first, "paid")
	for range 2 {
		taken := tryTake(t, w, second)
		if taken.Mine || !taken.Done || taken.By != "first" || taken.Result == nil ||
			string(taken.Result.Body) != "paid" || taken.Result.MediaType != "text/plain" {
			t.Errorf("taken: %+v", taken)
		}
	}
	e := job.Settings{Retention: keep}.Duplicate(second, tryTake(t, w, second))
	if !finish(t, w, e) {
		t.Fatal("not finished")
	}
	if j := now(t, w, "second"); j.Outcome != job.DuplicateIgnored || j.DuplicateOf != "first" || string(j.Result.Body) != "paid" {
		t.Errorf("the duplicate: %+v", j)
	}
	if o := operation(t, w, "op"); o != "done by first: paid" {
		t.Errorf("the operation is %s", o)
	}
	third := contender(t, w, "third", "none")
	take(t, w, third)
	e = succeed(third.Lease)
	e.Operation = third.Operation()
	if !finish(t, w, e) {
		t.Fatal("not finished")
	}
	if taken := tryTake(t, w, contender(t, w, "fourth", "none")); !taken.Done || taken.Result != nil {
		t.Errorf("no result: %+v", taken)
	}
}

func testTakeOver(t *testing.T, w World) {
	first := contender(t, w, "first", "op")
	take(t, w, first)
	if !finish(t, w, failedEnding(first)) {
		t.Fatal("not finished")
	}
	second := contender(t, w, "second", "op")
	take(t, w, second)
	cancelled := failedEnding(second)
	cancelled.Status, cancelled.Attempt = job.Cancelled, job.AttemptCancelled
	if !finish(t, w, cancelled) {
		t.Fatal("not cancelled")
	}
	third := contender(t, w, "third", "op")
	take(t, w, third)
	// Who is back waits for the new holder, and finds it done then.
	revive(t, w, revival(w, "again", now(t, w, "first")))
	first = claim(t, w, "w", lease)
	refused(t, w, first, "third")
	done(t, w, third, "paid")
	if taken := tryTake(t, w, first); !taken.Done || taken.By != "third" {
		t.Errorf("taken: %+v", taken)
	}
}

func testTakeDoubt(t *testing.T, w World) {
	for _, to := range []job.Status{job.Succeeded, job.Failed} {
		first := contender(t, w, "first "+string(to), string(to))
		take(t, w, first)
		e := failedEnding(first)
		parked(&e)
		if !finish(t, w, e) {
			t.Fatal("not finished")
		}
		second := contender(t, w, "second "+string(to), string(to))
		refused(t, w, second, string(first.Key))
		v := resolution(w, "sure "+string(to), now(t, w, first.Key), to, nil)
		if _, err := w.Repo.Resolve(t.Context(), v); err != nil {
			t.Fatal(err)
		}
		if taken := tryTake(t, w, second); taken.Done != (to == job.Succeeded) || taken.Mine != (to == job.Failed) {
			t.Errorf("resolved as %s: %+v", to, taken)
		}
	}
}

func testTakeReaped(t *testing.T, w World) {
	first, second := contender(t, w, "first", "done"), contender(t, w, "second", "open")
	take(t, w, first)
	take(t, w, second)
	e := succeed(first.Lease)
	e.Operation, e.Keep = first.Operation(), over
	f := failedEnding(second)
	f.Keep = over
	if !finish(t, w, e) || !finish(t, w, f) {
		t.Fatal("not finished")
	}
	if n := reap(t, w).Jobs; n != 2 {
		t.Fatalf("%d jobs reaped", n)
	}
	if taken := tryTake(t, w, contender(t, w, "third", "done")); !taken.Done || taken.By != "first" {
		t.Errorf("taken: %+v", taken)
	}
	take(t, w, contender(t, w, "fourth", "open"))
}

func testTakeScope(t *testing.T, w World) {
	take(t, w, contender(t, w, "first", "op"))
	accept(t, w, submission(w, "second", `{}`, withOperation("op"), ofType("other")))
	accept(t, w, submission(w, "third", `{}`, withOperation("op"), func(s *job.Submission) {
		s.Request.Tenant, s.Job.Tenant, s.Job.Type = "globex", "globex", "other"
	}))
	claimed, err := w.Repo.Claim(t.Context(), job.Claiming{Type: "other", Max: 5, Worker: "w", Lease: lease})
	if err != nil || len(claimed) != 2 {
		t.Fatalf("%d claimed, %v", len(claimed), err)
	}
	for _, c := range claimed {
		take(t, w, c)
	}
}

func testTakeStale(t *testing.T, w World) {
	stale := contender(t, w, "k", "op")
	if !requeue(t, w, retry(stale.Lease, 0)) {
		t.Fatal("not requeued")
	}
	promote(t, w, 5)
	take(t, w, claim(t, w, "w", lease))
	if taken, err := w.Repo.Take(t.Context(), stale); !errors.Is(err, job.ErrLeaseLost) {
		t.Errorf("taken: %+v, %v", taken, err)
	}
}

func testTxOperation(t *testing.T, w World) {
	execute(t, w, `create table effects (n integer not null)`)
	first, second, third := contender(t, w, "first", "op"), contender(t, w, "second", "op"), contender(t, w, "third", "taken")
	err := w.Repo.FinishTx(t.Context(), first, effect(func(context.Context, *sql.Tx) (job.Ending, error) {
		e := succeed(job.Lease{})
		e.Result = &job.Result{Body: []byte("paid"), MediaType: "text/plain"}
		return e, nil
	}))
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Repo.FinishTx(t.Context(), second, effect(nil)); !errors.Is(err, job.ErrOperationTaken) {
		t.Errorf("the second one: %v", err)
	}
	wantEffects(t, w, 1)
	if o := operation(t, w, "op"); o != "done by first: paid" {
		t.Errorf("the operation is %s", o)
	}
	if taken := tryTake(t, w, second); !taken.Done || taken.By != "first" || string(taken.Result.Body) != "paid" {
		t.Errorf("taken: %+v", taken)
	}
	take(t, w, third)
	if err := w.Repo.FinishTx(t.Context(), third, effect(nil)); err != nil {
		t.Errorf("who had taken it: %v", err)
	}
	if o := operation(t, w, "taken"); o != "done by third: " {
		t.Errorf("the operation is %s", o)
	}
}

func testTxOperationFailed(t *testing.T, w World) {
	execute(t, w, `create table effects (n integer not null)`)
	first := contender(t, w, "first", "op")
	mine := errors.New("mine")
	err := w.Repo.FinishTx(t.Context(), first, effect(func(context.Context, *sql.Tx) (job.Ending, error) { return job.Ending{}, mine }))
	if !errors.Is(err, mine) {
		t.Errorf("error: %v", err)
	}
	if !requeue(t, w, retry(first.Lease, 0)) {
		t.Fatal("not requeued")
	}
	if err := w.Repo.FinishTx(t.Context(), first, effect(nil)); !errors.Is(err, job.ErrLeaseLost) {
		t.Errorf("a stale attempt: %v", err)
	}
	if n := count(t, w, `select count(*) from processed_operations`); n != 0 {
		t.Errorf("%d operations", n)
	}
	if err := w.Repo.FinishTx(t.Context(), contender(t, w, "second", "op"), effect(nil)); err != nil {
		t.Errorf("another job: %v", err)
	}
	wantEffects(t, w, 1)
}

func testTxOperationTaken(t *testing.T, w World) {
	execute(t, w, `create table effects (n integer not null)`)
	first, second := contender(t, w, "first", "op"), contender(t, w, "second", "op")
	take(t, w, first)
	if err := w.Repo.FinishTx(t.Context(), second, effect(nil)); !errors.Is(err, job.ErrOperationTaken) {
		t.Errorf("error: %v", err)
	}
	if !finish(t, w, failedEnding(first)) {
		t.Fatal("not finished")
	}
	take(t, w, second)
	if err := w.Repo.FinishTx(t.Context(), second, effect(nil)); err != nil {
		t.Errorf("who took it over: %v", err)
	}
	wantEffects(t, w, 1)
}
