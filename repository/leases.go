package repository

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sekali/sekali/internal/batching"
	"github.com/sekali/sekali/job"
)

// Extend implements job.Leases.
func (r *Repository) Extend(ctx context.Context, held []job.Lease, lease time.Duration) (map[job.ID]job.Kept, error) {
	if len(held) == 0 {
		return map[job.ID]job.Kept{}, nil
	}
	var kept map[job.ID]job.Kept
	err := r.write(ctx, "extend", func(ctx context.Context) (err error) {
		kept, err = r.engine.extend(ctx, held, lease)
		return err
	})
	return kept, err
}

// Finish implements job.Leases.
func (r *Repository) Finish(ctx context.Context, endings []job.Ending) ([]job.Application, error) {
	if len(endings) == 0 {
		return nil, nil
	}
	encoded := make([]ending, len(endings))
	for i, e := range endings {
		if err := endable(e); err != nil {
			return nil, err
		}
		encoded[i] = r.encodeEnding(e)
	}
	switch {
	case !slices.ContainsFunc(encoded, ending.followed):
	case len(encoded) == 1:
		return oneOrMany(ctx, r, encoded, r.followed, r.finishFollowed)
	default:
		return r.finishMixed(ctx, encoded)
	}
	return oneOrMany(ctx, r, encoded, r.endings, r.finish)
}

func (r *Repository) finish(ctx context.Context, endings []ending, patient bool) ([]job.Application, error) {
	var applications []job.Application
	err := r.write(ctx, "finish", func(ctx context.Context) (err error) {
		applications, err = r.engine.finish(ctx, endings, patient)
		return err
	})
	return applications, err
}

// Requeue implements job.Leases.
func (r *Repository) Requeue(ctx context.Context, requeues []job.Requeue) ([]job.Application, error) {
	if len(requeues) == 0 {
		return nil, nil
	}
	encoded := make([]requeue, len(requeues))
	for i, q := range requeues {
		if q.Status.Finished() || !job.CanMove(job.Processing, q.Status) {
			return nil, unmovable(job.Processing, q.Status)
		}
		encoded[i] = requeue{Requeue: q, failure: encodeFailure(q.Failure)}
	}
	return oneOrMany(ctx, r, encoded, r.requeues, r.requeue)
}

func (r *Repository) requeue(ctx context.Context, requeues []requeue, patient bool) ([]job.Application, error) {
	var applications []job.Application
	err := r.write(ctx, "requeue", func(ctx context.Context) (err error) {
		applications, err = r.engine.requeue(ctx, requeues, patient)
		return err
	})
	return applications, err
}

// oneOrMany applies one decision together with those of other callers, and many as
// they come.
func oneOrMany[D decision](
	ctx context.Context, r *Repository, decisions []D, b *batching.Batcher[D, applied], apply applier[D],
) ([]job.Application, error) {
	if len(decisions) > 1 || r.heldJobs.has(decisions[0].settlement().lease.ID) {
		return apply(ctx, decisions, true)
	}
	a, err := b.Do(context.WithoutCancel(ctx), decisions[0])
	if err = cmp.Or(err, a.err); err != nil {
		return nil, err
	}
	return []job.Application{a.application}, nil
}

// endable refuses an ending that the transition table does not allow. A job that
// waits may go only where all that wait may.
func endable(e job.Ending) error {
	from := job.Processing
	if e.Waiting {
		from = job.Retrying
	}
	if e.Status.Finished() && job.CanMove(from, e.Status) {
		return nil
	}
	return unmovable(from, e.Status)
}

func unmovable(from, to job.Status) error {
	return fmt.Errorf("repository: a job that is %s cannot become %q in this way", from, to)
}

// Promote implements job.Leases.
func (r *Repository) Promote(ctx context.Context, limit int) (types []job.Type, next time.Duration, err error) {
	err = r.write(ctx, "promote", func(ctx context.Context) (err error) {
		types, next, err = r.engine.promote(ctx, limit)
		return err
	})
	return types, next, err
}

