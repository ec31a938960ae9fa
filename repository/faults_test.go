package repository_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/testenv"
	"github.com/sekali/sekali/job"
	"github.com/sekali/sekali/migrations"
	"github.com/sekali/sekali/repository"
)

// proxied is a repository behind a proxy, warm, and a way past both.
func proxied(t *testing.T) (*proxy, *repository.Repository, *sql.DB) {
	t.Helper()
	direct := testenv.Postgres(t)
	p, url := newProxy(t, direct)
	r := migrated(t, url, repository.Options{Slots: 4, MaxConns: 4})
	accept(t, r, "warm")
	if applied, err := r.Finish(t.Context(), []job.Ending{succeeded(claimOne(t, r).Lease)}); err != nil || applied[0] != job.Applied {
		t.Fatal(err)
	}
	return p, r, beside(t, "postgres", direct)
}

// answers counts down: the answers to so many statements are lost on their way.
func answers(n int, tag string) func(byte, string) verdict {
	var left atomic.Int64
	left.Store(int64(n))
	return func(kind byte, body string) verdict {
		if kind == 'C' && strings.HasPrefix(body, tag) && left.Add(-1) >= 0 {
			return drop
		}
		return pass
	}
}

// TestFailure_Q39_PoisonedConnection: the server answers with an error and then
// drops the socket, before it says that it is ready again.
func TestFailure_Q39_PoisonedConnection(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		open  func(string) (*sql.DB, error)
		heals bool
	}{
		"with the wrapper the pool heals at once":           {repository.OpenWrapped, true},
		"without it the connection stays poisoned for ever": {repository.OpenPlain, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, url := newProxy(t, testenv.Postgres(t))
			db, err := c.open(url)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = db.Close() })
			var one int
			if err := db.QueryRowContext(t.Context(), "select 1").Scan(&one); err != nil {
				t.Fatal(err)
			}
			p.rule(nil, func(kind byte, _ string) verdict {
				if kind == 'E' {
					return passDrop
				}
				return pass
			})
			if err := db.QueryRowContext(t.Context(), "select no_such_function($1)", "x").Scan(&one); err == nil {
				t.Fatal("no error")
			}
			p.rule(nil, nil)
			for range 3 {
				err := db.QueryRowContext(t.Context(), "select 1").Scan(&one)
				if (err == nil) != c.heals {
					t.Fatalf("next query: %v", err)
				}
			}
		})
	}
}

// TestContract_Row83_AnswerOfAcceptLost: the commit was done, and nobody heard.
func TestContract_Row83_AnswerOfAcceptLost(t *testing.T) {
	t.Parallel()
	p, r, db := proxied(t)
	p.rule(nil, answers(1, ""))
	receipt, err := r.Accept(t.Context(), submission(r, "once"))
	if err != nil || !receipt.Record.Fresh || receipt.Alias {
		t.Errorf("accept with one answer lost: %+v, %v", receipt.Record, err)
	}

	s := submission(r, "often")
	p.rule(nil, answers(1000, ""))
	if _, err = r.Accept(t.Context(), s); !errors.Is(err, job.ErrOutcomeUnknown) || errors.Is(err, job.ErrUnavailable) {
		t.Errorf("accept with all answers lost: %v", err)
	}
	p.rule(nil, nil)
	if receipt, err = r.Accept(t.Context(), s); err != nil || !receipt.Record.Fresh {
		t.Errorf("the same submission again: %+v, %v", receipt.Record, err)
	}
	if receipt, err = r.Accept(t.Context(), submission(r, "often")); err != nil || receipt.Record.Fresh || receipt.Job.ID != s.Job.ID {
		t.Errorf("the client's retry: %+v, %v", receipt.Record, err)
	}
	if n := count(t, db, `select count(*) from jobs`); n != 2 {
		t.Errorf("%d jobs, want one of each key", n)
	}
}

// TestFailure_Q41_RecordVanishes: the record that stood in the way is purged
// before it can be read. The accept begins anew; nobody is told of a job that is
// not there.
func TestFailure_Q41_RecordVanishes(t *testing.T) {
	t.Parallel()
	p, r, db := proxied(t)
	var purges atomic.Int64
	purge := func(most int64) func(byte, string) verdict {
		return func(kind byte, _ string) verdict {
			if kind == 'C' && purges.Add(1) <= most {
				if _, err := db.ExecContext(t.Context(), `delete from idempotency_keys where key = 'warm'`); err != nil {
					t.Error(err)
				}
			}
			return pass
		}
	}
	p.rule(nil, purge(1))
	receipt, err := r.Accept(t.Context(), submission(r, "warm"))
	p.rule(nil, nil)
	if err != nil || !receipt.Record.Fresh || purges.Load() < 3 {
		t.Errorf("accept: %+v, %v after %d answers", receipt.Record, err, purges.Load())
	}
	if n := count(t, db, `select count(*) from jobs`); n != 1 {
		t.Errorf("%d jobs", n)
	}
}

