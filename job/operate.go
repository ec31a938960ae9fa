package job

import (
	"context"
	"errors"
	"time"

	"github.com/sekali/sekali/idempotency"
)

// Revival brings a failed or cancelled job back. Record, stored response and
// change are one transaction.
type Revival struct {
	Request  idempotency.Request // of the operator's call, with a key of its own
	Response idempotency.Response
	From     Job // as it was read: it applies to this version alone
	Job      Job // as it becomes
	// OnConflict: with ConflictQueue the job waits behind another one that holds
	// its business key by now; else that is an error.
	OnConflict ConflictPolicy
}

// Resolution ends the doubt about a job that failed with an unknown outcome.
type Resolution struct {
	Request  idempotency.Request
	Response idempotency.Response
	From     Job
	Job      Job // as it becomes: succeeded or failed
	// Follow is accepted in the same transaction, as that of an Ending.
	Follow []Submission
}

// Operator is how operators change finished jobs. Both calls are accepts: a
// receipt that is not Fresh is what the operator's key was used for before.
// Errors: ErrMoved if the job is not what From says any more; those of Acceptor.
type Operator interface {
	Revive(ctx context.Context, r Revival) (Receipt, error)
	Resolve(ctx context.Context, r Resolution) (Receipt, error)
}

// operateTries is how often an operator's call begins anew because the job moved
// between the reading and the writing. Each time somebody else has made progress.
const operateTries = 20

// Cancel cancels the job of the key, at once if nobody runs it (then its status
// is Cancelled), else by a request to whoever does. It may be repeated. Errors:
// ErrNotFound, *AliasError, *ExpiredError, ErrAlreadyFinished (with the receipt
// of the finished job), ErrUnavailable.
func (s *Jobs) Cancel(ctx context.Context, tenant idempotency.Tenant, key idempotency.Key) (Receipt, error) {
	for range operateTries {
		receipt, err := s.own(ctx, tenant, key)
		if err != nil {
			return Receipt{}, err
		}
		done, err := s.cancel(ctx, &receipt)
		if done || err != nil {
			return receipt, err
		}
	}
	return Receipt{}, ErrUnavailable
}

// cancel tries once with the job as it was read; done says that it counts.
func (s *Jobs) cancel(ctx context.Context, r *Receipt) (done bool, err error) {
	j := r.Job
	lease := Lease{ID: j.ID, Token: j.Token}
	switch {
	case j.Status == Cancelled:
		return true, nil
	case j.Status.Finished():
		return false, ErrAlreadyFinished
	case j.Status == Processing && !j.CancelRequestedAt.IsZero():
		return true, nil
	case j.Status == Processing:
		asked, err := s.Leases.RequestCancel(ctx, lease)
		if asked {
			r.Job.CancelRequestedAt = s.Clock.Now()
			s.Cancelling(lease)
		}
		return asked, err
	}
	ending := Ending{Lease: lease, Status: Cancelled, Waiting: true, Keep: s.keep(j.Type)}
	if j.UnknownAsks > 0 {
		ending.Outcome = OutcomeUnknown // its last attempt may have done its work
	}
	ending.Follow = s.Following(cancelled(j, ending.Outcome))
	ended, err := s.Leases.Finish(ctx, []Ending{ending})
	if err != nil || ended[0] != Applied {
		return false, err
	}
	s.wake(ending.Follow)
	*r, err = s.current(ctx, r.Record.Tenant, r.Record.Key)
	if err == nil {
		s.moved(r.Job)
	}
	return true, err
}

// cancelled is the job as a cancellation leaves it.
func cancelled(j Job, outcome string) Job {
	j.Status, j.Outcome = Cancelled, outcome
	j.Version++
	return j
}

// moved tells everybody that the job is now as it stands there.
func (s *Jobs) moved(j Job) {
	s.Waiters.Changed(j.ID, Version{Number: j.Version, Status: j.Status})
	s.Moved(j)
}

// keep is how long a finished job of the type is kept.
func (s *Jobs) keep(t Type) time.Duration {
	if settings, ok := s.Types[t]; ok {
		return settings.Retention
	}
	return s.Unknown.Retention
}

