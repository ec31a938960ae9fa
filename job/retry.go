package job

import (
	"math/rand/v2"
	"time"
)

// Backoff is how long a job waits between attempts: Base, doubled with each
// attempt, at most Cap, of which a random share between one half and all is
// taken, so that jobs that failed together do not come back together.
type Backoff struct {
	Base time.Duration
	Cap  time.Duration
}

// Delay returns the wait after the given attempt (1 is the first). random must
// return a number in [0, 1). The result lies between half of the capped delay
// and all of it, for any attempt number: doubling stops at the cap, so nothing
// can overflow (BR-67).
func (b Backoff) Delay(attempt int, random func() float64) time.Duration {
	delay := b.Base
	for range attempt - 1 {
		if delay >= b.Cap/2 {
			delay = b.Cap
			break
		}
		delay *= 2
	}
	delay = min(delay, b.Cap)
	half := delay / 2
	return half + time.Duration(random()*float64(delay-half))
}

// Settings is how jobs of one type are accepted and run.
type Settings struct {
	Lease       time.Duration
	Timeout     time.Duration // of one attempt
	MaxAttempts int
	Priority    int
	Backoff     Backoff
	Retention   time.Duration // how long a finished job and its key are kept
	OnConflict  ConflictPolicy
}

// Types maps each configured job type to its settings.
type Types map[Type]Settings

// Succeed is the ending of an attempt that did its work.
func (s Settings) Succeed(c Claimed, r *Result) Ending {
	return Ending{Lease: c.Lease, Status: Succeeded, Attempt: AttemptSucceeded, Result: r, Keep: s.Retention}
}

// Fail decides what becomes of a job whose attempt did not succeed: exactly
// one of the two results is not nil.
func (s Settings) Fail(c Claimed, attempt Outcome, failure Failure, e *AttemptError) (*Ending, *Requeue) {
	failure.Attempt = c.Attempts
	if e.Permanent || c.Attempts >= c.MaxAttempts {
		return &Ending{Lease: c.Lease, Status: Failed, Attempt: attempt, Failure: &failure, Keep: s.Retention}, nil
	}
	// The other side's wish counts, but only up to the cap: it must not be
	// able to park a job for years. Jitter never undercuts it (BR-68).
	wait := max(s.Backoff.Delay(c.Attempts, rand.Float64), min(e.After, s.Backoff.Cap))
	return nil, &Requeue{Lease: c.Lease, Status: Retrying, In: wait, Attempt: attempt, Failure: &failure}
}

// Release hands a job back that this process could not finish: another one may
// claim it at once, and the attempt is not counted.
func (s Settings) Release(c Claimed) Requeue {
	return Requeue{Lease: c.Lease, Status: Pending, Attempt: AttemptReleased, Uncounted: true}
}
