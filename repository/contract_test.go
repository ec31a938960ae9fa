package repository_test

import (
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/internal/testenv"
	"github.com/sekali/sekali/job"
	"github.com/sekali/sekali/repository"
	"github.com/sekali/sekali/repository/repositorytest"
)

// open opens a repository that is closed when the test ends.
func open(t *testing.T, url string, o repository.Options) *repository.Repository {
	t.Helper()
	r, err := repository.Open(t.Context(), url, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// migrated opens a repository whose schema is there.
func migrated(t *testing.T, url string, o repository.Options) *repository.Repository {
	t.Helper()
	r := open(t, url, o)
	if err := r.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return r
}

// beside opens the database past the repository.
func beside(t *testing.T, driver, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// patiently makes a call again that was given up for want of time: on a machine that
// stood still a second or less is soon over. What is refused at once is not.
func patiently(call func() error) (err error) {
	for range 20 {
		began := time.Now()
		err = call()
		late := errors.As(err, new(*idempotency.InProgressError)) || errors.Is(err, job.ErrUnavailable) && !errors.Is(err, repository.ErrPooler)
		if !late || time.Since(began) < 500*time.Millisecond {
			break
		}
	}
	return err
}

// brief is how long results are kept where that is tested.
const brief = 50 * time.Millisecond

// options adds the retention that the suite asks for.
func options(o repository.Options) repository.Options {
	o.Tombstone = repositorytest.Tombstone
	return o
}

func onPostgres(t *testing.T) repositorytest.World { return onPostgresAt(t, testenv.Postgres(t)) }

func onPostgresAt(t *testing.T, url string) repositorytest.World {
	return repositorytest.World{
		Repo: migrated(t, url, options(repository.Options{Slots: 8, MaxConns: 16})),
		Another: func() *repository.Repository {
			return open(t, url, options(repository.Options{Slots: 8, MaxConns: 16}))
		},
		Brief: func() *repository.Repository {
			return open(t, url, repository.Options{Slots: 8, MaxConns: 16, ResultRetention: brief})
		},
		DB:            beside(t, "postgres", url),
		AbortsOnError: true,
	}
}

func onSQLite(t *testing.T) repositorytest.World {
	url := testenv.SQLite(t)
	return repositorytest.World{
		Repo: migrated(t, url, options(repository.Options{Slots: 8, Exclusive: true})),
		Brief: func() *repository.Repository {
			return open(t, url, repository.Options{Slots: 8, ResultRetention: brief})
		},
		DB: beside(t, "sqlite", sqliteDSN(url)),
	}
}

// sqliteDSN opens a file as a person would with another program.
func sqliteDSN(url string) string {
	return "file:" + url[len("sqlite:"):] + "?_busy_timeout=5000&_txlock=immediate"
}

func TestPostgres(t *testing.T) {
	t.Parallel()
	repositorytest.Run(t, onPostgres)
}

func TestPostgres_Concurrency(t *testing.T) {
	t.Parallel()
	repositorytest.RunConcurrency(t, onPostgres)
}

func TestSQLite(t *testing.T) {
	t.Parallel()
	repositorytest.Run(t, onSQLite)
}

func TestSQLite_Concurrency(t *testing.T) {
	t.Parallel()
	repositorytest.RunConcurrency(t, onSQLite)
}
