package gateway

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/sekali/sekali/access"
	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/docs/openapi"
	"github.com/sekali/sekali/handlers"
	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/middleware"
)

// routes is the whole HTTP surface, outermost first. Every route of a tenant
// names the permission that it needs; a test walks them.
func (p *parts) routes() http.Handler {
	r := chi.NewRouter()
	r.Use(
		middleware.EscapedPath,
		middleware.Unread,
		middleware.RequestID,
		middleware.AccessLog(p.log, p.keys()),
		middleware.Metrics(p.metrics),
		middleware.Recover(p.log),
		middleware.CORS(p.cfg.CORS.AllowedOrigins),
		middleware.Compress,
		middleware.IgnoreKey(http.MethodGet, http.MethodHead, http.MethodOptions),
	)
	r.NotFound(handlers.Handler(handlers.NotFound).ServeHTTP)
	r.MethodNotAllowed(handlers.Handler(handlers.MethodNotAllowed).ServeHTTP)

	r.Group(func(r chi.Router) {
		r.Use(p.needSchema, p.authenticate(), middleware.Sender)
		limited := r.With(p.rateLimit())
		p.jobRoutes(limited)
		p.executorRoutes(limited)
		p.executionRoutes(r, limited)
		p.proxyRoutes(limited)
	})
	documentRoutes(r)
	read(r, "/healthz", handlers.Handler(handlers.Live))
	read(r, "/readyz", handlers.Ready(p.checks()))
	read(r, "/metrics", promhttp.HandlerFor(p.registry, promhttp.HandlerOpts{}))
	return r
}

func (p *parts) jobRoutes(r chi.Router) {
	policy := p.keyPolicy()
	jobs := handlers.NewJobs(p.jobs, handlers.JobsConfig{
		Draining: p.draining.Load,
		MaxWait:  p.cfg.Limits.Wait, Waiters: p.places, Still: p.stillIn, Clock: p.clock,
		Batch: handlers.Batch{KeyRule: policy.Rule, KeyRequired: policy.Required, ItemLimit: policy.BodyLimit},
	})
	submit := r.With(middleware.Permit(access.Submit))
	drains := submit.With(middleware.Drain(p.draining.Load))
	drains.With(middleware.Key(policy)).Method(http.MethodPost, "/jobs", handlers.Handler(jobs.Submit))
	drains.With(middleware.IgnoreKey(), middleware.Body(p.batchPolicy())).
		Method(http.MethodPost, "/jobs/batch", handlers.Handler(jobs.SubmitBatch))
	submit.With(middleware.IgnoreKey()).Method(http.MethodPost, "/jobs/{key}/cancel", handlers.Handler(jobs.Cancel))

	// A retry brings work, which a gateway that is about to end refuses. What ends
	// jobs it takes to the last.
	operate := r.With(middleware.Permit(access.Operate))
	operate.With(middleware.Drain(p.draining.Load), middleware.Key(bodiless(policy))).
		Method(http.MethodPost, "/jobs/{key}/retry", handlers.Handler(jobs.Retry))
	operate.With(middleware.Key(policy)).Method(http.MethodPost, "/jobs/{key}/resolve", handlers.Handler(jobs.Resolve))

	reads := r.With(middleware.Permit(access.Read))
	read(reads, "/jobs", handlers.Handler(jobs.List))
	read(reads, "/jobs/{key}", handlers.Handler(jobs.Get))
	read(reads, "/jobs/{key}/result", handlers.Handler(jobs.Result))
	read(reads, "/jobs/{key}/attempts", handlers.Handler(jobs.Attempts))
	read(reads, "/jobs/{key}/events", handlers.Handler(jobs.Events))
}

func (p *parts) executorRoutes(r chi.Router) {
	executors := handlers.NewExecutors(p.repo, p.executors)
	reads := r.With(middleware.Permit(access.Read))
	read(reads, "/executors", handlers.Handler(executors.List))
	read(reads, "/executors/{name}", handlers.Handler(executors.Get))
	read(reads, "/schedules", handlers.Handler(handlers.NewSchedules(p.schedules, p.executors.AllTenants).List))
	manage := r.With(middleware.Permit(access.Manage), middleware.IgnoreKey())
	manage.Method(http.MethodPost, "/executors/{name}/pause", handlers.Handler(executors.Pause))
	manage.Method(http.MethodPost, "/executors/{name}/resume", handlers.Handler(executors.Resume))
}

