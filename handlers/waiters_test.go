package handlers_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/handlers"
	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

// crowded serves with room for so many waiters.
func crowded(d domain, places int) http.Handler {
	return served(d, handlers.JobsConfig{Waiters: job.NewWaiterLimit(places, places), Clock: clock{start}})
}

func served(d domain, c handlers.JobsConfig) http.Handler {
	jobs := handlers.NewJobs(d, c)
	router := chi.NewRouter()
	router.Method("GET", "/jobs/{key}", handlers.Handler(jobs.Get))
	router.Post("/jobs", func(w http.ResponseWriter, r *http.Request) {
		ctx := idempotency.NewContext(r.Context(), idempotency.Request{Tenant: "acme", Key: "order-42"})
		handlers.Handler(jobs.Submit).ServeHTTP(w, r.WithContext(ctx))
	})
	return router
}

func TestContract_Row90_TooManyWaiters(t *testing.T) {
	t.Parallel()
	waits := http.Header{"Prefer": {"wait=5, return=minimal"}}
	submit := call{method: "POST", target: "/jobs", header: waits, body: `{"type":"echo"}`}
	unfinished := found(pendingJob())
	unfinished.submit = func(idempotency.Request, job.Draft) (job.Receipt, error) { return receipt(pendingJob(), true), nil }
	unfinished.await = func(_ context.Context, r job.Receipt, _ time.Duration, _ bool) (job.Receipt, error) {
		return receipt(succeededJob(), false), nil
	}
	finished := found(succeededJob())
	finished.await = func(_ context.Context, r job.Receipt, _ time.Duration, _ bool) (job.Receipt, error) { return r, nil }
	tests := []struct {
		name   string
		domain domain
		places int
		call   call
		want   want
	}{
		{
			"GET without room", unfinished, 0,
			call{method: "GET", target: "/jobs/order-42", header: waits},
			want{200, map[string]string{"Preference-Applied": "", "Retry-After": "10", "ETag": `"1"`}, []string{`"pending"`}, nil},
		},
		{
			"GET of a known version without room", unfinished, 0,
			call{method: "GET", target: "/jobs/order-42?wait=5", header: http.Header{"If-None-Match": {`"1"`}}},
			want{304, map[string]string{"Preference-Applied": "", "Retry-After": "10"}, nil, nil},
		},
		{
			"GET with room", unfinished, 1,
			call{method: "GET", target: "/jobs/order-42", header: waits},
			want{200, map[string]string{"Preference-Applied": "wait=5", "Retry-After": ""}, []string{`"succeeded"`}, nil},
		},
		{
			"a finished job needs no room", finished, 0,
			call{method: "GET", target: "/jobs/order-42", header: waits},
			want{200, map[string]string{"Preference-Applied": "wait=5", "Retry-After": ""}, []string{`"succeeded"`}, nil},
		},
		{
			"POST without room", unfinished, 0, submit,
			want{202, map[string]string{"Preference-Applied": "return=minimal", "Retry-After": "10", "Job-Status": "pending"}, nil, nil},
		},
		{
			"POST with room", unfinished, 1, submit,
			want{200, map[string]string{"Preference-Applied": "wait=5, return=minimal", "Retry-After": "", "Job-Status": "succeeded"}, nil, nil},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := crowded(tt.domain, tt.places)
			tt.want.check(t, tt.call.do(h))
			tt.want.check(t, tt.call.do(h)) // a place that was taken is free again
		})
	}
}

// A wait that ends because the process does must not look like one that ran
// out: the client would ask again at once, the same process, for all the grace.
func TestContract_Row84_Row88_AWaitThatIsCutShort(t *testing.T) {
	t.Parallel()
	d := found(pendingJob())
	d.await = func(_ context.Context, r job.Receipt, _ time.Duration, _ bool) (job.Receipt, error) { return r, nil }
	jobs := handlers.NewJobs(d, handlers.JobsConfig{Clock: clock{start}, Draining: func() bool { return true }})
	router := chi.NewRouter()
	router.Method("GET", "/jobs/{key}", handlers.Handler(jobs.Get))
	w := call{method: "GET", target: "/jobs/order-42?wait=30"}.do(router)
	want{200, map[string]string{"Preference-Applied": "", "Retry-After": "1", "Connection": "close"}, []string{`"pending"`}, nil}.check(t, w)
}

// What became of the job is not told to a caller who is not let in any more when it
// has waited. Its submission was accepted all the same.
func TestContract_Row19_Row77_Row89_NotLetInAnyMoreAfterTheWait(t *testing.T) {
	t.Parallel()
	d := found(pendingJob())
	d.submit = func(idempotency.Request, job.Draft) (job.Receipt, error) { return receipt(pendingJob(), true), nil }
	d.await = func(context.Context, job.Receipt, time.Duration, bool) (job.Receipt, error) {
		return receipt(succeededJob(), false), nil
	}
	h := served(d, handlers.JobsConfig{Clock: clock{start}, Still: func(*http.Request) error { return api.ErrUnauthenticated }})
	waits := http.Header{"Prefer": {"wait=5"}}
	refused := want{401, map[string]string{"WWW-Authenticate": `Bearer realm="sekali"`}, []string{`"unauthenticated"`}, []string{"succeeded"}}
	refused.check(t, call{method: "GET", target: "/jobs/order-42", header: waits}.do(h))
	accepted := want{202, map[string]string{"Job-Status": "pending"}, nil, []string{"succeeded"}}
	accepted.check(t, call{method: "POST", target: "/jobs", header: waits, body: `{"type":"echo"}`}.do(h))
	at := want{200, nil, []string{`"pending"`}, nil}
	at.check(t, call{method: "GET", target: "/jobs/order-42"}.do(h)) // it was let in a moment ago
}
