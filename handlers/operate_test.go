package handlers_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

func TestContract_Row102_Failure_BR84_Cancel(t *testing.T) {
	t.Parallel()
	cancelled, running := succeededJob(), pendingJob()
	cancelled.Status, cancelled.Result = job.Cancelled, nil
	running.Status = job.Processing
	tests := []struct {
		name string
		job  job.Job
		err  error
		want want
	}{
		{
			"at once", cancelled, nil,
			want{200, map[string]string{
				"Location": "/jobs/order-42", "Job-Status": "cancelled", "Retry-After": "", "Cache-Control": "no-store",
				"Idempotency-Expires": "2026-03-01T13:00:00Z", "Idempotency-Key": "", "Content-Type": "application/json",
			}, []string{`"status":"cancelled"`, `"payload":{ "a":1 },"result":null`}, nil},
		},
		{
			"asked", running, nil,
			want{202, map[string]string{"Location": "/jobs/order-42", "Job-Status": "processing", "Retry-After": "1"}, []string{`"status":"processing"`}, nil},
		},
		{
			"too late", succeededJob(), job.ErrAlreadyFinished,
			want{422, map[string]string{"Retry-After": ""}, []string{
				`"code":"job-already-finished"`, `"retryable":false`, `"job":"/jobs/order-42"`, `"job_status":"succeeded"`,
			}, nil},
		},
		{"unknown", job.Job{}, job.ErrNotFound, want{404, nil, []string{`"code":"job-not-found"`}, []string{`"job":`, "job_status"}}},
		{"expired", job.Job{}, &job.ExpiredError{Status: job.Failed}, want{410, nil, []string{`"code":"job-expired"`, `"job_status":"failed"`}, nil}},
		{
			"an alias",
			job.Job{},
			&job.AliasError{Holder: "a/b"},
			want{404, nil, []string{`"code":"job-not-found"`, `"job":"/jobs/a%2Fb"`}, nil},
		},
		{
			"database away",
			job.Job{},
			job.ErrUnavailable,
			want{503, map[string]string{"Retry-After": "2"}, []string{`"code":"idempotency-store-unavailable"`}, []string{"job_status"}},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := domain{cancel: func(key idempotency.Key) (job.Receipt, error) {
				if key != "order-42" {
					t.Errorf("cancels %q", key)
				}
				return job.Receipt{Job: tt.job}, tt.err
			}}
			tt.want.check(t, call{method: "POST", target: "/jobs/order-42/cancel"}.do(serve(d, start)))
		})
	}
	want{404, nil, []string{`"code":"job-not-found"`}, nil}.check(t, call{method: "POST", target: "/jobs/%00/cancel"}.do(serve(domain{}, start)))
}

// revived is what a repository gives for an operator's key.
func revived(j job.Job, fresh bool) job.Receipt {
	before := pendingJob()
	before.Generation = 2
	return job.Receipt{
		Record: idempotency.Record{State: idempotency.Completed, Response: api.Accepted(before), Fresh: fresh}, Job: j, Alias: true,
	}
}

