package handlers_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/handlers"
	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

type clock struct{ now time.Time }

func (c clock) Now() time.Time { return c.now }

// domain is a hand-written fake: each test sets what it expects to be called.
type domain struct {
	submit func(idempotency.Request, job.Draft) (job.Receipt, error)
	known  func(idempotency.Request) (job.Receipt, bool) // nil: nothing is known
	all    func([]job.Item) ([]job.Receipt, []error)
	refuse func(idempotency.Request, error) (job.Receipt, error)
	get    func(idempotency.Tenant, idempotency.Key) (job.Receipt, error)
	list   func(job.Filter) ([]job.Job, error)
	await  func(context.Context, job.Receipt, time.Duration, bool) (job.Receipt, error)

	history func(idempotency.Key) (job.History, error)
	cancel  func(idempotency.Key) (job.Receipt, error)
	retry   func(idempotency.Request, idempotency.Key) (job.Receipt, error)
	resolve func(idempotency.Request, idempotency.Key, job.Status, *job.Result) (job.Receipt, error)
}

func (d domain) History(_ context.Context, _ idempotency.Tenant, key idempotency.Key) (job.History, error) {
	return d.history(key)
}

func (d domain) Cancel(_ context.Context, _ idempotency.Tenant, key idempotency.Key) (job.Receipt, error) {
	return d.cancel(key)
}

func (d domain) Retry(_ context.Context, req idempotency.Request, key idempotency.Key) (job.Receipt, error) {
	return d.retry(req, key)
}

func (d domain) Resolve(_ context.Context, req idempotency.Request, key idempotency.Key, to job.Status, r *job.Result) (job.Receipt, error) {
	return d.resolve(req, key, to, r)
}

func (d domain) Submit(_ context.Context, req idempotency.Request, draft job.Draft) (job.Receipt, error) {
	return d.submit(req, draft)
}

func (d domain) Known(_ context.Context, req idempotency.Request) (job.Receipt, bool) {
	if d.known == nil {
		return job.Receipt{}, false
	}
	return d.known(req)
}

func (d domain) SubmitAll(_ context.Context, items []job.Item) ([]job.Receipt, []error) {
	return d.all(items)
}

func (d domain) Refuse(_ context.Context, req idempotency.Request, why error) (job.Receipt, error) {
	return d.refuse(req, why)
}

func (d domain) Get(_ context.Context, tenant idempotency.Tenant, key idempotency.Key) (job.Receipt, error) {
	return d.get(tenant, key)
}

func (d domain) List(_ context.Context, f job.Filter) ([]job.Job, error) { return d.list(f) }

func (d domain) Await(ctx context.Context, r *job.Receipt, wait time.Duration, anyChange bool) error {
	now, err := d.await(ctx, *r, wait, anyChange)
	if err == nil {
		*r = now
	}
	return err
}

// serve routes as the gateway does, with the keyed request made by hand.
func serve(d domain, now time.Time) http.Handler {
	jobs := handlers.NewJobs(d, handlers.JobsConfig{
		MaxWait: 60 * time.Second, Clock: clock{now}, Batch: handlers.Batch{KeyRequired: true, ItemLimit: 200},
	})
	router := chi.NewRouter()
	router.Use(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			chi.RouteContext(r.Context()).RoutePath = r.URL.EscapedPath()
			ctx := idempotency.WithTenant(r.Context(), "acme")
			if r.Method == http.MethodPost {
				ctx = idempotency.NewContext(ctx, idempotency.Request{Tenant: "acme", Key: idempotency.Key(r.Header.Get("Idempotency-Key"))})
			}
			next.ServeHTTP(w, r.WithContext(ctx))
		})
	})
	router.NotFound(handlers.Handler(handlers.NotFound).ServeHTTP)
	router.MethodNotAllowed(handlers.Handler(handlers.MethodNotAllowed).ServeHTTP)
	router.Method("POST", "/jobs", handlers.Handler(jobs.Submit))
	router.Method("POST", "/jobs/batch", handlers.Handler(jobs.SubmitBatch))
	router.Method("GET", "/jobs", handlers.Handler(jobs.List))
	for _, method := range []string{"GET", "HEAD"} {
		router.Method(method, "/jobs/{key}", handlers.Handler(jobs.Get))
		router.Method(method, "/jobs/{key}/result", handlers.Handler(jobs.Result))
		router.Method(method, "/jobs/{key}/attempts", handlers.Handler(jobs.Attempts))
		router.Method(method, "/jobs/{key}/events", handlers.Handler(jobs.Events))
	}
	router.Method("POST", "/jobs/{key}/cancel", handlers.Handler(jobs.Cancel))
	router.Method("POST", "/jobs/{key}/retry", handlers.Handler(jobs.Retry))
	router.Method("POST", "/jobs/{key}/resolve", handlers.Handler(jobs.Resolve))
	router.Method("GET", "/healthz", handlers.Handler(handlers.Live))
	return router
}

// call is one HTTP case as data.
type call struct {
	method, target string
	header         http.Header
	body           string
}

// want is what must stand in the answer: a header that is "" must be absent.
type want struct {
	status   int
	header   map[string]string
	contains []string
	lacks    []string
}

func (c call) do(h http.Handler) *httptest.ResponseRecorder {
	r := httptest.NewRequest(c.method, c.target, strings.NewReader(c.body))
	for name, values := range c.header {
		r.Header[name] = values
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func (x want) check(t *testing.T, w *httptest.ResponseRecorder) {
	t.Helper()
	if w.Code != x.status {
		t.Errorf("status is %d, want %d", w.Code, x.status)
	}
	for name, value := range x.header {
		if got := w.Header().Get(name); got != value {
			t.Errorf("%s is %q, want %q", name, got, value)
		}
	}
	for _, text := range x.contains {
		if !strings.Contains(w.Body.String(), text) {
			t.Errorf("body lacks %s: %s", text, w.Body)
		}
	}
	for _, text := range x.lacks {
		if strings.Contains(w.Body.String(), text) {
			t.Errorf("body has %s: %s", text, w.Body)
		}
	}
}

func pendingJob() job.Job {
	return job.Job{
		ID: "01987654-0000-7000-8000-000000000001", Key: "order-42", Type: "echo", Status: job.Pending,
		Payload: []byte(`{ "a":1 }`), RunAt: start, CreatedAt: start, MaxAttempts: 10, Generation: 1, Version: 1,
	}
}

func succeededJob() job.Job {
	j := pendingJob()
	j.Status, j.Version, j.Attempts = job.Succeeded, 3, 1
	j.Result = &job.Result{Body: []byte(`{ "r":2 }`), MediaType: "application/json"}
	j.FinishedAt, j.ExpiresAt = start.Add(time.Second), start.Add(time.Hour)
	return j
}

// receipt is what a repository gives for a key that made j.
func receipt(j job.Job, fresh bool) job.Receipt {
	return job.Receipt{
		Record: idempotency.Record{State: idempotency.Completed, Response: api.Accepted(pendingJob()), Fresh: fresh, ExpiresAt: j.ExpiresAt},
		Job:    j,
	}
}

// found makes a domain that knows one job.
func found(j job.Job) domain {
	return domain{get: func(idempotency.Tenant, idempotency.Key) (job.Receipt, error) { return receipt(j, false), nil }}
}
