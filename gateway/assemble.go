package gateway

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/sekali/sekali/access"
	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/dispatcher"
	"github.com/sekali/sekali/handlers"
	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/internal/telemetry"
	"github.com/sekali/sekali/job"
	"github.com/sekali/sekali/lock"
	"github.com/sekali/sekali/middleware"
	"github.com/sekali/sekali/proxy"
	"github.com/sekali/sekali/repository"
)

// parts are what Run puts together for one life of the gateway.
type parts struct {
	cfg        Config
	log        *slog.Logger
	workerID   string
	repo       *repository.Repository
	clock      *repository.Clock
	redis      *redisLink
	registry   *prometheus.Registry
	metrics    *telemetry.Metrics
	waiters    *job.Waiters
	places     *job.WaiterLimit
	jobs       *job.Jobs
	locker     lock.Locker
	cache      job.StatusCache // nil without Redis
	repeats    *job.Repeats
	executors  handlers.ExecutorsConfig
	checker    *access.Checker // nil: nobody is asked who calls
	records    idempotency.Store
	dispatcher *dispatcher.Dispatcher
	schedules  *job.Schedules
	handler    http.Handler
	proxies    []*proxy.Proxy
	calls      calls // proxied requests under way
	draining   atomic.Bool
	stopping   chan struct{} // closed when draining begins
	migrated   atomic.Bool   // the schema is there
}

// assemble makes every part and ties them; nothing runs yet.
func (g *Gateway) assemble(ctx context.Context, repo *repository.Repository) (*parts, error) {
	clock := repo.Clock()
	if err := g.insist(ctx, clock.Sync); err != nil {
		return nil, fmt.Errorf("gateway: read the database's clock: %w", err)
	}
	work, err := g.cfg.work(sqlDialect{
		placeholder: repo.Placeholder, isUniqueViolation: repo.IsUniqueViolation, isPermanent: repo.Permanent,
	})
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	link, err := newRedisLink(g.cfg.RedisURL)
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	p := &parts{
		cfg: g.cfg, log: g.log, workerID: newWorkerID(), repo: repo, clock: clock, redis: link,
		registry: prometheus.NewRegistry(), waiters: &job.Waiters{}, stopping: make(chan struct{}),
		records: repo.Records(), repeats: &job.Repeats{Log: repo},
		places: job.NewWaiterLimit(g.cfg.Limits.Waiters, g.cfg.waitersOfTenant()),
	}
	p.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	p.metrics = telemetry.NewMetrics(p.registry, typeNames(work))
	p.metrics.WatchAccepts(repo.Waiting)
	p.executors = handlers.ExecutorsConfig{Kinds: kindsOf(work), Limits: limitsOf(work), AllTenants: g.cfg.Auth.Mode == authNone, Clock: clock}
	if err = p.recur(); err == nil {
		err = g.insist(ctx, p.useRedis)
	}
	if err == nil {
		err = p.dispatch(work)
	}
	if err != nil {
		p.close()
		return nil, err
	}
	p.jobs = p.domain(work)
	p.schedules.Jobs = p.jobs
	p.migrated.Store(g.insist(ctx, repo.CheckSchema) == nil)
	p.handler = p.routes()
	return p, nil
}

// recur makes the schedules; what they submit to is made later.
func (p *parts) recur() error {
	list, err := p.cfg.schedules()
	if err != nil {
		return fmt.Errorf("gateway: %w", err)
	}
	p.schedules = &job.Schedules{List: list, States: p.repo}
	p.metrics.KnowSchedules(scheduleNames(list))
	return nil
}

// useRedis takes from Redis, if there is one, what it is for.
func (p *parts) useRedis(ctx context.Context) (err error) {
	if p.locker, err = p.redis.locker(p.metrics); err != nil {
		return err
	}
	installation, err := p.repo.Installation(ctx)
	if err != nil {
		return fmt.Errorf("gateway: %w", err)
	}
	p.cache, err = p.redis.statusCache(ctx, p.metrics, repository.StatusCacheConfig{
		Installation: installation, Clock: p.clock, ResultRetention: p.cfg.Idempotency.ResultRetention,
	})
	return err
}

