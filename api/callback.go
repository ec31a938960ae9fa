package api

import (
	"bytes"
	"encoding/json"
	"time"

	"github.com/sekali/sekali/job"
)

// Callback is what is told of a job's end. Type is job.succeeded, job.failed or
// job.cancelled, an open set.
type Callback struct {
	Type      string      `json:"type"`
	Timestamp time.Time   `json:"timestamp"`
	Data      CallbackJob `json:"data"`
}

// CallbackJob is the job that has ended: what a receiver needs to know which one it
// was, and what came of it. Its payload is not among that: whoever submitted the job
// has it.
type CallbackJob struct {
	URL         string          `json:"url"` // the path of the job
	ID          string          `json:"id"`
	Key         string          `json:"key"`
	Type        string          `json:"type"`
	BusinessKey *string         `json:"business_key"`
	Status      string          `json:"status"`
	Attempts    int             `json:"attempts"`
	Generation  int             `json:"generation"` // rises when an operator retries the job
	Version     int64           `json:"version"`    // of two callbacks of a job the later one has the larger
	Outcome     *string         `json:"outcome"`
	DuplicateOf *string         `json:"duplicate_of"`
	Error       *AttemptProblem `json:"error"`
	CreatedAt   time.Time       `json:"created_at"`
	FinishedAt  time.Time       `json:"finished_at"`
	// Result is null if there is none, and if it is not JSON: then URL + "/result" has it.
	Result json.RawMessage `json:"result"`
}

// CallbackOf is the document that tells of the job's end at that time, with its
// result byte for byte.
func CallbackOf(j job.Job, at time.Time) []byte {
	doc := Callback{
		Type: "job." + string(j.Status), Timestamp: at.UTC(),
		Data: CallbackJob{
			URL: JobURL(j.Key), ID: string(j.ID), Key: string(j.Key), Type: string(j.Type), BusinessKey: optional(j.BusinessKey),
			Status: string(j.Status), Attempts: j.Attempts, Generation: j.Generation, Version: j.Version,
			Outcome: optional(j.Outcome), DuplicateOf: optional(j.DuplicateOf), Error: attemptProblem(j.LastError),
			CreatedAt: j.CreatedAt.UTC(), FinishedAt: j.FinishedAt.UTC(), Result: json.RawMessage("null"),
		},
	}
	// A marshaller would compact the result; this way it is the last thing in the
	// document, before the ends of two objects.
	text := bytes.TrimSuffix(bytes.TrimSpace(encode(doc)), []byte("null}}"))
	return append(append(text, resultMember(j.Result)...), "}}"...)
}
