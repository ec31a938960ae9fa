package client_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sekali/sekali/client"
)

// What is sent again, and how often, of requests that may be.
func TestDo_SendsAgainWhatMayBe(t *testing.T) {
	t.Parallel()
	ok := reply(200, document("k", "pending"))
	problem, unreachable, other := is[*client.Problem], is[*client.UnreachableError], is[*client.NotGatewayError]
	for name, tt := range map[string]struct {
		answers []step
		want    int // requests
		err     func(error) bool
	}{
		"in progress":                {[]step{refuse(409, "idempotency-key-in-use", true), ok}, 2, nil},
		"too many":                   {[]step{refuse(429, "rate-limited", true), ok}, 2, nil},
		"no database":                {[]step{refuse(503, "store-unavailable", true), refuse(503, "shutting-down", true), ok}, 3, nil},
		"slow upload":                {[]step{refuse(408, "request-timeout", true), ok}, 2, nil},
		"upstream":                   {[]step{refuse(502, "upstream-unreachable", true), refuse(504, "upstream-timeout", true), ok}, 3, nil},
		"busy for ever":              {[]step{refuse(503, "queue-full", true)}, 7, problem},
		"a proxy's pages":            {[]step{page(502), page(503), page(504), page(429), ok}, 5, nil},
		"a proxy's page for ever":    {[]step{page(502)}, 7, unreachable},
		"reset":                      {[]step{fail(syscall.ECONNRESET), ok}, 2, nil},
		"refused for ever":           {[]step{fail(syscall.ECONNREFUSED)}, 7, unreachable},
		"no answer in time":          {[]step{silent, ok}, 2, nil},
		"no answer in time for ever": {[]step{silent}, 7, unreachable},
		"answer breaks off":          {[]step{breakingOff, ok}, 2, nil},

		"validation":                    {[]step{refuse(400, "validation-failed", false)}, 1, problem},
		"mismatch":                      {[]step{refuse(422, "idempotency-key-reused", false)}, 1, problem},
		"422 that calls itself so":      {[]step{refuse(422, "x", true)}, 1, problem},
		"503 for good":                  {[]step{refuse(503, "x", false)}, 1, problem},
		"another job holds its key":     {[]step{refuse(409, "business-key-conflict", true)}, 1, problem},
		"no result yet":                 {[]step{refuse(409, "job-not-finished", true)}, 1, problem},
		"internal":                      {[]step{refuse(500, "internal", false)}, 1, problem},
		"unauthenticated":               {[]step{refuse(401, "unauthenticated", false)}, 1, problem},
		"gone":                          {[]step{refuse(410, "job-expired", false)}, 1, problem},
		"a page":                        {[]step{page(200)}, 1, other},
		"somebody's 404":                {[]step{page(404)}, 1, other},
		"somebody's 500":                {[]step{page(500)}, 1, other},
		"a problem of somebody else":    {[]step{reply(404, `{"title":"x"}`, "Content-Type: application/problem+json")}, 1, other},
		"a problem that is no document": {[]step{reply(404, `x`, "Content-Type: application/problem+json")}, 1, other},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := &double{steps: tt.answers}
				_, err := d.of(t).Do(t.Context(), client.Request{Method: http.MethodPost, Path: "/jobs", Key: "k", Body: []byte(`{}`)})
				if (err == nil) != (tt.err == nil) || err != nil && !tt.err(err) {
					t.Errorf("error %v", err)
				}
				if errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("looks like the end of the caller's time: %v", err)
				}
				if n := len(d.requests()); n != tt.want {
					t.Errorf("%d requests, want %d", n, tt.want)
				}
				for _, r := range d.requests() {
					if r.header.Get("Idempotency-Key") != `"k"` || r.body != "{}" {
						t.Errorf("sent %v %q", r.header, r.body)
					}
				}
			})
		})
	}
}

func is[E error](err error) bool {
	var e E
	return errors.As(err, &e)
}

func breakingOff(r *http.Request) (*http.Response, error) {
	w, err := reply(200, "")(r)
	w.Body = brokenBody{}
	return w, err
}

type brokenBody struct{}

func (brokenBody) Read([]byte) (int, error) { return 0, syscall.ECONNRESET }
func (brokenBody) Close() error             { return nil }

