package repository

import (
	"context"
	"errors"
	"fmt"

	"github.com/sekali/sekali/job"
)

// followStatements accept one job that follows another.
var followStatements = []string{followRecordSQL, holdersSQL, followJobSQL}

const (
	// followRecordSQL relies on the primary key of idempotency_keys.
	followRecordSQL = `
insert into idempotency_keys (slot, tenant, key, fingerprint, state, job_slot, job_id, alias,
  response_status, response_headers, response_body, created_at)
values ($1, $2, $3, $4, 'completed', $5, $6, false, $7, $8, $9, $10)
on conflict (slot, tenant, key) do nothing`

	followJobSQL = `
insert into jobs (slot, id, tenant, key, key_slot, type, state, blocked, payload, business_key, operation_key, callback_url,
  priority, run_at, claim_at, deadline, timeout_ms, max_attempts, created_at)
values ($1, $2, $3, $4, $5, $6, 'pending', $7, $8, nullif($9, ''), nullif($10, ''), nullif($11, ''), $12, $13, $14, $15, $16, $17, $18)`
)

func (e ending) followed() bool { return len(e.Follow) > 0 }

// weight is what the ending brings to a statement, in bytes.
func (e ending) weight() int {
	n := len(e.body)
	for _, f := range e.Follow {
		n += len(f.Job.Payload)
	}
	return n
}

// finishMixed ends the jobs that nothing follows as one batch, and the others in
// transactions with what follows them. Those that could not be ended are Refused, and
// the error says why; they keep none of the others from it.
func (r *Repository) finishMixed(ctx context.Context, endings []ending) ([]job.Application, error) {
	var plain, followed []ending
	for _, e := range endings {
		if e.followed() {
			followed = append(followed, e)
		} else {
			plain = append(plain, e)
		}
	}
	found := make(map[job.Lease]job.Application, len(endings))
	note := func(some []ending, applications []job.Application) {
		for i, application := range applications {
			found[some[i].Lease] = application
		}
	}
	var failed error
	if len(plain) > 0 {
		ended, err := r.finish(ctx, plain, true)
		note(plain, ended)
		failed = err
	}
	for _, some := range byWeight(followed) {
		ended, err := r.finishApart(ctx, some)
		note(some, ended)
		failed = errors.Join(failed, err)
	}
	applications := make([]job.Application, len(endings))
	for i, e := range endings {
		applications[i] = found[e.Lease]
	}
	return applications, failed
}

// byWeight splits endings so that no part is too much for one transaction.
func byWeight(endings []ending) [][]ending {
	var parts [][]ending
	weight := 0
	for _, e := range endings {
		weight += e.weight()
		last := len(parts) - 1
		if last < 0 || len(parts[last]) == waveSize || weight > togetherWeight {
			parts, weight = append(parts, nil), e.weight()
			last++
		}
		parts[last] = append(parts[last], e)
	}
	return parts
}

// finishApart ends jobs together, or one by one if something may be wrong with one
// of them. That one is Refused, with an error.
func (r *Repository) finishApart(ctx context.Context, endings []ending) ([]job.Application, error) {
	applications, err := r.finishFollowed(ctx, endings, true)
	if err == nil || len(endings) == 1 || !r.concernsOne(err) {
		return applications, err
	}
	applications = make([]job.Application, len(endings))
	var failed error
	for i, e := range endings {
		applications[i], err = theOnly(r.finishFollowed(ctx, []ending{e}, true))
		failed = errors.Join(failed, err)
	}
	return applications, failed
}

