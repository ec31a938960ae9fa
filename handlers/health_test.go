package handlers_test

import (
	"context"
	"errors"
	"testing"

	"github.com/sekali/sekali/handlers"
)

func TestReady(t *testing.T) {
	t.Parallel()
	works := func(context.Context) error { return nil }
	fails := func(context.Context) error { return errors.New("password of 10.0.0.7 is wrong") }
	hangs := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	tests := []struct {
		name   string
		checks []handlers.Check
		status int
		body   string
	}{
		{"nothing to check", nil, 200, `{"status":"ready","degraded":[],"failed":[]}`},
		{"ready", []handlers.Check{{"database", true, works}, {"redis", false, works}}, 200, `{"status":"ready","degraded":[],"failed":[]}`},
		{"redis down", []handlers.Check{{"database", true, works}, {"redis", false, fails}}, 200, `{"status":"degraded","degraded":["redis"],"failed":[]}`},
		{"database down", []handlers.Check{{"database", true, fails}, {"redis", false, fails}}, 503, `{"status":"unavailable","degraded":["redis"],"failed":["database"]}`},
		{"Failure_BR76 database hangs", []handlers.Check{{"database", true, hangs}}, 503, `{"status":"unavailable","degraded":[],"failed":["database"]}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			want{tt.status, map[string]string{"Content-Type": "application/json", "Cache-Control": "no-store"}, []string{tt.body}, []string{"password"}}.
				check(t, call{method: "GET", target: "/readyz"}.do(handlers.Ready(tt.checks)))
		})
	}
}

func TestLive(t *testing.T) {
	t.Parallel()
	want{200, nil, []string{`{"status":"ok"}`}, nil}.check(t, call{method: "GET", target: "/healthz"}.do(handlers.Handler(handlers.Live)))
}
