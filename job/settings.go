package job

import (
	"math/rand/v2"
	"time"
)

// Settings is how jobs of one type are accepted and run.
type Settings struct {
	Lease       time.Duration
	Timeout     time.Duration // of one attempt
	MaxAttempts int
	Priority    int
	Backoff     Backoff
	Retention   time.Duration // how long a finished job and its key are kept
	OnConflict  ConflictPolicy
	OnUnknown   UnknownPolicy
	Lock        LockScope
	// Limit holds over all processes.
	Limit Limit
	// Compensate is the type of the job that follows when one of this type has
	// failed after at least one attempt; "": none.
	Compensate Type
	// CallbackURL is where the end of each job is told that names no other place; "":
	// nowhere.
	CallbackURL string
	// Transactional: the work is done in the transaction that ends the job, so
	// that an attempt without an end has left nothing behind.
	Transactional bool
	// BusinessKey and OperationKey make the keys of a job from its payload; nil:
	// it has none of its own. Error: *KeyPartError.
	BusinessKey  func(Job) (string, error)
	OperationKey func(Job) (string, error)
	// CheckPayload looks at the payload of a submission; nil: any will do. It is
	// not asked about jobs that were accepted once, nor about compensations, whose
	// payload no client writes. Error: *PayloadError.
	CheckPayload func(payload []byte) error
}

// Types maps each configured job type to its settings.
type Types map[Type]Settings

// UnknownPolicy says what becomes of a job when nobody knows whether an attempt
// did its work.
type UnknownPolicy string

// The unknown policies.
const (
	// UnknownRetry tries again: the receiver recognises the repetition.
	UnknownRetry UnknownPolicy = "retry"
	// UnknownReconcile asks first, and repeats only what was not done.
	UnknownReconcile UnknownPolicy = "reconcile"
	// UnknownPark fails the job with the outcome OutcomeUnknown, for somebody to
	// resolve.
	UnknownPark UnknownPolicy = "park"
)

// LockScope says which lock an attempt takes before it runs.
type LockScope string

// The lock scopes.
const (
	LockNone        LockScope = "none"
	LockKey         LockScope = "key"
	LockBusinessKey LockScope = "business_key" // a job without one takes no lock
)

// maxAsks bounds how often reconciliation is asked about one attempt. With the
// default backoff twenty asks take most of a day; then somebody must look.
const maxAsks = 20

// Decision is what becomes of a job after an attempt: one of the two is set.
type Decision struct {
	Ending  *Ending
	Requeue *Requeue
}

// Succeed is the ending of an attempt that did its work.
func (s Settings) Succeed(c Claimed, r *Result) Ending {
	return Ending{
		Lease: c.Lease, Status: Succeeded, Attempt: AttemptSucceeded, Result: r, Keep: s.Retention, Operation: c.Operation(),
	}
}

// Duplicate is the ending of an attempt that found its operation done by
// another job.
func (s Settings) Duplicate(c Claimed, by OperationTaken) Ending {
	e := s.Succeed(c, by.Result)
	e.Outcome, e.DuplicateOf, e.Operation = DuplicateIgnored, by.By, nil
	return e
}

// Fail decides what becomes of a job whose attempt did not succeed. attempt is
// how the attempt ended; an error that leaves the outcome unknown makes it lost.
func (s Settings) Fail(c Claimed, attempt Outcome, e *AttemptError) Decision {
	failure := &Failure{Code: e.Code, Detail: e.Detail, Attempt: c.Attempts}
	unknown := e.Unknown && !s.Transactional
	if unknown {
		attempt = AttemptLost
	}
	asks := unknown && s.OnUnknown == UnknownReconcile
	parks := unknown && (s.OnUnknown == UnknownPark || asks && c.UnknownAsks >= maxAsks)
	switch {
	case c.Cancelling():
		return s.cancelled(c, attempt, failure, unknown && s.OnUnknown != UnknownRetry)
	case parks:
		return s.failed(c, attempt, failure, OutcomeUnknown)
	case asks:
		return s.retry(c, Requeue{Attempt: attempt, Failure: failure, In: s.wait(c.UnknownAsks+1, e), UnknownAsks: c.UnknownAsks + 1})
	case e.Snooze:
		return s.retry(c, Requeue{Attempt: AttemptReleased, In: e.After, Uncounted: true})
	case e.Permanent || c.Attempts >= c.MaxAttempts:
		return s.failed(c, attempt, failure, "")
	}
	return s.retry(c, Requeue{Attempt: attempt, Failure: failure, In: s.wait(c.Attempts, e)})
}

