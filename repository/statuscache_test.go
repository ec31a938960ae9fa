package repository_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/internal/testenv"
	"github.com/sekali/sekali/job"
	"github.com/sekali/sekali/repository"
)

// wall is the clock of the machine as the database has it.
type wall struct{}

func (wall) Now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

// enough is for tests whose Redis answers, on a machine that may be slow.
const enough = 5 * time.Second

// redisOf connects to a Redis as the gateway does, but for its timeouts.
func redisOf(t *testing.T, url string, timeout time.Duration) *redis.Client {
	t.Helper()
	options, err := redis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	options.DialTimeout, options.ReadTimeout, options.WriteTimeout, options.PoolTimeout = timeout, timeout, timeout, timeout
	options.ContextTimeoutEnabled = true
	options.MaxRetries, options.DialerRetries, options.PoolSize, options.PipelinePoolSize = 1, 1, 8, -1
	c := redis.NewClient(options)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// cached is a cache on a Redis, what it has counted, and a way past it.
type cached struct {
	*repository.StatusCache
	direct *redis.Client

	mu     sync.Mutex
	counts map[repository.CacheResult]int
}

// newCache returns a cache on a Redis that answers.
func newCache(t *testing.T, url string, resultRetention time.Duration) *cached {
	t.Helper()
	return newCacheFor(t, url, resultRetention, enough)
}

func newCacheFor(t *testing.T, url string, resultRetention, timeout time.Duration) *cached {
	t.Helper()
	c := &cached{direct: redisOf(t, url, enough), counts: map[repository.CacheResult]int{}}
	count := func(r repository.CacheResult) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.counts[r]++
	}
	var err error
	c.StatusCache, err = repository.NewStatusCache(t.Context(), repository.StatusCacheConfig{
		Client: redisOf(t, url, timeout), Clock: wall{}, ResultRetention: resultRetention, Timeout: timeout, Found: count, Written: count,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func (c *cached) count(results ...repository.CacheResult) (sum int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range results {
		sum += c.counts[r]
	}
	return sum
}

// put puts jobs, each after the one before it has been dealt with.
func (c *cached) put(t *testing.T, jobs ...job.Job) {
	t.Helper()
	for _, j := range jobs {
		before := c.count(repository.CacheStored, repository.CacheKept)
		c.Put(j)
		testenv.Eventually(t, 0, "it is written", func() bool {
			return c.count(repository.CacheStored, repository.CacheKept) > before
		})
	}
}

// key is where a job stands in Redis, when it is the only one.
func (c *cached) key(t *testing.T) string {
	t.Helper()
	keys, err := c.direct.Keys(t.Context(), "sekali:status:*").Result()
	if err != nil || len(keys) != 1 {
		t.Fatalf("keys: %q, %v", keys, err)
	}
	return keys[0]
}

const ourTenant, ourKey = idempotency.Tenant("acme"), idempotency.Key("order 42/ä")

// ended is a job that has ended, with everything that one can have.
func ended() job.Job {
	now := wall{}.Now()
	return job.Job{
		ID: job.NewID(now.Add(-time.Minute), 7), Tenant: ourTenant, Key: ourKey, Type: "report", Status: job.Succeeded,
		Payload: []byte("{ \"a\" : 1.0, \"<b>\":\"\\u0000\\ud83d\\ude00\"}\n"), BusinessKey: "order:42", OperationKey: "report:<42>",
		Priority: -3, RunAt: now.Add(-50 * time.Second), Deadline: now.Add(time.Hour), Timeout: 90 * time.Second,
		MaxAttempts: 7, EarlierAttempts: 2, Attempts: 4, Generation: 2, Version: 9, WorkerID: "w-1", Token: 5,
		ClaimedAt: now.Add(-5 * time.Second), UnknownAsks: 1,
		LastError: &job.Failure{Code: "receiver-status", Detail: "answered 503 & went", Attempt: 3},
		Outcome:   job.DuplicateIgnored, DuplicateOf: "order 41",
		Result:          &job.Result{Body: []byte("[1.50, \"é\" ,  null]"), MediaType: "application/json; charset=utf-8"},
		ResultExpiredAt: now.Add(-time.Second),
		CreatedAt:       now.Add(-time.Minute), StartedAt: now.Add(-40 * time.Second), FinishedAt: now.Add(-time.Second), ExpiresAt: now.Add(24 * time.Hour),
	}
}

// with is the job with something else about it.
func with(change func(*job.Job)) job.Job {
	j := ended()
	change(&j)
	return j
}

func TestContract_Row100_ACachedJobIsTheSameByteForByte(t *testing.T) {
	t.Parallel()
	c := newCache(t, testenv.OwnRedis(t).URL(), 0)
	for name, j := range map[string]job.Job{
		"everything": ended(),
		"failed":     with(func(j *job.Job) { j.Status, j.Result, j.Outcome = job.Failed, nil, job.OutcomeUnknown }),
		"cancelled":  with(func(j *job.Job) { j.Status, j.Result, j.LastError, j.StartedAt = job.Cancelled, nil, nil, time.Time{} }),
		"binary":     with(func(j *job.Job) { j.Result = &job.Result{Body: []byte{0xff, 0, '"'}, MediaType: "image/png"} }),
		"empty":      with(func(j *job.Job) { j.Result = &job.Result{Body: []byte{}, MediaType: "text/plain"} }),
		"null":       with(func(j *job.Job) { j.Payload, j.Result = []byte("null"), nil }),
	} {
		j.Key = idempotency.Key(name)
		before := wall{}.Now()
		c.put(t, j)
		got, ok := c.Find(t.Context(), j.Tenant, j.Key)
		if !ok {
			t.Errorf("%s: not found", name)
			continue
		}
		if want, is := api.Current(j), api.Current(got.Job); !reflect.DeepEqual(want, is) {
			t.Errorf("%s: the answer was\n%s, and is\n%s", name, want.Body, is.Body)
		}
		if !reflect.DeepEqual(j, got.Job) {
			t.Errorf("%s: the job was\n%+v, and is\n%+v", name, j, got.Job)
		}
		if got.ReadAt.Before(before) || got.ReadAt.After(wall{}.Now()) {
			t.Errorf("%s: read at %s", name, got.ReadAt)
		}
	}
}

// A member that job.Job gets later must be stored, or stand here with the reason
// why it need not be.
func TestStatusCache_KeepsEveryMemberOfAFinishedJob(t *testing.T) {
	t.Parallel()
	unfinishedOnly := map[string]bool{"LeaseEndsAt": true, "CancelRequestedAt": true, "NextAttemptAt": true}
	unshown := map[string]bool{"CallbackURL": true, "Remote": true} // no document tells of them
	full := reflect.ValueOf(ended())
	for i := range full.NumField() {
		if name := full.Type().Field(i).Name; full.Field(i).IsZero() != (unfinishedOnly[name] || unshown[name]) {
			t.Errorf("%s: the test's job must have it unless only unfinished jobs do, or nobody is shown it", name)
		}
	}
}

func TestStatusCache_FindsWholeFinishedJobsOnly(t *testing.T) {
	t.Parallel()
	for name, j := range map[string]job.Job{
		"pending":         with(func(j *job.Job) { j.Status = job.Pending }),
		"processing":      with(func(j *job.Job) { j.Status = job.Processing }),
		"end not read":    with(func(j *job.Job) { j.FinishedAt = time.Time{} }),
		"expiry not read": with(func(j *job.Job) { j.ExpiresAt = time.Time{} }),
		"bodies not read": with(func(j *job.Job) { j.Payload = nil }),
		"expired":         with(func(j *job.Job) { j.ExpiresAt = wall{}.Now() }),
		"large result":    with(func(j *job.Job) { j.Result.Body = bytes.Repeat([]byte("1"), 60<<10) }),
		"huge payload":    with(func(j *job.Job) { j.Payload = bytes.Repeat([]byte("1"), 1<<20) }),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCache(t, testenv.Redis(t), 0)
			j.Key = idempotency.Key(t.Name() + strconv.FormatInt(rand.Int64(), 36))
			c.put(t, j)
			if got, ok := c.Find(t.Context(), j.Tenant, j.Key); ok {
				t.Errorf("found %+v", got.Job)
			}
			if c.count(repository.CacheStored) != 1 || c.count(repository.CacheMiss) != 1 {
				t.Errorf("counted %v", c.counts)
			}
		})
	}
}

func TestStatusCache_StoresHowAJobStands(t *testing.T) {
	t.Parallel()
	c := newCache(t, testenv.OwnRedis(t).URL(), 0)
	j := with(func(j *job.Job) { j.Status = job.Retrying })
	c.put(t, j)
	got := c.direct.HGetAll(t.Context(), c.key(t)).Val()
	if _, err := time.Parse(time.RFC3339Nano, got["at"]); err != nil {
		t.Error(err)
	}
	delete(got, "at")
	want := map[string]string{"id": string(j.ID), "version": "9", "status": "retrying", "worker": "w-1", "whole": "0", "job": ""}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for _, secret := range []string{string(ourTenant), string(ourKey)} {
		if text := fmt.Sprint(c.key(t), got); strings.Contains(text, secret) {
			t.Errorf("%q is in clear in %s", secret, text)
		}
	}
}

func TestStatusCache_NeverGoesBack(t *testing.T) {
	t.Parallel()
	url := testenv.OwnRedis(t).URL()
	whole := ended()
	bare := with(func(j *job.Job) { j.ID, j.FinishedAt = whole.ID, time.Time{} })
	older := with(func(j *job.Job) { j.ID, j.Version = whole.ID, 8 })
	moved := with(func(j *job.Job) { j.ID, j.Version, j.Status = whole.ID, 10, job.Pending })
	again := with(func(j *job.Job) { j.ID, j.Version = job.NewID(wall{}.Now(), 7), 1 })
	for name, c := range map[string]struct {
		puts  []job.Job
		found int64 // version; 0: none
	}{
		"an older version does not replace a newer one":            {[]job.Job{whole, older}, 9},
		"a newer version replaces an older one":                    {[]job.Job{older, whole}, 9},
		"a bare one does not replace a whole one of its version":   {[]job.Job{whole, bare}, 9},
		"a whole one replaces a bare one of its version":           {[]job.Job{bare, whole}, 9},
		"a job that moved on is not found any more":                {[]job.Job{whole, moved}, 0},
		"and does not come back":                                   {[]job.Job{whole, moved, whole}, 0},
		"a later job of the key is newer, whatever its version":    {[]job.Job{whole, again}, 1},
		"an earlier job of the key is older, whatever its version": {[]job.Job{again, whole}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cache := newCache(t, url, 0)
			key := idempotency.Key(t.Name())
			for _, j := range c.puts {
				j.Key = key
				cache.put(t, j)
			}
			got, ok := cache.Find(t.Context(), ourTenant, key)
			if ok != (c.found > 0) || got.Job.Version != c.found {
				t.Errorf("found %v version %d, want %d", ok, got.Job.Version, c.found)
			}
		})
	}
}

