package handlers_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

func TestGet(t *testing.T) {
	t.Parallel()
	failed := succeededJob()
	failed.Status, failed.Result = job.Failed, nil
	failed.LastError = &job.Failure{Code: "exit-code", Detail: "The program ended with 1.", Attempt: 1}
	tests := []struct {
		name string
		job  job.Job
		call call
		want want
	}{
		{"Contract_Row85 unfinished", pendingJob(), call{method: "GET", target: "/jobs/order-42"}, want{200, map[string]string{
			"ETag": `"1"`, "Retry-After": "1", "Cache-Control": "private, no-cache", "Vary": "Prefer", "Idempotency-Expires": "",
			"Content-Type": "application/json", "Preference-Applied": "",
		}, []string{`"payload":{ "a":1 },"result":null`}, nil}},
		{"Contract_Row86 succeeded", succeededJob(), call{method: "GET", target: "/jobs/order-42"}, want{200, map[string]string{
			"ETag": `"3"`, "Retry-After": "", "Idempotency-Expires": "2026-03-01T13:00:00Z",
		}, []string{`"result":{ "r":2 }`}, nil}},
		{"Contract_Row86 failure is data", failed, call{method: "GET", target: "/jobs/order-42"}, want{
			200,
			map[string]string{"Retry-After": ""},
			[]string{`"error":{"code":"exit-code","detail":"The program ended with 1.","attempt":1}`},
			nil,
		}},
		{
			"Contract_Row87 not modified", pendingJob(),
			call{method: "GET", target: "/jobs/order-42", header: http.Header{"If-None-Match": {`"1"`}}},
			want{304, map[string]string{"ETag": `"1"`, "Retry-After": "1", "Cache-Control": "private, no-cache", "Vary": "Prefer", "Content-Type": ""}, nil, []string{"{"}},
		},
		{
			"Contract_Row87 not modified, finished", succeededJob(),
			call{method: "GET", target: "/jobs/order-42", header: http.Header{"If-None-Match": {`W/"3"`}}},
			want{304, map[string]string{"ETag": `"3"`, "Retry-After": ""}, nil, []string{"{"}},
		},
		{
			"Contract_Row87 modified", succeededJob(),
			call{method: "GET", target: "/jobs/order-42", header: http.Header{"If-None-Match": {`"1"`}}},
			want{200, map[string]string{"ETag": `"3"`}, []string{"succeeded"}, nil},
		},
		{
			"Contract_Row99 HEAD does not wait", pendingJob(),
			call{method: "HEAD", target: "/jobs/order-42?wait=abc", header: http.Header{"Prefer": {"wait=9"}}},
			want{200, map[string]string{"ETag": `"1"`, "Preference-Applied": ""}, nil, nil},
		},
		{"Failure_BR40 bad wait", pendingJob(), call{method: "GET", target: "/jobs/order-42?wait=abc"}, want{400, nil, []string{`"pointer":"?wait"`}, nil}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.want.check(t, tt.call.do(serve(found(tt.job), start)))
		})
	}
}

