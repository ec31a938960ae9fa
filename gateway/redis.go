package gateway

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// redisTimeout is as long as anything waits for Redis: it only speeds things up.
const redisTimeout = 100 * time.Millisecond

// redisLink is the connection to Redis, if one is configured. Nothing that is
// promised depends on it: when it is down the gateway is degraded, no more.
type redisLink struct{ client *redis.Client }

func newRedisLink(url string) (*redisLink, error) {
	if url == "" {
		return &redisLink{}, nil
	}
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
