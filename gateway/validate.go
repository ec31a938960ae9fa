package gateway

import (
	"fmt"
	"maps"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sekali/sekali/middleware"
)

// The values of auth.mode.
const (
	authNone = "none"
	authKey  = "api_key"
)

// check collects problems; its methods are the kinds of rules.
type check struct{ problems []Problem }

func (c *check) that(ok bool, path string, value any, want string) {
	if !ok {
		c.problems = append(c.problems, Problem{Path: path, Value: fmt.Sprint(value), Want: want})
	}
}

func (c *check) oneOf(path, value string, allowed ...string) {
	c.that(slices.Contains(allowed, value), path, value, "takes one of "+strings.Join(allowed, ", "))
}

func (c *check) between(path string, value, least, most time.Duration) {
	c.that(least <= value && value <= most, path, value, fmt.Sprintf("takes %s to %s", least, most))
}

// year is the longest that anything may be told to wait.
const year = 8760 * time.Hour

// Validate returns a *ConfigError with everything that is wrong, or nil.
func (c Config) Validate() error {
	if problems := c.problems(); len(problems) > 0 {
		return &ConfigError{Problems: problems}
	}
	return nil
}

func (c Config) problems() []Problem {
	var k check
	c.checkServing(&k)
	k.that(c.Idempotency.MaxKeyLength >= 1 && c.Idempotency.MaxKeyLength <= 255,
		"idempotency.max_key_length", c.Idempotency.MaxKeyLength, "takes 1 to 255")
	_, err := regexp.Compile(c.Idempotency.KeyPattern)
	k.that(err == nil, "idempotency.key_pattern", c.Idempotency.KeyPattern, fmt.Sprintf("is no regular expression: %v", err))
	c.checkRetention(&k)
	c.checkLimits(&k)
	k.oneOf("log.level", c.Log.Level, "debug", "info", "warn", "error")
	k.oneOf("log.format", c.Log.Format, "auto", "text", "json")
	k.that(c.Dispatcher.Slots >= 0 && c.Dispatcher.Slots <= 10000, "dispatcher.slots", c.Dispatcher.Slots, "takes 0 (only accept) to 10000")
	k.between("dispatcher.poll_interval", c.Dispatcher.PollInterval, 10*time.Millisecond, time.Minute)
	k.between("dispatcher.shutdown_grace", c.Dispatcher.ShutdownGrace, 0, time.Hour)
	c.checkDefaults(&k)
	for _, name := range slices.Sorted(maps.Keys(c.JobTypes)) {
		c.JobTypes[name].check(&k, "job_types."+name, name, c)
	}
	c.checkCallbacks(&k)
	c.checkSchedules(&k)
	c.checkProxy(&k)
	for name := range c.Executors {
		_, both := c.TxExecutors[name]
		k.that(!both, "job_types."+name, "func", "has both an Executor and a TxExecutor; give one")
	}
	return k.problems
}

func (c Config) checkRetention(k *check) {
	i := c.Idempotency
	k.between("idempotency.lease", i.Lease, minLease, maxLease)
	k.between("idempotency.response_retention", i.ResponseRetention, time.Second, year)
	k.oneOf("idempotency.after_expiry", i.AfterExpiry, middleware.RefuseExpired, middleware.ExecuteExpired)
	k.between("idempotency.retention", i.Retention, time.Second, maxRetention)
	k.between("idempotency.tombstone", i.Tombstone, 0, maxRetention)
	k.between("idempotency.result_retention", i.ResultRetention, 0, maxRetention)
}