func TestGet_Waits(t *testing.T) {
	t.Parallel()
	processing := pendingJob()
	processing.Status, processing.Version = job.Processing, 2
	match := http.Header{"If-None-Match": {`"1"`}}
	tests := []struct {
		name      string
		header    http.Header
		query     string
		anyChange bool
		wait      time.Duration // 0: must not wait
		after     job.Job
		want      want
	}{
		{
			"Contract_Row88 finished",
			http.Header{"Prefer": {"wait=5"}},
			"", false, 5 * time.Second, succeededJob(),
			want{200, map[string]string{"Preference-Applied": "wait=5", "ETag": `"3"`, "Retry-After": ""}, []string{"succeeded"}, nil},
		},
		{
			"Contract_Row88 ran out",
			http.Header{"Prefer": {"wait=5"}},
			"", false, 5 * time.Second, processing,
			want{200, map[string]string{"Preference-Applied": "wait=5", "ETag": `"2"`, "Retry-After": "0"}, []string{"processing"}, nil},
		},
		{
			"Contract_Row88 capped",
			http.Header{"Prefer": {"wait=999"}},
			"", false, 60 * time.Second, succeededJob(),
			want{200, map[string]string{"Preference-Applied": "wait=60"}, nil, nil},
		},
		{
			"Contract_Row88 query", nil, "?wait=7", false, 7 * time.Second, succeededJob(),
			want{200, map[string]string{"Preference-Applied": "wait=7"}, nil, nil},
		},
		{
			"Contract_Row88 header wins",
			http.Header{"Prefer": {"wait=3"}},
			"?wait=7", false, 3 * time.Second, succeededJob(),
			want{200, map[string]string{"Preference-Applied": "wait=3"}, nil, nil},
		},
		{
			"Contract_Row89 changed", match, "?wait=5", true, 5 * time.Second, processing,
			want{200, map[string]string{"ETag": `"2"`, "Preference-Applied": "wait=5"}, []string{"processing"}, nil},
		},
		{
			"Contract_Row89 ran out", match, "?wait=5", true, 5 * time.Second, pendingJob(),
			want{304, map[string]string{"ETag": `"1"`, "Retry-After": "0", "Preference-Applied": "wait=5"}, nil, []string{"{"}},
		},
		{
			"Contract_Row89 another version already",
			http.Header{"If-None-Match": {`"0"`}},
			"?wait=5", true, 0, processing,
			want{200, map[string]string{"ETag": `"1"`, "Preference-Applied": "wait=5"}, nil, nil},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := found(pendingJob())
			if tt.wait > 0 {
				d.await = func(_ context.Context, r job.Receipt, wait time.Duration, anyChange bool) (job.Receipt, error) {
					if wait != tt.wait || anyChange != tt.anyChange || r.Record.Key != "order-42" || r.Record.Tenant != "acme" {
						t.Errorf("awaits %+v for %s, any change: %t", r.Record.Request, wait, anyChange)
					}
					return receipt(tt.after, false), nil
				}
			}
			tt.want.check(t, call{method: "GET", target: "/jobs/order-42" + tt.query, header: tt.header}.do(serve(d, start)))
		})
	}
	t.Run("Contract_Row101 database lost while waiting", func(t *testing.T) {
		t.Parallel()
		d := found(pendingJob())
		d.await = func(context.Context, job.Receipt, time.Duration, bool) (job.Receipt, error) {
			return job.Receipt{}, job.ErrUnavailable
		}
		want{503, map[string]string{"Retry-After": "2", "Preference-Applied": ""}, []string{"store-unavailable"}, nil}.
			check(t, call{method: "GET", target: "/jobs/order-42?wait=1"}.do(serve(d, start)))
	})
}

