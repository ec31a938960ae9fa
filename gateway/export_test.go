package gateway

import (
	"context"
	"log/slog"

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

// NewPayloadSchema reads a schema and returns what checks payloads against it.
func NewPayloadSchema(file string) (check func([]byte) error, err error) {
	schema, err := newPayloadSchema(file)
	if err != nil {
		return nil, err
	}
	return schema.check, nil
}

// Await and Insist are how the start asks a database: one that has not answered yet,
// and one that has.
func Await(ctx context.Context, ask func(context.Context) error) error { return quiet.await(ctx, ask) }

// Insist is for a database that has answered before.
func Insist(ctx context.Context, ask func(context.Context) error) error {
	return quiet.insist(ctx, ask)
}

var quiet = &Gateway{log: slog.New(slog.DiscardHandler)}
