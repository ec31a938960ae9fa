package handlers_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

func TestSubmit(t *testing.T) {
	t.Parallel()
	stored := string(api.Accepted(pendingJob()).Body)
	processing := pendingJob()
	processing.Status, processing.Version = job.Processing, 2
	failed := succeededJob()
	failed.Status, failed.Result = job.Failed, nil
	tests := []struct {
		name    string
		prefer  []string
		receipt job.Receipt
		// awaited is what Await returns; nil: it must not be called.
		awaited *job.Job
		now     time.Time
		want    want
	}{
		{
			"Contract_Row64 new", nil, receipt(pendingJob(), true), nil, start,
			want{202, map[string]string{
				"Location": "/jobs/order-42", "Retry-After": "1", "Job-Status": "pending", "Idempotent-Replayed": "false",
				"Idempotency-Key": `"order-42"`, "Content-Type": "application/json", "Idempotency-Expires": "", "Preference-Applied": "",
			}, []string{stored}, []string{"payload"}},
		},
		{
			"Contract_Row65 duplicate of a running job", nil, receipt(processing, false), nil, start.Add(40 * time.Second),
			want{
				202,
				map[string]string{"Location": "/jobs/order-42", "Retry-After": "4", "Job-Status": "processing", "Idempotent-Replayed": "true"},
				[]string{stored},
				nil,
			},
		},
		{
			"Contract_Row66 duplicate of a finished job", nil, receipt(succeededJob(), false), nil, start,
			want{
				202,
				map[string]string{"Retry-After": "", "Job-Status": "succeeded", "Idempotent-Replayed": "true", "Idempotency-Expires": "2026-03-01T13:00:00Z"},
				[]string{stored},
				nil,
			},
		},
		{
			"Contract_Row73 duplicate of a failed job", nil, receipt(failed, false), nil, start,
			want{202, map[string]string{"Retry-After": "", "Job-Status": "failed"}, []string{stored}, nil},
		},
		{
			"Contract_Row76 respond-async",
			[]string{"respond-async"},
			receipt(pendingJob(), true), nil, start,
			want{202, map[string]string{"Preference-Applied": "respond-async"}, []string{stored}, nil},
		},
		{
			"Contract_Row77 finished in time",
			[]string{"wait=5"},
			receipt(pendingJob(), true), ptr(succeededJob()), start,
			want{200, map[string]string{
				"Preference-Applied": "wait=5", "Job-Status": "succeeded", "Retry-After": "", "Location": "/jobs/order-42",
				"Idempotent-Replayed": "false", "Idempotency-Expires": "2026-03-01T13:00:00Z",
			}, []string{`"payload":{ "a":1 },"result":{ "r":2 }`}, nil},
		},
		{
			"Contract_Row77 duplicate that finishes in time",
			[]string{"wait=5"},
			receipt(processing, false), ptr(succeededJob()), start,
			want{200, map[string]string{"Preference-Applied": "wait=5", "Idempotent-Replayed": "true"}, []string{`"status":"succeeded"`}, nil},
		},
		{
			"Contract_Row77 time ran out, more was asked than is granted",
			[]string{"wait=3600"},
			receipt(pendingJob(), true), ptr(processing), start,
			want{202, map[string]string{"Preference-Applied": "wait=60", "Job-Status": "processing", "Retry-After": "1"}, []string{stored}, nil},
		},
		{
			"Contract_Row77 both preferences",
			[]string{"respond-async", "wait=2"},
			receipt(pendingJob(), true), ptr(processing), start,
			want{202, map[string]string{"Preference-Applied": "respond-async, wait=2"}, []string{stored}, nil},
		},
		{
			"Contract_Row77 malformed preference",
			[]string{"wait=soon"},
			receipt(pendingJob(), true), nil, start,
			want{202, map[string]string{"Preference-Applied": ""}, []string{stored}, nil},
		},
		{
			"Contract_Row78 minimal",
			[]string{"return=minimal"},
			receipt(pendingJob(), true), nil, start,
			want{202, map[string]string{"Preference-Applied": "return=minimal", "Location": "/jobs/order-42", "Content-Length": "0"}, nil, []string{"{"}},
		},
		{
			"Contract_Row78 minimal, finished",
			[]string{"return=minimal, wait=1"},
			receipt(pendingJob(), true), ptr(succeededJob()), start,
			want{200, map[string]string{"Preference-Applied": "wait=1, return=minimal", "Job-Status": "succeeded"}, nil, []string{"{"}},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := domain{submit: func(req idempotency.Request, draft job.Draft) (job.Receipt, error) {
				if req.Tenant != "acme" || req.Key != "order-42" || draft.Type != "echo" {
					t.Errorf("submitted %+v %+v", req, draft)
				}
				return tt.receipt, nil
			}}
			if tt.awaited != nil {
				d.await = func(_ context.Context, r job.Receipt, wait time.Duration, anyChange bool) (job.Receipt, error) {
					if r.Record.Key != "order-42" || r.Record.Tenant != "acme" || anyChange || wait > 60*time.Second {
						t.Errorf("awaited %+v for %s, %t", r.Record.Request, wait, anyChange)
					}
					return receipt(*tt.awaited, false), nil
				}
			}
			c := call{"POST", "/jobs", http.Header{"Idempotency-Key": {"order-42"}, "Prefer": tt.prefer}, `{"type":"echo"}`}
			tt.want.check(t, c.do(serve(d, tt.now)))
		})
	}
}

func ptr[T any](v T) *T { return &v }

