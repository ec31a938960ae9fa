package api

import (
	"bytes"
	"encoding/json"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

// FromJob renders a job, with its payload and result if withBodies says so.
func FromJob(j job.Job, withBodies bool) Job {
	doc := Job{
		ID:            string(j.ID),
		Key:           string(j.Key),
		Type:          string(j.Type),
		Status:        string(j.Status),
		Attempts:      j.Attempts,
		MaxAttempts:   j.MaxAttempts,
		Generation:    j.Generation,
		Version:       j.Version,
		BusinessKey:   optional(j.BusinessKey),
		OperationKey:  optional(j.OperationKey),
		Priority:      j.Priority,
		Outcome:       optional(j.Outcome),
		DuplicateOf:   optional(j.DuplicateOf),
		CreatedAt:     j.CreatedAt.UTC(),
		RunAt:         j.RunAt.UTC(),
		StartedAt:     optionalTime(j.StartedAt),
		FinishedAt:    optionalTime(j.FinishedAt),
		NextAttemptAt: optionalTime(j.NextAttemptAt),
		WorkerID:      optional(j.WorkerID),
		ExpiresAt:     optionalTime(j.ExpiresAt),
		Error:         attemptProblem(j.LastError),
	}
	if withBodies {
		doc.Payload = j.Payload
		doc.Result = resultMember(j.Result)
	}
	return doc
}

// FromJobs renders a page of jobs.
func FromJobs(jobs []job.Job, nextCursor string) JobList {
	list := JobList{Jobs: make([]Job, 0, len(jobs)), NextCursor: optional(nextCursor)}
	for _, j := range jobs {
		list.Jobs = append(list.Jobs, FromJob(j, false))
	}
	return list
}

// JobURL is the path of a job, escaped so that it can be asked for as it
// stands: a slash in the key is %2F.
func JobURL(key idempotency.Key) string { return "/jobs/" + url.PathEscape(string(key)) }

// Accepted is the stored answer to a submission that made a job: a pure
// function of it, so that it can be committed together with the job.
func Accepted(j job.Job) idempotency.Response {
	return jobResponse(http.StatusAccepted, j, false)
}

// Document is the job as JSON, with its payload and result: what a job that
// compensates it gets as its payload.
func Document(j job.Job) []byte { return bytes.TrimSpace(FromJob(j, true).document()) }

// Current is the answer 200 with the job as it is now.
func Current(j job.Job) idempotency.Response { return jobResponse(http.StatusOK, j, true) }

func jobResponse(status int, j job.Job, withBodies bool) idempotency.Response {
	return idempotency.Response{
		Status: status,
		Header: http.Header{"Location": {JobURL(j.Key)}, "Content-Type": {jsonType}},
		Body:   FromJob(j, withBodies).document(),
	}
}

// document is the job as JSON. json.Marshal would compact the payload and the
// result, so these two are put in afterwards, byte for byte. The place for them
// is certain: no string before it can hold this text, for a quote within a
// string has a backslash in front.
func (j Job) document() []byte {
	payload, result := j.Payload, j.Result
	j.Payload, j.Result = nil, nil
	doc := encode(j)
	if payload == nil && result == nil {
		return doc
	}
	before, after, _ := strings.Cut(string(doc), `,"error":`)
	b := make([]byte, 0, len(doc)+len(payload)+len(result)+len(`,"payload":,"result":`))
	b = append(b, before...)
	b = append(append(b, `,"payload":`...), payload...)
	b = append(append(b, `,"result":`...), result...)
	return append(append(b, `,"error":`...), after...)
}

// resultMember is the result where it can stand in a JSON document, else null.
func resultMember(r *job.Result) json.RawMessage {
	if r == nil || !holdsJSON(r.MediaType) || !utf8.Valid(r.Body) || !json.Valid(r.Body) {
		return json.RawMessage("null")
	}
	return r.Body
}

func holdsJSON(contentType string) bool {
	mediaType, _, err := mime.ParseMediaType(contentType)
	return err == nil && IsJSON(mediaType)
}

// IsJSON reports whether a media type, without parameters, is one of JSON.
func IsJSON(mediaType string) bool {
	return mediaType == jsonType || strings.HasSuffix(mediaType, "+json")
}

func optional[S ~string](s S) *string {
	if s == "" {
		return nil
	}
	text := string(s)
	return &text
}

func optionalTime(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}
