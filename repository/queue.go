package repository

import (
	"context"
	"sync"

	"github.com/sekali/sekali/job"
)

// Load implements job.Leases.
func (r *Repository) Load(ctx context.Context, id job.ID) (job.Claimed, error) {
	rows, err := collect[jobRow](ctx, r.engine.reads(), loadSQL, int64(id.Slot()), string(id))
	if err == nil && len(rows) == 0 {
		err = job.ErrNotFound
	}
	if err != nil {
		return job.Claimed{}, r.fail("load", err)
	}
	claimed, err := rows[0].claimed()
	return claimed, r.fail("load", err)
}

const loadSQL = `
select id, tenant, key, type, state, payload, business_key, operation_key, callback_url, priority, run_at, deadline, timeout_ms,
  max_attempts, earlier_attempts, attempt, generation, version, token, worker_id,
  locked_until, cancel_requested_at, unknown_asks, last_error, created_at, started_at, claimed_at
from jobs
where slot = $1 and id = $2`

// Overdue implements job.Leases.
func (r *Repository) Overdue(ctx context.Context, limit int) ([]job.Claimed, error) {
	rows, err := r.engine.overdue(ctx, limit)
	if err != nil {
		return nil, r.fail("overdue", err)
	}
	claimed, err := each(rows, (*jobRow).claimed)
	return claimed, r.fail("overdue", err)
}

// RequestCancel implements job.Leases.
func (r *Repository) RequestCancel(ctx context.Context, lease job.Lease) (ours bool, err error) {
	err = r.write(ctx, "request a cancellation", func(ctx context.Context) (err error) {
		ours, err = r.engine.requestCancel(ctx, lease)
		return err
	})
	return ours, err
}

// Bounds of one Unblock. It costs a look into two indexes for each business key
// that jobs wait for; how many wait for one makes no difference.
const (
	unblockKeys  = 250 // in one statement, which takes some milliseconds
	unblockPages = 40  // in one call; the next call goes on from there
	// unblockWaits is for how many keys a call waits that somebody holds in an open
	// transaction, each time as long as a lock timeout.
	unblockWaits = 3
)

// Unblock implements job.Leases. It goes round the business keys that jobs wait
// for, over as many calls as that takes: whatever happens at one key, the others
// get their turn.
func (r *Repository) Unblock(ctx context.Context, limit int) ([]job.Type, error) {
	var released []typeRow
	for range unblockPages {
		if len(released) >= limit {
			break
		}
		rows, done, err := r.unblock(ctx, limit-len(released))
		released = append(released, rows...)
		if err != nil {
			return typesOf(released), r.fail("unblock", err)
		}
		if done {
			break
		}
	}
	return typesOf(released), nil
}

// unblock looks at one page of keys. done reports that it was all of them.
func (r *Repository) unblock(ctx context.Context, limit int) (released []typeRow, done bool, err error) {
	after := r.round.place()
	keys, err := r.engine.queues(ctx, after, unblockKeys)
	if err != nil {
		return nil, false, err
	}
	first, next, full := freeKeys(keys, limit)
	released, tried, err := r.release(ctx, first)
	if tried > 0 && tried < len(first) {
		next = first[tried-1]
	}
	r.round.move(next)
	return released, after == (queueRow{}) && !full, err
}

// freeKeys picks at most limit keys that nobody holds. next is where the page
// after this one begins, and full tells that there may be one.
func freeKeys(keys []queueRow, limit int) (first []queueRow, next queueRow, full bool) {
	for _, k := range keys {
		if k.Place == unblockKeys {
			next, full = k, true
		}
		if k.Free {
			first = append(first, k)
		}
	}
	if len(first) > limit {
		first = first[:limit]
		return first, first[limit-1], true
	}
	return first, next, full
}

// release lets the jobs go, all at once, or one by one if somebody took one of
// the keys at the same time: that must not keep the others (failures/queues 5).
// tried is how many were tried.
func (r *Repository) release(ctx context.Context, first []queueRow) (released []typeRow, tried int, err error) {
	if len(first) == 0 {
		return nil, 0, nil
	}
	err = r.write(ctx, "let jobs go", func(ctx context.Context) (err error) {
		released, err = r.engine.release(ctx, first)
		return err
	})
	if !r.taken(err) {
		return released, len(first), err
	}
	released = nil
	waits := 0
	for i := range first {
		rows, err := r.engine.release(context.WithoutCancel(ctx), first[i:i+1])
		if err != nil && !r.taken(err) {
			return released, i + 1, err
		}
		released = append(released, rows...)
		if r.engine.classify(err) == busy {
			waits++
		}
		if waits == unblockWaits {
			return released, i + 1, nil
		}
	}
	return released, len(first), nil
}

// taken reports that somebody else has a business key, or is about to.
func (r *Repository) taken(err error) bool {
	if err == nil {
		return false
	}
	f := r.engine.classify(err)
	return f == unique || f == busy || f == conflict
}

// queueRow is a business key that jobs wait for, and the first one of them.
type queueRow struct {
	Slot        int64 `db:"slot"`
	Tenant      text  `db:"tenant"`
	Type        text  `db:"type"`
	BusinessKey text  `db:"business_key"`
	ID          text  `db:"id"`
	Place       int   `db:"place"` // in the page, from 1
	Free        bool  `db:"free"`  // no unfinished job holds the key
}

// round is how far the walk over the business keys has come.
type round struct {
	mu    sync.Mutex
	after queueRow // zero: at the beginning
}

func (r *round) place() queueRow {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.after
}

func (r *round) move(to queueRow) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.after = to
}
