package repositorytest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sekali/sekali/job"
)

func testRetry(t *testing.T, w World) {
	accept(t, w, submission(w, "k", `{}`, func(s *job.Submission) { s.Job.Priority = 3 }))
	first := claim(t, w, "w", lease)
	if !requeue(t, w, retry(first.Lease, time.Minute)) {
		t.Fatal("not requeued")
	}
	j := now(t, w, "k")
	if j.Status != job.Retrying || j.Attempts != 1 || j.Version != 3 || !j.LeaseEndsAt.IsZero() || j.LastError == nil || j.LastError.Code != "http-status" {
		t.Errorf("requeued: %+v", j)
	}
	if want := w.Repo.Clock().Now().Add(time.Minute); !within(j.NextAttemptAt, want, 5*time.Second) {
		t.Errorf("next attempt at %v, want %v", j.NextAttemptAt, want)
	}
	if types, next := promote(t, w, 5); len(types) != 0 || next <= 50*time.Second || next > time.Minute {
		t.Errorf("promoted %v, next in %v", types, next)
	}
	execute(t, w, `update jobs set run_at = (select min(created_at) from jobs)`)
	if types, _ := promote(t, w, 5); len(types) != 1 {
		t.Errorf("promoted %v", types)
	}
	second := claim(t, w, "w", lease)
	if second.Attempts != 2 || second.Lease.Token != first.Lease.Token+1 || !second.StartedAt.Equal(first.StartedAt) {
		t.Errorf("second claim: %+v", second)
	}
	if j = now(t, w, "k"); !j.NextAttemptAt.IsZero() || j.LastError == nil {
		t.Errorf("processing again: %+v", j)
	}
}

func testRelease(t *testing.T, w World) {
	accept(t, w, submission(w, "k", `{}`))
	accept(t, w, submission(w, "next", `{}`))
	for range 3 {
		c := claim(t, w, "w", lease)
		if c.Key != "k" || c.Attempts != 1 {
			t.Fatalf("claimed %s, attempt %d: a released job keeps its place and its attempt", c.Key, c.Attempts)
		}
		if !requeue(t, w, job.Requeue{Lease: c.Lease, Status: job.Pending, Attempt: job.AttemptReleased, Uncounted: true}) {
			t.Fatal("not released")
		}
	}
	j := now(t, w, "k")
	if j.Status != job.Pending || j.Attempts != 0 || j.LastError != nil {
		t.Errorf("released: %+v", j)
	}
	if got := attempts(t, w, j.ID); !slices.Equal(got, []string{"released", "released", "released"}) {
		t.Errorf("attempts %v", got)
	}
	if n := count(t, w, `select count(*) from job_attempts where number <> 1`); n != 0 {
		t.Errorf("%d attempts with another number than that of the attempt", n)
	}
}

func testRequeueTwice(t *testing.T, w World) {
	accept(t, w, submission(w, "k", `{}`))
	c := claim(t, w, "w", lease)
	for range 2 {
		if !requeue(t, w, retry(c.Lease, time.Hour)) {
			t.Error("not applied")
		}
	}
	if j := now(t, w, "k"); j.Version != 3 || j.Attempts != 1 {
		t.Errorf("requeued twice: %+v", j)
	}
}

func testIfExpired(t *testing.T, w World) {
	accept(t, w, submission(w, "k", `{}`))
	held := claim(t, w, "alive", lease)
	back := retry(held.Lease, 0)
	back.IfExpired = true
	if finish(t, w, lostEnding(held.Lease)) || requeue(t, w, back) {
		t.Fatal("a lease that is held was taken over")
	}
	if !finish(t, w, succeed(held.Lease)) {
		t.Error("the holder was refused")
	}
	accept(t, w, submission(w, "l", `{}`))
	accept(t, w, submission(w, "m", `{}`))
	if !finish(t, w, lostEnding(lose(t, w).Lease)) {
		t.Error("an expired lease was not ended")
	}
	back.Lease = lose(t, w).Lease
	if !requeue(t, w, back) {
		t.Error("an expired lease was not put back")
	}
}

