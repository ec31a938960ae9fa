package repository

import (
	"cmp"
	"context"
	"time"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

// defaultTombstone is how long a key that has expired can come back by mistake:
// from a queue that was stopped, a backup, a phone that was off.
const defaultTombstone = 90 * 24 * time.Hour

// retention is how long things are kept.
type retention struct {
	tombstone   time.Duration
	afterExpiry bool
	result      time.Duration
}

func (o Options) retention() retention {
	return retention{
		tombstone:   max(cmp.Or(o.Tombstone, defaultTombstone), 0),
		afterExpiry: o.AfterExpiry,
		result:      o.ResultRetention,
	}
}

// claimsKept is the least time for which a claim is kept that nobody ended: at
// least as long as an answer would have been, since until then the same key must
// not run again where that is not allowed. Crashes leave few of them.
const claimsKept = 366 * 24 * time.Hour

// claims is how long after its beginning a claim is kept that nobody ends, takes
// over or asks for.
func (r retention) claims() time.Duration { return max(r.tombstone, claimsKept) }

// purgeArgs are the parameters of a purge. A tombstone of no length makes room
// as soon as a record has expired.
func (r retention) purgeArgs(req idempotency.Request, afterExpiry bool) []any {
	tombstone := r.tombstone
	if afterExpiry {
		tombstone = 0
	}
	return append(keyArgs(req.Tenant, req.Key), tombstone.Milliseconds())
}

// Batches of the reaper. Each is one transaction of tens of milliseconds; SQLite
// has one writer for everybody.
const (
	reapMost       = 1000
	reapMostOnFile = 500
)

// Reap takes away what has outlived its time, at most limit of each kind, each
// kind in a transaction of its own: whatever stops it between two leaves
// everything in order. Any number of processes may call it at once; on Postgres
// they share the work and skip what is locked. Unfinished jobs and claims that
// somebody may still hold are never touched.
//
// A finished job goes in the transaction that makes its keys tombstones, those of
// operators' calls about it included, so that at no moment a key is free before
// its time; its attempts and events go with it. An operation that is done stays.
// What GET /executors does not show any more goes too, without being counted.
// On Postgres the partitions of the weeks to come are made, and empty ones of weeks
// that are over dropped, about once an hour.
func (r *Repository) Reap(ctx context.Context, limit int) (job.Reaped, error) {
	if limit <= 0 {
		return job.Reaped{}, nil
	}
	reaped, err := r.engine.reap(ctx, min(limit, reapMost), r.retention.tombstone)
	if err == nil {
		err = r.forget(ctx, min(limit, reapMost))
	}
	return reaped, r.fail("reap", err)
}

// reapStep takes away things of one kind.
type reapStep struct {
	count *int
	run   func(ctx context.Context, limit int) (int, error)
}

// reapAll runs the steps in order, until one fails.
func reapAll(ctx context.Context, limit int, more *bool, steps ...reapStep) error {
	for _, step := range steps {
		n, err := step.run(ctx, limit)
		if err != nil {
			return err
		}
		*step.count = n
		*more = *more || n >= limit
	}
	return nil
}
