package gateway

import (
	"context"
	"time"

	"github.com/sekali/sekali/internal/telemetry"
	"github.com/sekali/sekali/job"
	"github.com/sekali/sekali/lock"
	"github.com/sekali/sekali/repository"
)

// RedisUsers is what uses Redis, and the check that /readyz asks.
type RedisUsers struct {
	Locker lock.Locker
	Cache  job.StatusCache
	Check  func(context.Context) error
	Close  func()
}

// UseRedis makes what uses the Redis of the URL, if there is one.
func UseRedis(ctx context.Context, url string, m *telemetry.Metrics, clock job.Clock) (RedisUsers, error) {
	link, err := newRedisLink(url)
	if err != nil {
		return RedisUsers{}, err
	}
	users := RedisUsers{Check: link.check, Close: link.close}
	if users.Locker, err = link.locker(m); err != nil {
		return RedisUsers{}, err
	}
	users.Cache, err = link.statusCache(ctx, m, repository.StatusCacheConfig{Installation: "test", Clock: clock, ResultRetention: time.Hour})
	return users, err
}