func testExpired(t *testing.T, w World) {
	acceptN(t, w, 3)
	lost := lose(t, w)
	claim(t, w, "alive", lease)
	expired, err := w.Repo.Expired(t.Context(), "alive", 10)
	if err != nil || len(expired) != 1 {
		t.Fatalf("expired: %v, %v", expired, err)
	}
	e := expired[0]
	if e.Lease != lost.Lease || e.Attempts != 1 || e.MaxAttempts != 10 || e.WorkerID != "dead" || e.Type != kind || e.Key != lost.Key {
		t.Errorf("expired: %+v", e)
	}
	if !finish(t, w, lostEnding(e.Lease)) {
		t.Fatal("not ended")
	}
	if expired, err = w.Repo.Expired(t.Context(), "alive", 10); err != nil || len(expired) != 0 {
		t.Errorf("expired again: %v, %v", expired, err)
	}
}

func testExpiredPages(t *testing.T, w World) {
	const jobs, page = 7, 2
	acceptN(t, w, jobs)
	for range jobs {
		lose(t, w)
	}
	seen := map[job.ID]int{}
	for range (jobs + page - 1) / page {
		expired, err := w.Repo.Expired(t.Context(), "alive", page) // and none of them can be ended
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range expired {
			seen[e.ID]++
		}
	}
	if len(seen) != jobs {
		t.Errorf("%d of %d were seen", len(seen), jobs)
	}
	if expired, err := w.Repo.Expired(t.Context(), "alive", page); err != nil || len(expired) != page {
		t.Errorf("the walk does not begin again: %v, %v", expired, err)
	}
}

func testHeartbeatWins(t *testing.T, w World) {
	accept(t, w, submission(w, "k", `{}`))
	c := claim(t, w, "alive", gone) // as if the process had slept
	if kept, err := w.Repo.Extend(t.Context(), []job.Lease{c.Lease}, lease); err != nil || !kept[c.ID].Extended {
		t.Fatalf("not extended: %v", err)
	}
	if expired, err := w.Repo.Expired(t.Context(), "alive", 10); err != nil || len(expired) != 0 {
		t.Errorf("expired: %v, %v", expired, err)
	}
	if finish(t, w, lostEnding(c.Lease)) {
		t.Error("the heartbeat lost")
	}
}

func testBusinessLife(t *testing.T, w World) {
	for i := range 3 {
		key := fmt.Sprint("k", i)
		accept(t, w, submission(w, key, `{}`, withBusinessKey(key, job.ConflictReject), scheduledIn(time.Hour)))
	}
	execute(t, w, `update jobs set run_at = (select min(created_at) from jobs)`)
	for range 2 {
		promote(t, w, 5)
		claimed, err := w.Repo.Claim(t.Context(), job.Claiming{Type: kind, Max: 5, Worker: "w", Lease: lease})
		if err != nil || len(claimed) != 3 {
			t.Fatalf("%d claimed, %v", len(claimed), err)
		}
		for _, c := range claimed {
			if !requeue(t, w, retry(c.Lease, 0)) {
				t.Fatal("not requeued")
			}
		}
	}
}

func testPromote(t *testing.T, w World) {
	if types, next := promote(t, w, 5); len(types) != 0 || next != 0 {
		t.Errorf("of nothing: %v, %v", types, next)
	}
	for i := range 3 {
		accept(t, w, submission(w, fmt.Sprint("due", i), `{}`, scheduledIn(-time.Minute)))
	}
	accept(t, w, submission(w, "refund", `{}`, ofType("refund"), scheduledIn(-time.Minute)))
	accept(t, w, submission(w, "later", `{}`, scheduledIn(time.Hour)))
	types, next := promote(t, w, 10)
	slices.Sort(types)
	if !slices.Equal(types, []job.Type{kind, "refund"}) || next < 59*time.Minute || next > time.Hour {
		t.Errorf("promoted %v, next in %v", types, next)
	}
	if j := now(t, w, "due0"); j.Status != job.Pending || j.Version != 2 || !j.NextAttemptAt.IsZero() {
		t.Errorf("promoted: %+v", j)
	}
	if j := now(t, w, "later"); j.Status != job.Scheduled || j.Version != 1 {
		t.Errorf("not due: %+v", j)
	}
}

func testPromoteLimit(t *testing.T, w World) {
	for i := range 5 {
		accept(t, w, submission(w, fmt.Sprint("k", i), `{}`, scheduledIn(time.Duration(i-9)*time.Minute)))
	}
	if _, next := promote(t, w, 2); next <= 0 || next > time.Second {
		t.Errorf("more is due, but the next is in %v", next)
	}
	if n := count(t, w, `select count(*) from jobs where state = 'pending'`); n != 2 {
		t.Errorf("%d pending", n)
	}
	if j := now(t, w, "k0"); j.Status != job.Pending {
		t.Error("the one that is due longest was not the first")
	}
}
