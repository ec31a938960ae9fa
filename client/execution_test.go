package client_test

import (
	"encoding/json"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sekali/sekali/client"
)

const claimed = `{"executions":[{"id":"019876a5-4c2e-7b1d-8f3a-2d5c9e7b1a40","key":"k","type":"t","tenant":"acme","attempt":2,"max_attempts":10,
"fencing_token":3,"payload":{"n": 1.50},"lease_token":"3.mac","lease_expires_at":"2026-03-01T12:00:30Z","lease_ms":30000,"deadline":"2026-03-01T12:05:00Z"}]}`

func TestClaim_AsksAndReads(t *testing.T) {
	t.Parallel()
	d := &double{steps: []step{reply(200, claimed)}}
	executions, err := d.of(t).Claim(t.Context(), client.Claim{Worker: "w1", Types: []string{"t", "u"}, Max: 5, Wait: 1500 * time.Millisecond})
	if err != nil || len(executions) != 1 {
		t.Fatalf("%+v, %v", executions, err)
	}
	if r := d.requests()[0]; r.line != "POST /executions/claim" || r.body != `{"worker":"w1","types":["t","u"],"max":5,"wait_seconds":2}` {
		t.Errorf("%+v", r)
	}
	e := executions[0]
	if e.Key != "k" || e.Tenant != "acme" || e.Attempt != 2 || e.FencingToken != 3 || string(e.Payload) != `{"n": 1.50}` || e.LeaseToken != "3.mac" || e.LeaseMS != 30000 {
		t.Errorf("%+v", e)
	}
}

// A claim that waits is given the time, and one that fails is not sent again: it may
// have taken jobs.
func TestClaim_IsSentOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &double{steps: []step{silent}}
		begun := time.Now()
		_, err := d.of(t).Claim(t.Context(), client.Claim{Worker: "w1", Types: []string{"t"}, Wait: 60 * time.Second})
		unreachable := (*client.UnreachableError)(nil)
		if took := time.Since(begun); !errors.As(err, &unreachable) || len(d.requests()) != 1 || took < 60*time.Second {
			t.Errorf("%v after %v and %d requests", err, took, len(d.requests()))
		}
	})
}

func TestExecution_CallsSayWhatTheyAreTold(t *testing.T) {
	t.Parallel()
	e := client.Execution{ID: "019876a5-4c2e-7b1d-8f3a-2d5c9e7b1a40", LeaseToken: "3.mac"}
	d := &double{steps: []step{reply(200, `{"lease_expires_at":"2026-03-01T12:00:30Z","lease_ms":30000,"cancel_requested":true}`), reply(200, document("k", "succeeded"))}}
	c := d.of(t)
	beat, err := c.Heartbeat(t.Context(), e)
	if err != nil || !beat.CancelRequested || beat.LeaseMS != 30000 {
		t.Errorf("%+v, %v", beat, err)
	}
	calls := []func() (client.Job, error){
		func() (client.Job, error) { return c.Complete(t.Context(), e, json.RawMessage(`{"n": 1.50}`)) },
		func() (client.Job, error) { return c.Complete(t.Context(), e, nil) },
		func() (client.Job, error) {
			return c.Fail(t.Context(), e, client.ExecutionFailure{Error: "on fire", Permanent: true, RetryAfter: 1500 * time.Millisecond})
		},
		func() (client.Job, error) { return c.Release(t.Context(), e) },
	}
	for i, call := range calls {
		if j, err := call(); err != nil || j.Key != "k" {
			t.Errorf("call %d: %+v, %v", i, j, err)
		}
	}
	want := []string{
		`heartbeat {"lease_token":"3.mac"}`,
		`complete {"lease_token":"3.mac","result":{"n": 1.50}}`,
		`complete {"lease_token":"3.mac","result":null}`,
		`fail {"error":"on fire","lease_token":"3.mac","retry_after_seconds":2,"retryable":false}`,
		`release {"lease_token":"3.mac"}`,
	}
	for i, r := range d.requests() {
		if got := r.line[len("POST /executions/"+e.ID+"/"):] + " " + r.body; got != want[i] {
			t.Errorf("sent %s\nwant %s", got, want[i])
		}
	}
}

// Calls about an execution cannot do anything twice, so they are sent again where
// nobody knows whether they arrived; a lease that is lost is an answer.
func TestExecution_CallsAreRepeated(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &double{steps: []step{fail(errors.New("reset")), refuse(503, client.CodeIdempotencyStoreUnavailable, true, "Retry-After: 1"), reply(200, document("k", "succeeded"))}}
		e := client.Execution{ID: "019876a5-4c2e-7b1d-8f3a-2d5c9e7b1a40", LeaseToken: "3.mac"}
		if _, err := d.of(t).Complete(t.Context(), e, 1); err != nil || len(d.requests()) != 3 {
			t.Errorf("%v after %d requests", err, len(d.requests()))
		}
		lost := &double{steps: []step{refuse(410, client.CodeLeaseLost, false)}}
		_, err := lost.of(t).Complete(t.Context(), e, 1)
		problem := (*client.Problem)(nil)
		if !errors.As(err, &problem) || problem.Code != client.CodeLeaseLost || len(lost.requests()) != 1 {
			t.Errorf("%v after %d requests", err, len(lost.requests()))
		}
	})
}
