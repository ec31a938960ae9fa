package repository

import (
	"cmp"
	"context"
	"crypto/sha256"
	_ "embed" // the script
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/internal/breaker"
	"github.com/sekali/sekali/job"
)

//go:embed statuscache.lua
var putSource string

var putScript = redis.NewScript(putSource)

const (
	// statusPrefix tells statuses from what else is in Redis.
	statusPrefix = "sekali:status:"
	// statusTTL bounds what is kept of jobs that nobody asks for.
	statusTTL = time.Hour
	// maxCached bounds a job as it is stored: larger ones cost more memory there
	// than they spare the database.
	maxCached = 64 << 10
	// findTimeout is as long as a read waits before it asks the database.
	findTimeout = 100 * time.Millisecond
	// patience is how many times as long a batch of writes may take, and what Close
	// waits for: nobody else waits for these.
	patience = 5
	// maxQueued is a second of many jobs, and at most as many times maxCached.
	maxQueued = 1000
	// maxBatch keeps a batch well within its timeout.
	maxBatch = 50
)

// CacheResult is what became of a call of the status cache.
type CacheResult string

// The results of Find, and of Put.
const (
	CacheHit    CacheResult = "hit"
	CacheMiss   CacheResult = "miss"  // or what there is cannot be read here
	CacheFailed CacheResult = "error" // of both: Redis failed

	CacheStored  CacheResult = "stored"
	CacheKept    CacheResult = "kept"    // more was known already
	CacheDropped CacheResult = "dropped" // not sent: too many at once, or Redis is left alone
)

// StatusCache keeps the statuses of jobs in Redis, each with a time to live. Its
// keys are hashes of tenant and key: neither of them is in Redis in clear.
type StatusCache struct {
	cfg     StatusCacheConfig
	breaker *breaker.Breaker
	queue   chan standing
	closing chan struct{}
	close   func()
	closed  chan struct{}
}

var _ job.StatusCache = (*StatusCache)(nil)

// StatusCacheConfig is what NewStatusCache needs.
type StatusCacheConfig struct {
	// Client must have ContextTimeoutEnabled. It stays the caller's to close, after
	// the cache.
	Client *redis.Client
	// Installation names the database (see Repository.Installation), so that jobs of
	// another one in the same Redis are not taken for its own.
	Installation string
	// Clock is the database's: it tells how long finished jobs are kept yet.
	Clock job.Clock
	// ResultRetention is how long after a job's end its result is kept; 0: as long
	// as the job.
	ResultRetention time.Duration
	// Timeout bounds a read; 0 means 100 ms.
	Timeout time.Duration
	// Found and Written are told what became of each call; nil: nobody is. They
	// must not block.
	Found, Written func(CacheResult)
}

// standing is a job and when it was read.
type standing struct {
	job   job.Job
	at    time.Time
	whole bool
}

// NewStatusCache returns a cache that writes until it is closed; the end of ctx
// does not end it.
func NewStatusCache(ctx context.Context, cfg StatusCacheConfig) (*StatusCache, error) {
	if cfg.Client == nil || cfg.Clock == nil {
		return nil, errors.New("repository: the status cache needs a client and a clock")
	}
	if !cfg.Client.Options().ContextTimeoutEnabled {
		return nil, errors.New("repository: the status cache's client must have ContextTimeoutEnabled, or a Redis that is silent holds up reads")
	}
	cfg.Timeout = cmp.Or(cfg.Timeout, findTimeout)
	nobody := func(CacheResult) {}
	if cfg.Found == nil {
		cfg.Found = nobody
	}
	if cfg.Written == nil {
		cfg.Written = nobody
	}
	c := &StatusCache{
		cfg: cfg, breaker: breaker.New(cfg.Clock.Now),
		queue: make(chan standing, maxQueued), closing: make(chan struct{}), closed: make(chan struct{}),
	}
	c.close = sync.OnceFunc(func() { close(c.closing) })
	go c.run(context.WithoutCancel(ctx))
	return c, nil
}

// Put implements job.StatusCache.
func (c *StatusCache) Put(j job.Job) {
	s := standing{job: j, at: c.cfg.Clock.Now(), whole: isWhole(j)}
	if !s.whole {
		s.job.Payload, s.job.Result = nil, nil // they would only fill the queue
	}
	select {
	case c.queue <- s:
	default:
		c.cfg.Written(CacheDropped)
	}
}

// isWhole reports whether the job has ended, was read with all that belongs to
// it, and is small enough.
func isWhole(j job.Job) bool {
	size := len(j.Payload)
	if j.Result != nil {
		size += len(j.Result.Body)
	}
	return j.Status.Finished() && !j.FinishedAt.IsZero() && !j.ExpiresAt.IsZero() && len(j.Payload) > 0 && size <= maxCached
}