func TestFailure_BR58_NoStatusIsWithoutTimeToLive(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*job.Job)
		retain time.Duration
		want   time.Duration
	}{
		"whole":             {func(*job.Job) {}, 0, time.Hour},
		"bare":              {func(j *job.Job) { j.Status = job.Pending }, 0, time.Hour},
		"expires soon":      {func(j *job.Job) { j.ExpiresAt = wall{}.Now().Add(time.Minute) }, 0, time.Minute},
		"its result too":    {func(*job.Job) {}, 10 * time.Minute, 10 * time.Minute},
		"without a result":  {func(j *job.Job) { j.Result = nil }, 10 * time.Minute, time.Hour},
		"expired":           {func(j *job.Job) { j.ExpiresAt = wall{}.Now().Add(-time.Minute) }, 0, time.Hour},
		"the result sooner": {func(j *job.Job) { j.ExpiresAt = wall{}.Now().Add(time.Minute) }, 5 * time.Minute, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cache := newCache(t, testenv.OwnRedis(t).URL(), c.retain)
			cache.put(t, with(c.change))
			ttl := cache.direct.PTTL(t.Context(), cache.key(t)).Val()
			if ttl > c.want || ttl < c.want-10*time.Second {
				t.Errorf("kept for %s, want %s", ttl, c.want)
			}
		})
	}
}

