package api

import (
	"encoding/json"
	"time"
)

// AnyJSON is what json.RawMessage holds, as the OpenAPI document shows it: any
// JSON value, byte for byte.
type AnyJSON any

// Submission is the body of POST /jobs. Absent and null mean the same, so a
// pointer is nil in both cases; a zero that is there is not nil.
//
// The tag allowed says in words what validate checks: it is what a client reads
// about a value that is refused.
type Submission struct {
	Type             *string         `json:"type" validate:"required,min=1,max=255" allowed:"the name of a job type, a string of 1 to 255 characters"`
	Payload          json.RawMessage `json:"payload,omitempty" allowed:"any JSON value"`
	BusinessKey      *string         `json:"business_key,omitempty" validate:"omitnil,min=1,max=255,printascii" allowed:"a string of 1 to 255 printable ASCII characters"`
	RunAt            *time.Time      `json:"run_at,omitempty" allowed:"an RFC 3339 time at most a year ahead"`
	DelaySeconds     *int64          `json:"delay_seconds,omitempty" validate:"omitnil,min=0,max=31536000,excluded_with=RunAt" allowed:"an integer from 0 to 31536000"`
	ExpiresInSeconds *int64          `json:"expires_in_seconds,omitempty" validate:"omitnil,min=0,max=31536000" allowed:"an integer from 0 to 31536000"`
	Priority         *int64          `json:"priority,omitempty" validate:"omitnil,min=-100,max=100" allowed:"an integer from -100 to 100"`
	MaxAttempts      *int64          `json:"max_attempts,omitempty" validate:"omitnil,min=1,max=1000" allowed:"an integer from 1 to 1000"`
	TimeoutSeconds   *int64          `json:"timeout_seconds,omitempty" validate:"omitnil,min=1,max=86400" allowed:"an integer from 1 to 86400"`
	CallbackURL      *string         `json:"callback_url,omitempty" validate:"omitnil,min=1,max=2048" allowed:"an http:// or https:// URL of 1 to 2048 characters"`
}

// Job is a job as it stands. Status and Outcome are open sets: a reader must
// expect words that it does not know. Times are UTC.
type Job struct {
	ID            string          `json:"id"`
	Key           string          `json:"key"`
	Type          string          `json:"type"`
	Status        string          `json:"status"`
	Attempts      int             `json:"attempts"`
	MaxAttempts   int             `json:"max_attempts"`
	Generation    int             `json:"generation"`
	Version       int64           `json:"version"`
	BusinessKey   *string         `json:"business_key"`
	OperationKey  *string         `json:"operation_key"`
	Priority      int             `json:"priority"`
	Payload       json.RawMessage `json:"payload,omitempty"` // absent in lists and in a stored 202
	Result        json.RawMessage `json:"result,omitempty"`  // likewise; null if it is not JSON
	Error         *AttemptProblem `json:"error"`
	Outcome       *string         `json:"outcome"`
	DuplicateOf   *string         `json:"duplicate_of"`
	CreatedAt     time.Time       `json:"created_at"`
	RunAt         time.Time       `json:"run_at"`
	StartedAt     *time.Time      `json:"started_at"`
	FinishedAt    *time.Time      `json:"finished_at"`
	NextAttemptAt *time.Time      `json:"next_attempt_at"`
	WorkerID      *string         `json:"worker_id"`
	ExpiresAt     *time.Time      `json:"expires_at"`
}

// AttemptProblem is the problem document of the last attempt that did not
// succeed. It names a class and a status, never an internal text.
type AttemptProblem struct {
	Code    string `json:"code"`
	Detail  string `json:"detail"`
	Attempt int    `json:"attempt"`
}

// JobList is one page of GET /jobs, newest first, without payloads and results.
type JobList struct {
	Jobs       []Job   `json:"jobs"`
	NextCursor *string `json:"next_cursor"` // null on the last page
}