// TestContract_Row82_DatabaseGone: nothing was sent, and that is said, even
// though the pool is full of connections that were good a moment ago.
func TestContract_Row82_DatabaseGone(t *testing.T) {
	t.Parallel()
	p, r, _ := proxied(t)
	p.stop()
	for range 3 {
		if _, err := r.Accept(t.Context(), submission(r, "k")); !errors.Is(err, job.ErrUnavailable) || errors.Is(err, job.ErrOutcomeUnknown) {
			t.Errorf("accept: %v", err)
		}
		if _, err := r.Find(t.Context(), "acme", "warm"); !errors.Is(err, job.ErrUnavailable) {
			t.Errorf("find: %v", err)
		}
		if _, err := r.Claim(t.Context(), job.Claiming{Type: "t", Max: 1, Worker: "w", Lease: time.Minute}); !errors.Is(err, job.ErrUnavailable) {
			t.Errorf("claim: %v", err)
		}
		if err := r.Ping(t.Context()); !errors.Is(err, job.ErrUnavailable) {
			t.Errorf("ping: %v", err)
		}
	}
	p.start()
	accept(t, r, "k")
}

// TestContract_Row50_DatabaseSilent: a server that takes everything and answers
// nothing, as behind a broken network, holds nobody up for long.
func TestContract_Row50_DatabaseSilent(t *testing.T) {
	t.Parallel()
	p, r, _ := proxied(t)
	p.rule(nil, func(byte, string) verdict { return swallow })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	began := time.Now()
	if _, err := r.Find(ctx, "acme", "warm"); !errors.Is(err, job.ErrUnavailable) {
		t.Errorf("find: %v", err)
	}
	if waited := time.Since(began); waited > 12*time.Second {
		t.Errorf("find took %v", waited)
	}
	began = time.Now()
	if _, err := r.Accept(ctx, submission(r, "k")); err == nil {
		t.Error("accepted")
	}
	if waited := time.Since(began); waited > 15*time.Second {
		t.Errorf("accept took %v", waited)
	}
	p.rule(nil, nil)
	if receipt, err := r.Accept(ctx, submission(r, "k")); err != nil {
		t.Errorf("afterwards: %+v, %v", receipt.Record, err)
	}
}

// TestOpen_DatabaseDown: a process may start before its database.
func TestOpen_DatabaseDown(t *testing.T) {
	t.Parallel()
	p, url := newProxy(t, testenv.Postgres(t))
	p.stop()
	r := open(t, url, repository.Options{})
	if err := r.Migrate(t.Context()); !errors.Is(err, job.ErrUnavailable) {
		t.Errorf("migrate: %v", err)
	}
	if err := r.CheckSchema(t.Context()); !errors.Is(err, job.ErrUnavailable) {
		t.Errorf("check: %v", err)
	}
	p.start()
	if err := patiently(func() error { return r.CheckSchema(t.Context()) }); !errors.Is(err, migrations.ErrMissing) {
		t.Errorf("check of an empty database: %v", err)
	}
	if err := r.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	accept(t, r, "k")
}

// TestFinish_AnswerLost: the ending was written, and is found again.
func TestFinish_AnswerLost(t *testing.T) {
	t.Parallel()
	p, r, _ := proxied(t)
	accept(t, r, "a")
	accept(t, r, "b")
	first, second := claimOne(t, r), claimOne(t, r)
	p.rule(nil, answers(1, ""))
	if applied, err := r.Finish(t.Context(), []job.Ending{succeeded(first.Lease)}); err != nil || applied[0] != job.Applied {
		t.Errorf("finish: %v, %v", applied, err)
	}
	p.rule(nil, answers(1, ""))
	back := job.Requeue{Lease: second.Lease, Status: job.Retrying, In: time.Hour, Attempt: job.AttemptFailed}
	if applied, err := r.Requeue(t.Context(), []job.Requeue{back}); err != nil || applied[0] != job.Applied {
		t.Errorf("requeue: %v, %v", applied, err)
	}
	p.rule(nil, answers(1000, ""))
	if applied, err := r.Requeue(t.Context(), []job.Requeue{back}); !errors.Is(err, job.ErrOutcomeUnknown) {
		t.Errorf("requeue with all answers lost: %v, %v", applied, err)
	}
}

// TestFailure_BR80_CommitWithoutAnswer: what became of it is read back.
func TestFailure_BR80_CommitWithoutAnswer(t *testing.T) {
	t.Parallel()
	p, r, db := proxied(t)
	if _, err := db.ExecContext(t.Context(), `create table effects (n int)`); err != nil {
		t.Fatal(err)
	}
	effect := func(ctx context.Context, tx *sql.Tx) (job.Ending, error) {
		_, err := tx.ExecContext(ctx, `insert into effects (n) values (1)`)
		return succeeded(job.Lease{}), err
	}
	accept(t, r, "k")
	c := claimOne(t, r)

	p.rule(func(kind byte, body string) verdict {
		if kind == 'Q' && strings.HasPrefix(body, "COMMIT") {
			return drop
		}
		return pass
	}, nil)
	err := r.FinishTx(t.Context(), c, effect)
	if !errors.Is(err, job.ErrUnavailable) || count(t, db, `select count(*) from effects`) != 0 {
		t.Errorf("a commit that did not arrive: %v", err)
	}

	p.rule(nil, answers(1, "COMMIT"))
	if err := r.FinishTx(t.Context(), c, effect); err != nil {
		t.Errorf("a commit whose answer was lost: %v", err)
	}
	if n := count(t, db, `select count(*) from effects`); n != 1 {
		t.Errorf("%d effects", n)
	}
}
