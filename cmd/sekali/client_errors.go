package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/client"
)

// explained turns an error of the client into one that says what to do, and knows
// its exit code.
func (f clientFlags) explained(ctx context.Context, err error) error {
	var ours interface{ exitCode() int }
	var problem *client.Problem
	var other *client.NotGatewayError
	var unreachable *client.UnreachableError
	switch {
	case err == nil, errors.As(err, &ours), errors.Is(err, client.ErrAnswerTooLarge):
		return err
	case ctx.Err() != nil:
		return &interruptedError{}
	case errors.As(err, &problem):
		return &refusedError{problem}
	case errors.As(err, &unreachable):
		return &unreachableError{text: err.Error(), err: err, advice: "Is it running there? Set --url or SEKALI_URL."}
	case errors.As(err, &other):
		return f.noGateway(err)
	}
	return &usageError{err.Error()} // it could not even be sent
}

func (f clientFlags) noGateway(err error) error {
	return &unreachableError{text: err.Error(), err: err, advice: "Is " + f.address() + " the address of a gateway? Set --url or SEKALI_URL."}
}

// address is the gateway's without its password.
func (f clientFlags) address() string {
	address, err := url.Parse(f.URL)
	if err != nil {
		return "--url"
	}
	return address.Redacted()
}

// unreachableError reports that no gateway answered.
type unreachableError struct {
	text   string
	advice string // "": text has it
	err    error
}

func (e *unreachableError) Error() string {
	if e.advice == "" {
		return plain(e.text)
	}
	return plain(e.text) + "\n  " + plain(e.advice)
}

func (e *unreachableError) Unwrap() error { return e.err }

func (*unreachableError) exitCode() int { return exitUnreachable }

// interruptedError reports a command that was told to stop.
type interruptedError struct {
	advice string // how to go on
}

func (e *interruptedError) Error() string {
	if e.advice == "" {
		return "interrupted"
	}
	return "interrupted\n  " + e.advice
}

func (*interruptedError) exitCode() int { return exitInterrupted }

// unfinishedError reports a job that goes on, while somebody wanted its end.
type unfinishedError struct {
	key, status string
}

func (e *unfinishedError) Error() string {
	return fmt.Sprintf("the job %s has not finished: it is %s\n  What to do: sekali result --wait 60s %s waits for it.", plain(e.key), plain(e.status), argument(e.key))
}

func (*unfinishedError) exitCode() int { return exitUnfinished }

// jobFailedError reports a job that ended without success.
type jobFailedError struct {
	key string // that was asked for
	job api.Job
}

func (e *jobFailedError) Error() string {
	j := e.job
	var b strings.Builder
	fmt.Fprintf(&b, "the job %s %s", plain(j.Key), cmp.Or(map[string]string{"failed": "failed", "cancelled": "was cancelled"}[j.Status], "is "+plain(j.Status)))
	if j.Error != nil {
		fmt.Fprintf(&b, " after %d of %d attempts: %s: %s", j.Attempts, j.MaxAttempts, plain(j.Error.Code), plain(j.Error.Detail))
	}
	if orNone(j.Outcome) == "outcome_unknown" {
		b.WriteString("; nobody knows whether its last attempt did its work")
	}
	fmt.Fprintf(&b, "\n  What to do: sekali inspect %s tells more.", argument(e.key))
	return b.String()
}

func (*jobFailedError) exitCode() int { return exitFailed }

// refusedError reports a gateway that refused.
type refusedError struct{ *client.Problem }

func (e *refusedError) Unwrap() error { return e.Problem }

func (*refusedError) exitCode() int { return exitRefused }

func (e *refusedError) Error() string {
	p := e.Problem
	var b strings.Builder
	fmt.Fprintf(&b, "the gateway refused: %s (%d %s)\n  %s", plain(p.Title), p.Status, plain(p.Code), plain(p.Detail))
	if p.Limit > 0 {
		fmt.Fprintf(&b, " The limit is %d.", p.Limit)
	}
	for _, wrong := range p.Errors {
		fmt.Fprintf(&b, "\n  %s %s", plain(wrong.Pointer), plain(wrong.Detail))
	}
	if p.Job != "" {
		fmt.Fprintf(&b, "\n  The job: %s", plain(p.Job))
	}
	if p.JobStatus != "" {
		fmt.Fprintf(&b, " (%s)", plain(p.JobStatus))
	}
	if advice := e.advice(); advice != "" {
		b.WriteString("\n  What to do: " + advice)
	}
	return b.String()
}

// someRefusedError reports many calls of which some were refused; which ones has
// been told.
type someRefusedError struct {
	refused int
	what    string
}

func (e *someRefusedError) Error() string {
	return fmt.Sprintf("%s refused: see above", plural(e.refused, e.what+" was", e.what+"s were"))
}

func (*someRefusedError) exitCode() int { return exitRefused }

// outputError reports that what was asked for could not be printed.
type outputError struct{ error }

func (e *outputError) Error() string { return "print the results: " + e.error.Error() }

func (e *outputError) Unwrap() error { return e.error }

func (*outputError) exitCode() int { return exitFailed }

// plural counts with the right word.
func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
