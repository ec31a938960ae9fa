package repositorytest

import (
	"context"
	"database/sql"
	"slices"
	"testing"
	"time"

	"github.com/sekali/sekali/job"
)

var cancelling = cases{
	"a request to cancel is written down once":                 testRequestCancel,
	"only the holder of the lease is asked to cancel":          testRequestCancelStale,
	"a heartbeat tells that somebody asked to cancel":          testCancelHeartbeat,
	"a heartbeat tells so also when it cannot prolong":         testCancelHeartbeatLocked,
	"BR-83 a failure and a retry give way to a cancellation":   testCancelWins,
	"BR-83 a lost attempt gives way to a cancellation":         testCancelLost,
	"a success is in time whatever was asked":                  testCancelTooLate,
	"a success in a transaction is in time as well":            testCancelTooLateTx,
	"a job that nobody runs ends at once":                      testCancelWaiting,
	"Q1 a job that was claimed since is not ended as waiting":  testCancelWaitingStale,
	"what the transition table does not allow is not asked of": testUnmovable,
}

// requestCancel asks to cancel and reports whether the lease was the job's.
func requestCancel(t *testing.T, w World, l job.Lease) bool {
	t.Helper()
	ours, err := w.Repo.RequestCancel(t.Context(), l)
	if err != nil {
		t.Fatalf("request a cancellation: %v", err)
	}
	return ours
}

func failEnding(l job.Lease) job.Ending {
	return job.Ending{
		Lease: l, Status: job.Failed, Attempt: job.AttemptFailed, Keep: keep,
		Failure: &job.Failure{Code: "http-status", Detail: "503", Attempt: 1},
	}
}

func cancelEnding(l job.Lease) job.Ending {
	return job.Ending{Lease: l, Status: job.Cancelled, Attempt: job.AttemptCancelled, Keep: keep}
}

func cancelWaiting(l job.Lease) job.Ending {
	return job.Ending{Lease: l, Status: job.Cancelled, Waiting: true, Keep: keep}
}

// wantEvents compares how many events of each name a job has.
func wantEvents(t *testing.T, w World, id job.ID, name job.EventName, want int) {
	t.Helper()
	n := count(t, w, `select count(*) from job_events where slot = $1 and job_id = $2 and event = $3 and attempt = 1`,
		int64(id.Slot()), string(id), string(name))
	if n != want {
		t.Errorf("%d events %s, want %d", n, name, want)
	}
}

func testRequestCancel(t *testing.T, w World) {
	accept(t, w, submission(w, "k", `{}`))
	c := claim(t, w, "w", lease)
	if !requestCancel(t, w, c.Lease) {
		t.Fatal("the lease is not the job's")
	}
	first := now(t, w, "k")
	if first.Status != job.Processing || first.Version != c.Version || !within(first.CancelRequestedAt, w.Repo.Clock().Now(), 5*time.Second) {
		t.Errorf("job: %+v", first)
	}
	if !requestCancel(t, w, c.Lease) {
		t.Error("a second request is refused")
	}
	if again := now(t, w, "k"); !again.CancelRequestedAt.Equal(first.CancelRequestedAt) || again.Version != c.Version {
		t.Errorf("asked again: %+v", again)
	}
	wantEvents(t, w, c.ID, job.EventCancelRequested, 1)
}

func testRequestCancelStale(t *testing.T, w World) {
	accept(t, w, submission(w, "k", `{}`))
	stale := claim(t, w, "w", lease)
	if !requeue(t, w, retry(stale.Lease, 0)) || requestCancel(t, w, stale.Lease) {
		t.Error("a job that waits was asked")
	}
	promote(t, w, 5)
	holder := claim(t, w, "w", lease)
	if requestCancel(t, w, stale.Lease) {
		t.Error("a stale token was taken")
	}
	if !finish(t, w, succeed(holder.Lease)) || requestCancel(t, w, holder.Lease) {
		t.Error("a finished job was asked")
	}
	if n := count(t, w, `select count(*) from job_events`); n != 0 {
		t.Errorf("%d events", n)
	}
}

