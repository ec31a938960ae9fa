package executor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode"

	"github.com/sekali/sekali/job"
)

// The codes of attempt errors. They are public and stable: clients see them as
// the code of a job's error. The dispatcher adds "panic" for an executor that
// panicked and "error" for an error that is no *job.AttemptError.
const (
	CodeTimeout         = "timeout"             // the attempt's time was over
	CodeShutdown        = "shutdown"            // the process ends
	CodeLeaseLost       = "lease-lost"          // the attempt is not ours any more
	CodeLockLost        = "lock-lost"           // somebody else holds the job's lock
	CodeCancelled       = "cancelled"           // the context ended for another reason
	CodeConnection      = "connection"          // no answer, or not a whole one
	CodeHTTPStatus      = "http-status"         // the receiver's answer was not 2xx
	CodeRedirectRefused = "redirect-refused"    // the receiver pointed elsewhere
	CodeResultTooLarge  = "result-too-large"    // permanent: it would be so again
	CodeResultNotJSON   = "result-not-json"     // permanent: a Go value without a JSON form
	CodeNotStarted      = "command-not-started" // the program could not be started
	CodeExit            = "exit-code"           // the program exited with another code than 0
	CodeSignal          = "signal"              // a signal ended the program
	CodeUniqueViolation = "unique-violation"    // permanent: another row holds the unique value
	CodeSQL             = "sql"                 // the database refused or failed the statement
)

// DefaultResultLimit bounds a result where the configuration does not: the
// same as the largest request body, so that a job can echo what it was given.
const DefaultResultLimit = 1 << 20

// quoteLimit is how much of a receiver's body or a program's error output an
// attempt's error may show (contract section H).
const quoteLimit = 1 << 10

// ended explains the attempt whose context is over; nil while it is not.
func ended(ctx context.Context) *job.AttemptError {
	cause := context.Cause(ctx)
	if cause == nil {
		return nil
	}
	e := &job.AttemptError{
		Code:   CodeCancelled,
		Detail: "the attempt was cancelled",
		Err:    fmt.Errorf("executor: attempt ended: %w", cause),
	}
	switch {
	case errors.Is(cause, job.ErrTimeout), errors.Is(cause, context.DeadlineExceeded):
		e.Code, e.Detail = CodeTimeout, "the attempt took longer than its timeout"
	case errors.Is(cause, job.ErrShutdown):
		e.Code, e.Detail = CodeShutdown, "the gateway is shutting down"
	case errors.Is(cause, job.ErrLeaseLost):
		e.Code, e.Detail = CodeLeaseLost, "the lease ended before the attempt did"
	case errors.Is(cause, job.ErrLockLost):
		e.Code, e.Detail = CodeLockLost, "somebody else took the lock of the job"
	}
	return e
}

func tooLarge(limit int64) error {
	return &job.AttemptError{
		Code:      CodeResultTooLarge,
		Detail:    fmt.Sprintf("the result is larger than %d bytes", limit),
		Permanent: true,
	}
}

// withQuote adds what the other side printed to a public text.
func withQuote(detail string, printed []byte) string {
	quoted := quote(printed)
	if quoted == "" {
		return detail
	}
	return detail + ": " + quoted
}

// quote makes foreign bytes fit to be shown: valid UTF-8 without control
// characters. No byte becomes longer, so a bounded input stays bounded.
func quote(printed []byte) string {
	text := strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || unicode.IsGraphic(r) {
			return r
		}
		return '?'
	}, strings.ToValidUTF8(string(printed), "?"))
	return strings.TrimSpace(text)
}
