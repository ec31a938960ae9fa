package testenv

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// Variables that name running servers, to be used instead of private ones. The
// Postgres user must be allowed to create databases.
const (
	PostgresVariable = "SEKALI_TEST_POSTGRES_URL"
	RedisVariable    = "SEKALI_TEST_REDIS_URL"
)

// cleanupTimeout bounds what is done after a test's own context has ended: a
// drop of one database takes milliseconds, and seconds on a machine under load.
const cleanupTimeout = 30 * time.Second

var (
	sharedPostgres = sync.OnceValues(func() (*PostgresServer, error) { return StartPostgres() })
	sharedRedis    = sync.OnceValues(StartRedis)
)

// Postgres returns the URL of a new, empty database of this test alone, which is
// dropped when the test ends, with whatever is still connected to it.
func Postgres(t testing.TB) string {
	t.Helper()
	server := os.Getenv(PostgresVariable)
	if server == "" {
		s, err := sharedPostgres()
		if err != nil {
			t.Fatal(err)
		}
		server = s.URL()
	}
	return newDatabase(t, server)
}

// Redis returns the URL of a Redis that other tests use too: choose keys that no
// other test uses, and flush nothing. StartRedis gives one of your own.
func Redis(t testing.TB) string {
	t.Helper()
	if url := os.Getenv(RedisVariable); url != "" {
		return url
	}
	s, err := sharedRedis()
	if err != nil {
		t.Fatal(err)
	}
	return s.URL()
}

// OwnRedis starts a Redis of this test alone, which ends with it.
func OwnRedis(t testing.TB) *RedisServer {
	t.Helper()
	s, err := StartRedis()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// SQLite returns the URL of a database file of this test alone, not created yet,
// which is removed when the test ends.
func SQLite(t testing.TB) string {
	t.Helper()
	return "sqlite:" + filepath.Join(t.TempDir(), "sekali.db")
}

// Eventually checks until the check holds, and fails the test at the end of the
// time: 0 means half a minute. Use it only for what gives no signal to wait for.
func Eventually(t testing.TB, within time.Duration, what string, check func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), cmp.Or(within, 30*time.Second))
	defer cancel()
	if err := poll(ctx, check); err != nil {
		t.Fatalf("not in time: %s", what)
	}
}

// poll calls check until it holds or ctx ends.
func poll(ctx context.Context, check func() bool) error {
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for !check() {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C:
		}
	}
	return nil
}
