package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

// ExecutionClaim is the body of POST /executions/claim. Absent and null mean the
// same, here and in the bodies below.
type ExecutionClaim struct {
	Worker      *string  `json:"worker" validate:"required,min=1,max=100,printascii" allowed:"the name of the worker, a string of 1 to 100 printable ASCII characters"`
	Types       []string `json:"types" validate:"required,min=1,max=100" allowed:"an array of 1 to 100 names of job types"`
	Max         *int64   `json:"max,omitempty" validate:"omitnil,min=1,max=100" allowed:"an integer from 1 to 100"`
	WaitSeconds *int64   `json:"wait_seconds,omitempty" validate:"omitnil,min=0,max=60" allowed:"an integer from 0 to 60"`
}

// ExecutionLease is the body of POST /executions/{id}/heartbeat and release.
type ExecutionLease struct {
	LeaseToken *string `json:"lease_token" validate:"required,min=1,max=200" allowed:"the lease_token of the claim"`
}

// ExecutionCompletion is the body of POST /executions/{id}/complete.
type ExecutionCompletion struct {
	LeaseToken *string         `json:"lease_token" validate:"required,min=1,max=200" allowed:"the lease_token of the claim"`
	Result     json.RawMessage `json:"result,omitempty" allowed:"any JSON value"`
}

// ExecutionFailure is the body of POST /executions/{id}/fail.
type ExecutionFailure struct {
	LeaseToken        *string `json:"lease_token" validate:"required,min=1,max=200" allowed:"the lease_token of the claim"`
	Error             *string `json:"error" validate:"required,min=1" allowed:"what went wrong, a string of 1 to 4096 bytes"`
	Retryable         *bool   `json:"retryable,omitempty" allowed:"true or false"`
	RetryAfterSeconds *int64  `json:"retry_after_seconds,omitempty" validate:"omitnil,min=0,max=31536000" allowed:"an integer from 0 to 31536000"`
}

// ExecutionList is what a claim brings.
type ExecutionList struct {
	Executions []Execution `json:"executions"`
}

// Execution is a job in the hands of a worker.
type Execution struct {
	ID           string          `json:"id"` // of the job
	Key          string          `json:"key"`
	Type         string          `json:"type"`
	Tenant       string          `json:"tenant"`
	Attempt      int             `json:"attempt"`
	MaxAttempts  int             `json:"max_attempts"`
	FencingToken int64           `json:"fencing_token"` // rises with each claim of the job
	Payload      json.RawMessage `json:"payload"`       // as it was submitted
	// LeaseToken names the claim in all calls about it.
	LeaseToken     string    `json:"lease_token"`
	LeaseExpiresAt time.Time `json:"lease_expires_at"`
	LeaseMS        int64     `json:"lease_ms"` // from now until then
	// Deadline is when the attempt's time is over, whatever its heartbeats.
	Deadline time.Time `json:"deadline"`
}

// ExecutionHeartbeat is what a heartbeat is answered with.
type ExecutionHeartbeat struct {
	LeaseExpiresAt  time.Time `json:"lease_expires_at"`
	LeaseMS         int64     `json:"lease_ms"` // from now until then
	CancelRequested bool      `json:"cancel_requested"`
}

var (
	executionClaims      = formOf[ExecutionClaim]("a claim")
	executionLeases      = formOf[ExecutionLease]("this request")
	executionCompletions = formOf[ExecutionCompletion]("a completion")
	executionFailures    = formOf[ExecutionFailure]("a failure")
)

// ExecutionTypes are the media types of what workers send.
func ExecutionTypes() []string { return []string{jsonType} }

// DecodeExecutionClaim reads the body of a claim. kindOf tells the kind of executor
// that a job type has; "" if it is not configured. Errors: *ValidationError,
// *idempotency.JSONError.
func DecodeExecutionClaim(body []byte, kindOf func(job.Type) string) (job.WorkerClaim, error) {
	var c ExecutionClaim
	problems, err := decodeSound(executionClaims, body, &c)
	if err != nil {
		return job.WorkerClaim{}, err
	}
	if problems = append(problems, claimable(c.Types, kindOf)...); len(problems) > 0 {
		return job.WorkerClaim{}, &ValidationError{Errors: sortErrors(problems)}
	}
	claim := job.WorkerClaim{Worker: *c.Worker, Max: 1}
	for _, t := range c.Types {
		if !slices.Contains(claim.Types, job.Type(t)) {
			claim.Types = append(claim.Types, job.Type(t))
		}
	}
	if c.Max != nil {
		claim.Max = int(*c.Max)
	}
	if wait := seconds(c.WaitSeconds); wait != nil {
		claim.Wait = *wait
	}
	return claim, nil
}

// claimable finds types that no worker can claim.
func claimable(types []string, kindOf func(job.Type) string) []FieldError {
	var problems []FieldError
	for i, name := range types {
		pointer := fmt.Sprintf("/types/%d", i)
		switch kind := kindOf(job.Type(name)); kind {
		case KindRemote:
		case "":
			problems = append(problems, FieldError{pointer, "configured", "must name a job type of this gateway: add it to job_types with executor: remote, and start the gateway again"})
		default:
			problems = append(problems, FieldError{pointer, "remote", "must name a job type with executor: remote; the gateway runs this one itself (executor: " + kind + ")"})
		}
	}
	return problems
}

// KindRemote is the kind of executors whose jobs workers outside of the gateway run.
const KindRemote = "remote"

// decodeSound decodes a body that nobody has looked at before.
func decodeSound(f form, body []byte, document any) ([]FieldError, error) {
	if _, err := idempotency.Canonical(body); err != nil {
		return nil, err
	}
	members, err := readMembers(body)
	if err != nil {
		return nil, err
	}
	return f.decode(members, document), nil
}

