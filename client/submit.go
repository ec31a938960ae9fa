package client

import (
	"bytes"
	"context"
	"net/http"
	"time"

	"github.com/sekali/sekali/client/wire"
)

// Receipt is what the gateway answers to a submission, a retry or a resolution.
type Receipt struct {
	// Key is the idempotency key of the call, also if there was an error: repeat the
	// call with it.
	Key string
	// Job is the job as it was accepted; as it is now, if it finished within
	// WithWait or DuplicateIgnored is set.
	Job Job
	// Replayed: the key was accepted before, be it by an earlier try of this call.
	Replayed bool
	// DuplicateIgnored: another job holds the business key; Job is that one, and the
	// key stands for it.
	DuplicateIgnored bool
	// JobStatus is how the job stands now.
	JobStatus string
	// ExpiresAt is until when the key is kept; zero until the job has finished.
	ExpiresAt time.Time
}

// Submit submits a job: its payload is encoded as JSON, and a json.RawMessage goes
// as it is. When Submit returns without an error, the job is committed. Without
// WithKey it makes a key, once for all tries; a program that crashes before it has
// stored that key cannot repeat the call, so give one that follows from the
// operation.
func (c *Client) Submit(ctx context.Context, jobType string, payload any, options ...SubmitOption) (Receipt, error) {
	s := newSubmission(jobType, options)
	if s.key == "" {
		s.key = NewKey()
	}
	body, err := s.document(payload)
	if err != nil {
		return Receipt{Key: s.key}, err
	}
	if err := checkKey(s.key); err != nil {
		return Receipt{Key: s.key}, err
	}
	params := &wire.SubmitJobParams{IdempotencyKey: quoteKey(s.key), Prefer: s.prefer()}
	return receipt(s.key)(c.wire.SubmitJobWithBody(ctx, params, jsonType, bytes.NewReader(body)))
}

// Retry brings a failed or cancelled job back, with new attempts. It is an accept
// with a key of its own (WithKey; one is made otherwise): a retry that is repeated
// with the same key brings the job back once.
func (c *Client) Retry(ctx context.Context, key string, options ...OperateOption) (Receipt, error) {
	made, err := newCall(key, options)
	if err != nil {
		return Receipt{Key: made.key}, err
	}
	params := &wire.RetryJobParams{IdempotencyKey: quoteKey(made.key), Prefer: made.prefer()}
	return receipt(made.key)(c.wire.RetryJob(ctx, key, params))
}

// Resolve settles a job that failed with an unknown outcome: status is
// StatusSucceeded, with what is to be its result, or StatusFailed, with nil. It is
// an accept with a key of its own, like Retry.
func (c *Client) Resolve(ctx context.Context, key, status string, result any, options ...OperateOption) (Receipt, error) {
	made, err := newCall(key, options)
	if err != nil {
		return Receipt{Key: made.key}, err
	}
	body, err := resolution(status, result)
	if err != nil {
		return Receipt{Key: made.key}, err
	}
	params := &wire.ResolveJobParams{IdempotencyKey: quoteKey(made.key), Prefer: made.prefer()}
	return receipt(made.key)(c.wire.ResolveJobWithBody(ctx, key, params, jsonType, bytes.NewReader(body)))
}

func newCall(jobKey string, options []OperateOption) (call, error) {
	var made call
	for _, option := range options {
		option.operate(&made)
	}
	if made.key == "" {
		made.key = NewKey()
	}
	if err := checkKey(made.key); err != nil {
		return made, err
	}
	return made, checkSegment(jobKey)
}

func resolution(status string, result any) ([]byte, error) {
	body, err := jsonOf(struct {
		Status string `json:"status"`
	}{status})
	if err != nil || result == nil {
		return body, err
	}
	text, err := jsonOf(result)
	if err != nil {
		return nil, wrongResult(err)
	}
	return join(body, `,"result":`, text), nil
}

// receipt reads the answer to the call with the key.
func receipt(key string) func(*http.Response, error) (Receipt, error) {
	return func(w *http.Response, err error) (Receipt, error) {
		made := Receipt{Key: key}
		made.Job, err = decoded[Job](w, err)
		if err != nil {
			return made, err
		}
		made.Replayed = w.Header.Get("Idempotent-Replayed") == "true"
		made.DuplicateIgnored = w.Header.Get("Idempotency-Status") == OutcomeDuplicateIgnored
		made.JobStatus = w.Header.Get("Job-Status")
		if made.JobStatus == "" {
			made.JobStatus = made.Job.Status
		}
		// Without the header, or in a form of the future, it stays zero: not known.
		made.ExpiresAt, _ = time.Parse(time.RFC3339, w.Header.Get("Idempotency-Expires"))
		return made, nil
	}
}
