package openapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

const sampleKey = idempotency.Key("order-42")

var sampleTime = time.Date(2026, 3, 8, 12, 0, 0, 0, time.UTC)

// samples are errors of which each makes another problem. The examples are what
// the gateway answers to them.
func samples() []error {
	about := func(err error) error { return &api.JobError{Key: sampleKey, Status: job.Succeeded, Err: err} }
	return []error{
		api.ErrUnauthenticated, &api.ForbiddenError{Permission: "operate"},
		idempotency.ErrKeyMissing, &idempotency.KeyError{Reason: idempotency.ReasonLength, Limit: idempotency.MaxKeyLength},
		&idempotency.MismatchError{Part: idempotency.PartBody}, &idempotency.InProgressError{RetryIn: time.Second},
		&idempotency.RetiredError{ExpiredAt: sampleTime},
		&api.ValidationError{Errors: []api.FieldError{{Pointer: "/max_attempts", Rule: "range", Detail: "must be an integer from 1 to 1000"}}},
		job.ErrUnknownType, job.ErrNotFound, &job.ExpiredError{ExpiredAt: sampleTime, Status: job.Succeeded},
		about(job.ErrNotRetryable), about(job.ErrNotResolvable), about(job.ErrAlreadyFinished), api.ErrExecutorNotFound,
		job.ErrExecutionNotFound, job.ErrExecutionFinished, job.ErrLeaseLost,
		&job.BusinessKeyError{Holder: "order-41"}, &api.NotFinishedError{Key: sampleKey, RetryIn: time.Second},
		&api.NoResultError{Key: sampleKey}, &api.ResultExpiredError{Key: sampleKey, ExpiredAt: sampleTime},
		job.ErrOutcomeUnknown, job.ErrQueueFull, api.ErrShuttingDown, idempotency.ErrCorrupt, job.ErrUnavailable,
		&api.MediaTypeError{Detail: "Send application/json: curl --json does."}, &api.TooLargeError{Limit: 1 << 20},
		api.ErrBodyUnreadable, api.ErrRequestTimeout, &api.RateLimitedError{Detail: "There were more requests than 100 a second.", RetryIn: time.Second},
		errors.New("anything else"),
	}
}

// problemExamples renders the samples by their codes, as examples of the
// document.
func problemExamples() (node, error) {
	examples := node{}
	for _, err := range samples() {
		for _, method := range []string{http.MethodPost, http.MethodGet} {
			problem, err := rendered(method, err)
			if err != nil {
				return nil, err
			}
			code := problem["code"].(string)
			if examples[code] == nil {
				examples[code] = node{"summary": problem["title"], "value": problem}
			}
		}
	}
	return examples, nil
}

func rendered(method string, err error) (node, error) {
	ctx := idempotency.NewContext(context.Background(), idempotency.Request{Key: sampleKey}) //nolint:forbidigo // no request leaves this function
	w := httptest.NewRecorder()
	api.WriteError(w, httptest.NewRequestWithContext(ctx, method, "/", nil), err)
	var problem node
	if err := json.Unmarshal(w.Body.Bytes(), &problem); err != nil {
		return nil, fmt.Errorf("openapi: a problem is no JSON: %w", err)
	}
	for name, value := range problem {
		if number, is := value.(float64); is {
			problem[name] = int64(number) // or YAML would write a million as 1e+06
		}
	}
	problem["instance"] = "urn:uuid:6f1c2a9e-9d0b-4c4e-8a53-0b6f5d1f7c21" // the real one is random
	return problem, nil
}
