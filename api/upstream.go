package api

import (
	"net/http"
	"time"
)

// UpstreamError reports a proxied request that got no answer.
type UpstreamError struct {
	// Timeout says that the time was over; else the upstream could not be
	// reached, or broke off.
	Timeout bool
	// Sent says that the upstream may have got the request, so that nobody knows
	// what it did.
	Sent bool
	// Repeatable says that the same request with the same key would be sent to
	// the upstream again.
	Repeatable bool
	Err        error
}

func (e *UpstreamError) Error() string { return "api: no answer of the upstream: " + e.Err.Error() }

func (e *UpstreamError) Unwrap() error { return e.Err }

// retryUpstream is long enough for a connection to come back, and short for a
// client that waits.
const retryUpstream = 2 * time.Second

func upstream(e *UpstreamError) Problem {
	p := Problem{
		Code: "upstream-unreachable", Status: http.StatusBadGateway, Title: "The upstream cannot be reached",
		Detail: "The connection to the API behind this gateway could not be made.",
	}
	if e.Sent {
		p.Detail = "The connection to the API behind this gateway broke before its answer was complete. It may have executed the request."
	}
	if e.Timeout {
		p.Code, p.Status, p.Title = "upstream-timeout", http.StatusGatewayTimeout, "The upstream did not answer in time"
		p.Detail = "The API behind this gateway did not answer in time."
		if e.Sent {
			p.Detail += " It may have executed the request."
		}
	}
	if e.Repeatable {
		p.Retryable, p.retryIn = true, retryUpstream
	}
	return p
}
