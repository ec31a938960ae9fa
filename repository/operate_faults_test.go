package repository_test

import (
	"context"
	"database/sql"
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/internal/testenv"
	"github.com/sekali/sekali/job"
	"github.com/sekali/sekali/repository"
)

// failed is a job that has failed, as it is read.
func failed(t *testing.T, r *repository.Repository, key string) job.Job {
	t.Helper()
	accept(t, r, key)
	applied, err := r.Finish(t.Context(), []job.Ending{failure(claimOne(t, r))})
	if err != nil || applied[0] != job.Applied {
		t.Fatalf("finish: %v, %v", applied, err)
	}
	receipt, err := r.Find(t.Context(), "acme", idempotency.Key(key))
	if err != nil {
		t.Fatal(err)
	}
	return receipt.Job
}

func failure(c job.Claimed) job.Ending {
	return job.Ending{Lease: c.Lease, Status: job.Failed, Attempt: job.AttemptFailed, Keep: time.Hour, Failure: &job.Failure{Code: "x"}}
}

func revival(r *repository.Repository, key string, from job.Job) job.Revival {
	j := from
	j.Status, j.RunAt, j.Generation, j.Version, j.EarlierAttempts = job.Pending, r.Clock().Now(), from.Generation+1, from.Version+1, from.Attempts
	return job.Revival{
		Request: idempotency.Request{Tenant: "acme", Key: idempotency.Key(key), Fingerprint: idempotency.NewFingerprint("POST", "/retry", nil, "", nil)},
		From:    from, Job: j, Response: idempotency.Response{Status: http.StatusAccepted, Body: []byte("again")},
	}
}

// commits lets so many commits end with their connections before they arrive.
func commits(n int) func(byte, string) verdict {
	var left atomic.Int64
	left.Store(int64(n))
	return func(kind byte, body string) verdict {
		if kind == 'Q' && strings.HasPrefix(body, "COMMIT") && left.Add(-1) >= 0 {
			return drop
		}
		return pass
	}
}

// TestContract_Row83_AnswerOfRetryLost: retry and resolve are accepts, also when
// their commits are not answered.
func TestContract_Row83_AnswerOfRetryLost(t *testing.T) {
	t.Parallel()
	p, r, db := proxied(t)
	for name, rules := range map[string][2]func(byte, string) verdict{
		"its answer":         {nil, answers(1, "COMMIT")},
		"it did not arrive":  {commits(1), nil},
		"the record's alone": {nil, answers(1, "INSERT")},
	} {
		from := failed(t, r, name)
		p.rule(rules[0], rules[1])
		receipt, err := r.Revive(t.Context(), revival(r, "op "+name, from))
		p.rule(nil, nil)
		if name == "the record's alone" { // nothing can have been committed, and that is said
			if !errors.Is(err, job.ErrUnavailable) || errors.Is(err, job.ErrOutcomeUnknown) {
				t.Errorf("%s: %+v, %v", name, receipt, err)
			}
			receipt, err = r.Revive(t.Context(), revival(r, "op "+name, from))
		}
		if err != nil || !receipt.Record.Fresh {
			t.Errorf("%s: %+v, %v", name, receipt, err)
		}
		if found, err := r.Find(t.Context(), "acme", idempotency.Key(name)); err != nil || found.Job.Generation != from.Generation+1 {
			t.Errorf("%s: %+v, %v", name, found.Job, err)
		}
		if c := claimOne(t, r); c.ID != from.ID {
			t.Errorf("%s: claimed %s", name, c.Key)
		}
	}
	from := failed(t, r, "often")
	p.rule(nil, answers(1000, "COMMIT"))
	if receipt, err := r.Revive(t.Context(), revival(r, "op often", from)); err != nil || !receipt.Record.Fresh {
		t.Errorf("no commit is answered, but it is read back: %+v, %v", receipt, err)
	}
	p.rule(nil, nil)
	receipt, err := r.Revive(t.Context(), revival(r, "op often", from))
	if err != nil || receipt.Record.Fresh || string(receipt.Record.Response.Body) != "again" {
		t.Errorf("the operator's repetition: %+v, %v", receipt, err)
	}
	claimOne(t, r) // out of the way
	from = failed(t, r, "never")
	p.rule(commits(1000), nil)
	if _, err := r.Revive(t.Context(), revival(r, "op never", from)); !errors.Is(err, job.ErrOutcomeUnknown) || errors.Is(err, job.ErrUnavailable) {
		t.Errorf("no commit arrives: %v", err)
	}
	p.rule(nil, nil)
	if receipt, err := r.Revive(t.Context(), revival(r, "op never", from)); err != nil || !receipt.Record.Fresh {
		t.Errorf("later: %+v, %v", receipt, err)
	}
	if n := count(t, db, `select count(*) from job_events where event = 'retried'`); n != 5 {
		t.Errorf("%d events of five retries", n)
	}
	p.stop()
	if _, err := r.Revive(t.Context(), revival(r, "op away", from)); !errors.Is(err, job.ErrUnavailable) || errors.Is(err, job.ErrOutcomeUnknown) {
		t.Errorf("while the database is away: %v", err)
	}
}

