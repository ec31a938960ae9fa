package client_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sekali/sekali/client"
)

// held is a gateway that holds its answer for as long as it was asked to.
func held(body string) step {
	return func(r *http.Request) (*http.Response, error) {
		asked, err := time.ParseDuration(strings.TrimPrefix(r.Header.Get("Prefer"), "wait=") + "s")
		if err != nil {
			return nil, err
		}
		timer := time.NewTimer(asked)
		defer timer.Stop()
		select {
		case <-timer.C:
			return reply(200, body, "Preference-Applied: wait=30", "Retry-After: 0")(r)
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
}

// Wait goes on through everything that may pass.
func TestWait_OutlastsTrouble(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var down []step
		for range 20 {
			down = append(down, fail(syscall.ECONNREFUSED))
		}
		steps := append([]step{held(document("k", "processing")), refuse(503, "shutting-down", true, "Retry-After: 2")}, down...)
		d := &double{steps: append(steps, page(502), refuse(503, "store-unavailable", true), reply(200, document("k", "failed")))}
		found, err := d.of(t).Wait(t.Context(), "k")
		if err != nil || found.Status != client.StatusFailed || len(d.requests()) != 25 {
			t.Errorf("%+v %v after %d requests", found, err, len(d.requests()))
		}
		for _, r := range d.requests() {
			if r.line != "GET /jobs/k" || r.header.Get("Prefer") != "wait=30" || r.header.Get("If-None-Match") != "" {
				t.Errorf("%+v", r)
			}
		}
	})
}

func TestWait_GivesUpWhereNothingWillChange(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]step{
		"unknown": refuse(404, "job-not-found", false), "gone": refuse(410, "job-expired", false), "forbidden": refuse(403, "forbidden", false), "a page": page(200),
	} {
		d := &double{steps: []step{answer}}
		if _, err := d.of(t).Wait(t.Context(), "k"); err == nil || len(d.requests()) != 1 {
			t.Errorf("%s: %v after %d requests", name, err, len(d.requests()))
		}
	}
}

// A status of the future is not the end, and nothing to stumble over.
func TestFailure_BR86_StatusOfTheFuture(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		archived := strings.Replace(document("k", "archived"), "{", `{"outcome":"folded","later":[1],"error":{"code":"new","detail":"d","attempt":1,"more":{}},`, 1)
		d := &double{steps: []step{held(archived), reply(200, document("k", "succeeded"))}}
		c := d.of(t)
		found, err := c.Wait(t.Context(), "k")
		if err != nil || found.Status != "succeeded" {
			t.Errorf("%+v %v", found, err)
		}
		d.steps = []step{reply(200, archived, "Job-Status: archived")}
		receipt, err := c.Submit(t.Context(), "pay", 1)
		if err != nil || receipt.Job.Status != "archived" || receipt.JobStatus != "archived" || receipt.Job.Outcome != "folded" || receipt.Job.Finished() || receipt.Job.Error.Code != "new" {
			t.Errorf("%+v %v", receipt, err)
		}
		d.steps = []step{reply(200, `{"jobs":[`+archived+`],"next_cursor":null}`)}
		for job, err := range c.Jobs(t.Context(), client.Filter{Status: "archived"}) {
			if err != nil || job.Status != "archived" {
				t.Errorf("%+v %v", job, err)
			}
		}
		d.steps = []step{reply(200, `{"attempts":[{"number":1,"outcome":"dreamt"}]}`)}
		if attempts, err := c.Attempts(t.Context(), "k"); err != nil || attempts[0].Outcome != "dreamt" {
			t.Errorf("%+v %v", attempts, err)
		}
	})
}

func TestWait_EndsWithItsContext(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]step{
		"held": held(document("k", "processing")), "away": fail(syscall.ECONNREFUSED), "told to wait": reply(200, document("k", "processing"), "Retry-After: 10"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Second)
				defer cancel()
				begun := time.Now()
				last, err := (&double{steps: []step{answer}}).of(t).Wait(ctx, "k")
				if took := time.Since(begun); took != 100*time.Second || !errors.Is(err, context.DeadlineExceeded) || is[*client.UnreachableError](err) != (name == "away") {
					t.Errorf("%v after %v", err, took)
				}
				if (last.Status == "processing") != (name != "away") {
					t.Errorf("%+v", last)
				}
			})
		})
	}
}

// A gateway that holds nothing is asked as often as it says, and never at once.
func TestWait_KeepsThePace(t *testing.T) {
	t.Parallel()
	for after, want := range map[string]time.Duration{"Retry-After: 10": 10 * time.Second, "Retry-After: 0": time.Second, "X: y": time.Second} {
		synctest.Test(t, func(t *testing.T) {
			d := &double{steps: []step{reply(200, document("k", "pending"), after), reply(200, document("k", "cancelled"))}}
			if _, err := d.of(t).Wait(t.Context(), "k"); err != nil {
				t.Fatal(err)
			}
			if r := d.requests(); r[1].at.Sub(r[0].at) != want {
				t.Errorf("%s: asked again after %v", after, r[1].at.Sub(r[0].at))
			}
		})
	}
}

