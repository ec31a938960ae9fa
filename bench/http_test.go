package bench_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sekali/sekali/gateway"
	"github.com/sekali/sekali/internal/testenv"
)

// BenchmarkHTTP reports requests per second over HTTP with parallel clients:
// a first submission, its replay, a status, and /healthz as the floor that the
// server itself sets. Compare the lines of one engine with each other.
func BenchmarkHTTP(b *testing.B) {
	for engine, database := range map[string]func(testing.TB) string{"SQLite": testenv.SQLite, "Postgres": testenv.Postgres} {
		b.Run(engine, func(b *testing.B) {
			url := serve(b, database(b))
			post := func(key string) *http.Request { return submission(b, url, key) }
			do(b, post("replayed"))
			var keys atomic.Int64
			b.Run("healthz", func(b *testing.B) { measure(b, func() *http.Request { return get(b, url+"/healthz") }) })
			b.Run("submit", func(b *testing.B) {
				measure(b, func() *http.Request { return post(fmt.Sprintf("key-%d", keys.Add(1))) })
			})
			b.Run("replay", func(b *testing.B) { measure(b, func() *http.Request { return post("replayed") }) })
			b.Run("status", func(b *testing.B) { measure(b, func() *http.Request { return get(b, url+"/jobs/replayed") }) })
		})
	}
}

// serve runs a gateway that only accepts and returns its address.
func serve(b *testing.B, database string) string {
	b.Helper()
	cfg := gateway.Default()
	cfg.Listen, cfg.DatabaseURL, cfg.Dispatcher.Slots = "127.0.0.1:0", database, 0
	g, err := gateway.New(cfg, gateway.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	go func() { ended <- g.Run(ctx) }()
	b.Cleanup(func() {
		stop()
		<-ended
	})
	select {
	case <-g.Serving():
	case err := <-ended:
		b.Fatal(err)
	case <-time.After(time.Minute):
		b.Fatal("the gateway does not serve")
	}
	return g.URL()
}

var client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}

// measure sends requests from 32 clients on each core.
func measure(b *testing.B, next func() *http.Request) {
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			do(b, next())
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "requests/s")
}

func do(b *testing.B, r *http.Request) {
	response, err := client.Do(r)
	if err != nil {
		b.Error(err)
		return
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, response.Body)
	if response.StatusCode >= http.StatusBadRequest {
		b.Errorf("status %d", response.StatusCode)
	}
}

func submission(b *testing.B, url, key string) *http.Request {
	body := `{"type":"echo","payload":{"order_id":"` + key + `","total":4200,"note":"` + strings.Repeat("x", 200) + `"}}`
	r, err := http.NewRequestWithContext(b.Context(), http.MethodPost, url+"/jobs", strings.NewReader(body))
	if err != nil {
		b.Error(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", key)
	return r
}

func get(b *testing.B, url string) *http.Request {
	r, err := http.NewRequestWithContext(b.Context(), http.MethodGet, url, nil)
	if err != nil {
		b.Error(err)
	}
	return r
}
