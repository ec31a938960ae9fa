package repository_test

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/internal/testenv"
	"github.com/sekali/sekali/job"
	"github.com/sekali/sekali/repository"
)

// TestSQLite_OneGateway: a second gateway on the file is refused at once, and
// other commands are not.
func TestSQLite_OneGateway(t *testing.T) {
	t.Parallel()
	url := testenv.SQLite(t)
	first, err := repository.Open(t.Context(), url, repository.Options{Exclusive: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err = repository.Open(t.Context(), url, repository.Options{Exclusive: true})
	if err == nil || !strings.Contains(err.Error(), strings.TrimPrefix(url, "sqlite:")) || !strings.Contains(err.Error(), "another gateway") {
		t.Errorf("a second gateway: %v", err)
	}
	command := open(t, url, repository.Options{})
	if err := errors.Join(patiently(func() error { return command.CheckSchema(t.Context()) }), command.Migrate(t.Context())); err != nil {
		t.Errorf("another command: %v", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	accept(t, open(t, url, repository.Options{Exclusive: true}), "k")
}

// TestSQLite_Paths: a path is not a piece of a URL.
func TestSQLite_Paths(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"plain.db", "with space.db", "100% sure?.db", "a#b&c=d.db", "kunci-😀.db"} {
		path := filepath.Join(t.TempDir(), name)
		accept(t, migrated(t, "sqlite:"+path, repository.Options{}), "k")
		for _, file := range []string{path, path + "-wal", path + "-shm"} {
			info, err := os.Stat(file)
			if err != nil {
				t.Errorf("%s: %v", name, err)
			} else if mode := info.Mode().Perm(); mode != 0o600 {
				t.Errorf("%s has the mode %o: others can read what jobs say", file, mode)
			}
		}
	}
	path := filepath.Join(t.TempDir(), "missing", "x.db")
	if _, err := repository.Open(t.Context(), "sqlite:"+path, repository.Options{}); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("a folder that is not there: %v", err)
	}
}

// TestSQLite_Settings: what makes an answered commit durable.
func TestSQLite_Settings(t *testing.T) {
	t.Parallel()
	r := migrated(t, testenv.SQLite(t), repository.Options{Slots: 1})
	accept(t, r, "k")
	got := map[string]string{}
	err := r.FinishTx(t.Context(), claimOne(t, r), func(ctx context.Context, tx *sql.Tx) (job.Ending, error) {
		for _, name := range []string{"journal_mode", "synchronous", "foreign_keys", "busy_timeout"} {
			var value string
			if err := tx.QueryRowContext(ctx, `pragma `+name).Scan(&value); err != nil {
				return job.Ending{}, err
			}
			got[name] = value
		}
		return succeeded(job.Lease{}), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"journal_mode": "wal", "synchronous": "2", "foreign_keys": "1", "busy_timeout": "1000"} {
		if got[name] != want {
			t.Errorf("%s is %s, want %s", name, got[name], want)
		}
	}
	if _, err := repository.Reads(r).ExecContext(t.Context(), `delete from jobs`); err == nil {
		t.Error("a connection for reads writes")
	}
}

// TestSQLite_LongTransaction: while a transaction of an attempt holds the write
// lock, reads and heartbeats go on, and an accept is refused in good time.
func TestSQLite_LongTransaction(t *testing.T) {
	t.Parallel()
	r := migrated(t, testenv.SQLite(t), repository.Options{Slots: 2})
	accept(t, r, "a")
	accept(t, r, "b")
	first, second := claimOne(t, r), claimOne(t, r)
	running, end, done := make(chan struct{}), make(chan struct{}), make(chan error)
	go func() {
		done <- r.FinishTx(t.Context(), first, func(context.Context, *sql.Tx) (job.Ending, error) {
			close(running)
			<-end
			return succeeded(job.Lease{}), nil
		})
	}()
	<-running
	stale := job.Lease{ID: second.ID, Token: 9}
	kept, err := r.Extend(t.Context(), []job.Lease{first.Lease, second.Lease, stale}, time.Minute)
	if err != nil || len(kept) != 2 {
		t.Errorf("kept %v, %v", kept, err)
	}
	if receipt, err := r.Find(t.Context(), "acme", "b"); err != nil || receipt.Job.Status != job.Processing {
		t.Errorf("find: %+v, %v", receipt.Job, err)
	}
	began := time.Now()
	if _, err := r.Accept(t.Context(), submission(r, "c")); !errors.Is(err, job.ErrUnavailable) {
		t.Errorf("accept: %v", err)
	}
	if waited := time.Since(began); waited > 15*time.Second {
		t.Errorf("accept took %v", waited)
	}
	close(end)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	accept(t, r, "c")
}

// TestFailure_BR80_SQLiteRollsBack: SQLite gives a transaction up when one of
// its statements is interrupted, and does not tell the next one.
func TestFailure_BR80_SQLiteRollsBack(t *testing.T) {
	t.Parallel()
	r := migrated(t, testenv.SQLite(t), repository.Options{Slots: 1})
	accept(t, r, "k")
	c := claimOne(t, r)
	err := r.FinishTx(t.Context(), c, func(ctx context.Context, tx *sql.Tx) (job.Ending, error) {
		if _, err := tx.ExecContext(ctx, `create table effects (n integer)`); err != nil {
			return job.Ending{}, err
		}
		short, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
		defer cancel()
		_, err := tx.ExecContext(short, `
			with recursive numbers(n) as (select 1 union all select n + 1 from numbers)
			insert into effects select n from numbers`)
		if err == nil {
			t.Error("the statement was not interrupted")
		}
		return succeeded(job.Lease{}), nil // as if nothing had happened
	})
	var failed *job.AttemptError
	if !errors.As(err, &failed) || failed.Code != "transaction-aborted" {
		t.Errorf("error: %v", err)
	}
	receipt, err := r.Find(t.Context(), "acme", "k")
	if err != nil || receipt.Job.Status != job.Processing {
		t.Errorf("the job is %s, %v", receipt.Job.Status, err)
	}
	if applied, err := r.Finish(t.Context(), []job.Ending{succeeded(c.Lease)}); err != nil || applied[0] != job.Applied {
		t.Errorf("the lease is not held any more: %v, %v", applied, err)
	}
}

// TestContract_Row67_SQLiteBusy: another program has the file.
func TestContract_Row67_SQLiteBusy(t *testing.T) {
	t.Parallel()
	url := testenv.SQLite(t)
	r := migrated(t, url, repository.Options{})
	tx, err := beside(t, "sqlite", sqliteDSN(url)).BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if _, err := r.Accept(t.Context(), submission(r, "k")); !errors.As(err, new(*idempotency.InProgressError)) {
		t.Errorf("accept: %v", err)
	}
	if waited := time.Since(began); waited > 10*time.Second {
		t.Errorf("accept took %v", waited)
	}
	if _, err := r.Claim(t.Context(), job.Claiming{Type: "t", Max: 1, Worker: "w", Lease: time.Minute}); !errors.Is(err, job.ErrUnavailable) {
		t.Errorf("Q35: a claim that fails is no empty queue: %v", err)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	accept(t, r, "k")
}
