package gateway

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sekali/sekali/internal/telemetry"
	"github.com/sekali/sekali/job"
	"github.com/sekali/sekali/middleware"
	"github.com/sekali/sekali/migrations"
	"github.com/sekali/sekali/repository"
)

// How the gateway waits for a database that is not there yet.
const (
	openFirst = 200 * time.Millisecond
	openMost  = 5 * time.Second
	openTries = 15 // of one that has answered before: a minute
	// noteEvery is how often somebody who looks on hears that the start goes on.
	noteEvery = 5 * time.Second
)

// open opens the database, waiting for one that cannot be reached yet, and
// brings the schema up.
func (g *Gateway) open(ctx context.Context) (*repository.Repository, error) {
	repo, err := repository.Open(ctx, g.cfg.DatabaseURL, repository.Options{
		Slots: g.cfg.Dispatcher.Slots, MaxConns: g.cfg.DatabaseMaxConns, Exclusive: true,
		Tombstone:       g.cfg.Idempotency.tombstone(),
		AfterExpiry:     g.cfg.Idempotency.AfterExpiry == middleware.ExecuteExpired,
		ResultRetention: g.cfg.Idempotency.ResultRetention,
		Queue:           g.cfg.Limits.AcceptQueue,
	})
	if err != nil {
		return nil, databaseError(g.cfg, err)
	}
	if err := g.prepare(ctx, repo); err != nil {
		return nil, errors.Join(err, repo.Close())
	}
	return repo, nil
}

// AdvisedError is an error that somebody has to see to, and what to do about it.
type AdvisedError struct {
	Err error
	Do  string
}

func (e *AdvisedError) Error() string { return e.Err.Error() }

func (e *AdvisedError) Unwrap() error { return e.Err }

// databaseError tells which database cannot be used, and what to do. Who told the
// process to end while it asked has nothing to see to.
func databaseError(cfg Config, err error) error {
	if errors.Is(err, context.Canceled) {
		return fmt.Errorf("gateway: ended before it was done: %w", err)
	}
	return &AdvisedError{
		Err: fmt.Errorf("gateway: the database %s cannot be used: %w", redactURL(cfg.DatabaseURL), err),
		Do:  databaseAdvice(cfg, err),
	}
}

func databaseAdvice(cfg Config, err error) string {
	file := strings.HasPrefix(cfg.DatabaseURL, "sqlite:")
	switch {
	case errors.Is(err, repository.ErrPooler):
		return poolerAdvice
	case errors.Is(err, migrations.ErrMissing):
		return schemaAdvice(cfg.Migrate)
	case errors.Is(err, repository.ErrServed):
		return "stop it first, or give this one a file of its own; several gateways can share a Postgres"
	case file && errors.Is(err, fs.ErrNotExist):
		return "make the folder, or set database_url (DATABASE_URL, --database-url) right; relative paths begin in the working folder"
	case file:
		return "see that database_url (DATABASE_URL, --database-url) names a file of Sekali, or one that is not there yet, that this user may write to it and into its folder, and that the disk has room"
	case errors.Is(err, job.ErrUnavailable) && !repository.Answered(err):
		return "look whether the server runs there and can be reached from here, or set database_url (DATABASE_URL, --database-url) right"
	}
	return "see that database_url (DATABASE_URL, --database-url) names the server, the database, the user and its password that are meant, and that it takes writes and has connections left; sekali doctor looks deeper"
}

// openBeside opens the database for a command, which may run beside gateways. With
// existing there must be one: who mistypes a file is told so, and gets no new one.
func openBeside(ctx context.Context, cfg Config, existing bool) (*repository.Repository, error) {
	repo, err := repository.Open(ctx, cfg.DatabaseURL, repository.Options{MaxConns: cfg.DatabaseMaxConns, Existing: existing})
	if err == nil {
		return repo, nil
	}
	err = databaseError(cfg, err)
	var advised *AdvisedError
	if existing && errors.Is(err, fs.ErrNotExist) && errors.As(err, &advised) {
		advised.Do = "set database_url (DATABASE_URL, --database-url) right; relative paths begin in the working folder. This command makes no file, the first sekali serve does"
	}
	return nil, err
}

// tombstone is the configured time in the repository's way of saying it, where
// zero is the default and none is less than that.
func (i Idempotency) tombstone() time.Duration {
	if i.Tombstone == 0 {
		return -1
	}
	return i.Tombstone
}

