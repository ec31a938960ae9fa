package executor

import (
	"bytes"
	"encoding/json"
	"fmt"
	"unicode/utf8"

	"github.com/sekali/sekali/job"
)

// Media types of results.
const (
	mediaJSON  = "application/json"
	mediaText  = "text/plain; charset=utf-8"
	mediaBytes = "application/octet-stream"
)

// JSON is the result whose body is v in JSON. A value that has no JSON form is
// a permanent error: it would have none the next time either.
func JSON(v any) (*job.Result, error) {
	body, err := encode(v)
	if err != nil {
		return nil, &job.AttemptError{
			Code:      CodeResultNotJSON,
			Detail:    "the result has no JSON form",
			Permanent: true,
			Err:       fmt.Errorf("executor: encode result: %w", err),
		}
	}
	return &job.Result{Body: body, MediaType: mediaJSON}, nil
}

// encode is json.Marshal without the escapes that only HTML needs.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// payloadOf is the job's payload as it is sent: never empty, because an empty
// body is no JSON (and see HTTP on empty bodies).
func payloadOf(c job.Claimed) []byte {
	if len(c.Payload) == 0 {
		return []byte("null")
	}
	return c.Payload
}

// resultOf is the result of an executor that did not say what its bytes are.
func resultOf(body []byte) *job.Result {
	switch {
	case len(body) == 0:
		return nil
	case json.Valid(body):
		return &job.Result{Body: body, MediaType: mediaJSON}
	case utf8.Valid(body):
		return &job.Result{Body: body, MediaType: mediaText}
	}
	return &job.Result{Body: body, MediaType: mediaBytes}
}
