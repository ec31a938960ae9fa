package repository

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

// cachedFormat is the form of cachedJob. Whoever finds another one, of a program
// before or after this one, does not read it.
const cachedFormat = 1

// cachedJob is a finished job as it is stored in the cache: everything of
// job.Job but tenant and key, which the reader names, and what only unfinished
// jobs have. Members are named here and not taken from job.Job, so that a change
// there changes nothing that is stored.
type cachedJob struct {
	Format int       `json:"format"`
	ReadAt time.Time `json:"read_at"`

	ID              string         `json:"id"`
	Type            string         `json:"type"`
	Status          string         `json:"status"`
	Payload         []byte         `json:"payload"` // in base64, so that it comes back byte for byte
	BusinessKey     string         `json:"business_key,omitempty"`
	OperationKey    string         `json:"operation_key,omitempty"`
	Priority        int            `json:"priority"`
	RunAt           time.Time      `json:"run_at"`
	Deadline        time.Time      `json:"deadline,omitzero"`
	Timeout         time.Duration  `json:"timeout_ns"`
	MaxAttempts     int            `json:"max_attempts"`
	EarlierAttempts int            `json:"earlier_attempts"`
	Attempts        int            `json:"attempts"`
	Generation      int            `json:"generation"`
	Version         int64          `json:"version"`
	WorkerID        string         `json:"worker_id,omitempty"`
	Token           int64          `json:"token"`
	ClaimedAt       time.Time      `json:"claimed_at,omitzero"`
	UnknownAsks     int            `json:"unknown_asks,omitempty"`
	LastError       *cachedFailure `json:"last_error,omitempty"`
	Outcome         string         `json:"outcome,omitempty"`
	DuplicateOf     string         `json:"duplicate_of,omitempty"`
	Result          *cachedResult  `json:"result,omitempty"`
	ResultExpiredAt time.Time      `json:"result_expired_at,omitzero"`
	CreatedAt       time.Time      `json:"created_at"`
	StartedAt       time.Time      `json:"started_at,omitzero"`
	FinishedAt      time.Time      `json:"finished_at"`
	ExpiresAt       time.Time      `json:"expires_at"`
}

type cachedFailure struct {
	Code    string `json:"code"`
	Detail  string `json:"detail"`
	Attempt int    `json:"attempt"`
}

type cachedResult struct {
	Body      []byte `json:"body"`
	MediaType string `json:"media_type"`
}

// encodeJob is the job as it is stored; nil if its times are beyond what JSON has
// words for.
func encodeJob(s standing) []byte {
	j := s.job
	doc := cachedJob{
		Format: cachedFormat, ReadAt: s.at,
		ID: string(j.ID), Type: string(j.Type), Status: string(j.Status), Payload: j.Payload,
		BusinessKey: j.BusinessKey, OperationKey: j.OperationKey,
		Priority: j.Priority, RunAt: j.RunAt, Deadline: j.Deadline, Timeout: j.Timeout,
		MaxAttempts: j.MaxAttempts, EarlierAttempts: j.EarlierAttempts, Attempts: j.Attempts,
		Generation: j.Generation, Version: j.Version, WorkerID: j.WorkerID, Token: j.Token, ClaimedAt: j.ClaimedAt,
		UnknownAsks: j.UnknownAsks, Outcome: j.Outcome, DuplicateOf: string(j.DuplicateOf), ResultExpiredAt: j.ResultExpiredAt,
		CreatedAt: j.CreatedAt, StartedAt: j.StartedAt, FinishedAt: j.FinishedAt, ExpiresAt: j.ExpiresAt,
	}
	if e := j.LastError; e != nil {
		doc.LastError = &cachedFailure{Code: e.Code, Detail: e.Detail, Attempt: e.Attempt}
	}
	if result := j.Result; result != nil {
		doc.Result = &cachedResult{Body: result.Body, MediaType: result.MediaType}
	}
	text, err := json.Marshal(doc)
	if err != nil {
		return nil
	}
	return text
}

// decodeJob is what encodeJob has stored.
func decodeJob(text []byte, tenant idempotency.Tenant, key idempotency.Key) (job.Cached, error) {
	var doc cachedJob
	if err := json.Unmarshal(text, &doc); err != nil {
		return job.Cached{}, fmt.Errorf("repository: read a cached job: %w", err)
	}
	status := job.Status(doc.Status)
	if doc.Format != cachedFormat || !status.Finished() || doc.ID == "" {
		return job.Cached{}, fmt.Errorf("repository: a cached job has format %d, status %q", doc.Format, doc.Status)
	}
	j := job.Job{
		ID: job.ID(doc.ID), Tenant: tenant, Key: key, Type: job.Type(doc.Type), Status: status, Payload: doc.Payload,
		BusinessKey: doc.BusinessKey, OperationKey: doc.OperationKey,
		Priority: doc.Priority, RunAt: doc.RunAt, Deadline: doc.Deadline, Timeout: doc.Timeout,
		MaxAttempts: doc.MaxAttempts, EarlierAttempts: doc.EarlierAttempts, Attempts: doc.Attempts,
		Generation: doc.Generation, Version: doc.Version, WorkerID: doc.WorkerID, Token: doc.Token, ClaimedAt: doc.ClaimedAt,
		UnknownAsks: doc.UnknownAsks, Outcome: doc.Outcome, DuplicateOf: idempotency.Key(doc.DuplicateOf), ResultExpiredAt: doc.ResultExpiredAt,
		CreatedAt: doc.CreatedAt, StartedAt: doc.StartedAt, FinishedAt: doc.FinishedAt, ExpiresAt: doc.ExpiresAt,
	}
	if e := doc.LastError; e != nil {
		j.LastError = &job.Failure{Code: e.Code, Detail: e.Detail, Attempt: e.Attempt}
	}
	if result := doc.Result; result != nil {
		j.Result = &job.Result{Body: result.Body, MediaType: result.MediaType}
	}
	return job.Cached{Job: j, ReadAt: doc.ReadAt}, nil
}
