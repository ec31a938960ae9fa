package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/sekali/sekali/internal/telemetry"
	"github.com/sekali/sekali/job"
	"github.com/sekali/sekali/middleware"
	"github.com/sekali/sekali/repository"
)

// How the gateway waits for a database that is not there yet.
const (
	openFirst = 200 * time.Millisecond
	openMost  = 5 * time.Second
)

// open opens the database, waiting for one that cannot be reached yet, and
// brings the schema up.
func (g *Gateway) open(ctx context.Context) (*repository.Repository, error) {
	repo, err := repository.Open(ctx, g.cfg.DatabaseURL, repository.Options{
		Slots: g.cfg.Dispatcher.Slots, MaxConns: g.cfg.DatabaseMaxConns, Exclusive: true,
		Tombstone:       g.cfg.Idempotency.tombstone(),
		AfterExpiry:     g.cfg.Idempotency.AfterExpiry == middleware.ExecuteExpired,
		ResultRetention: g.cfg.Idempotency.ResultRetention,
	})
	if err != nil {
		return nil, fmt.Errorf("gateway: open the database: %w", err)
	}
	if err := g.prepare(ctx, repo); err != nil {
		return nil, errors.Join(err, repo.Close())
	}
	return repo, nil
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
		return fmt.Errorf("gateway: reach the database: %w", err)
	}
	if g.cfg.Migrate {
		if err := repo.Migrate(ctx); err != nil {
			return fmt.Errorf("gateway: migrate: %w", err)
		}
	}
	if err := g.checkSchema(g.await(ctx, repo.CheckSchema)); err != nil {
		return fmt.Errorf("gateway: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(g.cfg.JobTypes)) {
		t := g.cfg.JobTypes[name]
		if t.SQL == nil || t.SQL.Setup == "" {
			continue
		}
		if err := repo.Setup(ctx, t.SQL.Setup); err != nil {
			return fmt.Errorf("gateway: job_types.%s.sql.setup: %w", name, err)
		}
	}
	return nil
}

// await returns once the database answers. One that cannot be reached may come
// up later, and the gateway waits for it; any other error ends the start.
func (g *Gateway) await(ctx context.Context, ask func(context.Context) error) error {
	for pause := openFirst; ; pause = min(2*pause, openMost) {
		err := ask(ctx)
		if err == nil || !errors.Is(err, job.ErrUnavailable) {
			return err
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

// Migration is one step of the schema.
type Migration struct {
	Name    string
	Applied bool
}

// Migrate brings the schema up and returns its steps. It may run beside
// gateways: several at once wait for each other.
func Migrate(ctx context.Context, cfg Config) ([]Migration, error) {
	repo, err := repository.Open(ctx, cfg.DatabaseURL, repository.Options{MaxConns: cfg.DatabaseMaxConns})
	if err != nil {
		return nil, fmt.Errorf("gateway: open the database: %w", err)
	}
	defer repo.Close()
	if err := repo.Migrate(ctx); err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	return steps(ctx, repo)
}

// MigrationStatus lists the steps of the schema.
func MigrationStatus(ctx context.Context, cfg Config) ([]Migration, error) {
	repo, err := repository.Open(ctx, cfg.DatabaseURL, repository.Options{MaxConns: cfg.DatabaseMaxConns})
	if err != nil {
		return nil, fmt.Errorf("gateway: open the database: %w", err)
	}
	defer repo.Close()
	return steps(ctx, repo)
}

func steps(ctx context.Context, repo *repository.Repository) ([]Migration, error) {
	all, err := repo.Migrations(ctx)
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	list := make([]Migration, len(all))
	for i, step := range all {
		list[i] = Migration{Name: step.Name, Applied: !step.AppliedAt.IsZero()}
	}
	return list, nil
}