// executionRoutes are for workers outside of the gateway. A claim brings work, which
// a gateway that is about to end refuses; what ends executions it takes to the last.
// No rate limits what is said about a claim: a heartbeat that is refused because the
// tenant asks for much else would cost its worker the job.
func (p *parts) executionRoutes(r, limited chi.Router) {
	executions := handlers.NewExecutions(p.dispatcher.Remote(), handlers.ExecutionsConfig{
		Kinds:   p.executors.Kinds,
		ForAll:  func(ctx context.Context) bool { return access.CallerOf(ctx).Permissions.WorkForAll() },
		MaxWait: p.cfg.Limits.Wait, Waiters: p.places, ResultLimit: int64(p.cfg.Limits.Result), Still: p.stillIn,
	})
	work := r.With(middleware.Permit(access.Work), middleware.IgnoreKey())
	claims := limited.With(middleware.Permit(access.Work), middleware.IgnoreKey())
	calls := work.With(middleware.Body(middleware.BodyPolicy{Limit: callLimit, MediaTypes: api.ExecutionTypes()}))
	claims.With(middleware.Drain(p.draining.Load), middleware.Body(middleware.BodyPolicy{Limit: claimLimit, MediaTypes: api.ExecutionTypes()})).
		Method(http.MethodPost, "/executions/claim", handlers.Handler(executions.Claim))
	calls.Method(http.MethodPost, "/executions/{id}/heartbeat", handlers.Handler(executions.Heartbeat))
	calls.Method(http.MethodPost, "/executions/{id}/fail", handlers.Handler(executions.Fail))
	calls.Method(http.MethodPost, "/executions/{id}/release", handlers.Handler(executions.Release))
	work.With(middleware.Body(p.completionPolicy())).
		Method(http.MethodPost, "/executions/{id}/complete", handlers.Handler(executions.Complete))
}

// Largest bodies of calls of workers: a hundred long names of types, the longest
// account of a failure in which each character is escaped, and what is around a
// result.
const (
	claimLimit = 64 << 10
	callLimit  = 64 << 10
	aroundMost = 8 << 10
)

func (p *parts) completionPolicy() middleware.BodyPolicy {
	limit := int64(p.cfg.Limits.Result)
	return middleware.BodyPolicy{
		Limit: limit + aroundMost, Timeout: batchTimeout, MediaTypes: api.ExecutionTypes(), TooLarge: api.ResultTooLarge(limit),
	}
}

// documentRoutes are open to everybody, as the document is.
func documentRoutes(r chi.Router) {
	document := handlers.NewDocument(openapi.YAML(), openapi.JSON(), openapi.Page())
	read(r, "/openapi.json", handlers.Handler(document.JSON))
	read(r, "/openapi.yaml", handlers.Handler(document.YAML))
	read(r, "/docs", handlers.Handler(document.Page))
	read(r, "/docs/{file}", handlers.Handler(document.File))
}

// bodiless is the policy for routes whose requests say everything in their path.
func bodiless(policy middleware.KeyPolicy) middleware.KeyPolicy {
	policy.Bodiless = true
	return policy
}

// authenticate tells who a request comes from, as auth.mode says.
func (p *parts) authenticate() func(http.Handler) http.Handler {
	if p.cfg.Auth.Mode == authKey {
		p.checker = access.NewChecker(p.repo.Tokens(), p.clock.Now)
		return middleware.Auth(p.checker)
	}
	return middleware.Tenant
}

// stillIn returns an error if the request would not be let in now, after a wait.
func (p *parts) stillIn(r *http.Request) error {
	if p.checker == nil {
		return nil
	}
	_, err := middleware.Authenticate(r, p.checker)
	return err
}

func (p *parts) rateLimit() func(http.Handler) http.Handler {
	if p.cfg.Limits.Rate == "" {
		return middleware.RateLimit(middleware.Rate{})
	}
	rate, err := middleware.ParseRate(p.cfg.Limits.Rate)
	if err != nil {
		panic(err) // validated with the configuration
	}
	return middleware.RateLimit(rate)
}

// batchTimeout lets 16 MiB through at 2 Mbit/s.
const batchTimeout = time.Minute

func (p *parts) batchPolicy() middleware.BodyPolicy {
	return middleware.BodyPolicy{Limit: int64(p.cfg.Limits.Batch), Timeout: batchTimeout, MediaTypes: api.BatchTypes()}
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
		{Name: "database", Fatal: true, Check: p.repo.Probe},
		{Name: "migrations", Fatal: true, Check: p.repo.CheckSchema},
		{Name: "dispatcher", Fatal: true, Check: p.dispatcher.Healthy},
	}
	if p.redis.configured() {
		checks = append(checks, handlers.Check{Name: "redis", Check: p.redis.check})
	}
	return checks
}
