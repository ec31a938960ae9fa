package lock_test

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sekali/sekali/internal/testenv"
	"github.com/sekali/sekali/lock"
)

// BenchmarkRedis takes and releases locks, each caller its own, and tells the
// processor time of both sides.
func BenchmarkRedis(b *testing.B) {
	options, err := redis.ParseURL(testenv.OwnRedis(b).URL())
	if err != nil {
		b.Fatal(err)
	}
	options.ContextTimeoutEnabled, options.PoolSize, options.PipelinePoolSize = true, poolSize, -1
	client := redis.NewClient(options)
	b.Cleanup(func() { _ = client.Close() })
	l, err := lock.NewRedis(lock.RedisConfig{Client: client, Clock: time.Now, Timeout: patience})
	if err != nil {
		b.Fatal(err)
	}
	for _, callers := range []int{1, 64, 512} {
		b.Run(fmt.Sprint(callers, "callers"), func(b *testing.B) {
			b.ReportAllocs()
			ours, theirs := processorTime(b), processorTimeOf(b, client)
			b.ResetTimer()
			takeAndRelease(b, l, callers)
			b.StopTimer()
			perCall := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / float64(b.N) }
			b.ReportMetric(perCall(processorTime(b)-ours), "cpu-ns/op")
			b.ReportMetric(perCall(processorTimeOf(b, client)-theirs), "redis-cpu-ns/op")
		})
	}
}

func takeAndRelease(b *testing.B, l *lock.Redis, callers int) {
	b.Helper()
	var next atomic.Int64
	var wg sync.WaitGroup
	for n := range callers {
		wg.Go(func() {
			for key := fmt.Sprint(n); next.Add(1) <= int64(b.N); {
				held, err := l.Acquire(b.Context(), key, time.Minute)
				if err != nil {
					b.Error(err)
					return
				}
				_ = held.Release(b.Context())
			}
		})
	}
	wg.Wait()
}

func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func processorTimeOf(b *testing.B, client *redis.Client) (sum time.Duration) {
	b.Helper()
	for line := range strings.Lines(client.Info(b.Context(), "cpu").Val()) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name != "used_cpu_sys" && name != "used_cpu_user" {
			continue
		}
		seconds, err := strconv.ParseFloat(value, 64)
		if err != nil {
			b.Fatal(err)
		}
		sum += time.Duration(seconds * float64(time.Second))
	}
	return sum
}
