package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/sekali/sekali/client/wire"
)

const (
	// longestPoll is short of what proxies commonly allow a silent connection. An
	// answer that comes before the job has finished costs one more request.
	longestPoll = 30 * time.Second
	// answerTime is what an answer may take on its way.
	answerTime = 500 * time.Millisecond
	// idlePause is between polls whose answers came at once and do not say when to
	// come back.
	idlePause = time.Second
)

// Wait returns the job once it has succeeded, failed or was cancelled. It holds
// requests open, so that it learns so at once, and goes on while the gateway
// restarts or cannot be reached, until ctx ends: give it a deadline. With the error
// of ctx it returns the job as it was seen last.
func (c *Client) Wait(ctx context.Context, key string) (Job, error) {
	if err := checkSegment(key); err != nil {
		return Job{}, err
	}
	var last Job
	for failures := 0; ; {
		found, wait, err := c.poll(ctx, key)
		switch {
		case err == nil && found.Finished():
			return found, nil
		case err == nil:
			last, failures = found, 0
		default:
			failures++
			var again bool
			if wait, again = againIn(err, failures); !again {
				return last, err
			}
		}
		if stopped := pause(ctx, wait); stopped != nil {
			return last, stoppedAfter(stopped, err)
		}
	}
}

// poll asks for the job, and lets the gateway hold its answer until the job has
// finished. wait is when to ask again.
func (c *Client) poll(ctx context.Context, key string) (found Job, wait time.Duration, err error) {
	hold := c.longestPoll(ctx)
	prefer := fmt.Sprintf("wait=%d", seconds(hold))
	w, err := c.wire.GetJob(ctx, key, &wire.GetJobParams{Prefer: &prefer})
	found, err = decoded[Job](w, err)
	if err != nil {
		return found, 0, err
	}
	wait = retryAfter(w.Header)
	if hold == 0 || w.Header.Get("Preference-Applied") == "" {
		wait = max(wait, idlePause)
	}
	return found, wait, nil
}

// longestPoll leaves room for the answer within a timeout that the caller's HTTP
// client has, and before the context ends: so the caller learns at least how the
// job stood last.
func (c *Client) longestPoll(ctx context.Context) time.Duration {
	longest := longestPoll
	if timeout := c.doer.http.Timeout; timeout > 0 {
		longest = min(longest, timeout/2)
	}
	if deadline, ok := ctx.Deadline(); ok {
		longest = min(longest, max(time.Until(deadline)-answerTime, 0))
	}
	return longest.Truncate(time.Second)
}

// Result waits for the job like Wait and returns its result. The error is a
// *JobError if the job failed or was cancelled.
func (c *Client) Result(ctx context.Context, key string) (Result, error) {
	found, err := c.Wait(ctx, key)
	if err != nil {
		return Result{}, err
	}
	if found.Status != StatusSucceeded {
		return Result{}, &JobError{Job: found}
	}
	w, err := c.wire.GetResult(ctx, key, &wire.GetResultParams{})
	var problem *Problem
	if errors.As(err, &problem) && problem.Code == CodeJobHasNoResult {
		return Result{}, nil
	}
	if err != nil {
		return Result{}, err
	}
	return resultOf(w)
}

func resultOf(w *http.Response) (Result, error) {
	answer, err := read(w)
	if err != nil {
		return Result{}, err
	}
	// A result may be of any media type, a page as well. What tells it from the page
	// of a proxy is the ETag that all results have.
	if answer.Header.Get("ETag") == "" {
		return Result{}, notGateway(w, answer.Body)
	}
	return Result{Body: answer.Body, MediaType: answer.Header.Get("Content-Type")}, nil
}
