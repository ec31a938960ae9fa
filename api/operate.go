package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

// Resolution is the body of POST /jobs/{key}/resolve. Absent and null mean the
// same.
type Resolution struct {
	Status *string         `json:"status" validate:"required,oneof=succeeded failed" allowed:"succeeded or failed"`
	Result json.RawMessage `json:"result,omitempty" allowed:"any JSON value"`
}

// resolutions are the bodies of POST /jobs/{key}/resolve.
var resolutions = formOf[Resolution]("a resolution")

// DecodeResolution reads how an operator resolves a job, the result byte for
// byte; nil if there is none. Errors: as DecodeDraft's.
func DecodeResolution(body []byte) (job.Status, *job.Result, error) {
	members, err := readMembers(body)
	if err != nil {
		return "", nil, err
	}
	var r Resolution
	problems := resolutions.decode(members, &r)
	if r.Status != nil && *r.Status == string(job.Failed) && r.Result != nil {
		problems = append(problems, FieldError{"/result", ruleExclusive, "must not be given with the status failed"})
	}
	if len(problems) > 0 {
		return "", nil, &ValidationError{Errors: sortErrors(problems)}
	}
	if r.Result == nil {
		return job.Status(*r.Status), nil, nil
	}
	return job.Status(*r.Status), &job.Result{Body: r.Result, MediaType: jsonType}, nil
}

// noMembers is the form of a body that has nothing to say.
var noMembers = form{name: "this request: it takes no body, or {}"}

// DecodeNothing reads the body of a request that takes none, or an empty object.
// Errors: as DecodeDraft's.
func DecodeNothing(body []byte) error {
	if len(bytes.TrimSpace(body)) == 0 {
		return nil
	}
	members, err := readMembers(body)
	if err != nil {
		return err
	}
	if problems := noMembers.decode(members, &struct{}{}); len(problems) > 0 {
		return &ValidationError{Errors: sortErrors(problems)}
	}
	return nil
}

// JobError is an error about a job that the caller has, with the job.
type JobError struct {
	Key    idempotency.Key
	Status job.Status // "": not known
	Err    error
}

func (e *JobError) Error() string { return e.Err.Error() }

func (e *JobError) Unwrap() error { return e.Err }

// notRetryable and the two after it name the job that they are about.
var notRetryable = Problem{
	Code: "job-not-retryable", Status: http.StatusUnprocessableEntity, Title: "The job cannot be retried",
	Detail: "Only a job that has failed or was cancelled can be retried.", ofKey: notUsedUp, ofJob: true,
}

var notResolvable = Problem{
	Code: "job-not-resolvable", Status: http.StatusUnprocessableEntity, Title: "The job cannot be resolved",
	Detail: "Only a job that has failed with the outcome outcome_unknown can be resolved.", ofKey: notUsedUp, ofJob: true,
}

var alreadyFinished = Problem{
	Code: "job-already-finished", Status: http.StatusUnprocessableEntity, Title: "The job has finished",
	Detail: "The job ended before it could be cancelled. job_status says how.", ofJob: true,
}

func boundElsewhere(e *job.AliasError) Problem {
	p := jobNotFound
	p.Detail = "No job was accepted under this key: it is bound to the job whose URL the member job has. Ask for that one."
	p.Job = JobURL(e.Holder)
	return p
}

// payloadRefused tells of a payload that does not fit the schema of its type.
func payloadRefused(e *job.PayloadError) Problem {
	invalid := &ValidationError{Errors: make([]FieldError, 0, len(e.Violations))}
	for _, v := range e.Violations {
		invalid.Errors = append(invalid.Errors, FieldError{Pointer: "/payload" + v.Pointer, Rule: v.Rule, Detail: v.Detail})
	}
	return validation(invalid)
}

// keyPart tells of a payload from which the keys of its type cannot be made.
func keyPart(e *job.KeyPartError) Problem {
	return validation(&ValidationError{Errors: []FieldError{{
		Pointer: "/payload" + pointerOf(e.Path), Rule: e.Key, Detail: fmt.Sprintf("must be fit for the type's %s: %s", e.Key, e.Reason),
	}}})
}

// callbackRefused tells of a callback URL that no request may name.
func callbackRefused(e *job.CallbackError) Problem {
	return validation(&ValidationError{Errors: []FieldError{{Pointer: "/callback_url", Rule: "allowed", Detail: e.Detail}}})
}

// pointerOf turns a path such as lines[0].sku into a JSON Pointer.
func pointerOf(path string) string {
	var b strings.Builder
	for step := range strings.FieldsFuncSeq(path, func(r rune) bool { return strings.ContainsRune(".[]", r) }) {
		b.WriteString(pointerTo(step))
	}
	return b.String()
}