// TestFinish_AnswerOfCompensationLost: the failure and what follows it were
// committed, and nobody heard.
func TestFinish_AnswerOfCompensationLost(t *testing.T) {
	t.Parallel()
	p, r, db := proxied(t)
	undone := 0
	for name, rules := range map[string][2]func(byte, string) verdict{
		"its answer":        {nil, answers(1, "COMMIT")},
		"it did not arrive": {commits(1), nil},
		"all answers":       {nil, answers(1000, "COMMIT")},
	} {
		accept(t, r, name)
		e := failure(claimOne(t, r))
		s := submission(r, "compensate:"+string(e.Lease.ID))
		s.Job.Type = "undo"
		e.Follow = []job.Submission{s}
		p.rule(rules[0], rules[1])
		applied, err := r.Finish(t.Context(), []job.Ending{e})
		p.rule(nil, nil)
		if err != nil && !errors.Is(err, job.ErrOutcomeUnknown) || err == nil && applied[0] != job.Applied {
			t.Errorf("%s: %v, %v", name, applied, err)
		}
		if applied, err = r.Finish(t.Context(), []job.Ending{e}); err != nil || applied[0] != job.Applied {
			t.Errorf("%s, again: %v, %v", name, applied, err)
		}
		undone++
		if n := count(t, db, `select count(*) from jobs where type = 'undo'`); n != undone {
			t.Errorf("%s: %d compensations, want %d", name, n, undone)
		}
	}
}

// TestTake_AnswerLost: who took an operation does not wait for itself.
func TestTake_AnswerLost(t *testing.T) {
	t.Parallel()
	p, r, db := proxied(t)
	s := submission(r, "k")
	s.Job.OperationKey = "op"
	if receipt, err := r.Accept(t.Context(), s); err != nil || !receipt.Record.Fresh {
		t.Fatalf("%+v, %v", receipt, err)
	}
	c := claimOne(t, r)
	p.rule(nil, answers(1, "INSERT"))
	taken, err := r.Take(t.Context(), c)
	p.rule(nil, nil)
	if err != nil || !taken.Mine {
		t.Errorf("taken: %+v, %v", taken, err)
	}
	if n := count(t, db, `select count(*) from processed_operations`); n != 1 {
		t.Errorf("%d operations", n)
	}
}

// TestTake_HolderComesBack: between the reading that the holder's job has ended
// and the taking over, that job comes back and takes its operation again.
func TestTake_HolderComesBack(t *testing.T) {
	t.Parallel()
	direct := testenv.Postgres(t)
	p, url := newProxy(t, direct)
	another := migrated(t, direct, repository.Options{})
	r := open(t, url, repository.Options{MaxConns: 4})
	var claimed []job.Claimed
	for _, key := range []string{"first", "second"} {
		s := submission(another, key)
		s.Job.OperationKey = "op"
		if receipt, err := another.Accept(t.Context(), s); err != nil || !receipt.Record.Fresh {
			t.Fatalf("%+v, %v", receipt, err)
		}
		claimed = append(claimed, claimOne(t, another))
	}
	take := func(c job.Claimed) {
		if taken, err := another.Take(t.Context(), c); err != nil || !taken.Mine {
			t.Errorf("taken: %+v, %v", taken, err)
		}
	}
	take(claimed[0])
	if applied, err := another.Finish(t.Context(), []job.Ending{failure(claimed[0])}); err != nil || applied[0] != job.Applied {
		t.Fatalf("finish: %v, %v", applied, err)
	}
	found, err := another.Find(t.Context(), "acme", "first")
	if err != nil {
		t.Fatal(err)
	}
	var back sync.Once
	p.rule(func(kind byte, body string) verdict {
		if kind == 'P' && strings.Contains(body, "update processed_operations") {
			back.Do(func() {
				if _, err := another.Revive(t.Context(), revival(another, "again", found.Job)); err != nil {
					t.Errorf("revive: %v", err)
				}
				take(claimOne(t, another))
			})
		}
		return pass
	}, nil)
	taken, err := r.Take(t.Context(), claimed[1])
	if err != nil || taken.Mine || taken.Done || taken.By != "first" {
		t.Errorf("taken: %+v, %v", taken, err)
	}
	back.Do(func() { t.Error("the operation was not taken over at all") })
}

// effects are two rows for functions to write to.
func effects(t *testing.T, db *sql.DB) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), `create table pairs (side text, n int); insert into pairs (side, n) values ('a', 1), ('b', 1)`); err != nil {
		t.Fatal(err)
	}
}

