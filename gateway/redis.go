package gateway

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/sekali/sekali/internal/telemetry"
	"github.com/sekali/sekali/job"
	"github.com/sekali/sekali/lock"
	"github.com/sekali/sekali/repository"
)

const (
	// redisTimeout is as long as anything waits for Redis: it only speeds things up.
	redisTimeout = 100 * time.Millisecond
	// redisConnections suffice: a call takes a fraction of a millisecond.
	redisConnections = 8
	// checkKey is what the check writes. It says for itself that it may go.
	checkKey, checkTTL = "sekali:check", 10 * time.Second
)

// quietRedis keeps the client from writing lines of its own between those of
// our log: /readyz and sekali_degraded tell what it would say. It is a setting
// of the whole process.
var quietRedis = sync.OnceFunc(func() { redis.SetLogger(&logging.VoidLogger{}) })

// redisLink is the connection to Redis, if one is configured. Nothing that is
// promised depends on it: when it is down the gateway is degraded, no more.
type redisLink struct {
	client *redis.Client
	cache  *repository.StatusCache // nil until somebody has asked for it
}

func newRedisLink(url string) (*redisLink, error) {
	if url == "" {
		return &redisLink{}, nil
	}
	quietRedis()
	options, err := redis.ParseURL(url)
	if err != nil {
		return nil, fmt.Errorf("redis_url: %w", err)
	}
	options.DialTimeout, options.ReadTimeout, options.WriteTimeout, options.PoolTimeout = redisTimeout, redisTimeout, redisTimeout, redisTimeout
	options.ContextTimeoutEnabled = true // a caller's own limit counts too
	options.MaxRetries, options.DialerRetries = 1, 1
	options.PoolSize = cmp.Or(options.PoolSize, redisConnections)
	options.PipelinePoolSize = -1 // the one writer of batches takes its connection from the others
	// What else a connection begins with would be round trips of its first call.
	options.DisableIdentity = true
	options.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return &redisLink{client: redis.NewClient(options)}, nil
}

// configured reports whether there is a Redis at all.
func (r *redisLink) configured() bool { return r.client != nil }

// check returns nil if Redis can be written to: one that is full, or follows
// another one, answers and is of no use.
func (r *redisLink) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*redisTimeout)
	defer cancel()
	return r.client.Set(ctx, checkKey, "1", checkTTL).Err()
}

// locker gives locks of all replicas if there is a Redis, else of this process.
func (r *redisLink) locker(m *telemetry.Metrics) (lock.Locker, error) {
	if !r.configured() {
		return countedLocker{lock.NewMemory(time.Now), m}, nil
	}
	l, err := lock.NewRedis(lock.RedisConfig{Client: r.client, Clock: time.Now})
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	return countedLocker{l, m}, nil
}

// statusCache is nil without Redis, and without a database of which it could
// tell. cfg says what the database decides. close ends it.
func (r *redisLink) statusCache(ctx context.Context, m *telemetry.Metrics, cfg repository.StatusCacheConfig) (job.StatusCache, error) {
	if !r.configured() || cfg.Installation == "" {
		return nil, nil
	}
	count := func(calls *prometheus.CounterVec) func(repository.CacheResult) {
		return func(result repository.CacheResult) {
			calls.WithLabelValues(string(result)).Inc()
			if result == repository.CacheFailed {
				degrade(m)
			}
		}
	}
	var err error
	cfg.Client, cfg.Found, cfg.Written = r.client, count(m.CacheFinds), count(m.CacheWrites)
	r.cache, err = repository.NewStatusCache(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	return r.cache, nil
}

// degrade says at once that Redis fails. The next check that succeeds takes it
// back.
func degrade(m *telemetry.Metrics) { m.Degraded.WithLabelValues(telemetry.PartRedis).Set(1) }

// close writes what is left for the cache, and ends both.
func (r *redisLink) close() {
	if r.cache != nil {
		r.cache.Close()
	}
	if r.client != nil {
		_ = r.client.Close() // nothing is lost with it
	}
}