// Retry brings the failed or cancelled job of the key back, under the operator's
// own request. Errors: ErrNotFound, *AliasError, *ExpiredError, ErrNotRetryable,
// ErrUnknownType, those of idempotency.Answer and those of Acceptor.
func (s *Jobs) Retry(ctx context.Context, req idempotency.Request, key idempotency.Key) (Receipt, error) {
	return s.operate(ctx, req, key, func(from Job) (Receipt, error) {
		settings, known := s.Types[from.Type]
		switch {
		case from.Status != Failed && from.Status != Cancelled:
			return Receipt{}, ErrNotRetryable
		case !known:
			return Receipt{}, ErrUnknownType
		}
		j := s.revived(from, settings)
		receipt, err := s.Operator.Revive(ctx, Revival{
			Request: req, Response: s.Render(j), From: from, Job: j, OnConflict: settings.OnConflict,
		})
		if err == nil && receipt.Record.Fresh {
			s.moved(j)
			s.Wake(j.Type)
		}
		return receipt, err
	})
}

// revived is the job as a retry makes it: its attempts go on counting, with as
// many more as it had at first, and a deadline to start counts no more.
func (s *Jobs) revived(from Job, settings Settings) Job {
	j := from
	now := s.Clock.Now()
	j.Status, j.RunAt = Pending, now
	j.Generation++
	j.Version++
	j.MaxAttempts = from.Attempts + from.MaxAttempts - from.EarlierAttempts
	j.EarlierAttempts = from.Attempts
	j.Outcome, j.DuplicateOf, j.Result = "", "", nil
	j.Deadline, j.FinishedAt, j.ExpiresAt, j.CancelRequestedAt, j.ResultExpiredAt = time.Time{}, time.Time{}, time.Time{}, time.Time{}, time.Time{}
	j.UnknownAsks = 0
	if from.Outcome == OutcomeUnknown && settings.OnUnknown == UnknownReconcile {
		j.UnknownAsks = 1 // what an earlier attempt did is still not known: ask first
	}
	return j
}

// Resolve settles the job of the key, whose outcome was unknown, as succeeded
// with the result, or as failed. Errors: as Retry's, with ErrNotResolvable.
func (s *Jobs) Resolve(ctx context.Context, req idempotency.Request, key idempotency.Key, to Status, result *Result) (Receipt, error) {
	return s.operate(ctx, req, key, func(from Job) (Receipt, error) {
		if from.Status != Failed || from.Outcome != OutcomeUnknown {
			return Receipt{}, ErrNotResolvable
		}
		j := s.resolved(from, to, result)
		resolution := Resolution{
			Request: req, Response: s.RenderCurrent(j), From: from, Job: j, Follow: s.following(j, resolvedAgain),
		}
		receipt, err := s.Operator.Resolve(ctx, resolution)
		if err == nil && receipt.Record.Fresh {
			s.moved(j)
			s.wake(resolution.Follow)
		}
		return receipt, err
	})
}

// resolvedAgain is part of the key of the callback that tells of a resolution: the
// job's end, with an unknown outcome, was told already.
const resolvedAgain = ":resolved"

func (s *Jobs) resolved(from Job, to Status, result *Result) Job {
	j := from
	j.Status, j.Outcome, j.Result = to, "", result
	j.Version++
	j.ExpiresAt = s.Clock.Now().Add(s.keep(j.Type))
	if to == Succeeded {
		j.LastError = nil
	}
	return j
}

// operate is one call of an operator: the key that it came with decides first,
// so that its repetition gets the stored answer whatever has become of the job.
func (s *Jobs) operate(ctx context.Context, req idempotency.Request, key idempotency.Key, act func(from Job) (Receipt, error)) (Receipt, error) {
	for range operateTries {
		target, err := s.own(ctx, req.Tenant, key)
		if err != nil {
			return s.Refuse(ctx, req, err)
		}
		receipt, err := act(target.Job)
		switch {
		case errors.Is(err, ErrMoved):
			continue
		case errors.Is(err, ErrNotRetryable), errors.Is(err, ErrNotResolvable), errors.Is(err, ErrUnknownType):
			return s.Refuse(ctx, req, err)
		case err != nil:
			return Receipt{}, err
		case receipt.Record.Fresh:
			return receipt, nil
		}
		return s.answered(ctx, receipt, req)
	}
	return Receipt{}, ErrUnavailable
}

// own reads the job that was accepted under the key itself.
func (s *Jobs) own(ctx context.Context, tenant idempotency.Tenant, key idempotency.Key) (Receipt, error) {
	receipt, err := s.current(ctx, tenant, key)
	if err == nil && receipt.Alias {
		return Receipt{}, &AliasError{Holder: receipt.Job.Key}
	}
	return receipt, err
}