// StillUnknown decides what becomes of a job about which reconciliation was
// asked in vain: it is asked again later, and given up at last. The attempt is
// not counted.
func (s Settings) StillUnknown(c Claimed) Decision {
	failure := c.LastError
	if failure == nil {
		failure = &Failure{Code: "lost", Detail: "nobody knows what the attempt did", Attempt: c.Attempts}
	}
	switch {
	case c.Cancelling():
		return s.cancelled(c, AttemptCancelled, failure, true)
	case c.UnknownAsks >= maxAsks || s.OnUnknown == UnknownPark:
		return s.failed(c, AttemptLost, failure, OutcomeUnknown)
	}
	return s.retry(c, Requeue{
		Attempt: AttemptReleased, Uncounted: true, In: s.Backoff.Delay(c.UnknownAsks, rand.Float64), UnknownAsks: c.UnknownAsks + 1,
	})
}

// NotDone decides what becomes of a job of which reconciliation said that its
// last attempt did nothing: ok says that it may be tried now.
func (s Settings) NotDone(c Claimed) (d Decision, ok bool) {
	if c.Attempts <= c.MaxAttempts {
		return Decision{}, true
	}
	failure := c.LastError
	if failure == nil {
		failure = &Failure{Code: "lost", Detail: "the attempt did not do its work", Attempt: c.Attempts}
	}
	if c.Cancelling() {
		return s.cancelled(c, AttemptCancelled, failure, false), false
	}
	return s.failed(c, AttemptFailed, failure, ""), false
}

// Release hands a job back that this process could not finish: another one may
// claim it at once, and the attempt is not counted. e is what the attempt ended
// with, nil if it had not begun.
func (s Settings) Release(c Claimed, e *AttemptError) Decision {
	if c.Cancelling() && e == nil && c.UnknownAsks > 0 {
		return s.StillUnknown(c)
	}
	if c.Cancelling() || e != nil && e.Unknown && s.OnUnknown == UnknownPark && !s.Transactional {
		return s.Fail(c, AttemptCancelled, cmpError(e))
	}
	release := Requeue{Lease: c.Lease, Status: Pending, Attempt: AttemptReleased, Uncounted: true, UnknownAsks: c.UnknownAsks}
	if e != nil && e.Unknown && s.OnUnknown == UnknownReconcile && !s.Transactional {
		release.UnknownAsks = max(1, c.UnknownAsks)
	}
	return Decision{Requeue: &release}
}

// cmpError gives a cancelled job that had not begun something to say.
func cmpError(e *AttemptError) *AttemptError {
	if e == nil {
		return &AttemptError{Code: "cancelled", Detail: "the job was cancelled"}
	}
	return e
}

// PutOff releases a job that must wait for something outside of it, for at least
// the given time: the attempt is not counted.
func (s Settings) PutOff(c Claimed, in time.Duration) Decision {
	if c.Cancelling() {
		return s.Release(c, nil)
	}
	return s.retry(c, Requeue{Attempt: AttemptReleased, Uncounted: true, Unstarted: true, In: in, UnknownAsks: c.UnknownAsks})
}

// Expire ends a job that has not started by its deadline.
func (s Settings) Expire(c Claimed) Ending {
	return Ending{
		Lease: c.Lease, Status: Failed, Waiting: true, Keep: s.Retention,
		Failure: &Failure{Code: "expired", Detail: "the job had not started by its deadline (expires_in_seconds)"},
	}
}

// wait is the backoff after an attempt. The other side's wish counts, but only
// up to the cap: it must not be able to park a job for years. Jitter never
// undercuts it (BR-68).
func (s Settings) wait(attempt int, e *AttemptError) time.Duration {
	return max(s.Backoff.Delay(attempt, rand.Float64), min(e.After, s.Backoff.Cap))
}

func (s Settings) retry(c Claimed, r Requeue) Decision {
	r.Lease, r.Status = c.Lease, Retrying
	return Decision{Requeue: &r}
}

func (s Settings) failed(c Claimed, attempt Outcome, f *Failure, outcome string) Decision {
	return Decision{Ending: &Ending{Lease: c.Lease, Status: Failed, Attempt: attempt, Failure: f, Outcome: outcome, Keep: s.Retention}}
}

// cancelled ends a job that somebody asked to cancel. Its attempt is written
// down as cancelled unless it was lost.
func (s Settings) cancelled(c Claimed, attempt Outcome, f *Failure, unknown bool) Decision {
	e := Ending{Lease: c.Lease, Status: Cancelled, Attempt: AttemptCancelled, Failure: f, Keep: s.Retention}
	if attempt == AttemptLost {
		e.Attempt = AttemptLost
	}
	if unknown {
		e.Outcome = OutcomeUnknown
	}
	return Decision{Ending: &e}
}
