package gateway

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

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
	if link.configured() {
		if users.Locker, err = link.patient(users.Locker); err != nil {
			return RedisUsers{}, err
		}
	}
	users.Cache, err = link.statusCache(ctx, m, repository.StatusCacheConfig{Installation: "test", Clock: clock, ResultRetention: time.Hour, Timeout: testPatience})
	return users, err
}

// testPatience is for tests that count calls one by one, on a machine that may
// stand still for longer than the gateway waits for Redis.
const testPatience = 20 * time.Second

// patient gives the link a client that waits for as long, and returns the locker on
// that.
func (r *redisLink) patient(made lock.Locker) (lock.Locker, error) {
	counted, ok := made.(countedLocker)
	if _, ofRedis := counted.from.(*lock.Redis); !ok || !ofRedis {
		return nil, fmt.Errorf("the locker is a %T of a %T", made, counted.from)
	}
	options := *r.client.Options()
	options.Dialer = nil // it has the old timeout
	options.DialTimeout, options.ReadTimeout, options.WriteTimeout, options.PoolTimeout = testPatience, testPatience, testPatience, testPatience
	_ = r.client.Close() // it has no connections yet
	r.client = redis.NewClient(&options)
	var err error
	counted.from, err = lock.NewRedis(lock.RedisConfig{Client: r.client, Clock: time.Now, Timeout: testPatience})
	return counted, err
}
