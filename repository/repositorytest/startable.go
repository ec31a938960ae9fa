package repositorytest

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

func withDeadline(in time.Duration) func(*job.Submission) {
	return func(s *job.Submission) { s.Job.Deadline = s.Job.CreatedAt.Add(in) }
}

// nothingToClaim: no job of the type can be claimed.
func nothingToClaim(t *testing.T, w World) {
	t.Helper()
	if claimed, err := w.Repo.Claim(t.Context(), job.Claiming{Type: kind, Max: 5, Worker: "w", Lease: lease}); err != nil || len(claimed) != 0 {
		t.Fatalf("claimed %+v, %v", claimed, err)
	}
}

func testClaimWhole(t *testing.T, w World) {
	s := submission(w, "k", `{"a":1}`, withBusinessKey("order 1", job.ConflictReturn), withDeadline(time.Hour))
	s.Job.OperationKey, s.Job.Priority = "payment:1", -3
	accept(t, w, s)
	back := retry(claim(t, w, "w", lease).Lease, 0)
	back.Status, back.UnknownAsks = job.Pending, 2
	if !requeue(t, w, back) {
		t.Fatal("not requeued")
	}
	execute(t, w, `update jobs set earlier_attempts = 4, attempt = 5, generation = 2`) // as if an operator had retried it
	claimed := claim(t, w, "w", lease)
	if claimed.OperationKey != "payment:1" || claimed.BusinessKey != "order 1" || !claimed.Deadline.Equal(s.Job.Deadline) || claimed.UnknownAsks != 2 {
		t.Errorf("claimed: %+v", claimed)
	}
	if claimed.MaxAttempts != 14 || claimed.EarlierAttempts != 4 || claimed.Attempts != 6 || claimed.Token != claimed.Lease.Token || claimed.Cancelling() {
		t.Errorf("claimed: %+v", claimed)
	}
	found, whole := now(t, w, "k"), claimed.Job
	if *found.LastError != *whole.LastError {
		t.Errorf("error: %+v, claimed %+v", found.LastError, whole.LastError)
	}
	found.LastError, whole.LastError = nil, nil
	if got, want := fmt.Sprintf("%+v", found), fmt.Sprintf("%+v", whole); got != want {
		t.Errorf("found\n%s, claimed\n%s", got, want)
	}
	loaded, err := w.Repo.Load(t.Context(), claimed.ID)
	if err != nil || loaded.Lease != claimed.Lease || loaded.LastError == nil || loaded.Version != claimed.Version || string(loaded.Payload) != `{"a":1}` {
		t.Errorf("loaded: %+v, %v", loaded, err)
	}
	if !finish(t, w, succeed(claimed.Lease)) {
		t.Fatal("not finished")
	}
	j := now(t, w, "k")
	if j.EarlierAttempts != 4 || j.MaxAttempts != 14 || j.OperationKey != "payment:1" || !j.Deadline.Equal(s.Job.Deadline) || j.Token != claimed.Token {
		t.Errorf("finished: %+v", j)
	}
	list, err := w.Repo.List(t.Context(), job.Filter{Tenant: tenant, Limit: 2})
	if err != nil || len(list) != 1 || list[0].MaxAttempts != 14 || list[0].OperationKey != "payment:1" || list[0].Token != claimed.Token {
		t.Errorf("listed: %+v, %v", list, err)
	}
}

func testPaused(t *testing.T, w World) {
	accept(t, w, submission(w, "k", `{}`))
	accept(t, w, submission(w, "other", `{}`, ofType("refund")))
	execute(t, w, `insert into type_state (type, paused_at) values ('invoice', '2026-01-02T03:04:05.678Z'), ('refund', null)`)
	nothingToClaim(t, w)
	if others, err := w.Repo.Claim(t.Context(), job.Claiming{Type: "refund", Max: 5, Worker: "w", Lease: lease}); err != nil || len(others) != 1 {
		t.Errorf("another type: %v, %v", others, err)
	}
	execute(t, w, `update type_state set paused_at = null`)
	claim(t, w, "w", lease)
}

func expire(c job.Claimed) job.Ending {
	return job.Settings{Retention: keep}.Expire(c)
}

func testDeadline(t *testing.T, w World) {
	accept(t, w, submission(w, "late", `{"a":1}`, withDeadline(-time.Minute)))
	accept(t, w, submission(w, "k", `{}`, withDeadline(time.Hour)))
	if c := claim(t, w, "w", lease); c.Key != "k" {
		t.Fatalf("claimed %s", c.Key)
	}
	nothingToClaim(t, w)
	overdue, err := w.Repo.Overdue(t.Context(), 5)
	if err != nil || len(overdue) != 1 || overdue[0].Key != "late" || overdue[0].Payload != nil || overdue[0].Type != kind {
		t.Fatalf("overdue: %+v, %v", overdue, err)
	}
	for range 2 { // also when the first answer was lost
		if got := ending(t, w, expire(overdue[0])); got != job.Applied {
			t.Fatalf("expired: %v", got)
		}
	}
	j := now(t, w, "late")
	if j.Status != job.Failed || j.Version != 2 || j.Attempts != 0 || j.LastError == nil || j.LastError.Code != "expired" || string(j.Payload) != `{"a":1}` {
		t.Errorf("expired: %+v", j)
	}
	if got := attempts(t, w, j.ID); len(got) != 0 {
		t.Errorf("attempts %v", got)
	}
}

