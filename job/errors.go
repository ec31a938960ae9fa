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
	// ErrShutdown is the cause of contexts that end because the process does.
	ErrShutdown = errors.New("job: shutting down")
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

// AttemptError is an error of an executor with what the retry policy needs to
// know. Any other error counts as one that a retry may mend, with code "error".
type AttemptError struct {
	Code      string // short and stable, e.g. "http-status", "timeout"
	Detail    string // public
	Permanent bool   // no retry can mend it
	// After is the earliest next attempt that the other side asked for.
	After time.Duration
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