// DecodeExecutionLease reads the lease token of a heartbeat or a release. Errors: as
// DecodeExecutionClaim's.
func DecodeExecutionLease(body []byte) (string, error) {
	var l ExecutionLease
	problems, err := decodeSound(executionLeases, body, &l)
	if err == nil && len(problems) > 0 {
		err = &ValidationError{Errors: sortErrors(problems)}
	}
	if err != nil {
		return "", err
	}
	return *l.LeaseToken, nil
}

// DecodeExecutionCompletion reads the lease token and the result, byte for byte; nil
// if there is none. Errors: as DecodeExecutionClaim's, and *TooLargeError for a
// result of more bytes than limit.
func DecodeExecutionCompletion(body []byte, limit int64) (string, *job.Result, error) {
	var c ExecutionCompletion
	problems, err := decodeSound(executionCompletions, body, &c)
	switch {
	case err != nil:
		return "", nil, err
	case len(problems) > 0:
		return "", nil, &ValidationError{Errors: sortErrors(problems)}
	case int64(len(c.Result)) > limit:
		return "", nil, ResultTooLarge(limit)
	case c.Result == nil:
		return *c.LeaseToken, nil, nil
	}
	return *c.LeaseToken, &job.Result{Body: c.Result, MediaType: jsonType}, nil
}

// workerErrorCode is the code of an attempt that its worker said has failed.
const workerErrorCode = "worker-error"

// maxWorkerError is the longest account of a failure, in bytes.
const maxWorkerError = 4 << 10

// DecodeExecutionFailure reads the lease token, and the failure in the words of the
// worker. Errors: as DecodeExecutionClaim's.
func DecodeExecutionFailure(body []byte) (string, *job.AttemptError, error) {
	var f ExecutionFailure
	problems, err := decodeSound(executionFailures, body, &f)
	if err != nil {
		return "", nil, err
	}
	if f.Error != nil && len(*f.Error) > maxWorkerError {
		detail := fmt.Sprintf("%s, not one of %d", mustBe(executionFailures.fields["error"]), len(*f.Error))
		problems = append(problems, FieldError{"/error", ruleLength, detail})
	}
	if len(problems) > 0 {
		return "", nil, &ValidationError{Errors: sortErrors(problems)}
	}
	failure := &job.AttemptError{Code: workerErrorCode, Detail: *f.Error, Permanent: f.Retryable != nil && !*f.Retryable}
	if after := seconds(f.RetryAfterSeconds); after != nil {
		failure.After = *after
	}
	return *f.LeaseToken, failure, nil
}

// WriteExecutions writes what a claim has brought, the payloads byte for byte.
func WriteExecutions(w http.ResponseWriter, handed []job.Handed) {
	var b bytes.Buffer
	b.WriteString(`{"executions":[`)
	for i, h := range handed {
		if i > 0 {
			b.WriteByte(',')
		}
		b.Write(fromHanded(h).document())
	}
	b.WriteString("]}\n")
	w.Header().Set("Content-Type", jsonType)
	writeBody(w, http.StatusOK, b.Bytes())
}

func fromHanded(h job.Handed) Execution {
	return Execution{
		ID: string(h.ID), Key: string(h.Key), Type: string(h.Type), Tenant: string(h.Tenant), Attempt: h.Attempts, MaxAttempts: h.MaxAttempts,
		FencingToken: h.Lease.Token, Payload: h.Payload, LeaseToken: h.LeaseToken,
		LeaseExpiresAt: h.LeaseEndsAt.UTC(), LeaseMS: h.LeaseFor.Milliseconds(), Deadline: h.ExecutionDeadline().UTC(),
	}
}

// document is the execution as JSON. As in Job.document, the payload is put in
// afterwards, because json.Marshal would compact it.
func (e Execution) document() []byte {
	const place = `,"payload":null`
	payload := e.Payload
	e.Payload = nil
	before, after, _ := bytes.Cut(bytes.TrimSpace(encode(e)), []byte(place))
	return slices.Concat(before, []byte(place[:len(place)-len("null")]), payload, after)
}

// FromHeartbeat renders the answer to a heartbeat.
func FromHeartbeat(b job.WorkerBeat) ExecutionHeartbeat {
	return ExecutionHeartbeat{LeaseExpiresAt: b.LeaseEndsAt.UTC(), LeaseMS: b.LeaseFor.Milliseconds(), CancelRequested: b.CancelRequested}
}

// ResultTooLarge refuses a result of more bytes than limits.result allows.
func ResultTooLarge(limit int64) *TooLargeError {
	return &TooLargeError{
		Limit:  limit,
		Detail: fmt.Sprintf("A result may have at most %d bytes (limits.result). Nothing was changed: complete the execution with a smaller result, or report that it failed.", limit),
	}
}

var executionNotFound = Problem{
	Code: "execution-not-found", Status: http.StatusNotFound, Title: "There is no such execution",
	Detail: "No job that this token may work on has this id. Drop the work: nobody asks for its result.",
}

var executionFinished = Problem{
	Code: "execution-already-finished", Status: http.StatusUnprocessableEntity, Title: "The execution has finished with another result",
	Detail: "This execution was completed before, with another result, which stands.",
}

var leaseLost = Problem{
	Code: "lease-lost", Status: http.StatusGone, Title: "The lease is lost",
	Detail: "This lease token does not hold the job, or not any more: its lease has ended, or the execution was given up. Nothing was changed. Drop the work: another worker may have the job.",
}
