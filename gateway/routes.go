package gateway

import (
	"context"
	"errors"
	"net/http"

	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/sekali/sekali/handlers"
	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/middleware"
)

// routes is the whole HTTP surface, outermost first.
func (p *parts) routes() http.Handler {
	jobs := handlers.NewJobs(p.jobs, handlers.JobsConfig{MaxWait: p.cfg.Limits.Wait, Clock: p.clock})

	r := chi.NewRouter()
	r.Use(
		middleware.EscapedPath,
		middleware.Unread,
		middleware.RequestID,
		middleware.AccessLog(p.log, p.keys()),
		middleware.Metrics(p.metrics),
		middleware.Recover(p.log),
		middleware.IgnoreKey(http.MethodGet, http.MethodHead, http.MethodOptions),
	)
	r.NotFound(handlers.Handler(handlers.NotFound).ServeHTTP)
	r.MethodNotAllowed(handlers.Handler(handlers.MethodNotAllowed).ServeHTTP)

	r.Group(func(r chi.Router) {
		r.Use(middleware.Tenant)
		r.With(middleware.Drain(p.draining.Load), middleware.Key(p.keyPolicy())).
			Method(http.MethodPost, "/jobs", handlers.Handler(jobs.Submit))
		read(r, "/jobs", handlers.Handler(jobs.List))
		read(r, "/jobs/{key}", handlers.Handler(jobs.Get))
		read(r, "/jobs/{key}/result", handlers.Handler(jobs.Result))
	})
	read(r, "/healthz", handlers.Handler(handlers.Live))
	read(r, "/readyz", handlers.Ready(p.checks()))
	read(r, "/metrics", promhttp.HandlerFor(p.registry, promhttp.HandlerOpts{}))
	return r
}

// read registers a handler for GET and HEAD.
func read(r chi.Router, pattern string, h http.Handler) {
	r.Method(http.MethodGet, pattern, h)
	r.Method(http.MethodHead, pattern, h)
}

// keyPolicy says what keyed requests to POST /jobs look like.
func (p *parts) keyPolicy() middleware.KeyPolicy {
	policy := middleware.KeyPolicy{
		Required:   p.cfg.Idempotency.Required,
		Rule:       idempotency.KeyRule{MaxLength: p.cfg.Idempotency.MaxKeyLength},
		BodyLimit:  int64(p.cfg.Limits.Body),
		MediaTypes: []string{"application/json"},
	}
	if expression := p.cfg.Idempotency.KeyPattern; expression != "" {
		pattern, err := idempotency.KeyPattern(expression)
		if err != nil {
			panic(err) // validated with the configuration
		}
		policy.Rule.Pattern = pattern
	}
	return policy
}

var errDraining = errors.New("the gateway is shutting down")

// checks are what /readyz asks; a degraded part is named and fails nothing.
func (p *parts) checks() []handlers.Check {
	checks := []handlers.Check{
		{Name: "shutdown", Fatal: true, Check: func(context.Context) error {
			if p.draining.Load() {
				return errDraining
			}
			return nil
		}},
		{Name: "database", Fatal: true, Check: p.repo.Ping},
		{Name: "migrations", Fatal: true, Check: p.repo.CheckSchema},
		{Name: "dispatcher", Fatal: true, Check: p.dispatcher.Healthy},
	}
	if p.redis.configured() {
		checks = append(checks, handlers.Check{Name: "redis", Check: p.redis.check})
	}
	return checks
}
