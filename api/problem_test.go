package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

func TestWriteError_Table(t *testing.T) {
	t.Parallel()
	secret := errors.New("pq: password of 10.0.0.7")
	tests := []struct {
		name       string
		err        error
		method     string
		status     int
		code       string
		retryAfter string
		retryable  bool
	}{
		{"Contract_Row1", idempotency.ErrKeyMissing, "POST", 400, "idempotency-key-missing", "", false},
		{"Contract_Row7", &idempotency.KeyError{Reason: "syntax"}, "POST", 400, "idempotency-key-invalid", "", false},
		{"Contract_Row21", &api.TooLargeError{Limit: 5}, "POST", 413, "request-too-large", "", false},
		{"Contract_Row22", fmt.Errorf("%w: %w", api.ErrBodyUnreadable, secret), "POST", 400, "body-unreadable", "", false},
		{"Contract_Row22 slow", api.ErrRequestTimeout, "POST", 408, "request-timeout", "", true},
		{"Contract_Row23", &api.MediaTypeError{Detail: "send JSON"}, "POST", 415, "unsupported-media-type", "", false},
		{"Contract_Row25", &idempotency.JSONError{Reason: "duplicate", Pointer: "/a"}, "POST", 400, "validation-failed", "", false},
		{"Contract_Row27", &idempotency.MismatchError{Part: "body"}, "POST", 422, "idempotency-key-reused", "", false},
		{"Contract_Row67", &idempotency.InProgressError{RetryIn: 1200 * time.Millisecond}, "POST", 409, "idempotency-key-in-use", "2", true},
		{"Contract_Row67 nothing known", &idempotency.InProgressError{}, "POST", 409, "idempotency-key-in-use", "1", true},
		{"Contract_Row30 at most five", &idempotency.InProgressError{RetryIn: time.Hour}, "POST", 409, "idempotency-key-in-use", "5", true},
		{"Contract_Row43", idempotency.ErrInterrupted, "POST", 422, "idempotency-outcome-unknown", "", false},
		{"Contract_Row57", &idempotency.RetiredError{ExpiredAt: now}, "POST", 422, "idempotency-key-retired", "", false},
		{"Contract_Row20", &api.RateLimitedError{Detail: "Ten in a second.", RetryIn: 1200 * time.Millisecond}, "POST", 429, "rate-limited", "2", true},
		{"Contract_Row41", &api.RejectedError{Err: errors.New("too small")}, "POST", 400, "request-rejected", "", false},
		{"Contract_Row41 with a problem of its own", &api.RejectedError{Err: &api.ValidationError{}}, "POST", 400, "validation-failed", "", false},
		{"Contract_Row45", errors.Join(idempotency.ErrOutcomeUnknown, idempotency.ErrUnavailable), "POST", 503, "idempotency-outcome-unknown-retry", "1", true},
		{"Contract_Row47", fmt.Errorf("%w: %w", idempotency.ErrUnavailable, secret), "POST", 503, "idempotency-store-unavailable", "2", true},
		{"Contract_Row51", &idempotency.NotRetainedError{Status: 200}, "POST", 422, "idempotency-response-not-retained", "", false},
		{"Contract_Row60", fmt.Errorf("%w: %w", idempotency.ErrCorrupt, secret), "POST", 500, "idempotency-record-corrupt", "", false},
		{"Contract_Row69", &api.ValidationError{Errors: []api.FieldError{{Pointer: "/x"}}}, "POST", 400, "validation-failed", "", false},
		{"Contract_Row71", job.ErrUnknownType, "POST", 400, "unknown-job-type", "", false},
		{"Contract_Row75", &api.JobError{Key: "k", Err: job.ErrNotRetryable}, "POST", 422, "job-not-retryable", "", false},
		{"Contract_Row75a", fmt.Errorf("x: %w", job.ErrNotResolvable), "POST", 422, "job-not-resolvable", "", false},
		{"Contract_Row80 a key that is bound to another's job", &job.AliasError{Holder: "k"}, "POST", 404, "job-not-found", "", false},
		{"Contract_Row102", &api.JobError{Err: job.ErrAlreadyFinished}, "POST", 422, "job-already-finished", "", false},
		{"Contract_Row114", api.ErrExecutorNotFound, "GET", 404, "executor-not-found", "", false},
		{"a payload without its type's key", &job.KeyPartError{Key: "business_key", Path: "a"}, "POST", 400, "validation-failed", "", false},
		{"Contract_Row80", &job.BusinessKeyError{Holder: "a/b"}, "POST", 409, "business-key-conflict", "5", true},
		{"Contract_Row82", fmt.Errorf("accept: %w", errors.Join(job.ErrUnavailable, secret)), "POST", 503, "idempotency-store-unavailable", "2", true},
		{"Contract_Row83", job.ErrOutcomeUnknown, "POST", 503, "idempotency-outcome-unknown-retry", "1", true},
		{"Contract_Row84", api.ErrShuttingDown, "POST", 503, "shutting-down", "2", true},
		{"Contract_Row84 while waiting", job.ErrShutdown, "POST", 503, "shutting-down", "2", true},
		{"Contract_Row91", fmt.Errorf("find: %w", job.ErrNotFound), "GET", 404, "job-not-found", "", false},
		{"Contract_Row92", &job.ExpiredError{ExpiredAt: now, Status: job.Failed}, "GET", 410, "job-expired", "", false},
		{"Contract_Row95", &api.NotFinishedError{Key: "k", RetryIn: 3 * time.Second}, "GET", 409, "job-not-finished", "3", true},
		{"Contract_Row97", &api.NoResultError{Key: "k"}, "GET", 404, "job-has-no-result", "", false},
		{"Contract_Row101", job.ErrUnavailable, "GET", 503, "store-unavailable", "2", true},
		{"Contract_Row101 HEAD", job.ErrUnavailable, "HEAD", 503, "store-unavailable", "2", true},
		{"Contract_Row115", api.ErrRouteNotFound, "GET", 404, "route-not-found", "", false},
		{"Contract_Row115 method", &api.MethodNotAllowedError{Allow: []string{"GET", "HEAD"}}, "PUT", 405, "method-not-allowed", "", false},
		{"deadline", context.DeadlineExceeded, "GET", 503, "store-unavailable", "2", true},
		{"Failure_BR90 client left", context.Canceled, "GET", 408, "request-timeout", "", true},
		{"unknown error", secret, "POST", 500, "internal", "", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ctx, report := api.WithReport(context.Background())
			r := httptest.NewRequest(tt.method, "/jobs", nil).WithContext(ctx)
			w := httptest.NewRecorder()
			api.WriteError(w, r, tt.err)

			p := problem(t, w)
			if w.Code != tt.status || p.Status != tt.status || p.Code != tt.code {
				t.Errorf("got %d %d %s, want %d %s", w.Code, p.Status, p.Code, tt.status, tt.code)
			}
			if got := w.Header().Get("Retry-After"); got != tt.retryAfter || p.Retryable != tt.retryable {
				t.Errorf("Retry-After %q, retryable %t; want %q, %t", got, p.Retryable, tt.retryAfter, tt.retryable)
			}
			checkProblem(t, w.Header(), p)
			if strings.Contains(w.Body.String(), secret.Error()) {
				t.Error("an internal text is shown")
			}
			if report.Code != p.Code || report.Instance != p.Instance || !errors.Is(report.Err, tt.err) {
				t.Errorf("report is %+v", report)
			}
		})
	}
}

