package middleware_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/internal/telemetry"
	"github.com/sekali/sekali/job"
	"github.com/sekali/sekali/middleware"
)

func TestContract_Row94_EscapedPath(t *testing.T) {
	t.Parallel()
	router := chi.NewRouter()
	router.Use(middleware.EscapedPath)
	got := ""
	router.Get("/jobs/{key}", func(_ http.ResponseWriter, r *http.Request) { got = chi.URLParam(r, "key") })
	for _, segment := range []string{"a%20b", "a%2Fb", "a%252Fb", "%41", "a;b", "%00"} {
		got = ""
		router.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/jobs/"+segment, nil))
		if got != segment {
			t.Errorf("%s comes as %q", segment, got)
		}
	}
}

func TestRequestID(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, sent := range []string{"", "plain-1:a/b=", strings.Repeat("x", 65), "a b", "a\x1b[31m", "ü"} {
		inside := ""
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("X-Request-Id", sent)
		w := through(middleware.RequestID, func(_ http.ResponseWriter, r *http.Request) { inside = r.Header.Get("X-Request-Id") }, r)
		got := w.Header().Get("X-Request-Id")
		if kept := got == sent; kept != (sent == "plain-1:a/b=") || got != inside || got == "" || seen[got] {
			t.Errorf("%q becomes %q outside and %q inside", sent, got, inside)
		}
		seen[got] = true
	}
}

func TestRecover(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	mw := middleware.Recover(slog.New(slog.NewJSONHandler(&log, nil)))
	w := through(mw, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("ETag", `"1"`)
		panic("secret of the panic")
	}, httptest.NewRequest(http.MethodGet, "/", nil))
	if p := problem(t, w); w.Code != 500 || p.Code != "internal" || strings.Contains(w.Body.String(), "secret") || w.Header().Get("ETag") != "" {
		t.Errorf("got %d %s %v", w.Code, w.Body, w.Header())
	}
	if text := log.String(); !strings.Contains(text, "secret of the panic") || !strings.Contains(text, "middleware_test.go") {
		t.Errorf("log lacks the panic or its stack: %s", text)
	}
}

func TestRecover_GoesOn(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		handler http.HandlerFunc
		logged  bool
	}{
		"abort":               {func(http.ResponseWriter, *http.Request) { panic(fmt.Errorf("gone: %w", http.ErrAbortHandler)) }, false},
		"answer had begun":    {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(200); panic("late") }, true},
		"first bytes written": {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("x")); panic("late") }, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log bytes.Buffer
			defer func() {
				err, ok := recover().(error)
				if !ok || !errors.Is(err, http.ErrAbortHandler) || (log.Len() > 0) != tt.logged {
					t.Errorf("panics with %v, log %q", err, log.String())
				}
			}()
			through(middleware.Recover(slog.New(slog.NewTextHandler(&log, nil))), tt.handler, httptest.NewRequest(http.MethodGet, "/", nil))
		})
	}
}

func TestTenant(t *testing.T) {
	t.Parallel()
	got := idempotency.Tenant("")
	through(middleware.Tenant, func(_ http.ResponseWriter, r *http.Request) { got = idempotency.TenantOf(r.Context()) },
		httptest.NewRequest(http.MethodGet, "/", nil))
	if got != idempotency.DefaultTenant {
		t.Errorf("tenant is %q", got)
	}
}

func TestContract_Row84_Drain(t *testing.T) {
	t.Parallel()
	draining := false
	mw := middleware.Drain(func() bool { return draining })
	if w := through(mw, nothing, post(`{}`, nil)); w.Code != 200 {
		t.Errorf("refused before: %d", w.Code)
	}
	draining = true
	w := through(mw, unreachable(t), post(`{}`, nil))
	h := w.Header()
	if p := problem(t, w); w.Code != 503 || p.Code != "shutting-down" || h.Get("Retry-After") == "" || h.Get("Connection") != "close" || !p.Retryable {
		t.Errorf("got %d %v %s", w.Code, h, w.Body)
	}
}