func TestContract_Row75_Retry(t *testing.T) {
	t.Parallel()
	post := func(body string) call {
		return call{"POST", "/jobs/a%2Fb/retry", http.Header{"Idempotency-Key": {"op-1"}}, body}
	}
	running := pendingJob()
	running.Status = job.Processing
	tests := []struct {
		name    string
		body    string
		receipt job.Receipt
		err     error
		want    want
	}{
		{
			"brought back", "", revived(pendingJob(), true), nil,
			want{202, map[string]string{
				"Location": "/jobs/order-42", "Job-Status": "pending", "Idempotent-Replayed": "false", "Idempotency-Key": `"op-1"`,
				"Retry-After": "1", "Idempotency-Status": "",
			}, []string{`"generation":2`}, []string{"payload"}},
		},
		{
			"a double click", "{ }", revived(running, false), nil,
			want{202, map[string]string{"Job-Status": "processing", "Idempotent-Replayed": "true", "Idempotency-Status": ""}, []string{`"generation":2`, `"status":"pending"`}, nil},
		},
		{
			"a double click after the end", "", revived(succeededJob(), false), nil,
			want{202, map[string]string{"Job-Status": "succeeded", "Retry-After": "", "Idempotency-Expires": "2026-03-01T13:00:00Z"}, []string{`"status":"pending"`}, nil},
		},
		{
			"it cannot be", "",
			job.Receipt{},
			job.ErrNotRetryable,
			want{422, nil, []string{`"code":"job-not-retryable"`, `"job":"/jobs/a%2Fb"`, `"idempotency_key":"op-1"`}, []string{"job_status"}},
		},
		{
			"its business key is held", "",
			job.Receipt{},
			&job.BusinessKeyError{Holder: "other"},
			want{409, map[string]string{"Retry-After": "5"}, []string{`"code":"business-key-conflict"`, `"job":"/jobs/other"`}, nil},
		},
		{
			"an alias", "",
			job.Receipt{},
			&job.AliasError{Holder: "holder"},
			want{404, nil, []string{`"code":"job-not-found"`, `"job":"/jobs/holder"`}, nil},
		},
		{
			"the key of another request", "",
			job.Receipt{},
			&idempotency.MismatchError{Part: idempotency.PartTarget},
			want{422, nil, []string{`"code":"idempotency-key-reused"`}, nil},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := domain{retry: func(req idempotency.Request, key idempotency.Key) (job.Receipt, error) {
				if req.Tenant != "acme" || req.Key != "op-1" || key != "a/b" {
					t.Errorf("retries %q with %+v", key, req)
				}
				return tt.receipt, tt.err
			}}
			tt.want.check(t, post(tt.body).do(serve(d, start)))
		})
	}
	t.Run("a body is refused", func(t *testing.T) {
		t.Parallel()
		d := domain{refuse: func(req idempotency.Request, why error) (job.Receipt, error) { return job.Receipt{}, why }}
		want{400, nil, []string{`"code":"validation-failed"`, `"pointer":"/max_attempts","rule":"unknown"`}, nil}.check(t, post(`{"max_attempts":3}`).do(serve(d, start)))
		want{400, nil, []string{`"pointer":"","rule":"kind"`}, nil}.check(t, post(`[]`).do(serve(d, start)))
	})
	t.Run("a key is made where none is needed", func(t *testing.T) {
		t.Parallel()
		var made idempotency.Key
		d := domain{retry: func(req idempotency.Request, _ idempotency.Key) (job.Receipt, error) {
			made = req.Key
			return revived(pendingJob(), true), nil
		}}
		w := call{method: "POST", target: "/jobs/k/retry"}.do(serve(d, start))
		if _, err := job.ParseID(string(made)); err != nil || w.Header().Get("Idempotency-Key") != made.Header() {
			t.Errorf("made %q, told %q", made, w.Header().Get("Idempotency-Key"))
		}
	})
	t.Run("a wait ends with the job as it is", func(t *testing.T) {
		t.Parallel()
		d := domain{
			retry: func(idempotency.Request, idempotency.Key) (job.Receipt, error) {
				return revived(pendingJob(), true), nil
			},
			await: func(_ context.Context, r job.Receipt, _ time.Duration, _ bool) (job.Receipt, error) {
				if r.Record.Key != "op-1" {
					t.Errorf("awaits %q", r.Record.Key)
				}
				r.Job = succeededJob()
				return r, nil
			},
		}
		c := post("")
		c.header.Set("Prefer", "wait=3")
		want{200, map[string]string{"Preference-Applied": "wait=3", "Job-Status": "succeeded"}, []string{`"result":{ "r":2 }`}, nil}.check(t, c.do(serve(d, start)))
	})
}

func TestContract_Row75a_Resolve(t *testing.T) {
	t.Parallel()
	post := func(body string) call {
		return call{"POST", "/jobs/order-42/resolve", http.Header{"Idempotency-Key": {"op-1"}}, body}
	}
	for _, tt := range []struct {
		body   string
		to     job.Status
		result string
	}{
		{`{"status":"succeeded","result":{ "n" : 1.0 }}`, job.Succeeded, `{ "n" : 1.0 }`},
		{`{"status":"succeeded"}`, job.Succeeded, ""},
		{`{"result":null,"status":"failed"}`, job.Failed, ""},
		{`{"result":0,"status":"succeeded"}`, job.Succeeded, "0"},
	} {
		d := domain{resolve: func(req idempotency.Request, key idempotency.Key, to job.Status, r *job.Result) (job.Receipt, error) {
			if req.Key != "op-1" || key != "order-42" || to != tt.to || (r == nil) != (tt.result == "") || r != nil && (string(r.Body) != tt.result || r.MediaType != "application/json") {
				t.Errorf("%s: resolves %q as %s with %+v", tt.body, key, to, r)
			}
			j := succeededJob()
			return job.Receipt{Record: idempotency.Record{State: idempotency.Completed, Response: api.Current(j), Fresh: true}, Job: j, Alias: true}, nil
		}}
		want{200, map[string]string{"Location": "/jobs/order-42", "Job-Status": "succeeded", "Idempotent-Replayed": "false", "Idempotency-Status": ""}, []string{`"result":{ "r":2 }`}, nil}.
			check(t, post(tt.body).do(serve(d, start)))
	}
	d := domain{
		resolve: func(idempotency.Request, idempotency.Key, job.Status, *job.Result) (job.Receipt, error) {
			return job.Receipt{}, job.ErrNotResolvable
		},
		refuse: func(_ idempotency.Request, why error) (job.Receipt, error) { return job.Receipt{}, why },
	}
	want{422, nil, []string{`"code":"job-not-resolvable"`, `"job":"/jobs/order-42"`, `"retryable":false`}, nil}.
		check(t, post(`{"status":"failed"}`).do(serve(d, start)))
	want{400, nil, []string{`"code":"validation-failed"`, `"pointer":"/status","rule":"one_of"`, `"idempotency_key":"op-1"`}, nil}.
		check(t, post(`{"status":"cancelled"}`).do(serve(d, start)))
}
