package gateway

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
)

const (
	// oldestRedis is the first whose hset takes several fields.
	oldestRedis = 4
	// slowRedis is a fifth of the longest that anything waits for it.
	slowRedis = redisTimeout / 5
	// fullRedis is the share of maxmemory, in percent, from which on writes may soon
	// be refused.
	fullRedis = 95
	// evictsNothing is the policy that keeps locks until they end.
	evictsNothing = "noeviction"
)

// redisReading is how Redis answers, and what INFO tells.
type redisReading struct {
	err     error
	latency time.Duration
	info    map[string]string
}

func readRedis(ctx context.Context, url string) redisReading {
	link, err := newRedisLink(url)
	if err != nil {
		return redisReading{err: err}
	}
	defer link.close()
	var r redisReading
	for range 2 { // the first one opens the connection
		begun := time.Now()
		if r.err = link.client.Ping(ctx).Err(); r.err != nil {
			return r
		}
		r.latency = time.Since(begun)
	}
	text, err := link.client.Info(ctx).Result()
	if err != nil {
		r.err = fmt.Errorf("info: %w", err)
		return r
	}
	r.info = map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			r.info[name] = value
		}
	}
	return r
}

// judgeRedis says what the reading of the Redis at the address means.
func judgeRedis(r redisReading, address string) []Finding {
	var f findingList
	const check = "redis"
	if r.err != nil {
		f.problem(check, "make it reachable within 100 ms, or take redis_url away: until then locks do not exclude, and jobs run under their leases alone",
			"%s does not answer as it should: %v", address, r.err)
		return f
	}
	version := r.info["redis_version"]
	major, _, _ := strings.Cut(version, ".")
	number, err := strconv.Atoi(major)
	switch {
	case err == nil && number < oldestRedis:
		f.problem(check, fmt.Sprintf("use Redis %d or newer", oldestRedis), "%s is Redis %s, which is too old", address, version)
	case r.latency > slowRedis:
		f.warn(check, "use a Redis nearby: calls wait 100 ms at most, and are given up then", "Redis %s takes %s to answer", version, brief(r.latency))
	default:
		f.ok(check, "Redis %s answers in %s", version, brief(r.latency))
	}
	if role := r.info["role"]; role == "slave" || role == "replica" {
		f.problem("redis.role", "name the primary in redis_url", "%s follows another Redis, and takes no writes", address)
	}
	return append(f, judgeRedisMemory(r.info)...)
}

func judgeRedisMemory(info map[string]string) []Finding {
	var f findingList
	const check = "redis.memory"
	used, _ := strconv.ParseInt(info["used_memory"], 10, 64)
	most, _ := strconv.ParseInt(info["maxmemory"], 10, 64)
	policy := info["maxmemory_policy"]
	switch {
	case most == 0:
		f.ok(check, "%s used, without a limit", about(used))
	case policy != evictsNothing:
		f.warn(check, "set maxmemory-policy noeviction, or give the gateway a Redis of its own",
			"maxmemory-policy is %s: when memory is short, locks go before their time, and two jobs of one lock run at once", policy)
	case used*100 > most*fullRedis:
		f.warn(check, "raise maxmemory: once it is reached, locks and the cache cannot be written", "%s of %s are used", about(used), about(most))
	default:
		f.ok(check, "%s of %s used, nothing is evicted", about(used), about(most))
	}
	return f
}
