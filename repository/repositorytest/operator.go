package repositorytest

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

var reviving = cases{
	"Row75 a failed job comes back and its attempts go on counting": testRevive,
	"Row75 a cancelled job comes back":                              testReviveCancelled,
	"Row75 the operator's key stands for the call":                  testReviveAgain,
	"Row75 a key that was used for something else changes nothing":  testReviveKeyUsed,
	"Row58 a key whose tombstone is over is free for an operator":   testReviveKeyForgotten,
	"only the job that was read is changed":                         testReviveMoved,
	"Row75 another job holds the business key":                      testReviveBusiness,
	"Row75 a job that queues waits behind the holder":               testReviveQueue,
	"Row103 an operator's key expires with the job":                 testReviveReaped,
	"a call that the reaper was faster than is told so":             testReviveExpired,
	"Row75a a doubt is resolved as success":                         testResolveSucceeded,
	"Row75a a doubt is resolved as failure":                         testResolveFailed,
	"Row75a only a doubt can be resolved":                           testResolveMoved,
	"Row98 a resolved result may go before its job":                 testResolvedResult,
}

// fails accepts a job and ends it as failed after one attempt.
func fails(t *testing.T, w World, key string, changes ...func(*job.Ending)) job.Job {
	t.Helper()
	accept(t, w, submission(w, key, `{"a":1}`))
	return failClaimed(t, w, changes...)
}

// failClaimed ends the next job as failed, and reads it.
func failClaimed(t *testing.T, w World, changes ...func(*job.Ending)) job.Job {
	t.Helper()
	c := claim(t, w, "w", lease)
	e := failedEnding(c)
	for _, change := range changes {
		change(&e)
	}
	if !finish(t, w, e) {
		t.Fatal("not finished")
	}
	return now(t, w, c.Key)
}

func failedEnding(c job.Claimed) job.Ending {
	return job.Ending{
		Lease: c.Lease, Status: job.Failed, Attempt: job.AttemptFailed, Keep: keep,
		Failure: &job.Failure{Code: "http-status", Detail: "400", Attempt: c.Attempts},
	}
}

// parked leaves nobody knowing what the attempt did.
func parked(e *job.Ending) { e.Attempt, e.Outcome = job.AttemptLost, job.OutcomeUnknown }

func keptFor(d time.Duration) func(*job.Ending) { return func(e *job.Ending) { e.Keep = d } }

// operatorRequest is an operator's call with a key of its own.
func operatorRequest(key, path string) idempotency.Request {
	return idempotency.Request{Tenant: tenant, Key: idempotency.Key(key), Fingerprint: idempotency.NewFingerprint("POST", path, nil, "", nil)}
}

// revival brings the job back as the domain would.
func revival(w World, key string, from job.Job) job.Revival {
	j := from
	j.Status, j.RunAt, j.Generation, j.Version = job.Pending, w.Repo.Clock().Now(), from.Generation+1, from.Version+1
	j.MaxAttempts, j.EarlierAttempts = from.Attempts+from.MaxAttempts-from.EarlierAttempts, from.Attempts
	j.Outcome, j.DuplicateOf, j.Result = "", "", nil
	j.Deadline, j.FinishedAt, j.ExpiresAt = time.Time{}, time.Time{}, time.Time{}
	return job.Revival{
		Request: operatorRequest(key, "/jobs/"+string(from.Key)+"/retry"), From: from, Job: j, OnConflict: job.ConflictReturn,
		Response: idempotency.Response{Status: http.StatusAccepted, Header: http.Header{"Location": {"/jobs/x"}}, Body: []byte(`{"again":1}`)},
	}
}

func revive(t *testing.T, w World, v job.Revival) job.Receipt {
	t.Helper()
	receipt, err := w.Repo.Revive(t.Context(), v)
	if err != nil || !receipt.Record.Fresh || !receipt.Alias || receipt.Duplicate() {
		t.Fatalf("revive: %+v, %v", receipt, err)
	}
	return receipt
}