func TestContract_Row80_SubmitBoundToHolder(t *testing.T) {
	t.Parallel()
	holder := pendingJob()
	holder.Key = "a/b"
	for _, prefer := range []string{"", "respond-async", "wait=1"} {
		d := domain{
			submit: func(idempotency.Request, job.Draft) (job.Receipt, error) {
				return job.Receipt{Record: idempotency.Record{Fresh: true, State: idempotency.Completed}, Job: holder, Alias: true}, nil
			},
			await: func(_ context.Context, r job.Receipt, _ time.Duration, _ bool) (job.Receipt, error) { return r, nil },
		}
		c := call{"POST", "/jobs", http.Header{"Idempotency-Key": {"second"}, "Prefer": {prefer}}, `{"type":"echo"}`}
		want{200, map[string]string{
			"Location": "/jobs/a%2Fb", "Idempotency-Status": "duplicate_ignored", "Idempotency-Key": `"second"`, "Retry-After": "1", "Job-Status": "pending",
		}, []string{`"key":"a/b"`, `"payload":{ "a":1 }`}, nil}.check(t, c.do(serve(d, start)))
	}
}

func TestSubmit_Refused(t *testing.T) {
	t.Parallel()
	post := func(body string) call {
		return call{"POST", "/jobs", http.Header{"Idempotency-Key": {"order-42"}}, body}
	}
	t.Run("Contract_Row69 an invalid body is refused with what is wrong", func(t *testing.T) {
		t.Parallel()
		d := domain{refuse: func(_ idempotency.Request, why error) (job.Receipt, error) { return job.Receipt{}, why }}
		want{400, map[string]string{"Content-Type": "application/problem+json"}, []string{
			`"code":"validation-failed"`, `"pointer":"/max_attempts"`, `"pointer":"/type"`, `"idempotency_key":"order-42"`,
		}, nil}.check(t, post(`{"max_attempts":0}`).do(serve(d, start)))
	})
	t.Run("Contract_Row70 an invalid body that was accepted before is replayed", func(t *testing.T) {
		t.Parallel()
		d := domain{refuse: func(req idempotency.Request, _ error) (job.Receipt, error) {
			if req.Key != "order-42" {
				t.Errorf("looked up %q", req.Key)
			}
			return receipt(pendingJob(), false), nil
		}}
		want{202, map[string]string{"Idempotent-Replayed": "true"}, nil, nil}.check(t, post(`{"nope":1}`).do(serve(d, start)))
	})
	t.Run("errors of the domain", func(t *testing.T) {
		t.Parallel()
		for code, err := range map[string]error{
			`"code":"unknown-job-type"`:              job.ErrUnknownType,
			`"code":"idempotency-key-reused"`:        &idempotency.MismatchError{Part: idempotency.PartBody},
			`"code":"idempotency-store-unavailable"`: job.ErrUnavailable,
		} {
			d := domain{submit: func(idempotency.Request, job.Draft) (job.Receipt, error) { return job.Receipt{}, err }}
			if w := post(`{"type":"echo"}`).do(serve(d, start)); w.Code < 400 {
				t.Errorf("%v is answered with %d", err, w.Code)
			} else {
				want{w.Code, nil, []string{code}, nil}.check(t, w)
			}
		}
	})
}

// Whatever happens while a client waits, its job is accepted and it is told so.
func TestContract_Row79_TroubleWhileWaiting(t *testing.T) {
	t.Parallel()
	for _, trouble := range []error{job.ErrUnavailable, job.ErrShutdown, context.Canceled, errors.New("boom")} {
		d := domain{
			submit: func(idempotency.Request, job.Draft) (job.Receipt, error) { return receipt(pendingJob(), true), nil },
			await: func(context.Context, job.Receipt, time.Duration, bool) (job.Receipt, error) {
				return job.Receipt{}, trouble
			},
		}
		c := call{"POST", "/jobs", http.Header{"Idempotency-Key": {"order-42"}, "Prefer": {"wait=1"}}, `{"type":"echo"}`}
		want{202, map[string]string{"Location": "/jobs/order-42"}, []string{string(api.Accepted(pendingJob()).Body)}, nil}.check(t, c.do(serve(d, start)))
	}
}

func TestContract_Row2_KeyIsMadeForTheClient(t *testing.T) {
	t.Parallel()
	var key idempotency.Key
	d := domain{submit: func(req idempotency.Request, _ job.Draft) (job.Receipt, error) {
		key = req.Key
		return receipt(pendingJob(), true), nil
	}}
	w := call{"POST", "/jobs", nil, `{"type":"echo"}`}.do(serve(d, start))
	if _, err := job.ParseID(string(key)); err != nil || key[14] != '7' {
		t.Errorf("key %q is no UUIDv7", key)
	}
	want{202, map[string]string{"Idempotency-Key": key.Header()}, nil, nil}.check(t, w)
}

// What is known is answered as it stands: its body need not be one that is taken
// today.
func TestContract_Row70_SubmitKnown(t *testing.T) {
	t.Parallel()
	brief := receipt(succeededJob(), false)
	brief.Job.Payload, brief.Job.Result, brief.Brief = nil, nil, true
	d := domain{known: func(req idempotency.Request) (job.Receipt, bool) { return brief, req.Key == "order-42" }}
	c := call{"POST", "/jobs", http.Header{"Idempotency-Key": {"order-42"}}, `{"type":7}`}
	want{
		202,
		map[string]string{"Location": "/jobs/order-42", "Job-Status": "succeeded", "Idempotent-Replayed": "true", "Retry-After": ""},
		[]string{string(brief.Record.Response.Body)},
		nil,
	}.check(t, c.do(serve(d, start)))
}
