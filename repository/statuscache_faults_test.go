package repository_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/internal/breaker"
	"github.com/sekali/sekali/internal/testenv"
	"github.com/sekali/sekali/job"
	"github.com/sekali/sekali/repository"
	"github.com/sekali/sekali/repository/repositorytest"
)

const (
	// hasty is the timeout of the gateway's client, and of its cache.
	hasty = 100 * time.Millisecond
	// promised is how long reads take at most when Redis fails.
	promised = 250 * time.Millisecond
	// atWorst is the same on a machine under load, which may stand still for seconds:
	// not each call is in time, and none waits for what does not come.
	atWorst = 4 * time.Second
)

// However Redis fails, reads go on to the database soon, writes cost nothing,
// and nothing is left behind.
func TestContract_Row49_AFailingCacheHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	commands := func(lines ...string) func(*testing.T, *cached, *testenv.RedisServer) {
		return func(t *testing.T, c *cached, _ *testenv.RedisServer) {
			for _, line := range lines {
				var args []any
				for _, word := range strings.Fields(line) {
					args = append(args, word)
				}
				if err := c.direct.Do(t.Context(), args...).Err(); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	for name, strike := range map[string]func(*testing.T, *cached, *testenv.RedisServer){
		"paused":           commands("client pause 60000 all"),
		"another password": commands("config set requirepass another", "client kill type normal skipme yes"),
		"out of memory":    commands("config set maxmemory 1 maxmemory-policy noeviction"),
		"read only":        commands("replicaof 127.0.0.1 1"),
		"killed": func(t *testing.T, _ *cached, s *testenv.RedisServer) {
			if err := s.Kill(); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := testenv.OwnRedis(t)
			c := newCacheFor(t, s.URL(), 0, hasty)
			begun := 0
			testenv.Eventually(t, 0, "a job is stored", func() bool {
				if c.count(repository.CacheStored, repository.CacheKept, repository.CacheFailed, repository.CacheDropped) < begun {
					return false // what is still under way would count as stored after the failure
				}
				if c.count(repository.CacheStored) > 0 {
					return true
				}
				begun++
				c.Put(ended())
				return false
			})
			strike(t, c, s)
			before, quickest := c.count(repository.CacheStored), atWorst
			for range breaker.Failures {
				started := time.Now()
				if _, ok := c.Find(t.Context(), ourTenant, "unknown"); ok {
					t.Error("found what is not there")
				}
				took := time.Since(started)
				if took > atWorst {
					t.Errorf("a read took %s", took)
				}
				quickest = min(quickest, took)
			}
			if quickest > promised {
				t.Errorf("no read took less than %s", quickest)
			}
			left := time.Now()
			for range 100 {
				c.Find(t.Context(), ourTenant, "unknown")
			}
			if took := time.Since(left); took > atWorst {
				t.Errorf("a hundred reads took %s after it had failed", took)
			}
			const puts = 5000
			started := time.Now()
			for n := range puts {
				c.Put(with(func(j *job.Job) { j.Key = idempotency.Key(fmt.Sprint(n)) }))
			}
			if took := time.Since(started); took > atWorst {
				t.Errorf("%d puts took %s", puts, took)
			}
			started = time.Now()
			c.Close()
			if took := time.Since(started); took > 2*atWorst {
				t.Errorf("the end took %s", took)
			}
			if stored := c.count(repository.CacheStored) - before; stored > 1 {
				t.Errorf("%d were stored", stored)
			}
			if failed := c.count(repository.CacheFailed, repository.CacheDropped); failed < puts/2 {
				t.Errorf("%d writes are counted as failed or dropped", failed)
			}
		})
	}
}

// More than can be written is dropped and counted: nobody waits for room.
func TestStatusCache_PutNeverBlocks(t *testing.T) {
	t.Parallel()
	s := testenv.OwnRedis(t)
	c := newCache(t, s.URL(), 0)
	if err := c.direct.Do(t.Context(), "client", "pause", "60000", "all").Err(); err != nil {
		t.Fatal(err)
	}
	const puts, room = 5000, 1000 + 50 // the queue, and the batch that is under way
	started := time.Now()
	for range puts {
		c.Put(ended())
	}
	if took := time.Since(started); took > enough {
		t.Errorf("%d puts took %s", puts, took)
	}
	if dropped := c.count(repository.CacheDropped); dropped < puts-room {
		t.Errorf("%d were dropped", dropped)
	}
	if err := s.Kill(); err != nil { // so that nobody waits for the rest
		t.Fatal(err)
	}
}

func TestStatusCache_IsUsedAgainWhenRedisIsBack(t *testing.T) {
	t.Parallel()
	s := testenv.OwnRedis(t)
	c := newCacheFor(t, s.URL(), 0, hasty)
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	for range 2 * breaker.Failures {
		if _, ok := c.Find(t.Context(), ourTenant, ourKey); ok {
			t.Fatal("found a job without Redis")
		}
	}
	if err := s.Restart(); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, time.Minute, "a job is found", func() bool { // after some rests, if hasty was too short
		c.Put(ended())
		_, ok := c.Find(t.Context(), ourTenant, ourKey)
		return ok
	})
}

func TestStatusCache_CloseWritesWhatWasPut(t *testing.T) {
	t.Parallel()
	c := newCache(t, testenv.OwnRedis(t).URL(), 0)
	const jobs = 500
	for n := range jobs {
		c.Put(with(func(j *job.Job) { j.Key = idempotency.Key(fmt.Sprint(n)) }))
	}
	c.Close()
	c.Close() // a second time does nothing
	c.Put(ended())
	if stored := c.direct.DBSize(t.Context()).Val(); stored != jobs {
		t.Errorf("%d of %d were stored", stored, jobs)
	}
}