func TestContract_Row94_KeyIsDecodedOnce(t *testing.T) {
	t.Parallel()
	for _, key := range []idempotency.Key{"order-42", "a/b", "a b", "50%", "a%2Fb", "%252F", "a;b,c", `q"\`, "a?b#c", "..."} {
		d := domain{get: func(tenant idempotency.Tenant, got idempotency.Key) (job.Receipt, error) {
			if got != key || tenant != "acme" {
				t.Errorf("%s leads to %q of %q", api.JobURL(key), got, tenant)
			}
			return receipt(succeededJob(), false), nil
		}}
		for _, below := range []string{"", "/result"} {
			want{200, nil, nil, nil}.check(t, call{method: "GET", target: api.JobURL(key) + below}.do(serve(d, start)))
		}
	}
}

func TestContract_Row91_UnknownAndImpossibleKeys(t *testing.T) {
	t.Parallel()
	unknown := domain{get: func(_ idempotency.Tenant, key idempotency.Key) (job.Receipt, error) {
		if key != "nobody" {
			t.Errorf("looked for %q, which cannot exist", key)
		}
		return job.Receipt{}, job.ErrNotFound
	}}
	body := func(path string) string {
		w := call{method: "GET", target: path}.do(serve(unknown, start))
		want{404, map[string]string{"Content-Type": "application/problem+json"}, []string{"job-not-found"}, nil}.check(t, w)
		var p map[string]any
		if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil {
			t.Fatal(err)
		}
		delete(p, "instance")
		text, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	same := body("/jobs/nobody")
	for _, path := range []string{"/jobs/%00", "/jobs/a%FFb", "/jobs/" + strings.Repeat("k", 300), "/jobs/%2E%2E", "/jobs/%20", "/jobs/nobody/result"} {
		if got := body(path); got != same {
			t.Errorf("%s is told apart: %s", path, got)
		}
	}
}

func TestGet_Errors(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		err  error
		want want
	}{
		"Contract_Row92 expired": {
			&job.ExpiredError{ExpiredAt: start, Status: job.Failed},
			want{410, map[string]string{"Retry-After": ""}, []string{`"code":"job-expired"`, `"expired_at":"2026-03-01T12:00:00Z"`, `"job_status":"failed"`}, nil},
		},
		"Failure_BR81 database down": {job.ErrUnavailable, want{503, map[string]string{"Retry-After": "2"}, []string{`"code":"store-unavailable"`, `"retry_after_ms":2000`}, nil}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := domain{get: func(idempotency.Tenant, idempotency.Key) (job.Receipt, error) { return job.Receipt{}, tt.err }}
			for _, path := range []string{"/jobs/order-42", "/jobs/order-42/result"} {
				tt.want.check(t, call{method: "GET", target: path}.do(serve(d, start)))
			}
		})
	}
}

func TestContract_Row80_GetThroughAlias(t *testing.T) {
	t.Parallel()
	d := domain{get: func(idempotency.Tenant, idempotency.Key) (job.Receipt, error) {
		return job.Receipt{Job: succeededJob(), Alias: true}, nil
	}}
	want{200, map[string]string{"Content-Location": "/jobs/order-42", "Idempotency-Status": "duplicate_ignored", "Location": ""}, []string{`"key":"order-42"`}, nil}.
		check(t, call{method: "GET", target: "/jobs/second"}.do(serve(d, start)))
	want{200, map[string]string{"Content-Location": "/jobs/order-42/result", "Idempotency-Status": "duplicate_ignored"}, nil, nil}.
		check(t, call{method: "GET", target: "/jobs/second/result"}.do(serve(d, start)))
}

// A retry's key leads to its job too, which is no duplicate of anything.
func TestContract_Row75_GetThroughAnOperatorsKey(t *testing.T) {
	t.Parallel()
	d := domain{get: func(idempotency.Tenant, idempotency.Key) (job.Receipt, error) {
		r := receipt(succeededJob(), false)
		r.Alias = true
		return r, nil
	}}
	want{200, map[string]string{"Content-Location": "/jobs/order-42", "Idempotency-Status": ""}, []string{`"key":"order-42"`}, nil}.
		check(t, call{method: "GET", target: "/jobs/retry-1"}.do(serve(d, start)))
}

func TestContract_Row100_AnAnswerFromTheCacheTellsItsAge(t *testing.T) {
	t.Parallel()
	for read, age := range map[time.Time]string{{}: "", start: "0", start.Add(-2999 * time.Millisecond): "2", start.Add(time.Second): "0"} {
		d := domain{get: func(idempotency.Tenant, idempotency.Key) (job.Receipt, error) {
			r := receipt(succeededJob(), false)
			r.CachedAt = read
			return r, nil
		}}
		for _, path := range []string{"/jobs/order-42", "/jobs/order-42/result"} {
			want{200, map[string]string{"Age": age}, nil, nil}.check(t, call{method: "GET", target: path}.do(serve(d, start)))
		}
	}
}

func TestResult(t *testing.T) {
	t.Parallel()
	page := succeededJob()
	page.Result = &job.Result{Body: []byte("<b>\xff"), MediaType: "text/html; charset=latin1"}
	etag := api.ResultETag(*page.Result)
	none, failed, processing := succeededJob(), succeededJob(), pendingJob()
	none.Result = nil
	failed.Status = job.Failed
	processing.Status = job.Processing
	tests := []struct {
		name   string
		job    job.Job
		header http.Header
		want   want
	}{
		{"Contract_Row95 not finished", processing, nil, want{409, map[string]string{"Retry-After": "1"}, []string{`"code":"job-not-finished"`, `"retryable":true`, `"job":"/jobs/order-42"`}, nil}},
		{"Contract_Row96 as it was stored", page, nil, want{200, map[string]string{
			"Content-Type": "text/html; charset=latin1", "ETag": etag, "Content-Length": "4", "X-Content-Type-Options": "nosniff", "Idempotency-Expires": "2026-03-01T13:00:00Z",
		}, []string{"<b>\xff"}, nil}},
		{"Contract_Row96 not modified", page, http.Header{"If-None-Match": {etag}}, want{304, map[string]string{"ETag": etag}, nil, []string{"<b>"}}},
		{"Contract_Row97 none", none, nil, want{404, nil, []string{`"code":"job-has-no-result"`, `"job":"/jobs/order-42"`}, nil}},
		{"Contract_Row97 failed", failed, nil, want{404, nil, []string{`"code":"job-has-no-result"`}, nil}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.want.check(t, call{method: "GET", target: "/jobs/order-42/result", header: tt.header}.do(serve(found(tt.job), start)))
		})
	}
}

func TestContract_Row111_ListPages(t *testing.T) {
	t.Parallel()
	all := make([]job.Job, 5)
	for i := range all {
		all[i] = succeededJob()
		all[i].ID = job.ID("01987654-0000-7000-8000-00000000000" + string(rune('9'-i)))
	}
	d := domain{list: func(f job.Filter) ([]job.Job, error) {
		if f.Tenant != "acme" || f.Type != "echo" {
			t.Errorf("filter is %+v", f)
		}
		left := slices.DeleteFunc(slices.Clone(all), func(j job.Job) bool { return f.Before != "" && j.ID >= f.Before })
		return left[:min(f.Limit, len(left))], nil
	}}
	var seen []string
	cursor := ""
	for range 10 {
		w := call{method: "GET", target: "/jobs?type=echo&limit=2&cursor=" + cursor}.do(serve(d, start))
		want{200, map[string]string{"Cache-Control": "private, no-cache"}, nil, []string{`"payload"`, `"result"`}}.check(t, w)
		var page api.JobList
		if err := json.Unmarshal(w.Body.Bytes(), &page); err != nil {
			t.Fatal(err)
		}
		for _, j := range page.Jobs {
			seen = append(seen, j.ID[len(j.ID)-1:])
		}
		if page.NextCursor == nil {
			break
		}
		cursor = *page.NextCursor
	}
	if got := strings.Join(seen, ""); got != "98765" {
		t.Errorf("pages hold %s", got)
	}
	want{400, nil, []string{`"code":"validation-failed"`, `"pointer":"?cursor"`}, nil}.check(t, call{method: "GET", target: "/jobs?cursor=" + cursor}.do(serve(d, start)))
	down := domain{list: func(job.Filter) ([]job.Job, error) { return nil, job.ErrUnavailable }}
	want{503, nil, []string{`"code":"store-unavailable"`}, nil}.check(t, call{method: "GET", target: "/jobs"}.do(serve(down, start)))
}

// Over a real connection, where HEAD has no bytes whatever a handler writes.
func TestFailure_BR38_HEAD(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(serve(found(succeededJob()), start))
	defer server.Close()
	for _, path := range []string{"/jobs/order-42", "/jobs/order-42/result"} {
		var headers [2]http.Header
		for i, method := range []string{"GET", "HEAD"} {
			r, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			w, err := server.Client().Do(r)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(w.Body)
			w.Body.Close()
			if err != nil || w.StatusCode != 200 || (method == "HEAD") != (len(body) == 0) {
				t.Errorf("%s %s: %d, %d bytes, %v", method, path, w.StatusCode, len(body), err)
			}
			w.Header.Del("Date")
			headers[i] = w.Header
		}
		for name := range headers[0] {
			if headers[0].Get(name) != headers[1].Get(name) {
				t.Errorf("%s: %s of GET is %q, of HEAD %q", path, name, headers[0].Get(name), headers[1].Get(name))
			}
		}
	}
}

func TestContract_Row115_UnknownRouteAndMethod(t *testing.T) {
	t.Parallel()
	tests := []struct {
		method, target string
		status         int
		allow          string
	}{
		{"GET", "/nothing", 404, ""},
		{"BREW", "/nothing", 404, ""},
		{"GET", "/jobs/", 404, ""},
		{"GET", "/jobs/a/b", 404, ""},
		{"DELETE", "/jobs", 405, "GET, HEAD, POST"},
		{"PUT", "/jobs/k", 405, "GET, HEAD"},
		{"OPTIONS", "/jobs/a%2Fb/result", 405, "GET, HEAD"},
		{"BREW", "/jobs", 405, "GET, HEAD, POST"},
		{"POST", "/healthz", 405, "GET, HEAD"},
	}
	for _, tt := range tests {
		t.Run(tt.method+" "+tt.target, func(t *testing.T) {
			t.Parallel()
			code := map[int]string{404: "route-not-found", 405: "method-not-allowed"}[tt.status]
			want{tt.status, map[string]string{"Allow": tt.allow, "Content-Type": "application/problem+json"}, []string{`"code":"` + code + `"`}, nil}.
				check(t, call{method: tt.method, target: tt.target}.do(serve(domain{}, start)))
		})
	}
}