func TestContract_Row17_IgnoreKey(t *testing.T) {
	t.Parallel()
	safe := middleware.IgnoreKey(http.MethodGet, http.MethodHead, http.MethodOptions)
	tests := []struct {
		name, method string
		mw           func(http.Handler) http.Handler
		key          []string
		want         string
	}{
		{"GET", "GET", safe, []string{"k"}, "ignored"},
		{"HEAD", "HEAD", safe, []string{""}, "ignored"},
		{"OPTIONS", "OPTIONS", safe, []string{"a", "b"}, "ignored"},
		{"no key", "GET", safe, nil, ""},
		{"POST", "POST", safe, []string{"k"}, ""},
		{"route that ignores it", "POST", middleware.IgnoreKey(), []string{"k"}, "ignored"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := httptest.NewRequest(tt.method, "/", nil)
			if tt.key != nil {
				r.Header["Idempotency-Key"] = tt.key
			}
			if got := through(tt.mw, nothing, r).Header().Get("Idempotency-Status"); got != tt.want {
				t.Errorf("Idempotency-Status is %q, want %q", got, tt.want)
			}
		})
	}
}

// observed routes like the gateway and returns what was logged.
func observed(m *telemetry.Metrics, log *bytes.Buffer, keys telemetry.KeyLog, answer func(http.ResponseWriter, *http.Request)) http.Handler {
	router := chi.NewRouter()
	logger := slog.New(slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	router.Use(middleware.EscapedPath, middleware.RequestID, middleware.AccessLog(logger, keys), middleware.Metrics(m), middleware.Recover(logger))
	router.NotFound(func(w http.ResponseWriter, r *http.Request) { api.WriteError(w, r, api.ErrRouteNotFound) })
	router.MethodNotAllowed(func(w http.ResponseWriter, r *http.Request) { api.WriteError(w, r, &api.MethodNotAllowedError{}) })
	router.With(middleware.Tenant, middleware.Key(middleware.KeyPolicy{Required: true})).Post("/jobs", answer)
	router.Get("/jobs/{key}", answer)
	router.Get("/healthz", nothing)
	return router
}

func keyed(key string) *http.Request {
	return post(`{}`, header("Content-Type", "application/json", "Idempotency-Key", key))
}

func TestAccessLog(t *testing.T) {
	t.Parallel()
	answer := func(w http.ResponseWriter, r *http.Request) {
		report := api.ReportOf(r.Context())
		report.Names(&job.Job{ID: "id-1", BusinessKey: "bk-1"})
		switch r.Header.Get("X-Case") {
		case "replay":
			w.Header().Set("Idempotent-Replayed", "true")
		case "mismatch":
			api.WriteError(w, r, &idempotency.MismatchError{Part: idempotency.PartBody})
		case "down":
			api.WriteError(w, r, fmt.Errorf("accept: %w", job.ErrUnavailable))
		case "bug":
			api.WriteError(w, r, errors.New("the full text"))
		case "panic":
			panic("boom")
		}
	}
	tests := []struct {
		name, level string
		redact      bool
		want        map[string]any
	}{
		{"first", "INFO", false, map[string]any{
			"status": 200.0, "method": "POST", "route": "/jobs", "idempotency_key": "k-1",
			"tenant": "default", "external_job_id": "id-1", "business_key": "bk-1", "replayed": "false",
		}},
		{"first", "INFO", true, map[string]any{"idempotency_key": "sha256:7c35c5a1785d", "business_key": "sha256:40d9b17c3201"}},
		{"Failure_BR90 replay", "INFO", false, map[string]any{"replayed": "true", "status": 200.0}},
		{"Failure_BR90 mismatch", "INFO", false, map[string]any{"status": 422.0, "code": "idempotency-key-reused"}},
		{"down", "WARN", false, map[string]any{"status": 503.0, "error": "accept: job: database unavailable"}},
		{"bug", "ERROR", false, map[string]any{"status": 500.0, "code": "internal", "error": "the full text"}},
		{"panic", "ERROR", false, map[string]any{"status": 500.0}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var log bytes.Buffer
			h := observed(telemetry.NewMetrics(prometheus.NewRegistry(), nil), &log, telemetry.KeyLog{Redact: tt.redact}, answer)
			r := keyed("k-1")
			r.Header.Set("X-Case", tt.name[strings.LastIndex(tt.name, " ")+1:])
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			lines := strings.Split(strings.TrimSpace(log.String()), "\n")
			var line map[string]any
			if err := json.Unmarshal([]byte(lines[len(lines)-1]), &line); err != nil {
				t.Fatal(err)
			}
			if line["level"] != tt.level || line["msg"] != "request answered" || line["request_id"] != w.Header().Get("X-Request-Id") {
				t.Errorf("line is %v", line)
			}
			for name, want := range tt.want {
				if line[name] != want {
					t.Errorf("%s is %v, want %v", name, line[name], want)
				}
			}
			if tt.redact && (strings.Contains(log.String(), "k-1") || strings.Contains(log.String(), "bk-1")) {
				t.Errorf("the key is in the log: %s", log.String())
			}
			if w.Code >= 400 && line["instance"] != problem(t, w).Instance {
				t.Errorf("instance is %v", line["instance"])
			}
		})
	}
	t.Run("probes are for debugging", func(t *testing.T) {
		t.Parallel()
		var log bytes.Buffer
		h := observed(telemetry.NewMetrics(prometheus.NewRegistry(), nil), &log, telemetry.KeyLog{}, answer)
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/healthz", nil))
		if !strings.Contains(log.String(), `"level":"DEBUG"`) {
			t.Errorf("log is %s", log.String())
		}
	})
}