// domain is what requests are about.
func (p *parts) domain(work map[job.Type]dispatcher.Work) *job.Jobs {
	return &job.Jobs{
		Types: settingsOf(work), Unknown: JobType{}.settings(p.cfg),
		Acceptor: p.repo, Bulk: p.repo, Reader: p.repo, Leases: p.repo, Operator: p.repo, Clock: p.clock, Waiters: p.waiters,
		Cache: p.cache, Facts: repository.NewFacts(), Repeats: p.repeats,
		Render: api.Accepted, RenderCurrent: api.Current, Document: api.Document,
		Callback: api.CallbackOf, CheckCallback: callbackCheck(work), CallbackSettings: p.cfg.callbackType().settings(p.cfg),
		Wake: p.dispatcher.Wake, Cancelling: p.dispatcher.Cancel, Moved: p.dispatcher.Moved,
		Quota:       job.NewQuota(p.cfg.Limits.Pending, p.clock, p.repo.Unfinished),
		AfterExpiry: p.cfg.Idempotency.AfterExpiry == middleware.ExecuteExpired,
	}
}

func (p *parts) dispatch(work map[job.Type]dispatcher.Work) error {
	var err error
	p.dispatcher, err = dispatcher.New(dispatcher.Config{
		Leases: p.repo, Versions: p.repo, Operations: p.repo, Work: work, Unknown: JobType{}.settings(p.cfg), Waiters: p.waiters, Metrics: p.metrics, Log: p.log,
		WorkerID: p.workerID, Slots: p.cfg.Dispatcher.Slots, PollInterval: p.cfg.Dispatcher.PollInterval,
		Heartbeat: p.cfg.heartbeat(), Grace: p.cfg.Dispatcher.ShutdownGrace,
		Exclusive: p.repo.Exclusive(), Keys: p.keys(), Retention: p.repo,
		Locker: p.locker, Cache: p.cache, Events: p.repo, Clock: p.clock, Repeats: p.repeats, Executors: p.repo, Notices: p.repo.Notices(p.workerID),
		Executions: p.repo,
		Schedules:  p.schedules,
		Following:  func(ended job.Job) []job.Submission { return p.jobs.Following(ended) },
	})
	return err
}

// keys says how keys stand in the log.
func (p *parts) keys() telemetry.KeyLog { return telemetry.KeyLog{Redact: p.cfg.Log.RedactKeys} }

func (p *parts) close() {
	for _, upstream := range p.proxies {
		upstream.Close()
	}
	p.redis.close()
}

// waitersOfTenant leaves half of the places to others, where there are any.
func (c Config) waitersOfTenant() int {
	if c.Auth.Mode == authNone {
		return c.Limits.Waiters
	}
	return (c.Limits.Waiters + 1) / 2
}

// clockInterval is how often the database's clock is read anew; in between the
// process's monotonic clock carries it.
const clockInterval = time.Minute

// keepClock keeps the clock in step with the database until ctx ends.
func (p *parts) keepClock(ctx context.Context, log *slog.Logger) {
	ticker := time.NewTicker(clockInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if err := p.clock.Sync(ctx); err != nil && ctx.Err() == nil {
				log.WarnContext(ctx, "the database's clock could not be read; carrying on with the last reading", slog.Any("error", err))
			}
		}
	}
}

// redisInterval is how often the gauge of a degraded Redis is brought up to date.
const redisInterval = 5 * time.Second

// watchRedis shows as a metric whether Redis answers, until ctx ends.
func (p *parts) watchRedis(ctx context.Context) {
	if !p.redis.configured() {
		return
	}
	ticker := time.NewTicker(redisInterval)
	defer ticker.Stop()
	for ctx.Err() == nil {
		degraded := 0.0
		if err := p.redis.check(ctx); err != nil {
			degraded = 1
		}
		p.metrics.Degraded.WithLabelValues(telemetry.PartRedis).Set(degraded)
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
}

// newWorkerID is new at every start, so that leases of an earlier life of this
// process are never taken for its own.
func newWorkerID() string { return "w-" + rand.Text()[:16] }

func typeNames(work map[job.Type]dispatcher.Work) []string {
	var names []string
	for _, t := range slices.Sorted(maps.Keys(work)) {
		names = append(names, string(t))
	}
	return names
}

func kindsOf(work map[job.Type]dispatcher.Work) map[job.Type]string {
	kinds := make(map[job.Type]string, len(work))
	for t, w := range work {
		kinds[t] = w.Kind
	}
	return kinds
}

// limitsOf are the limits of the types that have one.
func limitsOf(work map[job.Type]dispatcher.Work) map[job.Type]job.Limit {
	limits := map[job.Type]job.Limit{}
	for t, w := range work {
		if !w.Settings.Limit.None() {
			limits[t] = w.Settings.Limit
		}
	}
	return limits
}

func settingsOf(work map[job.Type]dispatcher.Work) job.Types {
	types := make(job.Types, len(work))
	for t, w := range work {
		types[t] = w.Settings
	}
	return types
}
