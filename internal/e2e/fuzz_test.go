package e2e_test

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/handlers"
	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/internal/testenv"
	"github.com/sekali/sekali/job"
	"github.com/sekali/sekali/middleware"
	"github.com/sekali/sekali/repository"
)

// submitting serves POST /jobs alone, over a real database, with nothing around
// it that would turn a panic into an answer.
func submitting(t testing.TB) (http.Handler, *sql.DB) {
	t.Helper()
	database := testenv.SQLite(t)
	repo, err := repository.Open(t.Context(), database, repository.Options{Exclusive: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = repo.Close() })
	if err := repo.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	jobs := &job.Jobs{
		Types:    job.Types{"echo": {Lease: time.Minute, Timeout: time.Minute, MaxAttempts: 3, Retention: time.Hour, OnConflict: job.ConflictReturn}},
		Acceptor: repo, Bulk: repo, Reader: repo, Clock: repo.Clock(), Waiters: &job.Waiters{}, Render: api.Accepted, Wake: func(job.Type) {},
	}
	submit := handlers.NewJobs(jobs, handlers.JobsConfig{MaxWait: time.Millisecond, Clock: repo.Clock()}).Submit
	keyed := middleware.Key(middleware.KeyPolicy{
		Required: true, BodyLimit: 8 << 10, MediaTypes: []string{"application/json"}, Rule: idempotency.KeyRule{MaxLength: 255},
	})
	return middleware.Tenant(keyed(handlers.Handler(submit))), beside(t, database)
}

// FuzzSubmit sends anything to POST /jobs: never a 5xx, never a panic, a problem
// for every refusal, no row for what was refused, and the stored answer for what
// was accepted.
func FuzzSubmit(f *testing.F) {
	for _, seed := range []struct{ key, query, mediaType, prefer, body string }{
		{"k", "", "application/json", "", `{"type":"echo"}`},
		{`"k"`, "a=1&a=2", "application/json; charset=utf-8", "wait=1, return=minimal", `{"type":"echo","payload":{"a":[1,2.50,1e400,"\u0000"]}}`},
		{`"a\"b";v=1`, "%zz", "application/problem+json", "respond-async", `{"type":"echo","business_key":"b","run_at":"2026-12-01T00:00:00Z"}`},
		{"", "", "", "", ""},
		{strings.Repeat("k", 256), "", "text/plain", "wait=-1", "{}"},
		{"a,b", "wait=9999999999999999999", "application/json", "wait=9999999999999999999", `{"type":"none","priority":-101,"delay_seconds":1e9}`},
		{"\xff", "\x00", "application/json", "\x00", "\xff\xfe"},
		{"k", "", "application/json", "", `{"type":"echo","type":"echo"}`},
		{"k2", "", "application/json", "", strings.Repeat("[", 200)},
		{"k3", "", "application/json", "", `{"type":"echo","payload":"` + strings.Repeat("x", 9<<10) + `"}`},
		{"..", "", "application/json", "", `{"type":"echo","timeout_seconds":1,"max_attempts":1000,"expires_in_seconds":31536000}`},
		{"k4", "", "application/json", "", `{"type":"echo","business_key":"b","callback_url":"http://x"}`},
	} {
		f.Add(seed.key, seed.query, seed.mediaType, seed.prefer, []byte(seed.body))
	}
	h, db := submitting(f)
	f.Fuzz(func(t *testing.T, key, query, mediaType, prefer string, body []byte) {
		send := func() *httptest.ResponseRecorder {
			r := httptest.NewRequest(http.MethodPost, "/jobs", strings.NewReader(string(body)))
			r.URL = &url.URL{Path: "/jobs", RawQuery: query}
			r.Header = http.Header{"Idempotency-Key": {key}, "Content-Type": {mediaType}, "Prefer": {prefer}}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			return w
		}
		rows := func() string {
			return text(t, db, `select (select count(*) from idempotency_keys) || ' keys, ' || (select count(*) from jobs) || ' jobs'`)
		}
		before := rows()
		first := send()
		switch {
		case first.Code >= http.StatusInternalServerError, first.Code < http.StatusOK:
			t.Fatalf("status %d: %s", first.Code, first.Body)
		case first.Code >= http.StatusBadRequest:
			var p api.Problem
			if err := json.Unmarshal(first.Body.Bytes(), &p); err != nil || p.Code == "" || p.Status != first.Code {
				t.Errorf("%d %s: %v", first.Code, first.Body, err)
			}
			if after := rows(); after != before {
				t.Errorf("refused with %d, but %s became %s", first.Code, before, after)
			}
			if again := send(); again.Code != first.Code {
				t.Errorf("status %d, then %d", first.Code, again.Code)
			}
			return
		}
		repeats(t, first, send())
	})
}

// repeats fails unless again repeats the answer to an accepted submission.
func repeats(t *testing.T, first, again *httptest.ResponseRecorder) {
	t.Helper()
	if again.Code != first.Code || again.Header().Get("Idempotent-Replayed") != "true" || again.Body.String() != first.Body.String() {
		t.Errorf("%d %s, then %d %s %v", first.Code, first.Body, again.Code, again.Body, again.Header())
	}
	for _, name := range []string{"Location", "Idempotency-Key"} {
		if first.Header().Get(name) == "" || fmt.Sprint(first.Header()[name]) != fmt.Sprint(again.Header()[name]) {
			t.Errorf("%s: %q, then %q", name, first.Header()[name], again.Header()[name])
		}
	}
}