func testDeadlineStarted(t *testing.T, w World) {
	accept(t, w, submission(w, "k", `{}`, withDeadline(time.Hour)))
	c := claim(t, w, "w", lease)
	if !requeue(t, w, retry(c.Lease, 0)) {
		t.Fatal("not requeued")
	}
	execute(t, w, `update jobs set deadline = created_at`)
	if overdue, err := w.Repo.Overdue(t.Context(), 5); err != nil || len(overdue) != 0 {
		t.Errorf("overdue: %+v, %v", overdue, err)
	}
	promote(t, w, 5)
	claim(t, w, "w", lease)
}

func testOverdue(t *testing.T, w World) {
	accept(t, w, submission(w, "holder", `{}`, withBusinessKey("order", job.ConflictQueue)))
	accept(t, w, submission(w, "behind", `{}`, withBusinessKey("order", job.ConflictQueue), withDeadline(-3*time.Minute)))
	accept(t, w, submission(w, "pending", `{}`, withDeadline(-2*time.Minute)))
	accept(t, w, submission(w, "scheduled", `{}`, scheduledIn(time.Hour), withDeadline(-time.Minute)))
	accept(t, w, submission(w, "never", `{}`))
	var keys []idempotency.Key
	for range 2 { // listing changes nothing
		keys = nil
		overdue, err := w.Repo.Overdue(t.Context(), 10)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range overdue {
			keys = append(keys, c.Key)
		}
	}
	if want := []idempotency.Key{"behind", "pending", "scheduled"}; !slices.Equal(keys, want) {
		t.Errorf("overdue %v, want %v", keys, want)
	}
	overdue, err := w.Repo.Overdue(t.Context(), 1)
	if err != nil || len(overdue) != 1 {
		t.Fatalf("overdue: %v, %v", overdue, err)
	}
	if !finish(t, w, expire(overdue[0])) {
		t.Error("a job that waits for its business key was not ended")
	}
}

func testLoad(t *testing.T, w World) {
	s := submission(w, "k", `{"a":1}`)
	accept(t, w, s)
	loaded, err := w.Repo.Load(t.Context(), s.Job.ID)
	if err != nil || loaded.Status != job.Pending || loaded.Key != "k" || string(loaded.Payload) != `{"a":1}` || loaded.Lease.ID != s.Job.ID {
		t.Errorf("loaded: %+v, %v", loaded, err)
	}
	if !finish(t, w, succeed(claim(t, w, "w", lease).Lease)) {
		t.Fatal("not finished")
	}
	for _, id := range []job.ID{s.Job.ID, lowest} {
		if loaded, err := w.Repo.Load(t.Context(), id); !errors.Is(err, job.ErrNotFound) {
			t.Errorf("loaded %+v, %v", loaded, err)
		}
	}
}

// takenBy is a claimed job that has taken its operation, as Operations.Take
// leaves it.
func takenBy(t *testing.T, w World, key string, owner job.ID) job.Claimed {
	t.Helper()
	accept(t, w, submission(w, key, `{}`, func(s *job.Submission) { s.Job.OperationKey = "payment:" + key }))
	c := claim(t, w, "w", lease)
	if owner == "" {
		owner = c.ID
	}
	execute(t, w, `insert into processed_operations (slot, tenant, operation_type, operation_key, state, job_slot, job_id, token)
		values ($1, $2, $3, $4, 'processing', $5, $6, 0)`,
		int64(c.Operation().Slot()), string(tenant), string(kind), c.OperationKey, int64(owner.Slot()), string(owner))
	return c
}

func testOperationDone(t *testing.T, w World) {
	c := takenBy(t, w, "k", "")
	e := job.Settings{Retention: keep}.Succeed(c, &job.Result{Body: []byte("paid"), MediaType: "text/plain"})
	if !finish(t, w, e) {
		t.Fatal("not finished")
	}
	if n := count(t, w, `select count(*) from processed_operations where state = 'done' and token = 1 and result_type = 'text/plain' and result = $1 and result_hash = $2`,
		e.Result.Body, e.Result.Hash()); n != 1 {
		t.Error("the operation is not done with its result")
	}
	c = takenBy(t, w, "failed", "")
	if !finish(t, w, failEnding(c.Lease)) {
		t.Fatal("not finished")
	}
	c = takenBy(t, w, "none", "")
	if !finish(t, w, succeed(c.Lease)) { // an ending that names no operation
		t.Fatal("not finished")
	}
	if n := count(t, w, `select count(*) from processed_operations where state = 'processing' and token = 0 and result_hash is null`); n != 2 {
		t.Errorf("%d operations are still being done, want 2", n)
	}
}

func testOperationOther(t *testing.T, w World) {
	settings := job.Settings{Retention: keep}
	taken := takenBy(t, w, "taken over", lowest)
	if !finish(t, w, settings.Succeed(taken, nil)) {
		t.Fatal("not finished")
	}
	duplicate := takenBy(t, w, "duplicate", lowest)
	if !finish(t, w, settings.Duplicate(duplicate, job.OperationTaken{Done: true, By: "first"})) {
		t.Fatal("not finished")
	}
	if n := count(t, w, `select count(*) from processed_operations where state = 'processing' and token = 0`); n != 2 {
		t.Errorf("%d operations were left alone, want 2", n)
	}
}
