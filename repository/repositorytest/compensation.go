package repositorytest

import (
	"slices"
	"testing"
	"time"

	"github.com/sekali/sekali/job"
)

var compensating = cases{
	"a failure and its compensation are one":            testCompensate,
	"a compensation whose key is known is not made":     testCompensateKnown,
	"a key that was used gives way to another":          testCompensateOtherwise,
	"an ending that is refused is not compensated":      testCompensateRefused,
	"a lease that is held is not compensated":           testCompensateHeld,
	"a job that is to be cancelled is not compensated":  testCompensateCancelling,
	"a compensation waits for who holds its business":   testCompensateQueue,
	"a batch has endings with and without compensation": testCompensateBatch,
}

// undoing is the failure of the claimed job, followed by a job of the type "undo".
func undoing(w World, c job.Claimed, changes ...func(*job.Submission)) job.Ending {
	s := submission(w, "compensate:"+string(c.ID), `{"undo":1}`, append([]func(*job.Submission){ofType("undo")}, changes...)...)
	e := failedEnding(c)
	e.Follow = []job.Submission{s}
	return e
}

func undone(t *testing.T, w World) int {
	t.Helper()
	return count(t, w, `select count(*) from jobs where type = 'undo'`)
}

func testCompensate(t *testing.T, w World) {
	accept(t, w, submission(w, "k", `{}`))
	c := claim(t, w, "w", lease)
	e := undoing(w, c, withOperation("undo"), func(s *job.Submission) {
		s.Job.MaxAttempts, s.Job.Priority, s.Job.Deadline = 4, 2, s.Job.CreatedAt.Add(time.Hour)
	})
	if got := ending(t, w, e); got != job.Applied {
		t.Fatalf("finish: %v", got)
	}
	receipt, err := w.Repo.Find(t.Context(), tenant, e.Follow[0].Request.Key)
	if err != nil || !equalResponse(receipt.Record.Response, e.Follow[0].Response) || receipt.Record.Request != e.Follow[0].Request {
		t.Fatalf("the compensation's record: %+v, %v", receipt, err)
	}
	j := receipt.Job
	if j.ID != e.Follow[0].Job.ID || j.Type != "undo" || j.Status != job.Pending || string(j.Payload) != `{"undo":1}` ||
		j.MaxAttempts != 4 || j.Priority != 2 || !j.Deadline.Equal(e.Follow[0].Job.Deadline) || j.OperationKey != "undo" || j.Version != 1 {
		t.Errorf("the compensation: %+v", j)
	}
	// The answer was lost, and the caller has made it anew.
	if got := ending(t, w, undoing(w, c)); got != job.Applied {
		t.Errorf("again: %v", got)
	}
	if n := undone(t, w); n != 1 {
		t.Errorf("%d compensations", n)
	}
	claimed, err := w.Repo.Claim(t.Context(), job.Claiming{Type: "undo", Max: 5, Worker: "w", Lease: lease})
	if err != nil || len(claimed) != 1 || claimed[0].ID != j.ID {
		t.Errorf("claimed: %+v, %v", claimed, err)
	}
	if again := now(t, w, "k"); again.Status != job.Failed || len(attempts(t, w, c.ID)) != 1 {
		t.Errorf("the failed job: %+v", again)
	}
}

func testCompensateKnown(t *testing.T, w World) {
	accept(t, w, submission(w, "k", `{}`))
	c := claim(t, w, "w", lease)
	accept(t, w, submission(w, "compensate:"+string(c.ID), `{"mine":1}`, ofType("other")))
	if got := ending(t, w, undoing(w, c)); got != job.Applied {
		t.Errorf("finish: %v", got)
	}
	if j := now(t, w, "k"); j.Status != job.Failed {
		t.Errorf("the job: %+v", j)
	}
	if n := undone(t, w); n != 0 {
		t.Errorf("%d compensations", n)
	}
}

// A key that somebody else has used must not lose the compensation.
func testCompensateOtherwise(t *testing.T, w World) {
	accept(t, w, submission(w, "k", `{}`))
	c := claim(t, w, "w", lease)
	accept(t, w, submission(w, "compensate:"+string(c.ID), `{"mine":1}`, ofType("other")))
	e, otherwise := undoing(w, c), submission(w, "otherwise", `{"undo":1}`, ofType("undo"))
	e.Follow[0].Otherwise = &otherwise
	for range 2 { // also when the first answer was lost
		if got := ending(t, w, e); got != job.Applied {
			t.Errorf("finish: %v", got)
		}
	}
	if n := undone(t, w); n != 1 {
		t.Errorf("%d compensations", n)
	}
	if j := now(t, w, "otherwise"); j.Type != "undo" || string(j.Payload) != `{"undo":1}` {
		t.Errorf("the compensation: %+v", j)
	}
}