func events(t *testing.T, w World, id job.ID) []job.Event {
	t.Helper()
	all, err := w.Repo.Events(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func testRevive(t *testing.T, w World) {
	accept(t, w, submission(w, "k", `{"a":1}`, withBusinessKey("order", job.ConflictReturn), func(s *job.Submission) {
		s.Job.OperationKey, s.Job.MaxAttempts, s.Job.Priority = "op", 2, 3
		s.Job.Deadline = s.Job.CreatedAt.Add(time.Hour)
	}))
	from := failClaimed(t, w)
	v := revival(w, "again", from)
	receipt := revive(t, w, v)
	if receipt.Job.ID != from.ID || receipt.Job.Status != job.Pending || !equalResponse(receipt.Record.Response, v.Response) {
		t.Errorf("receipt: %+v", receipt)
	}
	want := from
	want.Status, want.RunAt, want.Generation, want.Version = job.Pending, v.Job.RunAt, 2, from.Version+1
	want.MaxAttempts, want.EarlierAttempts, want.Deadline = 3, 1, time.Time{}
	want.FinishedAt, want.ExpiresAt = time.Time{}, time.Time{}
	got := now(t, w, "k")
	if got.LastError == nil || *got.LastError != *from.LastError {
		t.Errorf("last error: %+v", got.LastError)
	}
	got.LastError, want.LastError = nil, nil
	if a, b := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want); a != b {
		t.Errorf("the job is\n%s, want\n%s", a, b)
	}
	if n := count(t, w, `select count(*) from finished_jobs`); n != 0 {
		t.Errorf("%d finished jobs", n)
	}
	c := claim(t, w, "w", lease)
	if c.ID != from.ID || c.Attempts != 2 || c.Lease.Token != 2 || c.MaxAttempts != 3 || c.OperationKey != "op" || c.BusinessKey != "order" {
		t.Errorf("claimed: %+v", c)
	}
	if !finish(t, w, succeed(c.Lease)) {
		t.Fatal("not finished")
	}
	if got := attempts(t, w, from.ID); !slices.Equal(got, []string{"failed", "succeeded"}) {
		t.Errorf("attempts: %v", got)
	}
	all := events(t, w, from.ID)
	if len(all) != 1 || all[0].Name != job.EventRetried || all[0].Attempt != 1 || all[0].Data["key"] != "again" || all[0].Data["generation"] != 2.0 {
		t.Errorf("events: %+v", all)
	}
	if j := now(t, w, "k"); j.Status != job.Succeeded || j.Generation != 2 || j.EarlierAttempts != 1 || j.MaxAttempts != 3 {
		t.Errorf("finished: %+v", j)
	}
}

func testReviveCancelled(t *testing.T, w World) {
	j := accept(t, w, submission(w, "k", `{}`, scheduledIn(time.Hour)))
	if !finish(t, w, job.Ending{Lease: job.Lease{ID: j.ID}, Status: job.Cancelled, Waiting: true, Keep: keep}) {
		t.Fatal("not cancelled")
	}
	revive(t, w, revival(w, "again", now(t, w, "k")))
	if c := claim(t, w, "w", lease); c.ID != j.ID || c.Attempts != 1 || c.MaxAttempts != 10 {
		t.Errorf("claimed: %+v", c)
	}
	if all := events(t, w, j.ID); len(all) != 1 || all[0].Attempt != 0 {
		t.Errorf("events: %+v", all)
	}
}

func testReviveAgain(t *testing.T, w World) {
	from := fails(t, w, "k")
	v := revival(w, "again", from)
	revive(t, w, v)
	for _, when := range []string{"waits", "runs", "has ended"} {
		second := revival(w, "again", from)
		second.Response.Body = []byte("another")
		receipt, err := w.Repo.Revive(t.Context(), second)
		if err != nil || receipt.Record.Fresh || !receipt.Alias || receipt.Duplicate() || !equalResponse(receipt.Record.Response, v.Response) {
			t.Errorf("while it %s: %+v, %v", when, receipt, err)
		}
		found, err := w.Repo.Find(t.Context(), tenant, "again")
		if err != nil || found.Job.ID != from.ID || !found.Alias || found.Duplicate() || found.Job.Status != now(t, w, "k").Status {
			t.Errorf("while it %s: %+v, %v", when, found, err)
		}
		switch when {
		case "waits":
			claim(t, w, "w", lease)
		case "runs":
			if !finish(t, w, succeed(job.Lease{ID: from.ID, Token: from.Token + 1})) {
				t.Fatal("not finished")
			}
		}
	}
	if j := now(t, w, "k"); j.Generation != 2 || j.Status != job.Succeeded {
		t.Errorf("the job: %+v", j)
	}
}

func testReviveKeyUsed(t *testing.T, w World) {
	accept(t, w, submission(w, "other", `{}`, ofType("other")))
	from := fails(t, w, "k")
	for _, key := range []string{"other", "k"} {
		v := revival(w, key, from)
		receipt, err := w.Repo.Revive(t.Context(), v)
		if err != nil || receipt.Record.Fresh || receipt.Record.Fingerprint == v.Request.Fingerprint {
			t.Errorf("%s: %+v, %v", key, receipt, err)
		}
	}
	begin(t, w.Repo.Records(), "running", time.Hour)
	receipt, err := w.Repo.Revive(t.Context(), revival(w, "running", from))
	if err != nil || receipt.Record.State != idempotency.InProgress {
		t.Errorf("%+v, %v", receipt, err)
	}
	if j := now(t, w, "k"); j.Status != job.Failed || j.Version != from.Version {
		t.Errorf("the job: %+v", j)
	}
}

func testReviveKeyForgotten(t *testing.T, w World) {
	end(t, w, "again", over)
	end(t, w, "retired", expired)
	from := fails(t, w, "k")
	receipt, err := w.Repo.Revive(t.Context(), revival(w, "retired", from))
	if err != nil || receipt.Record.Fresh || receipt.Record.State != idempotency.Retired {
		t.Errorf("%+v, %v", receipt, err)
	}
	revive(t, w, revival(w, "again", from))
}

func testReviveMoved(t *testing.T, w World) {
	from := fails(t, w, "k")
	older := from
	older.Version--
	done := end(t, w, "done", keep)
	for name, j := range map[string]job.Job{"an older version": older, "a success": now(t, w, done.Key)} {
		if _, err := w.Repo.Revive(t.Context(), revival(w, "again", j)); !errors.Is(err, job.ErrMoved) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := w.Repo.Find(t.Context(), tenant, "again"); !errors.Is(err, job.ErrNotFound) {
		t.Errorf("the key was consumed: %v", err)
	}
	revive(t, w, revival(w, "again", from))
	if _, err := w.Repo.Revive(t.Context(), revival(w, "and again", from)); !errors.Is(err, job.ErrMoved) {
		t.Errorf("a job that is back: %v", err)
	}
	if all := events(t, w, from.ID); len(all) != 1 {
		t.Errorf("events: %+v", all)
	}
}

func testReviveBusiness(t *testing.T, w World) {
	accept(t, w, submission(w, "k", `{}`, withBusinessKey("order", job.ConflictReject)))
	from := failClaimed(t, w)
	accept(t, w, submission(w, "holder", `{}`, withBusinessKey("order", job.ConflictReject)))
	v := revival(w, "again", from)
	_, err := w.Repo.Revive(t.Context(), v)
	if refused := wantError[*job.BusinessKeyError](t, err); refused.Holder != "holder" {
		t.Errorf("held by %q", refused.Holder)
	}
	if _, err := w.Repo.Find(t.Context(), tenant, "again"); !errors.Is(err, job.ErrNotFound) {
		t.Errorf("the key was consumed: %v", err)
	}
	if j := now(t, w, "k"); j.Status != job.Failed || j.Version != from.Version {
		t.Errorf("the job: %+v", j)
	}
	endClaimed(t, w, keep)
	revive(t, w, v)
}

func testReviveQueue(t *testing.T, w World) {
	queued := func(key string) job.Job {
		return accept(t, w, submission(w, key, `{}`, withBusinessKey("order", job.ConflictQueue)))
	}
	queued("first")
	first := failClaimed(t, w)
	back := func(key string, from job.Job) {
		v := revival(w, key, from)
		v.OnConflict = job.ConflictQueue
		revive(t, w, v)
	}
	back("free", first) // nobody has the key
	first = failClaimed(t, w)
	queued("holder")
	queued("second")
	queued("third")
	endClaimed(t, w, keep)
	back("queued", first) // nobody has the key just now, but others wait for it
	if claimed, err := w.Repo.Claim(t.Context(), job.Claiming{Type: kind, Max: 5, Worker: "w", Lease: lease}); err != nil || len(claimed) != 0 {
		t.Fatalf("%d claimed before those that wait, %v", len(claimed), err)
	}
	unblock := func() {
		if _, err := w.Repo.Unblock(t.Context(), 10); err != nil {
			t.Fatal(err)
		}
	}
	unblock()
	var order []idempotency.Key
	for range 3 {
		claimed, err := w.Repo.Claim(t.Context(), job.Claiming{Type: kind, Max: 5, Worker: "w", Lease: lease})
		if err != nil || len(claimed) != 1 {
			t.Fatalf("%d claimed, %v", len(claimed), err)
		}
		order = append(order, claimed[0].Key)
		if !finish(t, w, succeed(claimed[0].Lease)) {
			t.Fatal("not finished")
		}
		unblock()
	}
	if want := []idempotency.Key{"second", "third", "first"}; !slices.Equal(order, want) {
		t.Errorf("order %v, want %v", order, want)
	}
}

func testReviveReaped(t *testing.T, w World) {
	from := fails(t, w, "k")
	revive(t, w, revival(w, "again", from))
	if n := reap(t, w); n != (job.Reaped{}) {
		t.Errorf("reaped %+v", n)
	}
	endClaimed(t, w, expired)
	for _, when := range []string{"before", "after"} {
		receipt, err := w.Repo.Revive(t.Context(), revival(w, "again", from))
		if err != nil || receipt.Record.State != idempotency.Retired || receipt.Job.Status != job.Succeeded {
			t.Errorf("%s reaping: %+v, %v", when, receipt, err)
		}
		if n := reap(t, w).Jobs; (n == 1) != (when == "before") {
			t.Errorf("%s: %d jobs reaped", when, n)
		}
	}
	left := `select count(*) from idempotency_keys where alias or owner is not null or response_body is not null or response_status is not null or job_id is not null`
	if n := count(t, w, left); n != 0 {
		t.Error("a tombstone holds a response or names the job")
	}
	if n := count(t, w, `select count(*) from job_events`) + count(t, w, `select count(*) from job_attempts`); n != 0 {
		t.Errorf("%d rows of the job's history are left", n)
	}
	w.age(t, 2*Tombstone)
	if n := reap(t, w).Tombstones; n != 2 {
		t.Errorf("%d tombstones reaped", n)
	}
}

func testReviveExpired(t *testing.T, w World) {
	from := fails(t, w, "k", keptFor(expired))
	v := revival(w, "again", from)
	if _, err := w.Repo.Revive(t.Context(), v); !errors.Is(err, job.ErrMoved) {
		t.Errorf("before reaping: %v", err)
	}
	reap(t, w)
	if _, err := w.Repo.Revive(t.Context(), v); !errors.Is(err, job.ErrMoved) {
		t.Errorf("after reaping: %v", err)
	}
	if n := count(t, w, `select count(*) from jobs`); n != 0 {
		t.Errorf("%d jobs", n)
	}
}
