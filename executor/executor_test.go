package executor_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sekali/sekali/executor"
	"github.com/sekali/sekali/job"
)

// hangs is how long a test waits for what should happen at once. It only ends
// tests that would otherwise hang.
const hangs = time.Minute

const jobID = "0198f3a0-1234-7abc-8def-0123456789ab"

func claimed(payload string) job.Claimed {
	return job.Claimed{
		Job: job.Job{
			ID: jobID, Tenant: "acme", Key: "order-42", Type: "invoice_generate",
			Payload: []byte(payload), Attempts: 3, MaxAttempts: 10,
		},
		Lease: job.Lease{ID: jobID, Token: 17},
	}
}

// attemptError is the error as every executor must return it.
func attemptError(t *testing.T, err error) *job.AttemptError {
	t.Helper()
	attempt := (*job.AttemptError)(nil)
	if !errors.As(err, &attempt) {
		t.Fatalf("error = %v (%T), want an *job.AttemptError", err, err)
	}
	return attempt
}

// wantFailure checks code and permanence, and returns the error.
func wantFailure(t *testing.T, err error, code string, permanent bool) *job.AttemptError {
	t.Helper()
	attempt := attemptError(t, err)
	if attempt.Code != code || attempt.Permanent != permanent {
		t.Fatalf("code, permanent = %q, %v, want %q, %v (%v)", attempt.Code, attempt.Permanent, code, permanent, err)
	}
	return attempt
}

func wantResult(t *testing.T, result *job.Result, err error, body, mediaType string) {
	t.Helper()
	if err != nil {
		t.Fatalf("Execute: %v", err)
	}
	if result == nil {
		t.Fatalf("no result, want %q", body)
	}
	if string(result.Body) != body || result.MediaType != mediaType {
		t.Errorf("result = %q as %q, want %q as %q", result.Body, result.MediaType, body, mediaType)
	}
}

// wantProblem checks that a configuration is refused with all of the texts.
func wantProblem(t *testing.T, err error, texts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one with %q", texts)
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("error = %q, want it to hold %q", err, text)
		}
	}
}

// causes are the ways in which an attempt is ended from outside.
var causes = []struct {
	cause error
	code  string
}{
	{job.ErrTimeout, executor.CodeTimeout},
	{job.ErrShutdown, executor.CodeShutdown},
	{job.ErrLeaseLost, executor.CodeLeaseLost},
	{context.DeadlineExceeded, executor.CodeTimeout},
	{errors.New("other"), executor.CodeCancelled},
}

func TestEcho_ReturnsThePayload(t *testing.T) {
	t.Parallel()
	for payload, want := range map[string]string{`{"a": 1.0}`: `{"a": 1.0}`, "": "null"} {
		result, err := executor.Echo{}.Execute(t.Context(), claimed(payload))
		wantResult(t, result, err, want, "application/json")
	}
}

func TestJSON(t *testing.T) {
	t.Parallel()
	result, err := executor.JSON(map[string]string{"a": "<&>"})
	wantResult(t, result, err, `{"a":"<&>"}`, "application/json")

	_, err = executor.JSON(func() {})
	wantFailure(t, err, executor.CodeResultNotJSON, true)
}
