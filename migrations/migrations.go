// Package migrations is the database schema: one numbered set of files for each
// engine, embedded, and what brings a database up to them.
//
// A migration is never changed once it has been released, and the program of
// the release before must work with the schema after it, because replicas are
// replaced one by one.
package migrations

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"time"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

//go:embed postgres/*.sql sqlite/*.sql
var files embed.FS

// Engine is a database that has migrations.
type Engine string

// The engines.
const (
	Postgres Engine = "postgres"
	SQLite   Engine = "sqlite"
)

// ErrMissing reports a database that is older than the program.
var ErrMissing = errors.New("migrations: the database schema is not up to date: run `sekali migrate`")

// Replicas that start together wait for the one that migrates. A replica that
// was killed while it migrated holds the lock for the lease (30 s) only.
const (
	lockInterval = 250 * time.Millisecond
	lockTries    = 1200 // five minutes
	// A lock that cannot be given back, because the database is away, ends by its lease:
	// a program that is told to end does not wait for that.
	unlockTries = 8
)

// How long a process on SQLite goes on that meets another one at the same steps:
// a few seconds, more than all of them take.
const (
	racedTries = 30
	racedPause = 100 * time.Millisecond
)

// Migration is one step of the schema.
type Migration struct {
	Version   int64
	Name      string
	AppliedAt time.Time // zero while it is pending
}

// Up applies what is pending. Several processes may call it at once: on
// Postgres a row of the table goose_lock lets one of them work (not an advisory
// lock, which poolers and distributed databases do not keep), on SQLite the
// write lock of the file. db must allow two connections on Postgres.
func Up(ctx context.Context, db *sql.DB, engine Engine) error {
	p, err := provider(db, engine)
	if err != nil {
		return err
	}
	tries := 1
	if engine == SQLite {
		tries = racedTries
	}
	for ; ; tries-- {
		if _, err = p.Up(ctx); err == nil {
			return nil
		}
		// Without a lock of goose's own (SQLite), of two processes that saw the same
		// step pending the later one fails, and finds that step done, but perhaps not
		// yet those after it.
		if pending, again := p.HasPending(ctx); again == nil && !pending {
			return nil
		}
		if tries <= 1 {
			return fmt.Errorf("migrations: up: %w", err)
		}
		timer := time.NewTimer(racedPause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("migrations: up: %w", context.Cause(ctx))
		case <-timer.C:
		}
	}
}

// Status lists all migrations of the engine, oldest first.
func Status(ctx context.Context, db *sql.DB, engine Engine) ([]Migration, error) {
	p, err := provider(db, engine)
	if err != nil {
		return nil, err
	}
	steps, err := p.Status(ctx)
	if err != nil {
		return nil, fmt.Errorf("migrations: status: %w", err)
	}
	list := make([]Migration, len(steps))
	for i, s := range steps {
		list[i] = Migration{Version: s.Source.Version, Name: s.Source.Path, AppliedAt: s.AppliedAt}
	}
	return list, nil
}

// The table is looked for first, because a statement that names a missing one
// fails with an error that each engine words in its own way.
const (
	postgresTable  = `select to_regclass('goose_db_version') is not null`
	sqliteTable    = `select count(*) > 0 from sqlite_master where type = 'table' and name = 'goose_db_version'`
	appliedVersion = `select coalesce(max(version_id), 0) from goose_db_version where is_applied`
)

// Check returns ErrMissing if a migration is pending. It only reads, and costs
// two small statements. A database newer than the program is no error.
func Check(ctx context.Context, db *sql.DB, engine Engine) error {
	wanted, err := latest(engine)
	if err != nil {
		return err
	}
	exists := sqliteTable
	if engine == Postgres {
		exists = postgresTable
	}
	var found bool
	if err := db.QueryRowContext(ctx, exists).Scan(&found); err != nil {
		return fmt.Errorf("migrations: check: %w", err)
	}
	if !found {
		return ErrMissing
	}
	var applied int64
	if err := db.QueryRowContext(ctx, appliedVersion).Scan(&applied); err != nil {
		return fmt.Errorf("migrations: check: %w", err)
	}
	if applied < wanted {
		return ErrMissing
	}
	return nil
}

// latest is the version of the last embedded file; names sort by version.
func latest(engine Engine) (int64, error) {
	names, err := fs.Glob(files, string(engine)+"/*.sql")
	if err != nil || len(names) == 0 {
		return 0, fmt.Errorf("migrations: unknown engine %q", engine)
	}
	version, err := goose.NumericComponent(names[len(names)-1])
	if err != nil {
		return 0, fmt.Errorf("migrations: name of a file: %w", err)
	}
	return version, nil
}

func provider(db *sql.DB, engine Engine) (*goose.Provider, error) {
	folder, err := fs.Sub(files, string(engine))
	if err != nil {
		return nil, fmt.Errorf("migrations: unknown engine %q", engine)
	}
	quiet := slog.New(slog.DiscardHandler)
	options := []goose.ProviderOption{goose.WithSlog(quiet), goose.WithDisableGlobalRegistry(true)}
	dialect := goose.DialectSQLite3
	if engine == Postgres {
		dialect = goose.DialectPostgres
		locker, err := lock.NewPostgresTableLocker(
			lock.WithTableLockTimeout(lockInterval, lockTries), lock.WithTableUnlockTimeout(lockInterval, unlockTries),
			lock.WithTableLogger(quiet))
		if err != nil {
			return nil, fmt.Errorf("migrations: lock: %w", err)
		}
		options = append(options, goose.WithLocker(locker))
	}
	p, err := goose.NewProvider(dialect, db, folder, options...)
	if err != nil {
		return nil, fmt.Errorf("migrations: %w", err)
	}
	return p, nil
}