// Which requests are sent again at all.
func TestDo_RepeatsOnlyWhatCannotActTwice(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		request client.Request
		again   bool
	}{
		"read":                    {client.Request{Path: "/jobs"}, true},
		"head":                    {client.Request{Method: http.MethodHead, Path: "/jobs/k"}, true},
		"submission with key":     {client.Request{Method: http.MethodPost, Path: "/jobs", Key: "k"}, true},
		"submission without key":  {client.Request{Method: http.MethodPost, Path: "/jobs"}, false},
		"cancel":                  {client.Request{Method: http.MethodPost, Path: "/jobs/a%2Fb/cancel"}, true},
		"retry without key":       {client.Request{Method: http.MethodPost, Path: "/jobs/k/retry"}, false},
		"pause":                   {client.Request{Method: http.MethodPost, Path: "/executors/pay/pause"}, true},
		"resume":                  {client.Request{Method: http.MethodPost, Path: "/executors/pay/resume"}, true},
		"job called cancel":       {client.Request{Method: http.MethodPost, Path: "/jobs/cancel"}, false},
		"key on another method":   {client.Request{Method: http.MethodDelete, Path: "/jobs/k", Key: "k"}, false},
		"batch, all with keys":    {client.Request{Method: http.MethodPost, Path: "/jobs/batch", Body: []byte(`[{"key":"a"},{"key":"b"}]`)}, true},
		"batch, one without":      {client.Request{Method: http.MethodPost, Path: "/jobs/batch", Body: []byte(`[{"key":"a"},{"type":"b"}]`)}, false},
		"batch, one of a number":  {client.Request{Method: http.MethodPost, Path: "/jobs/batch", Body: []byte(`[{"type":"t"},3]`)}, false},
		"batch, one key a number": {client.Request{Method: http.MethodPost, Path: "/jobs/batch", Body: []byte(`[{"type":"t"},{"type":"t","key":5}]`)}, false},
		"cancel of an upstream":   {client.Request{Method: http.MethodPost, Path: "/v1/jobs/7/cancel"}, false},
		"pause of an upstream":    {client.Request{Method: http.MethodPost, Path: "/shop/executors/x/pause"}, false},
		"batch of an upstream":    {client.Request{Method: http.MethodPost, Path: "/v1/jobs/batch", Body: []byte(`[{"key":"a"}]`)}, false},
		"lines, all with keys":    {client.Request{Method: http.MethodPost, Path: "/jobs/batch", Body: []byte("{\"key\":\"a\"}\nnonsense\n\n{\"key\":\"b\"}")}, true},
		"lines, one without":      {client.Request{Method: http.MethodPost, Path: "/jobs/batch", Body: []byte("{\"key\":\"a\"}\n{\"key\":null}\n")}, false},
		"a proxied route, no key": {client.Request{Method: http.MethodPost, Path: "/v1/charges"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := &double{steps: []step{fail(syscall.ECONNRESET), reply(200, `{"id":"1"}`)}}
				_, err := d.of(t).Do(t.Context(), tt.request)
				if (err == nil) != tt.again || len(d.requests()) != map[bool]int{true: 2, false: 1}[tt.again] {
					t.Errorf("%d requests, error %v", len(d.requests()), err)
				}
			})
		})
	}
}

// A limit of one request an hour: whoever called learns of it at once.
func TestDo_DoesNotPauseForHours(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &double{steps: []step{refuse(429, "rate-limited", true, "Retry-After: 3580"), reply(200, `{"id":"1"}`)}}
		start := time.Now()
		_, err := d.of(t).Do(t.Context(), client.Request{Path: "/jobs"})
		var problem *client.Problem
		if !errors.As(err, &problem) || problem.RetryAfter != 3580*time.Second || time.Since(start) > 0 {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		d = &double{steps: []step{refuse(429, "rate-limited", true, "Retry-After: 3580"), reply(200, `{"id":"1"}`)}}
		if _, err := d.of(t, client.WithLongestPause(2*time.Hour)).Do(t.Context(), client.Request{Path: "/jobs"}); err != nil {
			t.Errorf("a caller with patience: %v", err)
		}
	})
}

// HEAD is answered without a document.
func TestDo_HeadOfARefusal(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusNotFound)
	}))
	defer server.Close()
	c, err := client.New(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Do(t.Context(), client.Request{Method: http.MethodHead, Path: "/jobs/k"})
	var problem *client.Problem
	if !errors.As(err, &problem) || problem.Status != http.StatusNotFound {
		t.Errorf("%v", err)
	}
}

// A transport of somebody's own may leave out what it answers to.
func TestDo_AnswerWithoutItsRequest(t *testing.T) {
	t.Parallel()
	c, err := client.New("http://me:secret@gateway", client.WithHTTPClient(&http.Client{Transport: bare{}}))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Get(t.Context(), "k"); err != nil {
		t.Error(err)
	}
	if _, err := c.Do(t.Context(), client.Request{Path: "/jobs/%zz"}); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("%v", err)
	}
}

type bare struct{}

func (bare) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{
		StatusCode: 200, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(`{"id":"1","key":"k"}`)),
	}, nil
}