// finishFollowed ends jobs and accepts what follows them, in one transaction. A
// call whose first commit was not answered finds the jobs ended, and what follows
// with them.
func (r *Repository) finishFollowed(ctx context.Context, endings []ending, patient bool) ([]job.Application, error) {
	statements := append(r.engine.finishStatements(), r.engine.followStatements()...)
	var applied []bool
	once := func(ctx context.Context) error {
		return r.engine.settleTx(ctx, patient, statements, func(ctx context.Context, t transaction) (err error) {
			if applied, err = r.engine.finishIn(ctx, t, endings); err != nil {
				return err
			}
			follow := followOf(endings, applied)
			if len(follow) == 0 {
				return errSettled
			}
			return r.engine.followIn(ctx, t, follow)
		})
	}
	err := r.transact(ctx, "finish", once)
	for try := 1; try < acceptTries && r.engine.classify(err) == unique; try++ {
		err = r.transact(ctx, "finish", once) // another job took a business key at the same moment
	}
	switch {
	case r.engine.classify(err) == unique:
		return nil, fmt.Errorf("%w: %w", job.ErrUnavailable, err)
	case err != nil:
		return nil, err
	}
	return r.settledOf(ctx, endings, applied)
}

// followOf is what follows those endings that were applied.
func followOf(endings []ending, applied []bool) []job.Submission {
	var follow []job.Submission
	for i, e := range endings {
		if applied[i] {
			follow = append(follow, e.Follow...)
		}
	}
	return follow
}

// settledOf tells what became of endings, of which some were applied just now.
func (r *Repository) settledOf(ctx context.Context, endings []ending, applied []bool) ([]job.Application, error) {
	applications := make([]job.Application, len(endings))
	var others []settlement
	var places []int
	for i, e := range endings {
		if applied[i] {
			applications[i] = job.Applied
			continue
		}
		others, places = append(others, e.settlement()), append(places, i)
	}
	if len(others) == 0 {
		return applications, nil
	}
	settled, err := r.engine.settled(ctx, others)
	if err != nil {
		return nil, r.fail("finish", err)
	}
	for n, i := range places {
		applications[i] = settled[n]
	}
	return applications, nil
}

// followAll accepts what follows a job, in the transaction that ends it.
func followAll(ctx context.Context, t transaction, follow []job.Submission) error {
	for i := range follow {
		if err := followOne(ctx, t, &follow[i]); err != nil {
			return err
		}
	}
	return nil
}

// followOne accepts a job that follows another one, in the transaction that ends
// that: this transaction is the first to end it, so a key that was used before was
// used for something else. Whatever its type says of conflicts, a job whose business
// key is taken waits for it: to be bound to another job or refused would lose it.
func followOne(ctx context.Context, t transaction, s *job.Submission) error {
	req, j := s.Request, s.Job
	n, err := t.change(ctx, followRecordSQL, append(keyArgs(req.Tenant, req.Key), req.Fingerprint.Bytes(),
		int64(j.Slot()), string(j.ID), s.Response.Status, encodeHeader(s.Response.Header), storedBody(s.Response), stamp(j.CreatedAt))...)
	switch {
	case err != nil:
		return err
	case n == 0 && s.Otherwise != nil:
		return followOne(ctx, t, s.Otherwise)
	case n == 0:
		return nil
	}
	holder, waits, err := businessHolder(ctx, t, j)
	if err != nil {
		return err
	}
	_, err = t.change(ctx, followJobSQL, int64(j.Slot()), string(j.ID), string(j.Tenant), string(j.Key),
		int64(job.KeySlot(req.Tenant, req.Key)), string(j.Type), holder != "" || waits, j.Payload, j.BusinessKey, j.OperationKey, j.CallbackURL,
		j.Priority, stamp(j.RunAt), stamp(claimAt(j)), stampOrNull(j.Deadline), j.Timeout.Milliseconds(), j.MaxAttempts, stamp(j.CreatedAt))
	return err
}

// followTx accepts what follows a job in the transaction of its attempt.
func (r *Repository) followTx(ctx, detached context.Context, t transaction, follow []job.Submission) error {
	if len(follow) == 0 {
		return nil
	}
	limited, stop := context.WithTimeout(detached, settleTimeout)
	defer stop()
	if err := followAll(limited, t, follow); err != nil {
		return r.ended(ctx, "accept what follows", aborted(err))
	}
	return nil
}