// Find implements job.StatusCache. It takes no longer than the timeout, whatever
// Redis does.
func (c *StatusCache) Find(ctx context.Context, tenant idempotency.Tenant, key idempotency.Key) (job.Cached, bool) {
	if ctx.Err() != nil {
		return job.Cached{}, false
	}
	if !c.breaker.Allow() {
		c.cfg.Found(CacheFailed)
		return job.Cached{}, false
	}
	bounded, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	text, err := c.cfg.Client.HGet(bounded, statusKey(c.cfg.Installation, tenant, key), "job").Bytes()
	if errors.Is(err, redis.Nil) {
		err = nil
	}
	if err != nil && ctx.Err() != nil {
		return job.Cached{}, false // the caller has gone; that says nothing about Redis
	}
	c.breaker.Report(err == nil)
	if err != nil {
		c.cfg.Found(CacheFailed)
		return job.Cached{}, false
	}
	return c.read(text, tenant, key)
}

// read is what the stored text tells; nothing is a job that is not known whole.
func (c *StatusCache) read(text []byte, tenant idempotency.Tenant, key idempotency.Key) (job.Cached, bool) {
	if len(text) > 0 {
		if cached, err := decodeJob(text, tenant, key); err == nil {
			c.cfg.Found(CacheHit)
			return cached, true
		}
	}
	c.cfg.Found(CacheMiss)
	return job.Cached{}, false
}

// Close writes what has been put, for a moment, and returns when the cache has
// ended. What is put later is dropped.
func (c *StatusCache) Close() {
	c.close()
	<-c.closed
}

// run writes what is put until the cache is closed.
func (c *StatusCache) run(ctx context.Context) {
	defer close(c.closed)
	for {
		select {
		case s := <-c.queue:
			c.write(ctx, c.batch(s))
		case <-c.closing:
			c.drain(ctx)
			return
		}
	}
}

// drain writes what is left.
func (c *StatusCache) drain(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, patience*c.cfg.Timeout)
	defer cancel()
	for {
		select {
		case s := <-c.queue:
			c.write(ctx, c.batch(s))
		default:
			return
		}
	}
}

// batch is a standing together with those that wait behind it.
func (c *StatusCache) batch(first standing) []standing {
	batch := []standing{first}
	for len(batch) < maxBatch {
		select {
		case next := <-c.queue:
			batch = append(batch, next)
		default:
			return batch
		}
	}
	return batch
}

// write sends a batch in one round trip. What fails is forgotten.
func (c *StatusCache) write(ctx context.Context, batch []standing) {
	if !c.breaker.Allow() {
		for range batch {
			c.cfg.Written(CacheDropped)
		}
		return
	}
	ctx, cancel := context.WithTimeout(ctx, patience*c.cfg.Timeout)
	defer cancel()
	replies, err := c.send(ctx, batch)
	if isUnloaded(err) {
		// After a start or a flush; the whole batch again changes nothing twice.
		if err = putScript.Load(ctx, c.cfg.Client).Err(); err == nil {
			replies, err = c.send(ctx, batch)
		}
	}
	c.breaker.Report(err == nil)
	for _, reply := range replies {
		switch stored, err := reply.Bool(); {
		case err != nil:
			c.cfg.Written(CacheFailed)
		case stored:
			c.cfg.Written(CacheStored)
		default:
			c.cfg.Written(CacheKept)
		}
	}
}

// send returns the reply for each, and the first error among them.
func (c *StatusCache) send(ctx context.Context, batch []standing) ([]*redis.Cmd, error) {
	replies := make([]*redis.Cmd, 0, len(batch))
	_, err := c.cfg.Client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for _, s := range batch {
			key, args := c.arguments(s)
			replies = append(replies, putScript.EvalSha(ctx, pipe, []string{key}, args...))
		}
		return nil
	})
	if err != nil {
		return replies, fmt.Errorf("repository: write statuses: %w", err)
	}
	return replies, nil
}

func isUnloaded(err error) bool { return redis.HasErrorPrefix(err, "NOSCRIPT") }

// arguments are those of the script, in its order.
func (c *StatusCache) arguments(s standing) (key string, args []any) {
	whole, ttl := "", statusTTL
	if left := c.keep(s.job); s.whole && left > 0 {
		if text := encodeJob(s); len(text) <= maxCached {
			whole, ttl = string(text), min(left, statusTTL)
		}
	}
	j := s.job
	return statusKey(c.cfg.Installation, j.Tenant, j.Key), []any{
		max(ttl.Milliseconds(), 1), string(j.ID), j.Version, string(j.Status), s.at.UTC().Format(time.RFC3339Nano), j.WorkerID, whole,
	}
}

// keep is how long the job will stand as it does.
func (c *StatusCache) keep(j job.Job) time.Duration {
	until := j.ExpiresAt
	if c.cfg.ResultRetention > 0 && j.Result != nil {
		if ends := j.FinishedAt.Add(c.cfg.ResultRetention); ends.Before(until) {
			until = ends
		}
	}
	return until.Sub(c.cfg.Clock.Now())
}

// statusKey is where the status of a key's job is.
func statusKey(installation string, tenant idempotency.Tenant, key idempotency.Key) string {
	sum := sha256.Sum256([]byte(installation + "\x00" + string(tenant) + "\x00" + string(key)))
	return statusPrefix + hex.EncodeToString(sum[:])
}
