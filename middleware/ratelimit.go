package middleware

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/idempotency"
)

// maxIdleTenants is how many tenants are remembered before those are forgotten
// that have not asked for so long that it makes no difference.
const maxIdleTenants = 1024

var units = map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour}

// Rate is how often something may happen: Count times in Per, all at once if
// need be.
type Rate struct {
	Count int
	Per   time.Duration
}

// ParseRate reads N/s, N/m or N/h.
func ParseRate(text string) (Rate, error) {
	number, unit, _ := strings.Cut(text, "/")
	count, err := strconv.Atoi(number)
	per, known := units[unit]
	if err != nil || count < 1 || !known {
		return Rate{}, fmt.Errorf("middleware: %q is no rate: write 100/s, 100/m or 100/h", text)
	}
	return Rate{Count: count, Per: per}, nil
}

// RateLimit refuses what a tenant asks beyond the rate, in this process, with
// 429 and the time after which it would pass (contract row 20). Nothing has been
// claimed by then. It stands inside whatever gives the request its tenant. The
// zero Rate is no limit.
func RateLimit(limit Rate) func(http.Handler) http.Handler {
	if limit.Count <= 0 {
		return func(next http.Handler) http.Handler { return next }
	}
	tenants := &rates{limit: limit, of: map[idempotency.Tenant]*rate.Limiter{}}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if wait := tenants.take(idempotency.TenantOf(r.Context())); wait > 0 {
				api.WriteError(w, r, &api.RateLimitedError{
					Detail:  fmt.Sprintf("At most %d requests in %s are served here.", limit.Count, limit.Per),
					RetryIn: wait,
				})
				return
			}
			next.ServeHTTP(w, r)
		})
	}
}

// rates are the limiters of the tenants that have asked lately.
type rates struct {
	limit Rate
	mu    sync.Mutex
	of    map[idempotency.Tenant]*rate.Limiter
}

// take lets one request pass, or returns how long it has to wait.
func (l *rates) take(t idempotency.Tenant) (wait time.Duration) {
	each := rate.Limit(float64(l.limit.Count) / l.limit.Per.Seconds())
	l.mu.Lock()
	defer l.mu.Unlock()
	limiter := l.of[t]
	if limiter == nil {
		l.forgetIdle()
		limiter = rate.NewLimiter(each, l.limit.Count)
		l.of[t] = limiter
	}
	now := time.Now() //nolint:forbidigo // one reading for all three: what is given back is what was taken
	reserved := limiter.ReserveN(now, 1)
	if wait = reserved.DelayFrom(now); wait > 0 {
		reserved.CancelAt(now)
	}
	return wait
}

// forgetIdle drops the limiters that are full again: a new one is the same.
func (l *rates) forgetIdle() {
	if len(l.of) < maxIdleTenants {
		return
	}
	for t, limiter := range l.of {
		if limiter.Tokens() >= float64(l.limit.Count) {
			delete(l.of, t)
		}
	}
}
