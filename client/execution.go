package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"time"
)

// Claim says which jobs a worker wants.
type Claim struct {
	Worker string   // its name; new at every start
	Types  []string // job types with executor: remote
	Max    int      // jobs at most, up to 100; 0 means 1
	// Wait is how long to wait for the first one, up to 60 seconds; it is rounded up
	// to whole seconds.
	Wait time.Duration
}

// Execution is a job in the hands of a worker. Whoever has it keeps it by
// Heartbeat, every third of LeaseMS, and ends it by Complete, Fail or Release.
type Execution struct {
	ID             string          `json:"id"` // of the job
	Key            string          `json:"key"`
	Type           string          `json:"type"`
	Tenant         string          `json:"tenant"`
	Attempt        int             `json:"attempt"`
	MaxAttempts    int             `json:"max_attempts"`
	FencingToken   int64           `json:"fencing_token"` // rises with each claim of the job
	Payload        json.RawMessage `json:"payload"`       // byte for byte as it was submitted
	LeaseToken     string          `json:"lease_token"`   // names the claim
	LeaseExpiresAt time.Time       `json:"lease_expires_at"`
	LeaseMS        int64           `json:"lease_ms"` // until then, when the gateway answered
	Deadline       time.Time       `json:"deadline"` // no heartbeat prolongs the lease beyond it
}

// ExecutionHeartbeat is what a heartbeat is answered with.
type ExecutionHeartbeat struct {
	LeaseExpiresAt  time.Time `json:"lease_expires_at"`
	LeaseMS         int64     `json:"lease_ms"`
	CancelRequested bool      `json:"cancel_requested"` // stop, and call Fail or Release
}

// Claim takes jobs for a worker, and waits for the first one. It returns none if none
// came in time. It is not sent again by itself: a claim whose answer was lost may
// have taken jobs, which go on when their leases end.
func (c *Client) Claim(ctx context.Context, claim Claim) ([]Execution, error) {
	body, err := jsonOf(struct {
		Worker      string   `json:"worker"`
		Types       []string `json:"types"`
		Max         int      `json:"max,omitempty"`
		WaitSeconds int64    `json:"wait_seconds"`
	}{claim.Worker, claim.Types, claim.Max, seconds(claim.Wait)})
	if err != nil {
		return nil, fmt.Errorf("client: claim: %w", err)
	}
	answer, err := c.Do(ctx, Request{
		Method: http.MethodPost, Path: "/executions/claim", Body: body, Timeout: claimTimeout + claim.Wait,
	})
	if err != nil {
		return nil, err
	}
	var list struct {
		Executions []Execution `json:"executions"`
	}
	return list.Executions, answer.Decode(&list)
}

// claimTimeout is for what a claim takes besides waiting.
const claimTimeout = 30 * time.Second

// The calls about an execution may be repeated, also by who does not know whether the
// first one arrived, and are. A *Problem with the code CodeLeaseLost or
// CodeExecutionNotFound says that the job is not the caller's any more: drop the work.

// Heartbeat prolongs the lease.
func (c *Client) Heartbeat(ctx context.Context, e Execution) (ExecutionHeartbeat, error) {
	return tell[ExecutionHeartbeat](ctx, c, e, "heartbeat", nil, nil)
}

// Complete ends the job with success. The result is what json.Marshal makes of it, a
// json.RawMessage stays as it is, and nil is none.
func (c *Client) Complete(ctx context.Context, e Execution, result any) (Job, error) {
	text, err := jsonOf(result)
	if err != nil {
		return Job{}, fmt.Errorf("client: result: %w", err)
	}
	return tell[Job](ctx, c, e, "complete", nil, text)
}

// ExecutionFailure is why an execution failed.
type ExecutionFailure struct {
	Error string // up to 4096 bytes; the job's error shows it
	// Permanent says that no retry can mend it.
	Permanent bool
	// RetryAfter is when to try again at the earliest, up to the backoff's cap; it is
	// rounded up to whole seconds.
	RetryAfter time.Duration
}

// Fail ends the attempt. The job is tried again later, if it may be.
func (c *Client) Fail(ctx context.Context, e Execution, f ExecutionFailure) (Job, error) {
	return tell[Job](ctx, c, e, "fail", map[string]any{
		"error": f.Error, "retryable": !f.Permanent, "retry_after_seconds": seconds(f.RetryAfter),
	}, nil)
}

// Release hands the job back, for who says goodbye: the attempt is not counted.
func (c *Client) Release(ctx context.Context, e Execution) (Job, error) {
	return tell[Job](ctx, c, e, "release", nil, nil)
}

// tell says something about an execution. The result, if there is one, is put in
// byte for byte.
func tell[T any](ctx context.Context, c *Client, e Execution, what string, members map[string]any, result []byte) (document T, err error) {
	if err := checkSegment(e.ID); err != nil {
		return document, err
	}
	if members == nil {
		members = map[string]any{}
	}
	members["lease_token"] = e.LeaseToken
	body, err := jsonOf(members)
	if err != nil {
		return document, fmt.Errorf("client: %s: %w", what, err)
	}
	if result != nil {
		body = join(body, `,"result":`, result)
	}
	answer, err := c.Do(ctx, Request{Method: http.MethodPost, Path: "/executions/" + url.PathEscape(e.ID) + "/" + what, Body: body})
	if err != nil {
		return document, err
	}
	return document, answer.Decode(&document)
}
