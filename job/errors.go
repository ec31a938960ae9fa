package job

import (
	"errors"
	"time"

	"github.com/sekali/sekali/idempotency"
)

// Errors of the domain. Adapters return them (wrapped); api maps each to one
// status.
var (
	// ErrNotFound: no job of this tenant has the key.
	ErrNotFound = errors.New("job: not found")
	// ErrExpired: the job's retention is over; see ExpiredError.
	ErrExpired = errors.New("job: expired")
	// ErrUnknownType: the configuration names no such job type.
	ErrUnknownType = errors.New("job: unknown type")
	// ErrLeaseLost: the fencing token is not the job's any more.
	ErrLeaseLost = errors.New("job: lease lost")
	// ErrUnavailable: the database cannot be reached, or is too slow; nothing
	// was written.
	ErrUnavailable = errors.New("job: database unavailable")
	// ErrOutcomeUnknown: the connection broke while a write was on its way.
	// The same request with the same key tells which it was.
	ErrOutcomeUnknown = errors.New("job: outcome of the write is unknown")
	// ErrQueueFull: this process has more submissions on their way than it takes;
	// nothing was written.
	ErrQueueFull = errors.New("job: too many submissions wait to be accepted")
	// ErrShutdown is the cause of contexts that end because the process does.
	ErrShutdown = errors.New("job: shutting down")
	// ErrNotRetryable: the job is neither failed nor cancelled.
	ErrNotRetryable = errors.New("job: only a failed or cancelled job can be retried")
	// ErrNotResolvable: the job is not failed with an unknown outcome.
	ErrNotResolvable = errors.New("job: only a failed job whose outcome is unknown can be resolved")
	// ErrAlreadyFinished: the job ended before it could be cancelled.
	ErrAlreadyFinished = errors.New("job: already finished")
	// ErrMoved: the job has moved since it was read; read it again.
	ErrMoved = errors.New("job: has moved since it was read")
	// ErrOperationTaken: another job does the operation, or has done it.
	ErrOperationTaken = errors.New("job: another job has the operation")
	// ErrCancelled is the cause of contexts that end because somebody cancelled
	// the job.
	ErrCancelled = errors.New("job: cancelled")
	// ErrLockLost is the cause of contexts that end because somebody else holds
	// the job's lock.
	ErrLockLost = errors.New("job: lock lost")
	// ErrTimeout is the cause of contexts that end with the attempt's time.
	ErrTimeout = errors.New("job: attempt timed out")
)

// ExpiredError is ErrExpired with what is still known of the job.
type ExpiredError struct {
	ExpiredAt time.Time
	Status    Status
}

func (e *ExpiredError) Error() string { return ErrExpired.Error() }

// Is makes errors.Is(err, ErrExpired) true.
func (e *ExpiredError) Is(target error) bool { return target == ErrExpired }

// BusinessKeyError reports a business key that another unfinished job of the
// same type holds, where the type rejects that.
type BusinessKeyError struct {
	Holder idempotency.Key
}

func (e *BusinessKeyError) Error() string {
	return "job: business key is held by another unfinished job"
}

// AliasError reports a key that is bound to another key's job, where an act is
// meant for the job itself.
type AliasError struct {
	Holder idempotency.Key
}

func (e *AliasError) Error() string { return "job: the key is bound to another key's job" }

// Is makes errors.Is(err, ErrNotFound) true: no job was accepted under the key.
func (e *AliasError) Is(target error) bool { return target == ErrNotFound }

// KeyPartError reports a payload that lacks what the type's business key or
// operation key is made of.
type KeyPartError struct {
	Key    string // "business_key" or "operation_key"
	Path   string // within the payload, e.g. "order_id" or "lines[0].sku"
	Reason string
}

func (e *KeyPartError) Error() string { return "job: " + e.Key + ": " + e.Path + ": " + e.Reason }

// AttemptError is an error of an executor with what the retry policy needs to
// know. Any other error counts as one that a retry may mend, with code "error".
type AttemptError struct {
	Code      string // short and stable, e.g. "http-status", "timeout"
	Detail    string // public
	Permanent bool   // no retry can mend it
	// After is the earliest next attempt that the other side asked for.
	After time.Duration
	// Unknown: nobody knows whether the attempt did its work.
	Unknown bool
	// Snooze: the job wants to run later, after After, and was not tried.
	Snooze bool
	// Err is the full error, for the log alone.
	Err error
}

func (e *AttemptError) Error() string {
	if e.Err != nil {
		return e.Code + ": " + e.Err.Error()
	}
	return e.Code + ": " + e.Detail
}

func (e *AttemptError) Unwrap() error { return e.Err }

// Permanent wraps an error of an executor that no retry can mend.
func Permanent(err error) error {
	return &AttemptError{Code: "error", Detail: "the executor returned a permanent error", Permanent: true, Err: err}
}

// RetryAfter wraps an error of an executor that wants the next attempt no
// earlier than after d. The type's backoff cap bounds it.
func RetryAfter(err error, d time.Duration) error {
	return &AttemptError{Code: "error", Detail: "the executor returned an error", After: d, Err: err}
}

// Snooze is returned by an executor that wants to run its job after d instead of
// now. The attempt is not counted.
func Snooze(d time.Duration) error {
	return &AttemptError{Code: "snoozed", Detail: "the executor put the job off", After: d, Snooze: true}
}
