package middleware_test

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/middleware"
)

func TestParseRate(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]middleware.Rate{
		"100/s": {Count: 100, Per: time.Second}, "1/m": {Count: 1, Per: time.Minute}, "6000/h": {Count: 6000, Per: time.Hour},
	} {
		if got, err := middleware.ParseRate(text); got != want || err != nil {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "100", "100/", "/s", "0/s", "-1/s", "1.5/s", "1/d", "1/s/s", " 1/s"} {
		if _, err := middleware.ParseRate(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}

func TestContract_Row20_RateLimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var runs atomic.Int64
		inner := middleware.Key(middleware.KeyPolicy{Required: true})(middleware.Once(newStore(), middleware.Options{})(counted(&runs, created)))
		h := middleware.RateLimit(middleware.Rate{Count: 2, Per: 10 * time.Second})(inner)
		as := func(tenant idempotency.Tenant, key string) *http.Request {
			r := keyedAs(key, "{}")
			return r.WithContext(idempotency.WithTenant(r.Context(), tenant))
		}
		answers(t, send(h, as("a", "1")), 201)
		answers(t, send(h, as("a", "2")), 201)
		w := send(h, as("a", "3"))
		answers(t, w, 429, "Retry-After", "5", "Error-Source", "gateway", "Cache-Control", "no-store")
		if p := problem(t, w); p.Code != "rate-limited" || !p.Retryable || p.RetryAfterMS == 0 {
			t.Errorf("problem is %+v", p)
		}
		answers(t, send(h, as("b", "1b")), 201) // another tenant
		asleep(5 * time.Second)
		answers(t, send(h, as("a", "3")), 201, "Idempotent-Replayed", "false")
		answers(t, send(h, as("a", "4")), 429)
		if runs.Load() != 4 {
			t.Errorf("%d runs", runs.Load())
		}
	})
}

func TestRateLimit_MemoryStaysBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := middleware.NewTenants(middleware.Rate{Count: 1, Per: time.Second})
		for i := range 5000 {
			tenant := idempotency.Tenant(fmt.Sprint(i))
			if !l.Take(tenant) || l.Take(tenant) {
				t.Fatalf("tenant %d: the limit does not hold", i) // forgetting others is no gift
			}
			asleep(10 * time.Millisecond)
		}
		if l.Size() > 1200 {
			t.Errorf("%d tenants are remembered", l.Size())
		}
	})
}

func TestRateLimit_None(t *testing.T) {
	t.Parallel()
	h := middleware.RateLimit(middleware.Rate{})(http.HandlerFunc(nothing))
	for range 1000 {
		answers(t, send(h, keyedAs("k", "{}")), 200)
	}
}
