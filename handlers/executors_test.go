package handlers_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/handlers"
	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

// floor is a fake of job.Executors.
type floor struct {
	mu     sync.Mutex
	state  job.Overview
	err    error
	reads  int
	calls  []string
	onRead func()
}

func (f *floor) Overview(context.Context) (job.Overview, error) {
	if f.onRead != nil {
		f.onRead()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reads++
	return f.state, f.err
}

func (f *floor) Pause(_ context.Context, t job.Type) error {
	f.calls = append(f.calls, "pause "+string(t))
	f.state = job.Overview{Types: map[job.Type]*job.TypeOverview{t: {PausedAt: start}}}
	return f.err
}

func (f *floor) Resume(_ context.Context, t job.Type) error {
	f.calls = append(f.calls, "resume "+string(t))
	f.state = job.Overview{}
	return f.err
}

// hand is a clock that tests move.
type hand struct{ now atomic.Pointer[time.Time] }

func (h *hand) set(t time.Time) { h.now.Store(&t) }

func (h *hand) Now() time.Time { return *h.now.Load() }

func serveFloor(f *floor, all bool) (http.Handler, *hand) {
	now := &hand{}
	now.set(start)
	e := handlers.NewExecutors(f, handlers.ExecutorsConfig{
		Kinds: map[job.Type]string{"pay": "http", "a.b-c": "sql"}, AllTenants: all, Clock: now,
	})
	router := chi.NewRouter()
	router.Use(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			chi.RouteContext(r.Context()).RoutePath = r.URL.EscapedPath()
			next.ServeHTTP(w, r.WithContext(idempotency.WithTenant(r.Context(), "acme")))
		})
	})
	router.Method("GET", "/executors", handlers.Handler(e.List))
	router.Method("GET", "/executors/{name}", handlers.Handler(e.Get))
	router.Method("POST", "/executors/{name}/pause", handlers.Handler(e.Pause))
	router.Method("POST", "/executors/{name}/resume", handlers.Handler(e.Resume))
	return router, now
}

func listed(t *testing.T, h http.Handler) api.ExecutorList {
	t.Helper()
	w := call{method: "GET", target: "/executors"}.do(h)
	want{200, map[string]string{"Cache-Control": "private, no-cache"}, nil, nil}.check(t, w)
	var list api.ExecutorList
	if err := json.Unmarshal(w.Body.Bytes(), &list); err != nil {
		t.Fatal(err)
	}
	return list
}

func TestContract_Row114_RunningJobsOfOtherTenantsAreCountedAlone(t *testing.T) {
	t.Parallel()
	state := job.Overview{Types: map[job.Type]*job.TypeOverview{
		"pay": {Busy: 2, Running: []job.Running{{ID: "1", Tenant: "acme", Key: "mine", WorkerID: "w"}, {ID: "2", Tenant: "other", Key: "secret", WorkerID: "w"}}},
	}}
	for all, want := range map[bool]string{false: "mine", true: "mine secret"} {
		h, _ := serveFloor(&floor{state: state}, all)
		list := listed(t, h)
		var keys []string
		for _, e := range list.Executors {
			for _, r := range e.Running {
				keys = append(keys, r.Key)
			}
		}
		if got := strings.Join(keys, " "); got != want || list.Executors[1].Name != "pay" || list.Executors[1].Busy != 2 {
			t.Errorf("all tenants %t: %q, %+v", all, got, list.Executors)
		}
	}
}

func TestContract_Row114_OneExecutor(t *testing.T) {
	t.Parallel()
	h, _ := serveFloor(&floor{state: job.Overview{Types: map[job.Type]*job.TypeOverview{"gone": {Waiting: job.Waiting{Pending: 1}}}}}, true)
	want{200, nil, []string{`{"name":"a.b-c","executor":"sql","types":["a.b-c"],"configured":true`, `"running":[]`, `"workers":[]`, `"last_heartbeat_at":null`, `"mean_ms":null,"p95_ms":null}`}, []string{`"executors"`}}.
		check(t, call{method: "GET", target: "/executors/a.b-c"}.do(h))
	want{200, nil, []string{`"name":"gone","executor":null`, `"configured":false`, `"why":"1 because no process runs this type"`}, nil}.
		check(t, call{method: "GET", target: "/executors/gone"}.do(h))
	for _, path := range []string{"/executors/nothing", "/executors/%00", "/executors/a%2Fb"} {
		want{404, nil, []string{`"code":"executor-not-found"`}, nil}.check(t, call{method: "GET", target: path}.do(h))
	}
}

func TestContract_Row114a_PauseAndResume(t *testing.T) {
	t.Parallel()
	f := &floor{}
	h, _ := serveFloor(f, true)
	listed(t, h)
	want{200, map[string]string{"Cache-Control": "no-store"}, []string{`"name":"pay"`, `"paused_at":"2026-03-01T12:00:00Z"`}, nil}.
		check(t, call{method: "POST", target: "/executors/pay/pause"}.do(h))
	if list := listed(t, h); list.Executors[1].PausedAt == nil {
		t.Error("the pause is shown only later")
	}
	want{200, nil, []string{`"paused_at":null`}, nil}.check(t, call{method: "POST", target: "/executors/pay/resume"}.do(h))
	want{404, nil, []string{`"code":"executor-not-found"`}, nil}.check(t, call{method: "POST", target: "/executors/nothing/pause"}.do(h))
	if !slices.Equal(f.calls, []string{"pause pay", "resume pay"}) {
		t.Errorf("called %q", f.calls)
	}
	away, _ := serveFloor(&floor{err: job.ErrUnavailable}, true)
	want{503, map[string]string{"Retry-After": "2"}, nil, nil}.check(t, call{method: "POST", target: "/executors/pay/pause"}.do(away))
}

func TestExecutors_OneReadingASecondWhoeverAsks(t *testing.T) {
	t.Parallel()
	for _, err := range []error{nil, job.ErrUnavailable} {
		f := &floor{err: err}
		h, now := serveFloor(f, true)
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() { h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/executors", nil)) })
		}
		all.Wait()
		if f.reads != 1 {
			t.Errorf("%v: %d readings for twenty at once", err, f.reads)
		}
		now.set(start.Add(time.Second))
		call{method: "GET", target: "/executors"}.do(h)
		if f.reads != 2 {
			t.Errorf("%v: %d readings a second later", err, f.reads)
		}
	}
}

// Who leaves while somebody else reads does not wait, and who leaves while reading
// leaves no error behind for the others.
func TestExecutors_AClientThatLeaves(t *testing.T) {
	t.Parallel()
	ctx, leave := context.WithCancel(t.Context())
	f := &floor{}
	h, _ := serveFloor(f, true)
	f.onRead = func() {
		w := httptest.NewRecorder()
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		h.ServeHTTP(w, httptest.NewRequestWithContext(gone, http.MethodGet, "/executors", nil))
		if w.Code != http.StatusRequestTimeout {
			t.Errorf("who waits and leaves gets %d", w.Code)
		}
		f.onRead, f.err = nil, context.Canceled
		leave()
	}
	h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodGet, "/executors", nil))
	f.err = nil
	listed(t, h)
}
