package client_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sekali/sekali/client"
)

func TestSubmit_SaysWhatItIsTold(t *testing.T) {
	t.Parallel()
	d := &double{steps: []step{reply(202, document("order-42", "pending"), "Job-Status: succeeded", "Idempotent-Replayed: true", "Idempotency-Expires: 2026-03-08T12:00:00.5Z")}}
	at := time.Date(2026, 3, 1, 13, 0, 0, 0, time.FixedZone("", 3600))
	receipt, err := d.of(t).Submit(t.Context(), "pay", json.RawMessage(`{"n": 1.50,  "a":"<é>"}`), client.WithKey(`or"der`), client.WithBusinessKey("b"), client.WithRunAt(at),
		client.WithExpiresIn(90*time.Minute), client.WithPriority(0), client.WithMaxAttempts(3), client.WithTimeout(1500*time.Millisecond),
		client.WithCallbackURL("https://shop.example/hooks"), client.WithWait(10*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	r := d.requests()[0]
	if r.line != "POST /jobs" || r.header.Get("Idempotency-Key") != `"or\"der"` || r.header.Get("Prefer") != "wait=10" || r.header.Get("Content-Type") != "application/json" {
		t.Errorf("%+v", r)
	}
	want := `{"type":"pay","business_key":"b","run_at":"2026-03-01T12:00:00Z","expires_in_seconds":5400,"priority":0,"max_attempts":3,"timeout_seconds":2,"callback_url":"https://shop.example/hooks","payload":{"n": 1.50,  "a":"<é>"}}`
	if r.body != want {
		t.Errorf("sent %s\nwant %s", r.body, want)
	}
	if receipt.Key != `or"der` || receipt.Job.Key != "order-42" || !receipt.Replayed || receipt.DuplicateIgnored || receipt.JobStatus != "succeeded" ||
		receipt.Job.Status != "pending" || receipt.ExpiresAt.Nanosecond() != 5e8 {
		t.Errorf("%+v", receipt)
	}
	if _, err = d.of(t).Submit(t.Context(), "pay", map[string]any{"a": "<b>"}, client.WithDelay(-time.Second)); err != nil {
		t.Fatal(err)
	}
	r = d.requests()[1]
	if r.body != `{"type":"pay","delay_seconds":-1,"payload":{"a":"<b>"}}` || r.header.Get("Prefer") != "" {
		t.Errorf("%+v", r)
	}
}

// Payloads of all kinds go as they are (BR-85).
func TestFailure_BR85_PayloadsKeepTheirBytes(t *testing.T) {
	t.Parallel()
	for want, payload := range map[string]any{
		"null": nil, `"<a>"`: "<a>", "[1,2]": []int{1, 2}, `{"a":1}`: map[string]int{"a": 1}, "7": 7,
		"9007199254740993": json.RawMessage("9007199254740993"), "1e400": json.RawMessage("1e400"), ` [1 ]`: json.RawMessage(` [1 ]`), `{"b":1}`: json.RawMessage(`{"b":1}`),
		`"x"`: json.RawMessage(`"x"`), "true": true,
	} {
		echo := reply(200, strings.Replace(document("k", "succeeded"), "{", `{"payload":`+want+`,"result":`+want+`,`, 1))
		d := &double{steps: []step{echo}}
		receipt, err := d.of(t).Submit(t.Context(), "echo", payload, client.WithKey("k"))
		if err != nil || string(receipt.Job.Payload) != strings.TrimSpace(want) || string(receipt.Job.Result) != strings.TrimSpace(want) {
			t.Errorf("%s: %v, %s, %s", want, err, receipt.Job.Payload, receipt.Job.Result)
		}
		if body := d.requests()[0].body; body != `{"type":"echo","payload":`+want+`}` {
			t.Errorf("sent %s", body)
		}
	}
	d := &double{steps: []step{reply(200, `{"id":"1"}`)}}
	for _, wrong := range []any{json.RawMessage(`1,"type":"other"`), json.RawMessage(""), json.RawMessage("{"), func() {}} {
		if _, err := d.of(t).Submit(t.Context(), "echo", wrong); err == nil {
			t.Errorf("%v is submitted", wrong)
		}
	}
	if len(d.requests()) > 0 {
		t.Error("something was sent")
	}
}

// The key is made before the first try, and is the same for all.
func TestSubmit_KeepsItsKeyOverAllTries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &double{steps: []step{fail(syscall.ECONNRESET), refuse(503, "idempotency-outcome-unknown-retry", true), page(504), reply(202, document("k", "pending"), "Idempotent-Replayed: true")}}
		receipt, err := d.of(t).Submit(t.Context(), "pay", 1)
		if err != nil || receipt.Key == "" || !receipt.Replayed || len(d.requests()) != 4 {
			t.Fatalf("%+v %v", receipt, err)
		}
		for _, r := range d.requests() {
			if r.header.Get("Idempotency-Key") != `"`+receipt.Key+`"` || r.body != `{"type":"pay","payload":1}` {
				t.Errorf("%+v", r)
			}
		}
		other, err := d.of(t).Submit(t.Context(), "pay", 1)
		if err != nil || other.Key == receipt.Key {
			t.Errorf("another call has the same key: %v", err)
		}
	})
}

