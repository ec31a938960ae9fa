package api

import (
	"fmt"
	"net/http"
	"time"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

// The problems of errors that carry something to tell.

// CodeKeyReused is the code of a mismatch, for those who count them.
const CodeKeyReused = "idempotency-key-reused"

var keyReasons = map[string]string{
	idempotency.ReasonEmpty:    "The key is empty.",
	idempotency.ReasonSyntax:   `The key is a malformed string. Write it as "abc", with \" and \\ for quote and backslash, or bare without any of these.`,
	idempotency.ReasonMultiple: "There is more than one key. Send one header line with one value; a comma is allowed in quotes only.",
	idempotency.ReasonLength:   "The key is too long.",
	idempotency.ReasonCharset:  "The key may consist of printable ASCII characters only, and of spaces only in quotes.",
	idempotency.ReasonFormat:   "The key does not have the form that is asked for here.",
}

func keyInvalid(e *idempotency.KeyError) Problem {
	return Problem{
		Code: "idempotency-key-invalid", Status: http.StatusBadRequest, Title: "The Idempotency-Key header is invalid",
		Detail: keyReasons[e.Reason], Reason: e.Reason, Limit: int64(e.Limit),
	}
}

var parts = map[string]string{
	idempotency.PartTarget: "target (method, path or query)",
	idempotency.PartBody:   "body (or its media type)",
}

func mismatch(e *idempotency.MismatchError) Problem {
	return Problem{
		Code: CodeKeyReused, Status: http.StatusUnprocessableEntity, Title: "The key was used for another request",
		Detail: fmt.Sprintf("This key was first used with another %s. Take a new key for a new operation.", parts[e.Part]), keyed: true,
	}
}

// inProgress: asking more often than every second, or less than every five,
// helps nobody.
func inProgress(e *idempotency.InProgressError) Problem {
	return Problem{
		Code: "idempotency-key-in-use", Status: http.StatusConflict, Title: "The first request with this key is in progress",
		Detail:    "Send the same request again in a moment: it gets the answer of the first one.",
		Retryable: true, retryIn: min(max(e.RetryIn, time.Second), slowestPace),
	}
}

func retired(e *idempotency.RetiredError) Problem {
	return Problem{
		Code: "idempotency-key-retired", Status: http.StatusUnprocessableEntity, Title: "The key has been used up",
		Detail: "This key was used for a request whose record has expired. The request was not executed again.", ExpiredAt: optionalTime(e.ExpiredAt),
	}
}

func notRetained(e *idempotency.NotRetainedError) Problem {
	return Problem{
		Code: "idempotency-response-not-retained", Status: http.StatusUnprocessableEntity, Title: "The first answer was not kept",
		Detail:         "The first request with this key was executed and answered, with more than is kept for replays. It is not executed again.",
		OriginalStatus: e.Status, location: e.Location,
	}
}

// maxFieldErrors is how many things that are wrong one answer lists: more than
// anybody mends at once, and few enough that a large request that is all wrong
// makes no large answer.
const maxFieldErrors = 32

func validation(e *ValidationError) Problem {
	p := Problem{
		Code: "validation-failed", Status: http.StatusBadRequest, Title: "The request is invalid",
		Detail: "See errors for each thing that is wrong.", Errors: e.Errors,
		ofKey: "This request did not use up the key: correct it and send it with the same key.",
	}
	if n := len(e.Errors); n > maxFieldErrors {
		p.Errors = e.Errors[:maxFieldErrors]
		p.Detail = fmt.Sprintf("%d things are wrong, of which errors lists the first %d.", n, maxFieldErrors)
	}
	return p
}

var jsonReasons = map[string]string{
	idempotency.ReasonDuplicate: "must not contain a member twice",
	idempotency.ReasonDepth:     fmt.Sprintf("must not be nested deeper than %d", idempotency.MaxDepth),
	idempotency.ReasonUTF8:      "must be UTF-8 text without lone surrogates",
	idempotency.ReasonJSON:      "must be exactly one JSON value, without a byte order mark",
}

func jsonRefused(e *idempotency.JSONError) Problem {
	return validation(&ValidationError{Errors: []FieldError{{
		Pointer: e.Pointer, Rule: e.Reason, Detail: jsonReasons[e.Reason],
	}}})
}

func jobExpired(e *job.ExpiredError) Problem {
	return Problem{
		Code: "job-expired", Status: http.StatusGone, Title: "The job is no longer kept",
		Detail:    "The job has ended, and the time for which it is kept is over.",
		ExpiredAt: optionalTime(e.ExpiredAt), JobStatus: string(e.Status),
	}
}

func businessKeyConflict(e *job.BusinessKeyError) Problem {
	return Problem{
		Code: "business-key-conflict", Status: http.StatusConflict, Title: "Another job holds the business key",
		Detail:    "An unfinished job of the same type has this business key.",
		ofKey:     "This request did not use up the key: send it again when that job has ended.",
		Retryable: true, retryIn: retryBusinessKey, Job: JobURL(e.Holder),
	}
}

func notFinished(e *NotFinishedError) Problem {
	return Problem{
		Code: "job-not-finished", Status: http.StatusConflict, Title: "The job has not finished",
		Detail:    "There is no result yet. Ask again later, or wait for the job with Prefer: wait.",
		Retryable: true, retryIn: e.RetryIn, Job: JobURL(e.Key),
	}
}

func noResult(e *NoResultError) Problem {
	return Problem{
		Code: "job-has-no-result", Status: http.StatusNotFound, Title: "The job has no result",
		Detail: "The job has finished without a result. The job itself tells how it ended.", Job: JobURL(e.Key),
	}
}

func resultExpired(e *ResultExpiredError) Problem {
	return Problem{
		Code: "result-expired", Status: http.StatusGone, Title: "The result is no longer kept",
		Detail: "The job succeeded, and its result was kept for a shorter time than the job.", Job: JobURL(e.Key),
		ExpiredAt: optionalTime(e.ExpiredAt),
	}
}

func mediaType(e *MediaTypeError) Problem {
	return Problem{
		Code: "unsupported-media-type", Status: http.StatusUnsupportedMediaType, Title: "The body's media type is not supported",
		Detail: e.Detail,
	}
}

func tooLarge(e *TooLargeError) Problem {
	p := Problem{
		Code: "request-too-large", Status: http.StatusRequestEntityTooLarge, Title: "The request is too large",
		Detail: e.Detail, Limit: e.Limit, closing: true,
	}
	if p.Detail == "" {
		p.Detail, p.ofKey = fmt.Sprintf("The body may have at most %d bytes.", e.Limit), notUsedUp
	}
	return p
}

func methodNotAllowed(e *MethodNotAllowedError) Problem {
	return Problem{
		Code: "method-not-allowed", Status: http.StatusMethodNotAllowed, Title: "The method is not allowed here",
		Detail: "The Allow header lists the methods of this resource.", allow: e.Allow,
	}
}

func rateLimited(e *RateLimitedError) Problem {
	return Problem{
		Code: "rate-limited", Status: http.StatusTooManyRequests, Title: "Too many requests",
		Detail:    e.Detail,
		ofKey:     "This request did not use up the key: send it again, with the same key.",
		Retryable: true, retryIn: max(e.RetryIn, time.Second),
	}
}

func rejected(e *RejectedError) Problem {
	return Problem{
		Code: "request-rejected", Status: http.StatusBadRequest, Title: "The request was rejected",
		Detail: e.Err.Error(),
	}
}

var tooManyPending = rateLimited(&RateLimitedError{
	Detail: "There are as many unfinished jobs as there may be.", RetryIn: retryQuota,
})