// With a short timeout of the HTTP client, polls are shorter than that.
func TestWait_FitsIntoTheTimeoutOfTheHTTPClient(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &double{steps: []step{held(document("k", "pending")), held(document("k", "succeeded"))}}
		c := made(t, "http://gateway.test", client.WithHTTPClient(&http.Client{Transport: d, Timeout: 10 * time.Second}))
		if _, err := c.Wait(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		if r := d.requests(); len(r) != 2 || r[0].header.Get("Prefer") != "wait=5" {
			t.Errorf("%+v", r)
		}
	})
}

func TestResult(t *testing.T) {
	t.Parallel()
	succeeded, etag := reply(200, document("k", "succeeded")), "ETag: \"abc\""
	var v struct{ N int }
	result, err := (&double{steps: []step{succeeded, reply(200, `{"n": 1}`, etag)}}).of(t).Result(t.Context(), "k")
	if err != nil || string(result.Body) != `{"n": 1}` || result.MediaType != "application/json" || result.Decode(&v) != nil || v.N != 1 {
		t.Errorf("%+v %v", result, err)
	}
	result, err = (&double{steps: []step{succeeded, page(200, etag)}}).of(t).Result(t.Context(), "k")
	if err != nil || result.MediaType != "text/html; charset=utf-8" || result.Decode(&v) == nil {
		t.Errorf("%+v %v", result, err)
	}
	result, err = (&double{steps: []step{succeeded, refuse(404, "job-has-no-result", false)}}).of(t).Result(t.Context(), "k")
	if err != nil || result.Body != nil || result.Decode(&v) != nil || v.N != 1 {
		t.Errorf("%+v %v", result, err)
	}
	if _, err = (&double{steps: []step{succeeded, page(200)}}).of(t).Result(t.Context(), "k"); !is[*client.NotGatewayError](err) {
		t.Errorf("the page of a proxy is a result: %v", err)
	}
	if _, err = (&double{steps: []step{succeeded, refuse(410, "result-expired", false)}}).of(t).Result(t.Context(), "k"); !is[*client.Problem](err) {
		t.Error(err)
	}
	failed := strings.Replace(document("k", "failed"), "{", `{"error":{"code":"http-status","detail":"answered 400","attempt":2},`, 1)
	d := &double{steps: []step{reply(200, failed)}}
	_, err = d.of(t).Result(t.Context(), "k")
	var job *client.JobError
	if !errors.As(err, &job) || job.Job.Error.Attempt != 2 || len(d.requests()) != 1 || err.Error() != "client: job k is failed: attempt 2: http-status: answered 400" {
		t.Error(err)
	}
	if _, err = (&double{steps: []step{reply(200, document("k", "cancelled"))}}).of(t).Result(t.Context(), "k"); err == nil || err.Error() != "client: job k is cancelled" {
		t.Error(err)
	}
}

func TestJobs_AllPages(t *testing.T) {
	t.Parallel()
	d := &double{steps: []step{
		reply(200, `{"jobs":[`+document("a", "failed")+`,`+document("b", "failed")+`],"next_cursor":"c/1"}`),
		reply(200, `{"jobs":[`+document("c", "failed")+`],"next_cursor":null}`),
	}}
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.FixedZone("", 3600))
	var keys []string
	for job, err := range d.of(t).Jobs(t.Context(), client.Filter{Status: "failed", Type: "pay", BusinessKey: "b 1", KeyPrefix: "order-", CreatedAfter: at}) {
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, job.Key)
	}
	if fmt.Sprint(keys) != "[a b c]" {
		t.Errorf("%v", keys)
	}
	first := "GET /jobs?business_key=b+1&created_after=2026-03-01T11%3A00%3A00Z&key_prefix=order-&limit=200&status=failed&type=pay"
	r := d.requests()
	if len(r) != 2 || sorted(r[0].line) != first || sorted(r[1].line) != strings.Replace(first, "&key_prefix", "&cursor=c%2F1&key_prefix", 1) {
		t.Errorf("%+v", r)
	}

	d = &double{steps: []step{reply(200, `{"jobs":[`+document("a", "failed")+`],"next_cursor":"1"}`), refuse(400, "validation-failed", false)}}
	for job, err := range d.of(t).Jobs(t.Context(), client.Filter{PageSize: 1}) {
		if (err == nil) != (job.Key == "a") {
			t.Errorf("%+v %v", job, err)
		}
	}
	for range d.of(t).Jobs(t.Context(), client.Filter{}) {
		break
	}
	if n := len(d.requests()); n != 3 {
		t.Errorf("%d requests", n)
	}
}
