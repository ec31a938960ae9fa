package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/job"
	"github.com/sekali/sekali/migrations"
)

// schemaInterval is how often a gateway that may not migrate looks whether
// somebody else has.
const schemaInterval = time.Second

// schemaMissing reports whether the schema is not there yet, and may come: with
// migrate: false it is brought up by `sekali migrate`, in any order with the
// start of replicas. Until then they serve, are not ready, and take no jobs.
func (c Config) schemaMissing(err error) bool {
	return !c.Migrate && errors.Is(err, migrations.ErrMissing)
}

// awaitSchema returns nil once the schema is there or ctx has ended, and an
// error where waiting is of no use.
func (p *parts) awaitSchema(ctx context.Context) error {
	for !p.migrated.Load() {
		timer := time.NewTimer(schemaInterval)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
		err := p.repo.CheckSchema(ctx)
		switch {
		case err == nil:
			p.migrated.Store(true)
			p.log.InfoContext(ctx, "the database schema is up to date: jobs are taken")
		case ctx.Err() == nil && !p.cfg.schemaMissing(err) && !errors.Is(err, job.ErrUnavailable):
			return fmt.Errorf("gateway: %w", err)
		}
	}
	return nil
}

// needSchema refuses requests while the schema is missing.
func (p *parts) needSchema(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !p.migrated.Load() {
			api.WriteError(w, r, fmt.Errorf("%w: %w", job.ErrUnavailable, migrations.ErrMissing))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// checkSchema is for the start: a missing schema that may still come is a
// warning.
func (g *Gateway) checkSchema(err error) error {
	if !g.cfg.schemaMissing(err) {
		return err
	}
	g.log.Warn("the database schema is missing or older than this program; waiting for somebody to run `sekali migrate`", slog.Any("error", err))
	return nil
}