func testCancelHeartbeat(t *testing.T, w World) {
	acceptN(t, w, 2)
	first, second := claim(t, w, "w", lease), claim(t, w, "w", lease)
	requestCancel(t, w, second.Lease)
	kept, err := w.Repo.Extend(t.Context(), []job.Lease{second.Lease, first.Lease}, lease)
	if err != nil || kept[first.ID] != (job.Kept{Extended: true}) || kept[second.ID] != (job.Kept{Extended: true, CancelRequested: true}) {
		t.Errorf("kept %+v, %v", kept, err)
	}
}

func testCancelHeartbeatLocked(t *testing.T, w World) {
	accept(t, w, submission(w, "k", `{}`))
	c := claim(t, w, "w", lease)
	requestCancel(t, w, c.Lease)
	tx, err := w.DB.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.ExecContext(t.Context(), `update jobs set priority = priority`); err != nil {
		t.Fatal(err)
	}
	kept, err := w.Repo.Extend(t.Context(), []job.Lease{c.Lease}, lease)
	if err != nil || !kept[c.ID].CancelRequested {
		t.Errorf("kept %+v, %v", kept, err)
	}
}

func testCancelWins(t *testing.T, w World) {
	accept(t, w, submission(w, "k", `{}`))
	c := claim(t, w, "w", lease)
	requestCancel(t, w, c.Lease)
	released := job.Requeue{Lease: c.Lease, Status: job.Pending, Attempt: job.AttemptReleased, Uncounted: true}
	for name, got := range map[string]job.Application{
		"a failure": ending(t, w, failEnding(c.Lease)), "a retry": requeueing(t, w, retry(c.Lease, 0)), "a release": requeueing(t, w, released),
	} {
		if got != job.CancelPending {
			t.Errorf("%s: %v", name, got)
		}
	}
	if j := now(t, w, "k"); j.Status != job.Processing || j.Version != c.Version || j.LastError != nil || len(attempts(t, w, c.ID)) != 0 {
		t.Errorf("something was changed: %+v", j)
	}
	for range 2 {
		if got := ending(t, w, cancelEnding(c.Lease)); got != job.Applied {
			t.Fatalf("the cancellation: %v", got)
		}
	}
	if got := ending(t, w, failEnding(c.Lease)); got != job.Refused {
		t.Errorf("a failure afterwards: %v", got)
	}
	if j := now(t, w, "k"); j.Status != job.Cancelled || j.Version != c.Version+1 || !slices.Equal(attempts(t, w, c.ID), []string{"cancelled"}) {
		t.Errorf("cancelled: %+v", j)
	}
	wantEvents(t, w, c.ID, job.EventCancelTooLate, 0)
}

func testCancelLost(t *testing.T, w World) {
	accept(t, w, submission(w, "k", `{}`))
	held := claim(t, w, "alive", lease)
	requestCancel(t, w, held.Lease)
	rescue := retry(held.Lease, 0)
	rescue.IfExpired = true
	if a, b := ending(t, w, lostEnding(held.Lease)), requeueing(t, w, rescue); a != job.Refused || b != job.Refused {
		t.Errorf("a lease that is held: %v, %v", a, b)
	}
	accept(t, w, submission(w, "lost", `{}`))
	lost := lose(t, w)
	requestCancel(t, w, lost.Lease)
	expired, err := w.Repo.Expired(t.Context(), "alive", 5)
	if err != nil || len(expired) != 1 || !expired[0].Cancelling() {
		t.Fatalf("expired: %+v, %v", expired, err)
	}
	rescue.Lease = lost.Lease
	if a, b := ending(t, w, lostEnding(lost.Lease)), requeueing(t, w, rescue); a != job.CancelPending || b != job.CancelPending {
		t.Errorf("a lost lease: %v, %v", a, b)
	}
	cancelled := cancelEnding(lost.Lease)
	cancelled.Attempt, cancelled.IfExpired = job.AttemptLost, true
	if got := ending(t, w, cancelled); got != job.Applied {
		t.Errorf("the cancellation: %v", got)
	}
}

func testCancelTooLate(t *testing.T, w World) {
	acceptN(t, w, 2)
	first, second := claim(t, w, "w", lease), claim(t, w, "w", lease)
	requestCancel(t, w, first.Lease)
	for range 2 {
		if !finish(t, w, succeed(first.Lease)) || !finish(t, w, succeed(second.Lease)) {
			t.Fatal("not finished")
		}
	}
	if j := now(t, w, first.Key); j.Status != job.Succeeded {
		t.Errorf("job: %+v", j)
	}
	wantEvents(t, w, first.ID, job.EventCancelTooLate, 1)
	wantEvents(t, w, second.ID, job.EventCancelTooLate, 0)
}

