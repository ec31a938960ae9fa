package repositorytest

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

var leasing = cases{
	"claim raises attempt, token and version":                      testClaim,
	"claim takes the earliest of the type, and no more than asked": testClaimOrder,
	"scheduled jobs are not claimed":                               testClaimScheduled,
	"extend prolongs what is held and is no transition":            testExtend,
	"finish moves the job once and for all":                        testFinish,
	"Row96 a result may be empty, and none is none":                testFinishResults,
	"a call whose answer was lost may be repeated":                 testFinishTwice,
	"Q1 Q32 a stale token changes nothing":                         testStale,
	"endings and requeues of a batch are judged one by one":        testMixedBatch,
	"retrying waits its time":                                      testRetry,
	"released attempts are not counted and keep their row":         testRelease,
	"a requeue may be repeated":                                    testRequeueTwice,
	"only expired leases are taken over":                           testIfExpired,
	"Q3 Q25 expired leases are listed":                             testExpired,
	"Q4 a full page does not hide the next one":                    testExpiredPages,
	"Q24 a job with a heartbeat is never taken over":               testHeartbeatWins,
	"Q28 BR-49 business keys pass through all states":              testBusinessLife,
	"promote makes due jobs pending and tells what comes next":     testPromote,
	"promote keeps to its limit":                                   testPromoteLimit,
	"nothing asked is nothing done":                                testNothing,
	"a claim tells all that a job is":                              testClaimWhole,
	"Row114 a paused type is not claimed":                          testPaused,
	"a job that is past its deadline does not start":               testDeadline,
	"a job that has started has no deadline any more":              testDeadlineStarted,
	"overdue jobs are listed, whatever they wait for":              testOverdue,
	"load reads an unfinished job with its payload":                testLoad,
	"a success marks the job's operation done":                     testOperationDone,
	"an operation of another job is left alone":                    testOperationOther,
}

func testClaim(t *testing.T, w World) {
	s := submission(w, "k", `{"a":1}`)
	accept(t, w, s)
	c := claim(t, w, "worker 1", lease)
	if c.Status != job.Processing || c.Attempts != 1 || c.Version != 2 || c.Lease.Token != 1 || c.Lease.ID != s.Job.ID {
		t.Errorf("claimed: %+v", c)
	}
	// SQLite reads the clock once for each of the two columns.
	if c.Token != 1 || !within(c.ClaimedAt, c.StartedAt, 5*time.Second) {
		t.Errorf("claimed: %+v", c)
	}
	if c.WorkerID != "worker 1" || !bytes.Equal(c.Payload, s.Job.Payload) || c.Timeout != s.Job.Timeout || c.MaxAttempts != 10 {
		t.Errorf("claimed: %+v", c)
	}
	clock := w.Repo.Clock().Now()
	if !within(c.StartedAt, clock, 5*time.Second) || !within(c.LeaseEndsAt, clock.Add(lease), 5*time.Second) {
		t.Errorf("started %v, lease ends %v, now %v", c.StartedAt, c.LeaseEndsAt, clock)
	}
	if again, err := w.Repo.Claim(t.Context(), job.Claiming{Type: kind, Max: 5, Worker: "worker 2", Lease: lease}); err != nil || len(again) != 0 {
		t.Errorf("claimed again: %v, %v", again, err)
	}
	if j := now(t, w, "k"); j.Status != job.Processing || j.LeaseEndsAt != c.LeaseEndsAt || j.StartedAt != c.StartedAt {
		t.Errorf("found: %+v", j)
	}
}

func testClaimOrder(t *testing.T, w World) {
	start := w.Repo.Clock().Now()
	add := func(key string, earlier time.Duration, priority int) {
		accept(t, w, submission(w, key, `{}`, func(s *job.Submission) {
			s.Job.RunAt, s.Job.Priority = start.Add(-earlier), priority
		}))
	}
	add("c", 0, 0)
	add("b", time.Second, 0)
	add("a", 0, -1)             // ten seconds of head start
	add("e", 15*time.Second, 2) // twenty seconds late
	add("d", 0, 0)
	accept(t, w, submission(w, "other", `{}`, ofType("refund")))
	var order []idempotency.Key
	for _, n := range []int{2, 10} {
		claimed, err := w.Repo.Claim(t.Context(), job.Claiming{Type: kind, Max: n, Worker: "w", Lease: lease})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range claimed {
			order = append(order, c.Key)
		}
	}
	if want := []idempotency.Key{"a", "b", "c", "d", "e"}; !slices.Equal(order, want) {
		t.Errorf("order %v, want %v", order, want)
	}
}