// Expired implements job.Leases. The jobs come without their payloads. On
// Postgres these are the jobs whose lease ended more than the takeover grace
// ago; a full page is followed by the next one at the next call, so that jobs
// that cannot be taken over do not hide the others (failures/queues 4). On
// SQLite they are the jobs of every other process, at once: one process has the
// file, so the others are dead, and its own jobs end with it. Only the leases of
// workers outside of the gateway end by time there too.
func (r *Repository) Expired(ctx context.Context, worker string, limit int) ([]job.Claimed, error) {
	rows, err := r.engine.expired(ctx, worker, limit)
	if err != nil {
		return nil, r.fail("expired", err)
	}
	claimed, err := each(rows, (*jobRow).claimed)
	return claimed, r.fail("expired", err)
}

// ending is a job.Ending in the form in which it is stored.
type ending struct {
	job.Ending
	failure   []byte
	hasResult bool
	body      []byte
	mediaType string
	hash      []byte
	// keepResult is how long the result is kept; 0: as long as the job.
	keepResult time.Duration
}

func (r *Repository) encodeEnding(e job.Ending) ending {
	encoded := ending{Ending: e, failure: encodeFailure(e.Failure), keepResult: r.retention.result}
	if e.Result != nil {
		encoded.hasResult = true
		encoded.body, encoded.mediaType, encoded.hash = e.Result.Body, e.Result.MediaType, e.Result.Hash()
	}
	return encoded
}

func (e ending) settlement() settlement {
	return settlement{
		lease: e.Lease, attempt: e.Attempt, status: e.Status, waiting: e.Waiting,
		yields: e.Status == job.Failed && !e.Waiting, ifExpired: e.IfExpired,
	}
}

// requeue is a job.Requeue in the form in which it is stored.
type requeue struct {
	job.Requeue
	failure []byte
}

func (q requeue) settlement() settlement {
	return settlement{lease: q.Lease, attempt: q.Attempt, status: q.Status, yields: true, ifExpired: q.IfExpired}
}

// settlement is what a decision is recognised by when one asks what became of it.
type settlement struct {
	lease   job.Lease
	attempt job.Outcome // how the attempt is said to have ended
	status  job.Status  // what the job became
	waiting bool        // as in job.Ending: there was no attempt
	// yields: the decision gives way to a cancellation.
	yields    bool
	ifExpired bool
}

// settledRow is what became of a settlement.
type settledRow struct {
	leaseRow
	Applied       bool `db:"applied"`
	CancelPending bool `db:"cancel_pending"`
}

func (r settledRow) application() job.Application {
	switch {
	case r.Applied:
		return job.Applied
	case r.CancelPending:
		return job.CancelPending
	}
	return job.Refused
}

// leaseRow is a lease that a statement has reached.
type leaseRow struct {
	ID    text  `db:"id"`
	Token int64 `db:"token"`
}

// keptRow is a lease that is still the holder's.
type keptRow struct {
	leaseRow
	Extended        bool `db:"extended"`
	CancelRequested bool `db:"cancel_requested"`
}

func (r keptRow) kept() job.Kept {
	return job.Kept{Extended: r.Extended, CancelRequested: r.CancelRequested}
}

func reached(rows []leaseRow) map[job.Lease]bool {
	leases := make(map[job.Lease]bool, len(rows))
	for _, row := range rows {
		leases[job.Lease{ID: job.ID(row.ID), Token: row.Token}] = true
	}
	return leases
}

// page is where the next page of expired leases begins: after the last full one.
type page struct {
	mu    sync.Mutex
	after job.ID
}

func (p *page) begin() (slot int64, id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	after := cmp.Or(p.after, lowestID)
	return int64(after.Slot()), string(after)
}

func (p *page) end(rows []jobRow, limit int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.after = "" // from the beginning
	if n := len(rows); n > 0 && n == limit {
		p.after = job.ID(rows[n-1].ID)
	}
}
