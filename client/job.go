package client

import (
	"encoding/json"
	"fmt"
	"time"
)

// The statuses of a job, as they are today. Status is an open set: a later gateway
// may have others, and a program must expect words that it does not know.
const (
	StatusScheduled  = "scheduled"
	StatusPending    = "pending"
	StatusProcessing = "processing"
	StatusRetrying   = "retrying"
	StatusSucceeded  = "succeeded"
	StatusFailed     = "failed"
	StatusCancelled  = "cancelled"
)

// The outcomes of a job, as they are today: an open set too.
const (
	OutcomeDuplicateIgnored = "duplicate_ignored"
	OutcomeUnknown          = "outcome_unknown"
)

// Job is a job as it stood when the gateway answered. Times are UTC; texts and
// times that a job does not have are zero.
type Job struct {
	ID           string `json:"id"`
	Key          string `json:"key"`
	Type         string `json:"type"`
	Status       string `json:"status"`
	Attempts     int    `json:"attempts"`
	MaxAttempts  int    `json:"max_attempts"`
	Generation   int    `json:"generation"` // 1, and one more for each retry by an operator
	Version      int64  `json:"version"`
	BusinessKey  string `json:"business_key,omitempty"`
	OperationKey string `json:"operation_key,omitempty"`
	Priority     int    `json:"priority"`
	// Payload and Result are JSON, byte for byte as they were sent; nil in lists and
	// in receipts of jobs that were accepted just now. A result that is not JSON is
	// null here: ask for it with Result.
	Payload     json.RawMessage `json:"payload,omitempty"`
	Result      json.RawMessage `json:"result,omitempty"`
	Error       *AttemptProblem `json:"error,omitempty"` // of the last attempt that did not succeed
	Outcome     string          `json:"outcome,omitempty"`
	DuplicateOf string          `json:"duplicate_of,omitempty"` // key of the job that had done it

	CreatedAt     time.Time `json:"created_at"`
	RunAt         time.Time `json:"run_at"`
	StartedAt     time.Time `json:"started_at,omitzero"`
	FinishedAt    time.Time `json:"finished_at,omitzero"`
	NextAttemptAt time.Time `json:"next_attempt_at,omitzero"`
	WorkerID      string    `json:"worker_id,omitempty"`
	ExpiresAt     time.Time `json:"expires_at,omitzero"` // until when the gateway keeps it
}

// Finished reports that the job has succeeded, failed or was cancelled: it does
// not run again unless an operator retries it. A job of a status that this client
// does not know has finished when it says since when.
func (j Job) Finished() bool {
	return j.Status == StatusSucceeded || j.Status == StatusFailed || j.Status == StatusCancelled || !j.FinishedAt.IsZero()
}

// AttemptProblem is why an attempt did not succeed: a class and a status, never an
// internal text.
type AttemptProblem struct {
	Code    string `json:"code"`
	Detail  string `json:"detail"`
	Attempt int    `json:"attempt"`
}

// JobError reports a job that ended without success.
type JobError struct {
	Job Job
}

func (e *JobError) Error() string {
	text := fmt.Sprintf("client: job %s is %s", e.Job.Key, e.Job.Status)
	if e.Job.Error != nil {
		text += fmt.Sprintf(": attempt %d: %s: %s", e.Job.Error.Attempt, e.Job.Error.Code, e.Job.Error.Detail)
	}
	return text
}

// Attempt is one run of a job.
type Attempt struct {
	Number         int             `json:"number"`
	Outcome        string          `json:"outcome,omitempty"` // succeeded, failed, lost, …; "" while it runs
	WorkerID       string          `json:"worker_id"`
	StartedAt      time.Time       `json:"started_at"`
	FinishedAt     time.Time       `json:"finished_at,omitzero"`
	DurationMS     int64           `json:"duration_ms,omitempty"`
	Error          *AttemptProblem `json:"error,omitempty"`
	LeaseExpiresAt time.Time       `json:"lease_expires_at,omitzero"` // of the running one
}

// Event is one thing that happened to a job. The words are an open set, which the
// documentation of the gateway lists.
type Event struct {
	ID      string         `json:"id"` // unique within the job
	Time    time.Time      `json:"time"`
	Event   string         `json:"event"`
	Attempt int            `json:"attempt,omitempty"` // 0: of none
	Data    map[string]any `json:"data"`
}
