package repository

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

// Accept implements job.Acceptor. Callers that come together share a statement
// and its commit. One that leaves before its statement has begun makes room; after
// that it goes on, because what was begun must have a known end.
func (r *Repository) Accept(ctx context.Context, s job.Submission) (job.Receipt, error) {
	leave, _, ended, err := r.accepting.after(ctx, s.Request)
	defer leave()
	switch {
	case err != nil:
		return job.Receipt{}, r.fail("accept", err)
	case !ended:
		return job.Receipt{}, r.fail("accept", &idempotency.InProgressError{})
	}
	if r.heldKeys.has(keyOf(s.Request)) {
		a := answerFor(&s)
		alone := r.acceptAlone(context.WithoutCancel(ctx), &a)
		return a.receipt, alone.err
	}
	a, err := r.accepts.Do(ctx, &s)
	if err != nil {
		return job.Receipt{}, r.fail("accept", waited(err))
	}
	return a.answer.receipt, a.err
}

// AcceptAll implements job.Bulk. Like Accept it goes on when the caller has left.
func (r *Repository) AcceptAll(ctx context.Context, s []job.Submission) ([]job.Receipt, []error) {
	ctx = context.WithoutCancel(ctx)
	receipts, errs := make([]job.Receipt, len(s)), make([]error, len(s))
	answers := answersFor(s)
	r.engine.acceptAll(ctx, r, answers)
	var alone sync.WaitGroup
	for i := range answers {
		a := &answers[i]
		if !a.locked {
			receipts[i], errs[i] = a.receipt, r.fail("accept", a.err)
			continue
		}
		alone.Go(func() {
			got := r.acceptAlone(ctx, a)
			receipts[i], errs[i] = got.answer.receipt, got.err
		})
	}
	alone.Wait()
	return receipts, errs
}

// Find implements job.Reader. Callers that come together share a statement.
func (r *Repository) Find(ctx context.Context, tenant idempotency.Tenant, key idempotency.Key) (job.Receipt, error) {
	receipt, err := r.find(ctx, tenant, key)
	return receipt, r.fail("find", err)
}

// List implements job.Reader.
func (r *Repository) List(ctx context.Context, f job.Filter) ([]job.Job, error) {
	jobs, err := r.list(ctx, f)
	return jobs, r.fail("list", err)
}

// Versions implements job.Reader.
func (r *Repository) Versions(ctx context.Context, ids []job.ID) (map[job.ID]job.Version, error) {
	if len(ids) == 0 {
		return map[job.ID]job.Version{}, nil
	}
	rows, err := r.engine.versions(ctx, ids)
	return versionsOf(rows), r.fail("versions", err)
}

// answer is what becomes of one submission.
type answer struct {
	s       *job.Submission
	slot    job.Slot // of the key
	receipt job.Receipt
	err     error
	// sent reports that a statement with the submission was left unanswered, so
	// that from then on no error may say that nothing was written.
	sent bool
	// locked: somebody holds the key, or its business key, for longer than its
	// neighbours should wait. It has no answer yet.
	locked bool
}

func answersFor(s []job.Submission) []answer {
	answers := make([]answer, len(s))
	for i := range s {
		answers[i] = answerFor(&s[i])
	}
	return answers
}

func answerFor(s *job.Submission) answer {
	return answer{s: s, slot: job.KeySlot(s.Request.Tenant, s.Request.Key)}
}

// fresh answers a submission that was accepted just now.
func (a *answer) fresh() {
	record := idempotency.Record{Request: a.s.Request, State: idempotency.Completed, Response: a.s.Response, Fresh: true}
	a.receipt = job.Receipt{Record: record, Job: a.s.Job}
}

// found answers with what the key stands for. If that is the submission's own
// job, an earlier statement whose answer was lost had accepted it.
func (a *answer) found(receipt job.Receipt) {
	receipt.Record.Fresh = !receipt.Alias && receipt.Job.ID == a.s.Job.ID
	a.receipt = receipt
}

func (a *answer) fail(err error) {
	if a.sent {
		err = fmt.Errorf("%w: %w", job.ErrOutcomeUnknown, err)
	}
	a.err = err
}

// waveSize bounds what one statement writes, so that it stays far within its
// timeout also on a database that is slow, and holds its locks for a moment.
const waveSize = 250

// waves splits a batch so that no two of a wave have the same business key: the
// one that came second must see the first one as its holder.
func waves(answers []answer) [][]*answer {
	type business struct {
		tenant idempotency.Tenant
		t      job.Type
		key    string
	}
	seen := map[business]int{}
	var out [][]*answer
	for i := range answers {
		a, wave := &answers[i], 0
		j := a.s.Job
		k := business{j.Tenant, j.Type, j.BusinessKey}
		if j.BusinessKey != "" {
			wave = seen[k] // after the one before
		}
		for wave < len(out) && len(out[wave]) == waveSize {
			wave++
		}
		seen[k] = wave + 1
		if wave == len(out) {
			out = append(out, nil)
		}
		out[wave] = append(out[wave], a)
	}
	for _, wave := range out {
		slices.SortStableFunc(wave, inLockOrder)
	}
	return out
}

// inLockOrder compares the keys of records: batches that insert the same keys in
// different orders would wait for each other in a circle, "do nothing" or not.
func inLockOrder(a, b *answer) int {
	x, y := a.s.Request, b.s.Request
	return cmp.Or(cmp.Compare(a.slot, b.slot), cmp.Compare(x.Tenant, y.Tenant), cmp.Compare(x.Key, y.Key))
}

// standing returns what the key stands for. A record that counts for nothing any
// more is deleted instead (purged): the next insert decides who has the key.
func (r *Repository) standing(ctx context.Context, req idempotency.Request) (receipt job.Receipt, purged bool, err error) {
	row, err := r.record(ctx, req.Tenant, req.Key)
	if err != nil {
		return job.Receipt{}, false, err
	}
	return r.standingOf(ctx, req, row)
}

// standingOf is standing, with the record that was read.
func (r *Repository) standingOf(ctx context.Context, req idempotency.Request, row *recordRow) (receipt job.Receipt, purged bool, err error) {
	if row.replaceable(r.retention, r.retention.afterExpiry) {
		_, err := r.engine.exec(ctx, r.engine.records().purge, r.retention.purgeArgs(req, r.retention.afterExpiry)...)
		return job.Receipt{}, true, err
	}
	receipt, err = row.receipt(req.Tenant, req.Key)
	return receipt, false, err
}

// acceptTries is how often an accept begins anew because what stood in its way
// was gone when it looked: the record of its key, or the holder of its business
// key. Each time somebody else has made progress.
const acceptTries = 4

var errVanished = errors.New("the record of the key kept appearing and vanishing")

// headStart is how much earlier one step of priority makes a job.
const headStart = 10 * time.Second

// claimAt is when a job's turn to be claimed comes: its time, shifted by its
// priority, so that a job of low priority waits, and none waits for ever.
func claimAt(j job.Job) time.Time { return j.RunAt.Add(time.Duration(j.Priority) * headStart) }
