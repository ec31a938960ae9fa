package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

// Errors of the HTTP surface itself.
var (
	// ErrRouteNotFound: no resource has this path.
	ErrRouteNotFound = errors.New("api: route not found")
	// ErrExecutorNotFound: no job type has this name.
	ErrExecutorNotFound = errors.New("api: executor not found")
	// ErrShuttingDown: this process takes no new work.
	ErrShuttingDown = errors.New("api: shutting down")
	// ErrBodyUnreadable: the body broke off or is malformed on the wire.
	ErrBodyUnreadable = errors.New("api: body is unreadable")
	// ErrRequestTimeout: the client took too long to send its request, or left.
	ErrRequestTimeout = errors.New("api: request timed out")
)

// ValidationError reports everything that is wrong with a request at once.
type ValidationError struct {
	Errors []FieldError
}

func (e *ValidationError) Error() string {
	texts := make([]string, 0, len(e.Errors))
	for _, f := range e.Errors {
		texts = append(texts, f.Pointer+" "+f.Detail)
	}
	return "api: validation failed: " + strings.Join(texts, "; ")
}

// MediaTypeError reports a body of a type or coding that is not taken here.
type MediaTypeError struct {
	Detail string // what to send instead
}

func (e *MediaTypeError) Error() string { return "api: unsupported media type: " + e.Detail }

// TooLargeError reports a body of more than Limit bytes.
type TooLargeError struct {
	Limit  int64
	Detail string // what may be so large, and what to do; "": the body
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("api: request is larger than %d bytes", e.Limit)
}

// MethodNotAllowedError reports a method that the resource does not have.
type MethodNotAllowedError struct {
	Allow []string
}

func (e *MethodNotAllowedError) Error() string { return "api: method is not allowed" }

// NotFinishedError reports a job whose result was asked for too early.
type NotFinishedError struct {
	Key     idempotency.Key
	RetryIn time.Duration
}

func (e *NotFinishedError) Error() string { return "api: job has not finished" }

// NoResultError reports a finished job that left no result.
type NoResultError struct {
	Key idempotency.Key
}

func (e *NoResultError) Error() string { return "api: job has no result" }

// ResultExpiredError reports a job whose result was kept for a shorter time than
// the job.
type ResultExpiredError struct {
	Key       idempotency.Key
	ExpiredAt time.Time
}

func (e *ResultExpiredError) Error() string { return "api: result has expired" }

// RateLimitedError reports a tenant that asks more often, or for more, than it
// may.
type RateLimitedError struct {
	Detail  string // what the limit is on
	RetryIn time.Duration
}

func (e *RateLimitedError) Error() string { return "api: rate limited: " + e.Detail }

// RejectedError reports a request that a handler found wrong before it did
// anything. Unlike other errors, the text of Err is meant for the client.
type RejectedError struct {
	Err error
}

func (e *RejectedError) Error() string { return "api: rejected by the handler: " + e.Err.Error() }

func (e *RejectedError) Unwrap() error { return e.Err }

// When to come back. A store that is away is not hammered by those who wait
// for it; a broken commit is settled by the next request at once; another
// replica answers for one that is shutting down.
const (
	retryUnavailable = 2 * time.Second
	retryOutcome     = 1 * time.Second
	retryShutdown    = 2 * time.Second
	retryBusinessKey = 5 * time.Second
	retryQuota       = 5 * time.Second
	retryQueueFull   = 1 * time.Second // a queue of submissions is a moment long
)

// A rule recognises one error and says which problem it is.
type rule func(error) (Problem, bool)