func (c Config) checkLimits(k *check) {
	l := c.Limits
	k.that(l.Body >= 1<<10 && l.Body <= 64<<20, "limits.body", l.Body, "takes 1KiB to 64MiB")
	k.that(l.Batch >= 1<<10 && l.Batch <= 256<<20, "limits.batch", l.Batch, "takes 1KiB to 256MiB")
	k.that(l.Result >= 1<<10 && l.Result <= 64<<20, "limits.result", l.Result, "takes 1KiB to 64MiB")
	k.between("limits.wait", l.Wait, time.Second, time.Hour)
	k.that(l.Waiters >= 0, "limits.waiters", l.Waiters, "takes 0 (nobody may wait) or more")
	k.that(l.Pending >= 0, "limits.pending", l.Pending, "takes 0 (no limit) or more")
	k.that(l.AcceptQueue >= 1 && l.AcceptQueue <= 1_000_000, "limits.accept_queue", l.AcceptQueue, "takes 1 to 1000000")
	if l.Rate != "" {
		_, err := middleware.ParseRate(l.Rate)
		k.that(err == nil, "limits.rate", l.Rate, "takes a rate such as 100/s, 6000/m or 100000/h")
	}
	for i, origin := range c.CORS.AllowedOrigins {
		u, err := url.Parse(origin)
		plain := err == nil && u.Scheme != "" && u.Host != "" && origin == u.Scheme+"://"+u.Host
		k.that(origin == "*" || plain, fmt.Sprintf("cors.allowed_origins[%d]", i), origin, "takes an origin such as https://app.example, or *")
	}
}

func (c Config) checkServing(k *check) {
	host, port, err := net.SplitHostPort(c.Listen)
	_, badPort := strconv.ParseUint(port, 10, 16)
	k.that(err == nil && badPort == nil, "listen", c.Listen, "takes host:port, e.g. 127.0.0.1:8080")
	scheme, rest, _ := strings.Cut(c.DatabaseURL, ":")
	k.that(slices.Contains([]string{"sqlite", "postgres", "postgresql"}, scheme) && rest != "",
		"database_url", "", "takes sqlite:FILE or postgres://user@host:5432/db")
	k.that(c.DatabaseMaxConns >= 4 && c.DatabaseMaxConns <= 1000, "database_max_conns", c.DatabaseMaxConns,
		"takes 4 to 1000: fewer cannot serve requests, leases and transactions side by side")
	if c.RedisURL != "" {
		_, err := redis.ParseURL(c.RedisURL)
		k.that(err == nil, "redis_url", "", "takes redis://host:6379/0 or rediss://…")
	}
	k.oneOf("auth.mode", c.Auth.Mode, authNone, authKey)
	k.that(err != nil || c.Auth.Mode == authKey || c.Auth.AllowPublic || isLoopback(host), "listen", c.Listen,
		"is not a loopback address and auth.mode is none, so anybody who reaches it could submit jobs; "+
			"listen on 127.0.0.1, set auth.mode: api_key, or auth.allow_public: true if something in front checks who calls")
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func (c Config) checkDefaults(k *check) {
	d := c.Defaults
	k.between("defaults.lease", d.Lease, minLease, maxLease)
	k.that(d.Heartbeat > 0 && d.Heartbeat <= d.Lease/2, "defaults.heartbeat", d.Heartbeat,
		fmt.Sprintf("takes up to half of defaults.lease (%s), so that one lost heartbeat loses no lease", d.Lease/2))
	checkBackoff(k, "defaults", d.Backoff)
	k.between("defaults.timeout", d.Timeout, minTimeout, maxTimeout)
	checkAttempts(k, "defaults", d.MaxAttempts)
	checkPriority(k, "defaults", d.Priority)
}

// Ranges of what the defaults and each job type may set.
const (
	minLease     = time.Second // shorter ones end on every hiccup of the database
	maxLease     = time.Hour   // a dead process's jobs wait as long
	minTimeout   = 10 * time.Millisecond
	maxTimeout   = 24 * time.Hour
	maxRetention = 10 * year
)

func checkBackoff(k *check, path string, b Backoff) {
	k.between(path+".backoff.cap", b.Cap, time.Millisecond, year)
	k.between(path+".backoff.base", b.Base, time.Millisecond, b.Cap)
}

func checkAttempts(k *check, path string, attempts int) {
	k.that(attempts >= 1 && attempts <= 1000, path+".max_attempts", attempts, "takes 1 to 1000")
}

func checkPriority(k *check, path string, priority int) {
	k.that(priority >= -100 && priority <= 100, path+".priority", priority, "takes -100 to 100")
}