func TestDo_ObeysRetryAfter(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		answer   step
		from, to time.Duration
	}{
		"seconds":         {refuse(503, "queue-full", true, "Retry-After: 7"), 7 * time.Second, 8 * time.Second},
		"a proxy's":       {page(503, "Retry-After: 20"), 20 * time.Second, 21 * time.Second},
		"none":            {refuse(503, "queue-full", true), 100 * time.Millisecond, 200 * time.Millisecond},
		"nonsense":        {refuse(503, "queue-full", true, "Retry-After: soon"), 100 * time.Millisecond, 200 * time.Millisecond},
		"negative":        {refuse(503, "queue-full", true, "Retry-After: -5"), 100 * time.Millisecond, 200 * time.Millisecond},
		"milliseconds":    {milliseconds, 1500 * time.Millisecond, 1700 * time.Millisecond},
		"a date":          {dated(50 * time.Second), 49 * time.Second, 51 * time.Second},
		"a date long ago": {dated(-time.Hour), 100 * time.Millisecond, 200 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := &double{steps: []step{tt.answer, reply(200, `{"id":"1"}`)}}
				if _, err := d.of(t).Do(t.Context(), client.Request{Path: "/jobs"}); err != nil {
					t.Fatal(err)
				}
				r := d.requests()
				if waited := r[1].at.Sub(r[0].at); waited < tt.from || waited > tt.to {
					t.Errorf("waited %v, want %v to %v", waited, tt.from, tt.to)
				}
			})
		})
	}
}

func milliseconds(r *http.Request) (*http.Response, error) {
	return reply(429, `{"code":"rate-limited","retryable":true,"retry_after_ms":1500}`, "Content-Type: application/problem+json", "Retry-After: 2")(r)
}

func dated(from time.Duration) step {
	return func(r *http.Request) (*http.Response, error) {
		return refuse(503, "x", true, "Retry-After: "+time.Now().Add(from).UTC().Format(http.TimeFormat))(r)
	}
}

// The pauses grow and are bounded, and so is the number of tries.
func TestDo_BacksOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &double{steps: []step{fail(syscall.ECONNREFUSED)}}
		_, err := d.of(t, client.WithRetries(9)).Do(t.Context(), client.Request{Method: http.MethodPost, Path: "/jobs", Key: `a"b`})
		var unreachable *client.UnreachableError
		if !errors.As(err, &unreachable) || unreachable.Tries != 10 || unreachable.Key != `a"b` || !errors.Is(err, syscall.ECONNREFUSED) {
			t.Fatalf("%#v", err)
		}
		for _, word := range []string{"http://gateway.test", "10 times", "connection refused"} {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("nothing of %q in %v", word, err)
			}
		}
		r := d.requests()
		longest := 200 * time.Millisecond
		for i := 1; i < len(r); i++ {
			if waited := r[i].at.Sub(r[i-1].at); waited < longest/2 || waited > longest {
				t.Errorf("pause %d is %v, want %v to %v", i, waited, longest/2, longest)
			}
			longest = min(2*longest, 5*time.Second)
		}
	})
}

func TestDo_WithoutRetries(t *testing.T) {
	t.Parallel()
	d := &double{steps: []step{fail(syscall.ECONNREFUSED)}}
	_, err := d.of(t, client.WithRetries(0)).Do(t.Context(), client.Request{Path: "/jobs"})
	if len(d.requests()) != 1 || err == nil || strings.Contains(err.Error(), "times") {
		t.Errorf("%d requests, %v", len(d.requests()), err)
	}
}

// The end of the context ends everything at once: a pause, and a request.
func TestDo_EndsWithItsContext(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]step{"in a pause": refuse(503, "queue-full", true, "Retry-After: 50"), "in a request": silent} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := &double{steps: []step{answer}}
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
				defer cancel()
				begun := time.Now()
				_, err := d.of(t).Do(ctx, client.Request{Path: "/jobs"})
				if took := time.Since(begun); took != 3*time.Second || !errors.Is(err, context.DeadlineExceeded) || len(d.requests()) != 1 {
					t.Errorf("%v, %d requests, after %v", err, len(d.requests()), took)
				}
				var problem *client.Problem
				if told := errors.As(err, &problem); told != (name == "in a pause") {
					t.Errorf("the refusal before is told: %v", told)
				}
				why := errors.New("the user has left")
				left, leave := context.WithCancelCause(t.Context())
				leave(why)
				if _, err = d.of(t).Do(left, client.Request{Path: "/jobs"}); !errors.Is(err, context.Canceled) || !errors.Is(err, why) {
					t.Errorf("%v", err)
				}
			})
		})
	}
}

// A try may take 30 seconds, and as long as it prefers to wait.
func TestDo_TimeOfOneTry(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		request client.Request
		want    time.Duration
	}{
		"usual":           {client.Request{Path: "/jobs"}, 30 * time.Second},
		"prefers to wait": {client.Request{Path: "/jobs", Header: http.Header{"Prefer": {"respond-async, wait=40"}}}, 70 * time.Second},
		"asks to wait":    {client.Request{Path: "/jobs?wait=10"}, 40 * time.Second},
		"something else":  {client.Request{Path: "/jobs", Header: http.Header{"Prefer": {"xwait=40"}}}, 30 * time.Second},
		"given":           {client.Request{Path: "/jobs", Timeout: 2 * time.Second}, 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				begun := time.Now()
				_, err := (&double{steps: []step{silent}}).of(t, client.WithRetries(0)).Do(t.Context(), tt.request)
				if took := time.Since(begun); took != tt.want || err == nil || errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%v after %v", err, took)
				}
			})
		})
	}
}