func TestStatusCache_TenantsAreApart(t *testing.T) {
	t.Parallel()
	c := newCache(t, testenv.OwnRedis(t).URL(), 0)
	c.put(t, ended())
	if _, ok := c.Find(t.Context(), "another", ourKey); ok {
		t.Error("another tenant finds the job")
	}
	if _, ok := c.Find(t.Context(), ourTenant, ourKey); !ok {
		t.Error("its own tenant does not find it")
	}
	if hits, misses := c.count(repository.CacheHit), c.count(repository.CacheMiss); hits != 1 || misses != 1 {
		t.Errorf("%d hits and %d misses", hits, misses)
	}
}

// What cannot be read is not known, and never a job.
func TestStatusCache_DoesNotReadWhatItDidNotWrite(t *testing.T) {
	t.Parallel()
	c := newCache(t, testenv.OwnRedis(t).URL(), 0)
	c.put(t, ended())
	key := c.key(t)
	text := c.direct.HGet(t.Context(), key, "job").Val()
	for name, damaged := range map[string]string{
		"cut off":          text[:len(text)/2],
		"no job":           "{}",
		"a later form":     strings.Replace(text, `"format":1`, `"format":2`, 1),
		"not finished":     strings.Replace(text, `"succeeded"`, `"pending"`, 1),
		"no base64":        strings.Replace(text, `"payload":"`, `"payload":"!`, 1),
		"nothing sensible": "\x00",
	} {
		if damaged == text {
			t.Fatalf("%s: nothing is damaged", name)
		}
		c.direct.HSet(t.Context(), key, "job", damaged)
		if got, ok := c.Find(t.Context(), ourTenant, ourKey); ok {
			t.Errorf("%s: found %+v", name, got.Job)
		}
	}
	c.direct.Del(t.Context(), key)
	c.direct.Set(t.Context(), key, "another type", time.Minute)
	if _, ok := c.Find(t.Context(), ourTenant, ourKey); ok {
		t.Error("found a job in a string")
	}
	if hits, misses, failed := c.count(repository.CacheHit), c.count(repository.CacheMiss), c.count(repository.CacheFailed); hits != 0 || misses != 6 || failed != 1 {
		t.Errorf("%d hits, %d misses, %d errors are counted", hits, misses, failed)
	}
}

func TestNewStatusCache_RefusesAClientThatWouldHoldReadsUp(t *testing.T) {
	t.Parallel()
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer client.Close()
	for _, cfg := range []repository.StatusCacheConfig{{}, {Client: client}, {Client: client, Clock: wall{}}} {
		if _, err := repository.NewStatusCache(t.Context(), cfg); err == nil {
			t.Errorf("%+v: no error", cfg)
		}
	}
}
