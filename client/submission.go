package client

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// SubmitOption says more about a submission.
type SubmitOption interface{ submit(*submission) }

// OperateOption says more about a Retry or a Resolve.
type OperateOption interface{ operate(*call) }

// CallOption is both.
type CallOption func(*call)

func (o CallOption) submit(s *submission) { o(&s.call) }

func (o CallOption) operate(c *call) { o(c) }

// call is what an accept has besides its document.
type call struct {
	key  string
	wait time.Duration
}

// prefer is the header of the call; nil for none.
func (c call) prefer() *string {
	if c.wait <= 0 {
		return nil
	}
	text := fmt.Sprintf("wait=%d", seconds(c.wait))
	return &text
}

// submission is a job to be, without its payload.
type submission struct {
	call             `json:"-"`
	Key              string     `json:"key,omitempty"` // in a batch only
	Type             string     `json:"type"`
	BusinessKey      *string    `json:"business_key,omitempty"`
	RunAt            *time.Time `json:"run_at,omitempty"`
	DelaySeconds     *int64     `json:"delay_seconds,omitempty"`
	ExpiresInSeconds *int64     `json:"expires_in_seconds,omitempty"`
	Priority         *int       `json:"priority,omitempty"`
	MaxAttempts      *int       `json:"max_attempts,omitempty"`
	TimeoutSeconds   *int64     `json:"timeout_seconds,omitempty"`
	CallbackURL      *string    `json:"callback_url,omitempty"`
}

type member func(*submission)

func (m member) submit(s *submission) { m(s) }

// WithKey names the operation: the gateway accepts a key once, and whoever repeats
// the call with it gets the first answer. See Key and NewKey.
func WithKey(key string) CallOption { return func(c *call) { c.key = key } }

// WithWait waits for the job to finish, at most about as long as d and as the
// gateway grants (60 s): then the receipt has the job as it is by then.
func WithWait(d time.Duration) CallOption { return func(c *call) { c.wait = d } }

// WithBusinessKey says what the job is about: of one type and business key there
// is one unfinished job at a time.
func WithBusinessKey(key string) SubmitOption {
	return member(func(s *submission) { s.BusinessKey = &key })
}

// WithRunAt lets the job start at t or later.
func WithRunAt(t time.Time) SubmitOption {
	t = t.UTC()
	return member(func(s *submission) { s.RunAt = &t })
}

// WithDelay lets the job start after d, which is rounded up to whole seconds.
func WithDelay(d time.Duration) SubmitOption {
	return member(func(s *submission) { s.DelaySeconds = secondsOf(d) })
}

// WithExpiresIn lets the job fail if it has not started after d, which is rounded
// up to whole seconds.
func WithExpiresIn(d time.Duration) SubmitOption {
	return member(func(s *submission) { s.ExpiresInSeconds = secondsOf(d) })
}

// WithPriority lets the job start before others (-100 to 100; each step is ten
// seconds of head start).
func WithPriority(n int) SubmitOption { return member(func(s *submission) { s.Priority = &n }) }

// WithMaxAttempts bounds the attempts (1 to 1000).
func WithMaxAttempts(n int) SubmitOption {
	return member(func(s *submission) { s.MaxAttempts = &n })
}

// WithTimeout bounds one attempt; it is rounded up to whole seconds.
func WithTimeout(d time.Duration) SubmitOption {
	return member(func(s *submission) { s.TimeoutSeconds = secondsOf(d) })
}

// WithCallbackURL has the job's end told at a URL, which the gateway's configuration
// must allow (callbacks.allow).
func WithCallbackURL(url string) SubmitOption {
	return member(func(s *submission) { s.CallbackURL = &url })
}

func secondsOf(d time.Duration) *int64 {
	n := seconds(d)
	return &n
}

// seconds rounds up: a time that is asked for is not cut short.
func seconds(d time.Duration) int64 {
	n := int64(d / time.Second)
	if d > time.Duration(n)*time.Second {
		n++
	}
	return n
}

func newSubmission(jobType string, options []SubmitOption) submission {
	s := submission{Type: jobType}
	for _, option := range options {
		option.submit(&s)
	}
	return s
}

// document is the submission as JSON. The payload is put in byte for byte:
// json.Marshal would compact it.
func (s submission) document(payload any) ([]byte, error) {
	text, err := jsonOf(payload)
	if err != nil {
		return nil, fmt.Errorf("client: payload: %w", err)
	}
	head, err := jsonOf(s)
	if err != nil {
		return nil, fmt.Errorf("client: submission: %w", err)
	}
	return join(head, `,"payload":`, text), nil
}

// join puts one more member into an object that is not empty.
func join(object []byte, name string, value []byte) []byte {
	document := append(bytes.TrimSuffix(object, []byte("}")), name...)
	return append(append(document, value...), '}')
}

var errNotJSON = errors.New("the json.RawMessage is not one JSON value")

// jsonOf is v as JSON; a json.RawMessage stays as it is.
func jsonOf(v any) ([]byte, error) {
	if raw, ok := v.(json.RawMessage); ok && raw != nil {
		if !json.Valid(raw) {
			return nil, errNotJSON
		}
		return raw, nil
	}
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false) // nobody puts it into a page
	if err := encoder.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}
