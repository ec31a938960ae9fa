package gateway

import (
	"context"

	"github.com/go-chi/chi/v5"

	"github.com/sekali/sekali/dispatcher"
	"github.com/sekali/sekali/job"
)

// Work is what the dispatcher would run, without a database.
func Work(cfg Config) (map[job.Type]dispatcher.Work, error) { return cfg.work(noDialect) }

// Routes opens everything that the configuration names and returns the router,
// for tests that walk it.
func Routes(ctx context.Context, cfg Config) (routes chi.Router, closeAll func(), err error) {
	g, err := New(cfg)
	if err != nil {
		return nil, nil, err
	}
	repo, err := g.open(ctx)
	if err != nil {
		return nil, nil, err
	}
	p, err := g.assemble(ctx, repo)
	if err != nil {
		return nil, nil, err
	}
	return p.handler.(chi.Router), func() { p.close(); _ = repo.Close() }, nil
}
