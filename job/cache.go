package job

import (
	"context"
	"time"

	"github.com/sekali/sekali/idempotency"
)

// StatusCache knows how jobs stand without asking the database. It is written
// after the commit, never goes back to an older version of a job, and may forget
// anything: it only makes answers quicker, and possible while the database is
// away.
type StatusCache interface {
	// Put tells how a job stands. It never blocks. Of a finished job that was read
	// whole the cache keeps all that Find needs; of any other that it has moved.
	Put(j Job)
	// Find returns a finished job that the cache knows whole.
	Find(ctx context.Context, tenant idempotency.Tenant, key idempotency.Key) (Cached, bool)
}

// Cached is a finished job as the cache knows it.
type Cached struct {
	Job    Job
	ReadAt time.Time // when it was read from the database
}

// Facts remembers what the keys of succeeded jobs were accepted for, which cannot
// change any more before their retention is over: such a key's repetition is
// answered without the database. It may forget anything.
type Facts interface {
	// Put remembers the receipt of a succeeded job's own key.
	Put(r Receipt)
	// Find returns the receipt, which is brief.
	Find(tenant idempotency.Tenant, key idempotency.Key) (Receipt, bool)
}

func (c Cached) receipt(tenant idempotency.Tenant, key idempotency.Key) Receipt {
	r := Receipt{Job: c.Job, CachedAt: c.ReadAt}
	r.Record.Tenant, r.Record.Key, r.Record.ExpiresAt = tenant, key, c.Job.ExpiresAt
	r.Record.State = idempotency.Completed
	return r
}