func testClaimScheduled(t *testing.T, w World) {
	accept(t, w, submission(w, "k", `{}`, scheduledIn(time.Hour)))
	if claimed, err := w.Repo.Claim(t.Context(), job.Claiming{Type: kind, Max: 5, Worker: "w", Lease: lease}); err != nil || len(claimed) != 0 {
		t.Errorf("claimed %v, %v", claimed, err)
	}
}

func testExtend(t *testing.T, w World) {
	acceptN(t, w, 2)
	first, second := claim(t, w, "w", lease), claim(t, w, "w", lease)
	if !finish(t, w, succeed(second.Lease)) {
		t.Fatal("not finished")
	}
	stale := job.Lease{ID: first.ID, Token: first.Lease.Token - 1}
	unknown := job.Lease{ID: job.NewID(first.CreatedAt, 9), Token: 1}
	kept, err := w.Repo.Extend(t.Context(), []job.Lease{second.Lease, first.Lease, unknown}, 3*lease)
	if err != nil || len(kept) != 1 || kept[first.ID] != (job.Kept{Extended: true}) {
		t.Errorf("kept %v, %v", kept, err)
	}
	j := now(t, w, first.Key)
	if want := first.LeaseEndsAt.Add(2 * lease); !within(j.LeaseEndsAt, want, 5*time.Second) || j.Version != first.Version {
		t.Errorf("lease ends %v, want %v; version %d, was %d", j.LeaseEndsAt, want, j.Version, first.Version)
	}
	if kept, err = w.Repo.Extend(t.Context(), []job.Lease{stale}, lease); err != nil || len(kept) != 0 {
		t.Errorf("a stale token kept %v, %v", kept, err)
	}
}

func testFinish(t *testing.T, w World) {
	accept(t, w, submission(w, "k", `{"a":1}`))
	c := claim(t, w, "worker 1", lease)
	e := succeed(c.Lease)
	e.Result = &job.Result{Body: []byte(`{"id":7}`), MediaType: "application/json"}
	e.Outcome, e.DuplicateOf = job.DuplicateIgnored, "earlier"
	if !finish(t, w, e) {
		t.Fatal("not applied")
	}
	j := now(t, w, "k")
	if j.Status != job.Succeeded || j.Version != 3 || j.Attempts != 1 || j.WorkerID != "worker 1" || !j.LeaseEndsAt.IsZero() {
		t.Errorf("finished: %+v", j)
	}
	if j.Result == nil || string(j.Result.Body) != `{"id":7}` || j.Result.MediaType != "application/json" {
		t.Errorf("result: %+v", j.Result)
	}
	if j.Outcome != job.DuplicateIgnored || j.DuplicateOf != "earlier" || j.LastError != nil || string(j.Payload) != `{"a":1}` {
		t.Errorf("finished: %+v", j)
	}
	if !within(j.FinishedAt, w.Repo.Clock().Now(), 5*time.Second) || !j.ExpiresAt.Equal(j.FinishedAt.Add(keep)) {
		t.Errorf("finished %v, expires %v", j.FinishedAt, j.ExpiresAt)
	}
	if n := count(t, w, `select count(*) from jobs`); n != 0 {
		t.Errorf("%d unfinished jobs", n)
	}
	if got := attempts(t, w, j.ID); !slices.Equal(got, []string{"succeeded"}) {
		t.Errorf("attempts %v", got)
	}
}

func testFinishResults(t *testing.T, w World) {
	for i, result := range []*job.Result{
		nil, {}, {Body: []byte{}, MediaType: "text/plain"}, {Body: []byte("x")},
	} {
		key := fmt.Sprint("k", i)
		accept(t, w, submission(w, key, `{}`))
		e := succeed(claim(t, w, "w", lease).Lease)
		e.Result = result
		if !finish(t, w, e) {
			t.Fatal("not finished")
		}
		got := now(t, w, idempotency.Key(key)).Result
		if (got == nil) != (result == nil) {
			t.Fatalf("%d: %v, want %v", i, got, result)
		}
		if got != nil && (!bytes.Equal(got.Body, result.Body) || got.MediaType != result.MediaType) {
			t.Errorf("%d: %+v, want %+v", i, got, result)
		}
	}
}

func testFinishTwice(t *testing.T, w World) {
	accept(t, w, submission(w, "k", `{}`))
	c := claim(t, w, "w", lease)
	for range 2 {
		if !finish(t, w, succeed(c.Lease)) {
			t.Error("not applied")
		}
	}
	other := succeed(c.Lease)
	other.Status, other.Attempt = job.Failed, job.AttemptFailed
	if finish(t, w, other) || requeue(t, w, retry(c.Lease, 0)) {
		t.Error("another end was applied to a finished job")
	}
	if j := now(t, w, "k"); j.Status != job.Succeeded || j.Version != 3 || len(attempts(t, w, j.ID)) != 1 {
		t.Errorf("job: %+v", j)
	}
}