// table is the only place that turns errors into statuses: 400 asks for another
// request, 409 and 503 for the same one again, 422 is for a key that can never
// have this request. The first rule that fits decides, so an error that wraps
// two is what stands first here. The clients' copy is docs/problems.
var table = []rule{
	is(ErrUnauthenticated, unauthenticated),
	of(forbidden),
	of(upstream), // before what it wraps: time that is over, a connection that broke
	is(idempotency.ErrKeyMissing, Problem{
		Code: "idempotency-key-missing", Status: http.StatusBadRequest, Title: "The Idempotency-Key header is missing",
		Detail: `Send the header Idempotency-Key with a value of your own for this operation, and the same value whenever you repeat it: Idempotency-Key: "order-42".`,
	}),
	of(keyInvalid),
	of(mismatch),
	of(inProgress),
	is(idempotency.ErrInterrupted, Problem{
		Code: "idempotency-outcome-unknown", Status: http.StatusUnprocessableEntity, Title: "The outcome of the first request is unknown",
		Detail: "The first request with this key was interrupted. It is not run again: find out what it did before you use a new key.",
	}),
	of(retired),
	of(notRetained),
	of(validation),
	of(jsonRefused),
	is(job.ErrUnknownType, Problem{
		Code: "unknown-job-type", Status: http.StatusBadRequest, Title: "The job type is unknown",
		Detail: "No job type of this name is configured here.", ofKey: notUsedUp,
		Errors: []FieldError{{Pointer: "/type", Rule: "configured", Detail: "must name a configured job type"}},
	}),
	of(payloadRefused),
	of(callbackRefused),
	of(keyPart),
	of(boundElsewhere), // before what it is too: no job was accepted under the key
	is(job.ErrNotFound, jobNotFound),
	of(jobExpired),
	is(job.ErrNotRetryable, notRetryable),
	is(job.ErrNotResolvable, notResolvable),
	is(job.ErrAlreadyFinished, alreadyFinished),
	is(job.ErrExecutionNotFound, executionNotFound),
	is(job.ErrExecutionFinished, executionFinished),
	is(job.ErrLeaseLost, leaseLost),
	is(ErrExecutorNotFound, Problem{
		Code: "executor-not-found", Status: http.StatusNotFound, Title: "There is no such executor",
		Detail: "No job type of this name is configured here, and none has unfinished jobs.",
	}),
	of(businessKeyConflict),
	of(notFinished),
	of(noResult),
	of(resultExpired),
	is(job.ErrOutcomeUnknown, outcomeUnknown),
	is(idempotency.ErrOutcomeUnknown, outcomeUnknown),
	is(ErrShuttingDown, shuttingDown),
	is(job.ErrShutdown, shuttingDown),
	is(idempotency.ErrCorrupt, Problem{
		Code: "idempotency-record-corrupt", Status: http.StatusInternalServerError, Title: "The record of the key cannot be read",
		Detail: "What is stored for this key is damaged, or from another version. The request was not executed; the gateway's log names the cause under this instance.",
	}),
	is(job.ErrQueueFull, queueFull),
	is(job.ErrUnavailable, unavailable),
	is(idempotency.ErrUnavailable, unavailable),
	is(context.DeadlineExceeded, unavailable),
	of(mediaType),
	of(tooLarge),
	is(ErrBodyUnreadable, Problem{
		Code: "body-unreadable", Status: http.StatusBadRequest, Title: "The request's body could not be read",
		Detail: "The body broke off or is malformed.", ofKey: notUsedUp, closing: true,
	}),
	is(ErrRequestTimeout, timedOut),
	is(context.Canceled, timedOut), // the client has left, nobody reads this
	is(ErrRouteNotFound, Problem{
		Code: "route-not-found", Status: http.StatusNotFound, Title: "There is nothing at this path",
		Detail: "No resource has this path. A slash within a key is written %2F.",
	}),
	of(methodNotAllowed),
	of(rateLimited),
	is(job.ErrQuota, tooManyPending),
	of(rejected), // last: it wraps what may have a problem of its own
}

var jobNotFound = Problem{
	Code: "job-not-found", Status: http.StatusNotFound, Title: "There is no such job",
	Detail: "No job has this key.",
}

// internal is what any other error is: its text is for the log alone.
var internal = Problem{
	Code: "internal", Status: http.StatusInternalServerError, Title: "Internal error",
	Detail: "The gateway failed to answer. Its log names the cause under this instance.",
}

var shuttingDown = Problem{
	Code: "shutting-down", Status: http.StatusServiceUnavailable, Title: "The gateway is shutting down",
	Detail:    "This process takes no new work. Send the same request again.",
	ofKey:     "Use the same key.",
	Retryable: true, retryIn: retryShutdown, closing: true,
}

var outcomeUnknown = Problem{
	Code: "idempotency-outcome-unknown-retry", Status: http.StatusServiceUnavailable, Title: "The outcome of this request is not known yet",
	Detail:    "The connection to the database broke while the request was being recorded: it may be, or not.",
	ofKey:     "Send it again with the same key to learn which.",
	Retryable: true, retryIn: retryOutcome,
}

var unavailable = Problem{
	Code: codeUnavailable, Status: http.StatusServiceUnavailable, Title: "The database is not available",
	Detail:    "The database cannot be reached, is too slow, or takes no writes. Nothing was recorded: send the same request again.",
	Retryable: true, retryIn: retryUnavailable,
}

var queueFull = Problem{
	Code: "queue-full", Status: http.StatusServiceUnavailable, Title: "The gateway is busy",
	Detail:    "As many submissions wait to be recorded as may. Nothing was recorded: send the same request again.",
	ofKey:     "Use the same key.",
	Retryable: true, retryIn: retryQueueFull,
}

var timedOut = Problem{
	Code: "request-timeout", Status: http.StatusRequestTimeout, Title: "The request took too long",
	Detail:    "The request did not arrive completely in time.",
	ofKey:     "This request did not use up the key: send it again.",
	Retryable: true, closing: true,
}

const (
	codeUnavailable      = "idempotency-store-unavailable"
	codeUnavailableReads = "store-unavailable"
)

func problemOf(err error, method string) Problem {
	p := internal
	for _, match := range table {
		if found, ok := match(err); ok {
			p = found
			break
		}
	}
	var about *JobError
	if p.ofJob && errors.As(err, &about) {
		p.Job, p.JobStatus = JobURL(about.Key), string(about.Status)
	}
	if p.Code == codeUnavailable && (method == http.MethodGet || method == http.MethodHead) {
		p.Code, p.Detail = codeUnavailableReads, "The database cannot be reached, or is too slow. Nothing is known of what you asked for: ask again."
	}
	return p
}

func is(target error, p Problem) rule {
	return func(err error) (Problem, bool) { return p, errors.Is(err, target) }
}

func of[E error](build func(E) Problem) rule {
	return func(err error) (Problem, bool) {
		var e E
		if !errors.As(err, &e) {
			return Problem{}, false
		}
		return build(e), true
	}
}
