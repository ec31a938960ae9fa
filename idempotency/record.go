package idempotency

import (
	"errors"
	"fmt"
	"net/http"
	"time"
)

// Tenant is the account that keys belong to. It comes from the credential
// alone, never from the request's body or path.
type Tenant string

// DefaultTenant owns every key while authentication is off.
const DefaultTenant Tenant = "default"

// Request is one keyed request: who sent it, under which key, and what it was.
type Request struct {
	Tenant      Tenant
	Key         Key
	Fingerprint Fingerprint
}

// Response is a stored answer. Header holds only what is stored for replay;
// times that move (Retry-After) and markers are added when it is written.
type Response struct {
	Status int
	Header http.Header
	Body   []byte
	// NotRetained says that the body was too large, or a stream, and was not
	// stored: the request must not run again, and cannot be replayed either.
	NotRetained bool
}

// State says what a record stands for.
type State string

// The states of a record.
const (
	// InProgress: the first request holds the key under a lease.
	InProgress State = "in_progress"
	// Completed: the response is stored and is the answer from now on.
	Completed State = "completed"
	// Interrupted: the first run ended without telling its outcome.
	Interrupted State = "interrupted"
	// Retired: the record's time is over; the key stays consumed.
	Retired State = "retired"
)

// Record is what the database holds for (tenant, key).
type Record struct {
	Request
	State    State
	Response Response
	// Fresh reports that this very request made the record.
	Fresh bool
	// RetryIn is how long the holder of an in-progress record may still need.
	RetryIn time.Duration
	// ExpiresAt is when the record retires; zero while that is not known.
	ExpiresAt time.Time
}

// ErrNotFound reports that no record exists for (tenant, key).
var ErrNotFound = errors.New("idempotency: no record of this key")

// ErrInterrupted reports that the first request's outcome is not known and
// that running it again is not allowed.
var ErrInterrupted = errors.New("idempotency: outcome of the first request is unknown")

// MismatchError reports that the key was first used for another request.
type MismatchError struct {
	// Part is what differs: PartTarget or PartBody.
	Part string
}

func (e *MismatchError) Error() string {
	return "idempotency: key was first used with another " + e.Part
}

// InProgressError reports that the first request with the key still runs.
type InProgressError struct {
	// RetryIn is when asking again is worth it; zero if nothing is known.
	RetryIn time.Duration
}

func (e *InProgressError) Error() string {
	return "idempotency: first request with this key is still in progress"
}

// RetiredError reports a key whose record has expired. The request is not
// executed: the key was consumed.
type RetiredError struct {
	ExpiredAt time.Time
}

func (e *RetiredError) Error() string {
	return fmt.Sprintf("idempotency: key retired at %s", e.ExpiredAt.UTC().Format(time.RFC3339))
}

// NotRetainedError reports a request that was answered once with a response too
// large to keep. It is not executed again.
type NotRetainedError struct {
	Status   int    // of the first answer
	Location string // likewise, if it had one
}

func (e *NotRetainedError) Error() string {
	return fmt.Sprintf("idempotency: the response (status %d) was not retained", e.Status)
}

// Answer decides what a request gets from the record of its key. It is the
// only place that decides so. A mismatch is looked at first, in every state:
// another request must never learn that, or how, the first one ran (C10).
func Answer(rec Record, req Request) (Response, error) {
	if part := rec.Fingerprint.Differs(req.Fingerprint); part != "" {
		return Response{}, &MismatchError{Part: part}
	}
	switch rec.State {
	case Completed:
		if rec.Response.NotRetained {
			return Response{}, &NotRetainedError{Status: rec.Response.Status, Location: rec.Response.Header.Get("Location")}
		}
		return rec.Response, nil
	case InProgress:
		return Response{}, &InProgressError{RetryIn: rec.RetryIn}
	case Interrupted:
		return Response{}, ErrInterrupted
	case Retired:
		return Response{}, &RetiredError{ExpiredAt: rec.ExpiresAt}
	}
	return Response{}, fmt.Errorf("%w: state %q is unknown", ErrCorrupt, rec.State)
}