func TestStatusCache_AFlushIsHarmless(t *testing.T) {
	t.Parallel()
	c := newCache(t, testenv.OwnRedis(t).URL(), 0)
	c.put(t, ended())
	for what, flush := range map[string]func() error{
		"scripts": func() error { return c.direct.ScriptFlush(t.Context()).Err() },
		"all":     func() error { return c.direct.FlushAll(t.Context()).Err() },
	} {
		if err := flush(); err != nil {
			t.Fatal(err)
		}
		c.put(t, with(func(j *job.Job) { j.Version = 10 }))
		if _, ok := c.Find(t.Context(), ourTenant, ourKey); !ok {
			t.Errorf("not found after a flush of %s", what)
		}
	}
	if failed := c.count(repository.CacheFailed, repository.CacheDropped); failed != 0 {
		t.Errorf("%d failed", failed)
	}
}

// Replicas write at the same time, in any order.
func TestStatusCache_NeverGoesBackWhileReplicasWrite(t *testing.T) {
	t.Parallel()
	url := testenv.OwnRedis(t).URL()
	const replicas, versions = 4, 200
	id, watcher := job.NewID(wall{}.Now(), 7), newCache(t, url, 0)
	watcher.put(t, with(func(j *job.Job) { j.ID, j.Version = id, 1 }))
	key := watcher.key(t)
	var wg sync.WaitGroup
	for range replicas {
		c := newCache(t, url, 0)
		wg.Go(func() {
			for i, n := range rand.Perm(versions) {
				c.Put(with(func(j *job.Job) { j.ID, j.Version = id, int64(n+1) }))
				if i%20 == 0 { // a few at a time, so that batches of replicas mix
					testenv.Eventually(t, 0, "they are written", func() bool { return c.count(repository.CacheStored, repository.CacheKept) > i })
				}
			}
			c.Close()
		})
	}
	finished := make(chan struct{})
	go func() { wg.Wait(); close(finished) }()
	last := int64(0)
	for running := true; running; {
		select {
		case <-finished:
			running = false
		default:
		}
		version, err := watcher.direct.HGet(t.Context(), key, "version").Int64()
		if err != nil || version < last {
			t.Fatalf("version %d after %d, %v", version, last, err)
		}
		last = version
	}
	if got, ok := watcher.Find(t.Context(), ourTenant, ourKey); !ok || got.Job.Version != versions {
		t.Errorf("found %v version %d, want %d", ok, got.Job.Version, versions)
	}
}

// What the cache tells is what the database told, and it tells it while the
// database is away.
func TestContract_Row100_TheCacheAnswersForTheDatabase(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(*testing.T) repositorytest.World{"postgres": onPostgres, "sqlite": onSQLite} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := open(t).Repo
			c := newCache(t, testenv.OwnRedis(t).URL(), 0)
			jobs := &job.Jobs{Reader: r, Clock: r.Clock(), Cache: c}
			for key, ending := range map[string]job.Ending{
				"ok": {
					Status: job.Succeeded, Attempt: job.AttemptSucceeded, Keep: time.Hour,
					Result: &job.Result{Body: []byte("{ \"a\": 1.0 }"), MediaType: "application/json"},
				},
				"bad": {
					Status: job.Failed, Attempt: job.AttemptFailed, Keep: time.Hour, Outcome: job.OutcomeUnknown,
					Failure: &job.Failure{Code: "receiver-status", Detail: "answered <503>", Attempt: 1},
				},
			} {
				accept(t, r, key)
				ending.Lease = claimOne(t, r).Lease
				if applied, err := r.Finish(t.Context(), []job.Ending{ending}); err != nil || applied[0] != job.Applied {
					t.Fatalf("finish: %v, %v", applied, err)
				}
			}
			told := map[idempotency.Key]idempotency.Response{}
			for _, key := range []idempotency.Key{"ok", "bad"} {
				told[key] = get(t, jobs, key, false)
			}
			testenv.Eventually(t, 0, "both are cached", func() bool { return c.count(repository.CacheStored) == 2 })
			same(t, "from the cache", get(t, jobs, "ok", true), told["ok"])
			same(t, "not from the cache", get(t, jobs, "bad", false), told["bad"]) // somebody may have retried it
			jobs.Reader = away{r}
			same(t, "with the database away", get(t, jobs, "ok", true), told["ok"])
			same(t, "with the database away", get(t, jobs, "bad", true), told["bad"])
		})
	}
}

// away is a reader whose database cannot be reached.
type away struct{ job.Reader }

func (away) Find(context.Context, idempotency.Tenant, idempotency.Key) (job.Receipt, error) {
	return job.Receipt{}, job.ErrUnavailable
}

// get is the answer about the job of a key.
func get(t *testing.T, jobs *job.Jobs, key idempotency.Key, fromCache bool) idempotency.Response {
	t.Helper()
	receipt, err := jobs.Get(t.Context(), "acme", key)
	if err != nil {
		t.Fatalf("get %s: %v", key, err)
	}
	if receipt.CachedAt.IsZero() == fromCache {
		t.Errorf("%s was read from the cache at %s, want that: %v", key, receipt.CachedAt, fromCache)
	}
	return api.Current(receipt.Job)
}

func same(t *testing.T, when string, got, want idempotency.Response) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s the answer was\n%s, and is\n%s", when, want.Body, got.Body)
	}
}