// Whatever goes wrong, the caller learns the key to repeat the call with.
func TestSubmit_ErrorsTellTheKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		receipt, err := (&double{steps: []step{fail(syscall.ECONNREFUSED)}}).of(t).Submit(t.Context(), "pay", 1)
		var unreachable *client.UnreachableError
		if !errors.As(err, &unreachable) || unreachable.Key != receipt.Key || receipt.Key == "" {
			t.Errorf("%+v %v", receipt, err)
		}
		receipt, err = (&double{steps: []step{refuse(503, "queue-full", true)}}).of(t).Submit(t.Context(), "pay", 1)
		var problem *client.Problem
		if !errors.As(err, &problem) || problem.Key != receipt.Key || receipt.Key == "" {
			t.Errorf("%+v %v", receipt, err)
		}
		receipt, err = (&double{steps: []step{page(200)}}).of(t).Retry(t.Context(), "k")
		if err == nil || receipt.Key == "" {
			t.Errorf("%+v %v", receipt, err)
		}
	})
}

func TestSubmit_DuplicateIgnored(t *testing.T) {
	t.Parallel()
	d := &double{steps: []step{reply(200, document("holder", "processing"), "Idempotency-Status: duplicate_ignored")}}
	receipt, err := d.of(t).Submit(t.Context(), "pay", 1, client.WithKey("mine"), client.WithBusinessKey("b"))
	if err != nil || !receipt.DuplicateIgnored || receipt.Job.Key != "holder" || receipt.Key != "mine" || receipt.JobStatus != "processing" || !receipt.ExpiresAt.IsZero() {
		t.Errorf("%+v %v", receipt, err)
	}
}

func TestRetryAndResolve(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &double{steps: []step{refuse(503, "shutting-down", true), reply(202, document("a/b", "pending"), "Job-Status: pending"), reply(200, document("a/b", "succeeded"))}}
		c := d.of(t)
		receipt, err := c.Retry(t.Context(), "a/b", client.WithKey("op"), client.WithWait(500*time.Millisecond))
		if err != nil || receipt.Key != "op" || receipt.JobStatus != "pending" {
			t.Errorf("%+v %v", receipt, err)
		}
		receipt, err = c.Resolve(t.Context(), "a/b", client.StatusSucceeded, json.RawMessage(`[1, 2]`))
		if err != nil || receipt.Job.Status != "succeeded" || receipt.Key == "" {
			t.Errorf("%+v %v", receipt, err)
		}
		if _, err = c.Resolve(t.Context(), "a/b", client.StatusFailed, nil); err != nil {
			t.Error(err)
		}
		r := d.requests()
		for i, want := range []string{
			`POST /jobs/a%2Fb/retry "op" wait=1 `, `POST /jobs/a%2Fb/retry "op" wait=1 `,
			`POST /jobs/a%2Fb/resolve "` + receipt.Key + `"  {"status":"succeeded","result":[1, 2]}`,
		} {
			if got := fmt.Sprint(r[i].line, " ", r[i].header.Get("Idempotency-Key"), " ", r[i].header.Get("Prefer"), " ", r[i].body); got != want {
				t.Errorf("%s, want %s", got, want)
			}
		}
		if r[3].body != `{"status":"failed"}` {
			t.Errorf("%s", r[3].body)
		}
		if _, err = c.Resolve(t.Context(), "k", client.StatusSucceeded, json.RawMessage(`{`)); err == nil {
			t.Error("a broken result is sent")
		}
	})
}

// What no path can name would ask for something else.
func TestKeysThatNoPathNames(t *testing.T) {
	t.Parallel()
	d := &double{steps: []step{reply(200, `{"id":"1"}`)}}
	c := d.of(t)
	for _, key := range []string{"", ".", ".."} {
		_, get := c.Get(t.Context(), key)
		_, wait := c.Wait(t.Context(), key)
		_, attempts := c.Attempts(t.Context(), key)
		_, events := c.Events(t.Context(), key)
		_, cancel := c.Cancel(t.Context(), key)
		_, retry := c.Retry(t.Context(), key)
		_, resolve := c.Resolve(t.Context(), key, "failed", nil)
		_, executor := c.Executor(t.Context(), key)
		_, pause := c.Pause(t.Context(), key)
		_, resume := c.Resume(t.Context(), key)
		for i, err := range []error{get, wait, attempts, events, cancel, retry, resolve, executor, pause, resume} {
			if err == nil {
				t.Errorf("%q: call %d is made", key, i)
			}
		}
	}
	if n := len(d.requests()); n > 0 {
		t.Errorf("%d requests", n)
	}
}