func testCompensateRefused(t *testing.T, w World) {
	accept(t, w, submission(w, "k", `{}`))
	c := claim(t, w, "w", lease)
	if !requeue(t, w, retry(c.Lease, 0)) {
		t.Fatal("not requeued")
	}
	promote(t, w, 5)
	claim(t, w, "w2", lease)
	if got := ending(t, w, undoing(w, c)); got != job.Applied && got != job.Refused || undone(t, w) != 0 {
		t.Errorf("finish: %v, %d compensations", got, undone(t, w))
	}
	if j := now(t, w, "k"); j.Status != job.Processing {
		t.Errorf("the job: %+v", j)
	}
}

func testCompensateHeld(t *testing.T, w World) {
	accept(t, w, submission(w, "k", `{}`))
	c := claim(t, w, "alive", lease)
	e := undoing(w, c)
	e.IfExpired, e.Attempt = true, job.AttemptLost
	if got := ending(t, w, e); got != job.Refused || undone(t, w) != 0 {
		t.Errorf("finish: %v, %d compensations", got, undone(t, w))
	}
	if !finish(t, w, succeed(c.Lease)) {
		t.Fatal("not finished")
	}
	accept(t, w, submission(w, "l", `{}`))
	e = undoing(w, lose(t, w))
	e.IfExpired, e.Attempt = true, job.AttemptLost
	if got := ending(t, w, e); got != job.Applied || undone(t, w) != 1 {
		t.Errorf("finish of a lost one: %v, %d compensations", got, undone(t, w))
	}
}

func testCompensateCancelling(t *testing.T, w World) {
	accept(t, w, submission(w, "k", `{}`))
	c := claim(t, w, "w", lease)
	if asked, err := w.Repo.RequestCancel(t.Context(), c.Lease); err != nil || !asked {
		t.Fatalf("%v, %v", asked, err)
	}
	if got := ending(t, w, undoing(w, c)); got != job.CancelPending || undone(t, w) != 0 {
		t.Errorf("finish: %v, %d compensations", got, undone(t, w))
	}
}

// testCompensateQueue: whatever the type says of conflicts, no compensation is lost.
func testCompensateQueue(t *testing.T, w World) {
	accept(t, w, submission(w, "holder", `{}`, ofType("undo"), withBusinessKey("order", job.ConflictReject)))
	for _, key := range []string{"k", "l"} {
		accept(t, w, submission(w, key, `{}`))
		c := claim(t, w, "w", lease)
		if got := ending(t, w, undoing(w, c, withBusinessKey("order", job.ConflictReturn))); got != job.Applied {
			t.Fatalf("finish: %v", got)
		}
	}
	if n := count(t, w, `select count(*) from jobs where type = 'undo' and blocked`); n != 2 {
		t.Errorf("%d wait", n)
	}
	for range 3 {
		claimed, err := w.Repo.Claim(t.Context(), job.Claiming{Type: "undo", Max: 5, Worker: "w", Lease: lease})
		if err != nil || len(claimed) != 1 || !finish(t, w, succeed(claimed[0].Lease)) {
			t.Fatalf("%d claimed, %v", len(claimed), err)
		}
		if _, err := w.Repo.Unblock(t.Context(), 5); err != nil {
			t.Fatal(err)
		}
	}
}

func testCompensateBatch(t *testing.T, w World) {
	acceptN(t, w, 5)
	all, err := w.Repo.Claim(t.Context(), job.Claiming{Type: kind, Max: 5, Worker: "w", Lease: lease})
	if err != nil || len(all) != 5 {
		t.Fatalf("%d claimed, %v", len(all), err)
	}
	stale, staleUndo := succeed(all[3].Lease), undoing(w, all[4])
	stale.Lease.Token++
	staleUndo.Lease.Token++
	got, err := w.Repo.Finish(t.Context(), []job.Ending{succeed(all[0].Lease), undoing(w, all[1]), stale, staleUndo, undoing(w, all[2])})
	want := []job.Application{job.Applied, job.Applied, job.Refused, job.Refused, job.Applied}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("finish: %v, %v", got, err)
	}
	if n := undone(t, w); n != 2 {
		t.Errorf("%d compensations", n)
	}
}