// testStale: the rescuer has put the job back and somebody else runs it, when
// the first holder comes round again.
func testStale(t *testing.T, w World) {
	accept(t, w, submission(w, "k", `{}`))
	stale := lose(t, w)
	rescued := retry(stale.Lease, 0)
	rescued.Attempt, rescued.IfExpired = job.AttemptLost, true
	if !requeue(t, w, rescued) {
		t.Fatal("not rescued")
	}
	if finish(t, w, succeed(stale.Lease)) {
		t.Error("finished a job that waits")
	}
	promote(t, w, 5)
	holder := claim(t, w, "w2", lease)
	if holder.Lease.Token <= stale.Lease.Token {
		t.Fatalf("token %d after %d", holder.Lease.Token, stale.Lease.Token)
	}
	before := now(t, w, "k")
	kept, err := w.Repo.Extend(t.Context(), []job.Lease{stale.Lease}, lease)
	if err != nil || len(kept) != 0 {
		t.Errorf("extended: %v, %v", kept, err)
	}
	if finish(t, w, succeed(stale.Lease)) || requeue(t, w, retry(stale.Lease, 0)) {
		t.Error("a stale token was accepted")
	}
	if after := now(t, w, "k"); fmt.Sprintf("%+v", after.Version) != fmt.Sprintf("%+v", before.Version) || after.Status != job.Processing {
		t.Errorf("the job changed: %+v, was %+v", after, before)
	}
	if !finish(t, w, succeed(holder.Lease)) {
		t.Error("the holder was refused")
	}
	if got := attempts(t, w, holder.ID); !slices.Equal(got, []string{"lost", "succeeded"}) {
		t.Errorf("attempts %v", got)
	}
}

func testMixedBatch(t *testing.T, w World) {
	acceptN(t, w, 6)
	claimed, err := w.Repo.Claim(t.Context(), job.Claiming{Type: kind, Max: 6, Worker: "w", Lease: lease})
	if err != nil || len(claimed) != 6 {
		t.Fatalf("%d claimed, %v", len(claimed), err)
	}
	failed := succeed(claimed[3].Lease)
	failed.Status, failed.Attempt, failed.Failure = job.Failed, job.AttemptFailed, &job.Failure{Code: "x", Detail: "y", Attempt: 1}
	stale := claimed[1].Lease
	stale.Token++
	applied, err := w.Repo.Finish(t.Context(), []job.Ending{succeed(claimed[5].Lease), succeed(stale), failed})
	if err != nil || !slices.Equal(applied, []job.Application{job.Applied, job.Refused, job.Applied}) {
		t.Errorf("finish: %v, %v", applied, err)
	}
	stale = claimed[2].Lease
	stale.Token--
	applied, err = w.Repo.Requeue(t.Context(), []job.Requeue{retry(stale, 0), retry(claimed[4].Lease, 0), retry(claimed[0].Lease, time.Hour)})
	if err != nil || !slices.Equal(applied, []job.Application{job.Refused, job.Applied, job.Applied}) {
		t.Errorf("requeue: %v, %v", applied, err)
	}
	want := []job.Status{job.Retrying, job.Processing, job.Processing, job.Failed, job.Retrying, job.Succeeded}
	for i, c := range claimed {
		if j := now(t, w, c.Key); j.Status != want[i] {
			t.Errorf("%d is %s, want %s", i, j.Status, want[i])
		}
	}
	if j := now(t, w, claimed[3].Key); j.LastError == nil || *j.LastError != *failed.Failure {
		t.Errorf("error: %+v", j.LastError)
	}
}

func testNothing(t *testing.T, w World) {
	claimed, err := w.Repo.Claim(t.Context(), job.Claiming{Type: kind, Max: 0, Worker: "w", Lease: lease})
	if err != nil || len(claimed) != 0 {
		t.Errorf("claim: %v, %v", claimed, err)
	}
	kept, err := w.Repo.Extend(t.Context(), nil, lease)
	if err != nil || len(kept) != 0 {
		t.Errorf("extend: %v, %v", kept, err)
	}
	finished, err := w.Repo.Finish(t.Context(), nil)
	if err != nil || len(finished) != 0 {
		t.Errorf("finish: %v, %v", finished, err)
	}
	requeued, err := w.Repo.Requeue(t.Context(), nil)
	if err != nil || len(requeued) != 0 {
		t.Errorf("requeue: %v, %v", requeued, err)
	}
}