func TestMetrics_CountsWhatBecameOfKeyedRequests(t *testing.T) {
	t.Parallel()
	m := telemetry.NewMetrics(prometheus.NewRegistry(), []string{"echo"})
	h := observed(m, &bytes.Buffer{}, telemetry.KeyLog{}, func(w http.ResponseWriter, r *http.Request) {
		what := w.Header().Get("Idempotency-Key")
		api.ReportOf(r.Context()).Type = "echo"
		switch what {
		case `"replayed"`:
			w.Header().Set("Idempotent-Replayed", "true")
		case `"alias"`:
			w.Header().Set("Idempotency-Status", "duplicate_ignored")
		case `"mismatch"`:
			api.WriteError(w, r, &idempotency.MismatchError{Part: idempotency.PartBody})
		case `"foreign"`:
			api.ReportOf(r.Context()).Type = "nobody knows"
			api.WriteError(w, r, job.ErrUnknownType)
		}
	})
	for _, key := range []string{"new", "new", "replayed", "alias", "mismatch", "foreign"} {
		h.ServeHTTP(httptest.NewRecorder(), keyed(key))
	}
	for name, got := range map[string]float64{
		"accepted 2":  testutil.ToFloat64(m.Submissions.WithLabelValues("echo", telemetry.SubmitAccepted)),
		"replayed 1":  testutil.ToFloat64(m.Submissions.WithLabelValues("echo", telemetry.SubmitReplayed)),
		"ignored 1":   testutil.ToFloat64(m.Submissions.WithLabelValues("echo", telemetry.SubmitDuplicateIgnored)),
		"refused 1":   testutil.ToFloat64(m.Submissions.WithLabelValues("echo", telemetry.SubmitRefused)),
		"unknown 1":   testutil.ToFloat64(m.Submissions.WithLabelValues(telemetry.UnknownType, telemetry.SubmitRefused)),
		"replays 1":   testutil.ToFloat64(m.Replays),
		"mismatch 1":  testutil.ToFloat64(m.Mismatches),
		"duplicate 1": testutil.ToFloat64(m.DuplicatesIgnored),
		"requests 4":  testutil.ToFloat64(m.HTTPRequests.WithLabelValues("POST", "/jobs", "200")),
	} {
		if _, want, _ := strings.Cut(name, " "); fmt.Sprint(got) != want {
			t.Errorf("%s: got %v", name, got)
		}
	}
}

func TestFailure_BR89_SeriesDoNotGrow(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	h := observed(telemetry.NewMetrics(registry, []string{"echo"}), &bytes.Buffer{}, telemetry.KeyLog{}, func(_ http.ResponseWriter, r *http.Request) {
		api.ReportOf(r.Context()).Type = job.Type("type-" + r.Header.Get("Idempotency-Key"))
	})
	for i := range 500 {
		for _, r := range []*http.Request{
			httptest.NewRequest(http.MethodGet, fmt.Sprintf("/path-%d/x", i), nil),
			httptest.NewRequest(http.MethodGet, fmt.Sprintf("/jobs/key-%d", i), nil),
			httptest.NewRequest(fmt.Sprintf("METHOD%d", i), "/jobs", nil),
			keyed(fmt.Sprintf("key-%d", i)),
		} {
			h.ServeHTTP(httptest.NewRecorder(), r)
		}
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	series := 0
	for _, family := range families {
		series += len(family.GetMetric())
		for _, label := range family.GetMetric() {
			for _, pair := range label.GetLabel() {
				if strings.ContainsAny(pair.GetValue(), "0123456789") && pair.GetName() != "status" {
					t.Errorf("%s{%s=%q}", family.GetName(), pair.GetName(), pair.GetValue())
				}
			}
		}
	}
	if series > 100 { // without requests there are more than half as many
		t.Errorf("there are %d series", series)
	}
}
