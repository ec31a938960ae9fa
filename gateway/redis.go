package gateway

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
)

// redisTimeout is as long as anything waits for Redis: it only speeds things up.
const redisTimeout = 100 * time.Millisecond

// quietRedis keeps the client from writing lines of its own between those of
// our log: /readyz and sekali_degraded tell what it would say. It is a setting
// of the whole process.
var quietRedis = sync.OnceFunc(func() { redis.SetLogger(&logging.VoidLogger{}) })

// redisLink is the connection to Redis, if one is configured. Nothing that is
// promised depends on it: when it is down the gateway is degraded, no more.
type redisLink struct{ client *redis.Client }

func newRedisLink(url string) (*redisLink, error) {
	if url == "" {
		return &redisLink{}, nil
	}
	quietRedis()
	options, err := redis.ParseURL(url)
	if err != nil {
		return nil, fmt.Errorf("redis_url: %w", err)
	}
	options.DialTimeout, options.ReadTimeout, options.WriteTimeout = redisTimeout, redisTimeout, redisTimeout
	options.MaxRetries = 1
	return &redisLink{client: redis.NewClient(options)}, nil
}

// configured reports whether there is a Redis at all.
func (r *redisLink) configured() bool { return r.client != nil }

// check returns nil if Redis answers.
func (r *redisLink) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*redisTimeout)
	defer cancel()
	return r.client.Ping(ctx).Err()
}

func (r *redisLink) close() {
	if r.client != nil {
		_ = r.client.Close() // nothing is lost with it
	}
}
