package job

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"

	"github.com/sekali/sekali/idempotency"
)

// ErrQuota reports a tenant that has as many unfinished jobs as it may.
var ErrQuota = errors.New("job: tenant has too many unfinished jobs")

const (
	// quotaAge is how long a count is used before the database is asked again.
	quotaAge = time.Second
	// quotaTenants bounds the memory for counts.
	quotaTenants = 10_000
)

// Quota bounds how many unfinished jobs a tenant has. It is approximate: each
// process counts once a second and adds what it accepts in between, so that
// several of them together may let through what they accept within a second.
// A nil Quota has room for everything.
type Quota struct {
	limit int
	clock Clock
	count func(ctx context.Context, tenant idempotency.Tenant, atMost int) (int, error)

	mu     sync.Mutex
	counts map[idempotency.Tenant]pending
}

type pending struct {
	jobs int
	at   time.Time
}

// NewQuota makes a quota of limit jobs; none if limit is 0. Submissions that
// arrive together are measured against the same count, so the limit can be
// exceeded by as many as those. count tells how
// many unfinished jobs a tenant has, and need not count beyond atMost.
func NewQuota(limit int, clock Clock, count func(ctx context.Context, tenant idempotency.Tenant, atMost int) (int, error)) *Quota {
	if limit <= 0 {
		return nil
	}
	return &Quota{limit: limit, clock: clock, count: count, counts: map[idempotency.Tenant]pending{}}
}

// room returns how many more jobs the tenant may have.
func (q *Quota) room(ctx context.Context, tenant idempotency.Tenant) (int, error) {
	if q == nil {
		return math.MaxInt, nil
	}
	now := q.clock.Now()
	q.mu.Lock()
	known, ok := q.counts[tenant]
	q.mu.Unlock()
	if ok && now.Sub(known.at) < quotaAge {
		return max(0, q.limit-known.jobs), nil
	}
	jobs, err := q.count(ctx, tenant, q.limit)
	if err != nil {
		return 0, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.counts) >= quotaTenants {
		clear(q.counts)
	}
	q.counts[tenant] = pending{jobs: jobs, at: now}
	return max(0, q.limit-jobs), nil
}

// add counts a job that was accepted just now. Duplicates are none: they must
// not use up what new jobs need.
func (q *Quota) add(tenant idempotency.Tenant) {
	if q == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	known := q.counts[tenant]
	known.jobs++
	q.counts[tenant] = known
}
