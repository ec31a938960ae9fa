package repositorytest

import (
	"errors"
	"net/http"
	"testing"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

// resolution settles the job as the domain would.
func resolution(w World, key string, from job.Job, to job.Status, result *job.Result) job.Resolution {
	j := from
	j.Status, j.Outcome, j.Result, j.Version = to, "", result, from.Version+1
	j.ExpiresAt = w.Repo.Clock().Now().Add(2 * keep)
	if to == job.Succeeded {
		j.LastError = nil
	}
	return job.Resolution{
		Request: operatorRequest(key, "/jobs/"+string(from.Key)+"/resolve"), From: from, Job: j,
		Response: idempotency.Response{Status: http.StatusOK, Body: []byte(`{"resolved":1}`)},
	}
}

func testResolveSucceeded(t *testing.T, w World) {
	accept(t, w, submission(w, "k", `{}`, withOperation("op")))
	c := claim(t, w, "w", lease)
	take(t, w, c)
	e := failedEnding(c)
	parked(&e)
	if !finish(t, w, e) {
		t.Fatal("not finished")
	}
	from := now(t, w, "k")
	v := resolution(w, "sure", from, job.Succeeded, &job.Result{Body: []byte(`{"id":7}`), MediaType: "application/json"})
	receipt, err := w.Repo.Resolve(t.Context(), v)
	if err != nil || !receipt.Record.Fresh || receipt.Job.Status != job.Succeeded {
		t.Fatalf("resolve: %+v, %v", receipt, err)
	}
	got := now(t, w, "k")
	if got.Result == nil || string(got.Result.Body) != `{"id":7}` || got.Result.MediaType != "application/json" {
		t.Errorf("result: %+v", got.Result)
	}
	if got.Status != job.Succeeded || got.Outcome != "" || got.LastError != nil || got.Version != from.Version+1 ||
		!got.ExpiresAt.Equal(v.Job.ExpiresAt) || !got.FinishedAt.Equal(from.FinishedAt) {
		t.Errorf("the job: %+v", got)
	}
	if o := operation(t, w, "op"); o != "done by k: {\"id\":7}" {
		t.Errorf("the operation is %s", o)
	}
	all := events(t, w, from.ID)
	if len(all) != 1 || all[0].Name != job.EventResolved || all[0].Data["status"] != "succeeded" || all[0].Data["key"] != "sure" {
		t.Errorf("events: %+v", all)
	}
	again, err := w.Repo.Resolve(t.Context(), v)
	if err != nil || again.Record.Fresh || !equalResponse(again.Record.Response, v.Response) {
		t.Errorf("again: %+v, %v", again, err)
	}
}

func testResolveFailed(t *testing.T, w World) {
	accept(t, w, submission(w, "k", `{}`, withOperation("op")))
	take(t, w, claim(t, w, "w", lease))
	if !finish(t, w, job.Ending{
		Lease: job.Lease{ID: now(t, w, "k").ID, Token: 1}, Status: job.Failed, Attempt: job.AttemptLost, Outcome: job.OutcomeUnknown,
		Failure: &job.Failure{Code: "timeout", Detail: "took too long", Attempt: 1}, Keep: keep,
	}) {
		t.Fatal("not finished")
	}
	from := now(t, w, "k")
	v := resolution(w, "sure", from, job.Failed, nil)
	undo := submission(w, "compensate:k", `{"job":"k"}`, ofType("undo"))
	v.Follow = []job.Submission{undo}
	for i := range 2 {
		receipt, err := w.Repo.Resolve(t.Context(), v)
		if err != nil || receipt.Record.Fresh != (i == 0) {
			t.Fatalf("resolve: %+v, %v", receipt, err)
		}
	}
	if got := now(t, w, "k"); got.Status != job.Failed || got.Outcome != "" || got.LastError == nil || got.LastError.Code != "timeout" || got.Version != from.Version+1 {
		t.Errorf("the job: %+v", got)
	}
	if j := now(t, w, "compensate:k"); j.Type != "undo" || j.Status != job.Pending || string(j.Payload) != `{"job":"k"}` {
		t.Errorf("the compensation: %+v", j)
	}
	if o := operation(t, w, "op"); o != "processing by k: " {
		t.Errorf("the operation is %s", o)
	}
}

func testResolveMoved(t *testing.T, w World) {
	for name, j := range map[string]job.Job{
		"a plain failure": fails(t, w, "plain"),
		"a success":       now(t, w, end(t, w, "done", keep).Key),
		"an expired one":  fails(t, w, "expired", parked, keptFor(expired)),
	} {
		if _, err := w.Repo.Resolve(t.Context(), resolution(w, "sure", j, job.Succeeded, nil)); !errors.Is(err, job.ErrMoved) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := w.Repo.Find(t.Context(), tenant, "sure"); !errors.Is(err, job.ErrNotFound) {
		t.Errorf("the key was consumed: %v", err)
	}
	doubt := fails(t, w, "doubt", parked)
	revive(t, w, revival(w, "again", doubt))
	if _, err := w.Repo.Resolve(t.Context(), resolution(w, "sure", doubt, job.Succeeded, nil)); !errors.Is(err, job.ErrMoved) {
		t.Errorf("a job that is back: %v", err)
	}
}

func testResolvedResult(t *testing.T, w World) {
	w.Repo = w.Brief()
	from := fails(t, w, "k", parked)
	if _, err := w.Repo.Resolve(t.Context(), resolution(w, "sure", from, job.Succeeded, &job.Result{Body: []byte("1")})); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return now(t, w, "k").Result == nil })
	if j := now(t, w, "k"); j.ResultExpiredAt.IsZero() || j.Status != job.Succeeded {
		t.Errorf("the job: %+v", j)
	}
}