func testCancelTooLateTx(t *testing.T, w World) {
	accept(t, w, submission(w, "k", `{}`))
	c := claim(t, w, "w", lease)
	requestCancel(t, w, c.Lease)
	err := w.Repo.FinishTx(t.Context(), c, func(context.Context, *sql.Tx) (job.Ending, error) { return succeed(c.Lease), nil })
	if err != nil {
		t.Fatal(err)
	}
	wantEvents(t, w, c.ID, job.EventCancelTooLate, 1)
}

func testCancelWaiting(t *testing.T, w World) {
	accept(t, w, submission(w, "retrying", `{}`))
	tried := claim(t, w, "w", lease)
	if !requeue(t, w, retry(tried.Lease, time.Hour)) {
		t.Fatal("not requeued")
	}
	leases := map[string]job.Lease{"retrying": tried.Lease}
	for key, s := range map[string]job.Submission{
		"pending":   submission(w, "pending", `{}`),
		"scheduled": submission(w, "scheduled", `{}`, scheduledIn(time.Hour)),
		"holder":    submission(w, "holder", `{}`, withBusinessKey("order", job.ConflictQueue)),
	} {
		leases[key] = job.Lease{ID: accept(t, w, s).ID}
	}
	leases["behind"] = job.Lease{ID: accept(t, w, submission(w, "behind", `{}`, withBusinessKey("order", job.ConflictQueue))).ID}
	for key, l := range leases {
		before, _ := w.Repo.Load(t.Context(), l.ID)
		for range 2 {
			if got := ending(t, w, cancelWaiting(l)); got != job.Applied {
				t.Errorf("%s: %v", key, got)
			}
		}
		after := now(t, w, before.Key)
		if after.Status != job.Cancelled || after.Version != before.Version+1 || after.Attempts != before.Attempts || after.FinishedAt.IsZero() {
			t.Errorf("%s: %+v", key, after)
		}
	}
	if j := now(t, w, "retrying"); j.LastError == nil || !slices.Equal(attempts(t, w, j.ID), []string{"failed"}) {
		t.Errorf("retrying: %+v", j)
	}
	if n := count(t, w, `select count(*) from job_attempts`); n != 1 {
		t.Errorf("%d attempts", n)
	}
	failed := cancelWaiting(tried.Lease)
	failed.Status = job.Failed
	if got := ending(t, w, failed); got != job.Refused {
		t.Errorf("another end: %v", got)
	}
}

func testCancelWaitingStale(t *testing.T, w World) {
	accept(t, w, submission(w, "k", `{}`))
	unclaimed := job.Lease{ID: now(t, w, "k").ID}
	c := claim(t, w, "w", lease)
	for name, l := range map[string]job.Lease{"before the claim": unclaimed, "of the claim": c.Lease} {
		if got := ending(t, w, cancelWaiting(l)); got != job.Refused {
			t.Errorf("with the token %s: %v", name, got)
		}
	}
	if !requeue(t, w, retry(c.Lease, time.Hour)) {
		t.Fatal("not requeued")
	}
	if got := ending(t, w, cancelWaiting(unclaimed)); got != job.Refused {
		t.Errorf("after the attempt, with the token before it: %v", got)
	}
}

func testUnmovable(t *testing.T, w World) {
	accept(t, w, submission(w, "k", `{}`))
	c := claim(t, w, "w", lease)
	succeeded := cancelWaiting(c.Lease)
	succeeded.Status = job.Succeeded
	retrying := succeed(c.Lease)
	retrying.Status = job.Retrying
	for _, e := range []job.Ending{succeeded, retrying} {
		if _, err := w.Repo.Finish(t.Context(), []job.Ending{e}); err == nil {
			t.Errorf("ended as %s", e.Status)
		}
	}
	back := retry(c.Lease, 0)
	back.Status = job.Cancelled
	if _, err := w.Repo.Requeue(t.Context(), []job.Requeue{back}); err == nil {
		t.Error("requeued as cancelled")
	}
}