func (g *Gateway) prepare(ctx context.Context, repo *repository.Repository) error {
	if err := g.await(ctx, repo.Ping); err != nil {
		return databaseError(g.cfg, err)
	}
	if g.cfg.Migrate {
		if err := g.insist(ctx, func(ctx context.Context) error { return g.noting(ctx, repo.Migrate) }); err != nil {
			return databaseError(g.cfg, err)
		}
	}
	if err := g.checkSchema(g.insist(ctx, repo.CheckSchema)); err != nil {
		return databaseError(g.cfg, err)
	}
	for _, name := range slices.Sorted(maps.Keys(g.cfg.JobTypes)) {
		t := g.cfg.JobTypes[name]
		if t.SQL == nil || t.SQL.Setup == "" {
			continue
		}
		if err := g.insist(ctx, func(ctx context.Context) error { return repo.Setup(ctx, t.SQL.Setup) }); err != nil {
			return fmt.Errorf("gateway: job_types.%s.sql.setup: %w", name, err)
		}
	}
	return nil
}

// await returns once the database answers. One that cannot be reached may come up
// later, and the gateway waits for it; any other error ends the start. So does a
// pooler that cannot be used, although it may be set right one day: somebody has to
// do it.
func (g *Gateway) await(ctx context.Context, ask func(context.Context) error) error {
	return g.asked(ctx, math.MaxInt, ask)
}

// insist is await for a database that has answered before, of which a moment may be
// bad. What it goes on to refuse, such as writes, somebody has to see to.
func (g *Gateway) insist(ctx context.Context, ask func(context.Context) error) error {
	return g.asked(ctx, openTries, ask)
}

func (g *Gateway) asked(ctx context.Context, tries int, ask func(context.Context) error) error {
	for pause := openFirst; ; pause = min(2*pause, openMost) {
		err := ask(ctx)
		if tries--; err == nil || tries == 0 || !errors.Is(err, job.ErrUnavailable) || errors.Is(err, repository.ErrPooler) {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		g.log.WarnContext(ctx, "the database cannot be reached yet; trying again", telemetry.MillisecondsAttr("retry_in_ms", pause), slog.Any(telemetry.Error, err))
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		case <-timer.C:
		}
	}
}

// noting runs do, and says every few seconds that it is still at it: on a large
// database a migration takes long, and another process may have the lock for it.
func (g *Gateway) noting(ctx context.Context, do func(context.Context) error) error {
	began, ended := time.Now(), make(chan struct{})
	var notes sync.WaitGroup
	notes.Go(func() {
		ticker := time.NewTicker(noteEvery)
		defer ticker.Stop()
		for {
			select {
			case <-ended:
				return
			case <-ticker.C:
				g.log.InfoContext(ctx, "still bringing the schema up, or waiting for another process that does", telemetry.MillisecondsAttr("for_ms", time.Since(began)))
			}
		}
	})
	defer notes.Wait()
	defer close(ended)
	return do(ctx)
}

// Migration is one step of the schema.
type Migration struct {
	Name    string
	Applied bool
}

// Migrate brings the schema up and returns its steps. It may run beside
// gateways: several at once wait for each other.
func Migrate(ctx context.Context, cfg Config) ([]Migration, error) {
	repo, err := openBeside(ctx, cfg, false)
	if err != nil {
		return nil, err
	}
	defer repo.Close()
	if err := repo.Migrate(ctx); err != nil {
		return nil, databaseError(cfg, err)
	}
	return steps(ctx, cfg, repo)
}

// MigrationStatus lists the steps of the schema.
func MigrationStatus(ctx context.Context, cfg Config) ([]Migration, error) {
	repo, err := openBeside(ctx, cfg, false)
	if err != nil {
		return nil, err
	}
	defer repo.Close()
	return steps(ctx, cfg, repo)
}

func steps(ctx context.Context, cfg Config, repo *repository.Repository) ([]Migration, error) {
	all, err := repo.Migrations(ctx)
	if err != nil {
		return nil, databaseError(cfg, err)
	}
	list := make([]Migration, len(all))
	for i, step := range all {
		list[i] = Migration{Name: step.Name, Applied: !step.AppliedAt.IsZero()}
	}
	return list, nil
}
