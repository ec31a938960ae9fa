package gateway_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sekali/sekali/gateway"
	"github.com/sekali/sekali/internal/telemetry"
	"github.com/sekali/sekali/internal/testenv"
	"github.com/sekali/sekali/job"
	"github.com/sekali/sekali/lock"
)

// wall is the clock of the machine as the database has it.
type wall struct{}

func (wall) Now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

func useRedis(t *testing.T, url string) (gateway.RedisUsers, *telemetry.Metrics) {
	t.Helper()
	m := telemetry.NewMetrics(prometheus.NewRegistry(), nil)
	users, err := gateway.UseRedis(t.Context(), url, m, wall{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(users.Close)
	return users, m
}

// calls is how often calls for locks ended so.
func calls(m *telemetry.Metrics, call, result string) float64 {
	return testutil.ToFloat64(m.LockCalls.WithLabelValues(call, result))
}

func degraded(m *telemetry.Metrics) bool {
	return testutil.ToFloat64(m.Degraded.WithLabelValues(telemetry.PartRedis)) == 1
}

func TestRedis_WithoutOneLocksAreOfTheProcessAndNothingIsCached(t *testing.T) {
	t.Parallel()
	users, m := useRedis(t, "")
	if users.Cache != nil {
		t.Error("there is a cache")
	}
	countsCalls(t, users.Locker, m)
}

func TestRedis_CountsCallsForLocks(t *testing.T) {
	t.Parallel()
	users, m := useRedis(t, testenv.OwnRedis(t).URL())
	countsCalls(t, users.Locker, m)
	testenv.Eventually(t, 0, "it can be written to", func() bool { return users.Check(t.Context()) == nil })
	if degraded(m) {
		t.Error("degraded")
	}
}

func countsCalls(t *testing.T, locker lock.Locker, m *telemetry.Metrics) {
	t.Helper()
	held, err := locker.Acquire(t.Context(), "k", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := locker.Acquire(t.Context(), "k", time.Minute); !errors.Is(err, lock.ErrHeld) {
		t.Errorf("acquire: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := locker.Acquire(ended, "k", time.Minute); err == nil {
		t.Error("acquired for a caller who has gone")
	}
	for _, call := range []func() error{
		func() error { return held.Refresh(t.Context(), time.Minute) },
		func() error { return held.Release(t.Context()) },
	} {
		if err := call(); err != nil {
			t.Error(err)
		}
	}
	if err := held.Refresh(t.Context(), time.Minute); !errors.Is(err, lock.ErrLost) {
		t.Errorf("refresh: %v", err)
	}
	for _, c := range [][2]string{
		{telemetry.LockAcquire, telemetry.LockDone},
		{telemetry.LockAcquire, telemetry.LockHeld},
		{telemetry.LockAcquire, telemetry.LockGivenUp},
		{telemetry.LockRefresh, telemetry.LockDone},
		{telemetry.LockRefresh, telemetry.LockLost},
		{telemetry.LockRelease, telemetry.LockDone},
	} {
		if n := calls(m, c[0], c[1]); n != 1 {
			t.Errorf("%s %s: counted %v", c[0], c[1], n)
		}
	}
}

func TestRedis_CountsWhatTheCacheFinds(t *testing.T) {
	t.Parallel()
	users, m := useRedis(t, testenv.OwnRedis(t).URL())
	now := wall{}.Now()
	users.Cache.Put(job.Job{
		ID: job.NewID(now, 1), Tenant: "acme", Key: "k", Type: "echo", Status: job.Succeeded, Version: 3, Payload: []byte("null"),
		CreatedAt: now, RunAt: now, FinishedAt: now, ExpiresAt: now.Add(time.Hour),
	})
	testenv.Eventually(t, 0, "it is stored", func() bool { return testutil.ToFloat64(m.CacheWrites.WithLabelValues("stored")) == 1 })
	_, known := users.Cache.Find(t.Context(), "acme", "k")
	_, other := users.Cache.Find(t.Context(), "acme", "other")
	if !known || other {
		t.Errorf("found %v and %v", known, other)
	}
	for _, result := range []string{"hit", "miss"} {
		if n := testutil.ToFloat64(m.CacheFinds.WithLabelValues(result)); n != 1 {
			t.Errorf("%s: counted %v", result, n)
		}
	}
}

// It is degraded as soon as a call fails, and not only when it is checked.
func TestContract_Row49_AFailedCallShowsAtOnce(t *testing.T) {
	t.Parallel()
	for name, call := range map[string]func(context.Context, gateway.RedisUsers){
		"lock":  func(ctx context.Context, u gateway.RedisUsers) { _, _ = u.Locker.Acquire(ctx, "k", time.Minute) },
		"cache": func(ctx context.Context, u gateway.RedisUsers) { u.Cache.Find(ctx, "acme", "k") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := testenv.OwnRedis(t)
			users, m := useRedis(t, s.URL())
			if err := s.Kill(); err != nil {
				t.Fatal(err)
			}
			if degraded(m) {
				t.Fatal("degraded before anything has failed")
			}
			call(t.Context(), users)
			if !degraded(m) || users.Check(t.Context()) == nil {
				t.Error("a failed call does not show")
			}
		})
	}
}