func run(ctx context.Context, tx interface {
	ExecContext(context.Context, string, ...any) (sql.Result, error)
}, statements ...string,
) error {
	for _, statement := range statements {
		if _, err := tx.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

// TestFailure_BR46_SerializationFailure: a transaction that the database refuses
// at its end, in favour of another one, has done nothing, and is no failure of
// the job.
func TestFailure_BR46_SerializationFailure(t *testing.T) {
	t.Parallel()
	_, r, db := proxied(t)
	effects(t, db)
	accept(t, r, "k")
	c := claimOne(t, r)
	err := r.FinishTx(t.Context(), c, func(ctx context.Context, tx *sql.Tx) (job.Ending, error) {
		err := run(ctx, tx, `set transaction isolation level serializable`, `update pairs set n = (select sum(n) from pairs) where side = 'a'`)
		if err != nil {
			return job.Ending{}, err
		}
		other, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelSerializable})
		if err != nil {
			return job.Ending{}, err
		}
		err = run(ctx, other, `update pairs set n = (select sum(n) from pairs) where side = 'b'`)
		return succeeded(job.Lease{}), errors.Join(err, other.Commit())
	})
	if !errors.Is(err, job.ErrUnavailable) || errors.As(err, new(*job.AttemptError)) {
		t.Errorf("error: %v", err)
	}
	untouched(t, r, db, c)
}

// TestFailure_BR50_Deadlock: nor is a deadlock that the database ends by giving
// the transaction up.
func TestFailure_BR50_Deadlock(t *testing.T) {
	t.Parallel()
	_, r, db := proxied(t)
	effects(t, db)
	accept(t, r, "k")
	c := claimOne(t, r)
	other, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	waits := make(chan error, 1)
	err = r.FinishTx(t.Context(), c, func(ctx context.Context, tx *sql.Tx) (job.Ending, error) {
		if err := run(ctx, tx, `set local deadlock_timeout = '200ms'`, `update pairs set n = 5 where side = 'a'`); err != nil {
			return job.Ending{}, err
		}
		if err := run(ctx, other, `set local deadlock_timeout = '1min'`, `update pairs set n = n where side = 'b'`); err != nil {
			return job.Ending{}, err
		}
		pid := backend(t, tx)
		go func() { waits <- run(ctx, other, `update pairs set n = n where side = 'a'`) }()
		awaitBlocked(t, db, pid) // or the deadlock would be found by who comes later, the other one
		return succeeded(job.Lease{}), run(ctx, tx, `update pairs set n = 5 where side = 'b'`)
	})
	if !errors.Is(err, job.ErrUnavailable) {
		t.Errorf("error: %v", err)
	}
	if err := errors.Join(<-waits, other.Commit()); err != nil {
		t.Errorf("the other transaction: %v", err)
	}
	untouched(t, r, db, c)
}

// untouched: nothing of the attempt was kept, and its lease can be given back.
func untouched(t *testing.T, r *repository.Repository, db *sql.DB, c job.Claimed) {
	t.Helper()
	if n := count(t, db, `select count(*) from pairs where side = 'a' and n <> 1`); n != 0 {
		t.Error("the effect was kept")
	}
	back := job.Requeue{Lease: c.Lease, Status: job.Pending, Attempt: job.AttemptReleased, Uncounted: true}
	if applied, err := r.Requeue(t.Context(), []job.Requeue{back}); err != nil || applied[0] != job.Applied {
		t.Errorf("requeue: %v, %v", applied, err)
	}
}

// TestFailure_BR50_OperationHeld: a transaction waits for another one that does
// its operation no longer than for any lock, before its work, and is not to
// blame.
func TestFailure_BR50_OperationHeld(t *testing.T) {
	t.Parallel()
	url := testenv.Postgres(t)
	r, another, db := migrated(t, url, repository.Options{Slots: 2}), open(t, url, repository.Options{Slots: 2}), beside(t, "postgres", url)
	effects(t, db)
	var contenders []job.Claimed
	for _, key := range []string{"first", "second"} {
		s := submission(r, key)
		s.Job.OperationKey = "op"
		if receipt, err := r.Accept(t.Context(), s); err != nil || !receipt.Record.Fresh {
			t.Fatalf("%+v, %v", receipt, err)
		}
		contenders = append(contenders, claimOne(t, r))
	}
	err := r.FinishTx(t.Context(), contenders[0], func(ctx context.Context, tx *sql.Tx) (job.Ending, error) {
		began := time.Now()
		err := another.FinishTx(ctx, contenders[1], func(context.Context, *sql.Tx) (job.Ending, error) {
			t.Error("the second one has begun its work")
			return succeeded(job.Lease{}), nil
		})
		if waited := time.Since(began); !errors.Is(err, job.ErrUnavailable) || waited > 8*time.Second {
			t.Errorf("the second one, after %v: %v", waited, err)
		}
		if _, err := another.Take(ctx, contenders[1]); !errors.Is(err, job.ErrUnavailable) {
			t.Errorf("take: %v", err)
		}
		return succeeded(job.Lease{}), run(ctx, tx, `update pairs set n = n + 1`)
	})
	if err != nil {
		t.Errorf("the first one: %v", err)
	}
	if err := another.FinishTx(t.Context(), contenders[1], nil); !errors.Is(err, job.ErrOperationTaken) {
		t.Errorf("the second one, later: %v", err)
	}
	if taken, err := another.Take(t.Context(), contenders[1]); err != nil || !taken.Done || taken.By != "first" {
		t.Errorf("taken: %+v, %v", taken, err)
	}
	if n := count(t, db, `select sum(n) from pairs`); n != 4 {
		t.Errorf("the effect came out as %d, want it once", n)
	}
}