func problem(t *testing.T, w *httptest.ResponseRecorder) api.Problem {
	t.Helper()
	var p api.Problem
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil {
		t.Fatalf("%s: %v", w.Body, err)
	}
	return p
}

var instanceForm = regexp.MustCompile(`^urn:uuid:[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)

// checkProblem holds every problem to what contract section H says of all.
func checkProblem(t *testing.T, h http.Header, p api.Problem) {
	t.Helper()
	if h.Get("Content-Type") != "application/problem+json" || h.Get("Error-Source") != "gateway" || h.Get("Cache-Control") != "no-store" {
		t.Errorf("headers are %v", h)
	}
	if p.Type != api.DocsURL+"/problems/"+p.Code || p.Title == "" || p.Detail == "" || !instanceForm.MatchString(p.Instance) {
		t.Errorf("problem is %+v", p)
	}
	seconds, err := strconv.ParseInt(h.Get("Retry-After"), 10, 64)
	if (err == nil) != (p.RetryAfterMS > 0) || p.RetryAfterMS > seconds*1000 {
		t.Errorf("Retry-After is %q, retry_after_ms is %d", h.Get("Retry-After"), p.RetryAfterMS)
	}
	if about := h.Get("Link") != ""; about != strings.HasPrefix(p.Code, "idempotency-") {
		t.Errorf("Link is %q", h.Get("Link"))
	}
}

func TestWriteError_Members(t *testing.T) {
	t.Parallel()
	keyed := idempotency.NewContext(context.Background(), idempotency.Request{Key: "a/b"})
	write := func(ctx context.Context, err error) (*httptest.ResponseRecorder, api.Problem) {
		w := httptest.NewRecorder()
		api.WriteError(w, httptest.NewRequest("POST", "/jobs", nil).WithContext(ctx), err)
		return w, problem(t, w)
	}
	t.Run("mismatch names the part, the key and the job, nothing stored", func(t *testing.T) {
		t.Parallel()
		_, p := write(keyed, &idempotency.MismatchError{Part: idempotency.PartTarget})
		if p.IdempotencyKey != "a/b" || p.Job != "/jobs/a%2Fb" || !strings.Contains(p.Detail, "target") {
			t.Errorf("problem is %+v", p)
		}
	})
	t.Run("refusal before the accept names no job", func(t *testing.T) {
		t.Parallel()
		if _, p := write(keyed, job.ErrUnknownType); p.Job != "" || p.IdempotencyKey != "a/b" || p.Errors[0].Pointer != "/type" {
			t.Errorf("problem is %+v", p)
		}
	})
	t.Run("that the key is free is told to those who sent one, also before it was read", func(t *testing.T) {
		t.Parallel()
		for _, err := range []error{
			api.ErrUnauthenticated, &api.ForbiddenError{Permission: "submit"}, job.ErrUnknownType, &api.ValidationError{}, api.ErrBodyUnreadable,
			&api.TooLargeError{Limit: 5}, &api.RateLimitedError{Detail: "Ten in a second."}, api.ErrRequestTimeout,
		} {
			const free = "This request did not use up the key"
			if _, p := write(context.Background(), err); strings.Contains(p.Detail, free) {
				t.Errorf("without a key: %s", p.Detail)
			}
			if _, p := write(keyed, err); !strings.Contains(p.Detail, ". "+free) {
				t.Errorf("with a key: %s", p.Detail)
			}
			r, w := httptest.NewRequest("POST", "/jobs", nil), httptest.NewRecorder()
			r.Header.Set("Idempotency-Key", "k")
			if api.WriteError(w, r, err); !strings.Contains(problem(t, w).Detail, ". "+free) {
				t.Errorf("before the key was read: %s", w.Body)
			}
		}
	})
	t.Run("the same key is asked of those who sent one", func(t *testing.T) {
		t.Parallel()
		for _, err := range []error{api.ErrShuttingDown, job.ErrOutcomeUnknown, job.ErrQueueFull} {
			if _, p := write(context.Background(), err); strings.Contains(p.Detail, "key") {
				t.Errorf("without a key: %s", p.Detail)
			}
			if _, p := write(keyed, err); !strings.Contains(p.Detail, "the same key") {
				t.Errorf("with a key: %s", p.Detail)
			}
		}
	})
	t.Run("a read that failed recorded nothing anyway", func(t *testing.T) {
		t.Parallel()
		for method, want := range map[string]string{"POST": "Nothing was recorded", "GET": "Nothing is known", "HEAD": "Nothing is known"} {
			w := httptest.NewRecorder()
			api.WriteError(w, httptest.NewRequest(method, "/jobs/k", nil), job.ErrUnavailable)
			if detail := problem(t, w).Detail; !strings.Contains(detail, want) {
				t.Errorf("%s: %s", method, detail)
			}
		}
	})
	t.Run("neither way of telling when to come back is too soon", func(t *testing.T) {
		t.Parallel()
		w, p := write(context.Background(), &api.RateLimitedError{Detail: "Ten in a second.", RetryIn: 2*time.Second + 400*time.Microsecond})
		if got := w.Header().Get("Retry-After"); got != "3" || p.RetryAfterMS != 2001 {
			t.Errorf("Retry-After %s, retry_after_ms %d", got, p.RetryAfterMS)
		}
	})
	t.Run("length has the limit", func(t *testing.T) {
		t.Parallel()
		if _, p := write(context.Background(), &idempotency.KeyError{Reason: "length", Limit: 255}); p.Reason != "length" || p.Limit != 255 {
			t.Errorf("problem is %+v", p)
		}
	})
	t.Run("expired job", func(t *testing.T) {
		t.Parallel()
		if _, p := write(context.Background(), &job.ExpiredError{ExpiredAt: now, Status: job.Failed}); p.ExpiredAt == nil || !p.ExpiredAt.Equal(now) || p.JobStatus != "failed" {
			t.Errorf("problem is %+v", p)
		}
	})
	t.Run("business key has the holder", func(t *testing.T) {
		t.Parallel()
		if _, p := write(keyed, &job.BusinessKeyError{Holder: "holder"}); p.Job != "/jobs/holder" {
			t.Errorf("problem is %+v", p)
		}
	})
	t.Run("the job that an error is about is named where the problem is the job's", func(t *testing.T) {
		t.Parallel()
		_, p := write(keyed, &api.JobError{Key: "j/k", Status: job.Succeeded, Err: job.ErrAlreadyFinished})
		if p.Job != "/jobs/j%2Fk" || p.JobStatus != "succeeded" || p.IdempotencyKey != "a/b" {
			t.Errorf("problem is %+v", p)
		}
		for _, err := range []error{job.ErrNotFound, job.ErrUnavailable, job.ErrUnknownType} {
			if _, p := write(keyed, &api.JobError{Key: "j", Err: err}); p.Job != "" || p.JobStatus != "" {
				t.Errorf("%v: problem is %+v", err, p)
			}
		}
		if _, p := write(keyed, &api.JobError{Key: "j", Err: &job.BusinessKeyError{Holder: "h"}}); p.Job != "/jobs/h" {
			t.Errorf("problem is %+v", p)
		}
	})
	t.Run("what lacks in the payload is pointed at", func(t *testing.T) {
		t.Parallel()
		for path, pointer := range map[string]string{"order_id": "/payload/order_id", "lines[0].sku": "/payload/lines/0/sku", "": "/payload", "[1][2]": "/payload/1/2"} {
			_, p := write(keyed, &job.KeyPartError{Key: "operation_key", Path: path, Reason: "is missing"})
			if len(p.Errors) != 1 || p.Errors[0].Pointer != pointer || p.Errors[0].Rule != "operation_key" || !strings.Contains(p.Errors[0].Detail, "is missing") {
				t.Errorf("%s: problem is %+v", path, p)
			}
		}
	})
	t.Run("a mismatch where keys make no jobs names none", func(t *testing.T) {
		t.Parallel()
		w := httptest.NewRecorder()
		api.WriteKeyError(w, httptest.NewRequest("POST", "/charges", nil).WithContext(keyed), &idempotency.MismatchError{Part: idempotency.PartBody})
		if p := problem(t, w); p.Job != "" || p.IdempotencyKey != "a/b" {
			t.Errorf("problem is %+v", p)
		}
	})
	t.Run("an answer that was not kept has its status and place", func(t *testing.T) {
		t.Parallel()
		w, p := write(keyed, &idempotency.NotRetainedError{Status: 201, Location: "/x"})
		if p.OriginalStatus != 201 || w.Header().Get("Location") != "/x" {
			t.Errorf("problem is %+v, headers are %v", p, w.Header())
		}
	})
	t.Run("a rejection shows its own text", func(t *testing.T) {
		t.Parallel()
		if _, p := write(keyed, &api.RejectedError{Err: errors.New("too small")}); p.Detail != "too small" {
			t.Errorf("problem is %+v", p)
		}
	})
	t.Run("shutdown closes the connection, 405 has Allow", func(t *testing.T) {
		t.Parallel()
		if w, _ := write(keyed, job.ErrShutdown); w.Header().Get("Connection") != "close" {
			t.Errorf("headers are %v", w.Header())
		}
		if w, _ := write(keyed, &api.MethodNotAllowedError{Allow: []string{"GET", "HEAD"}}); w.Header().Get("Allow") != "GET, HEAD" {
			t.Errorf("headers are %v", w.Header())
		}
	})
}
