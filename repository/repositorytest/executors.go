package repositorytest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sekali/sekali/job"
)

var overseeing = cases{
	"Row114 what runs and what waits":                        testOverview,
	"Row114 no more than so many running jobs are listed":    testOverviewListed,
	"Row114 workers are those that were heard of":            testWorkers,
	"Row114 how attempts ended and how long they took":       testTallies,
	"Row114 the times of one bucket are spread over it":      testTalliesSpread,
	"Row114a a pause is kept from its beginning to its end":  testPauseKept,
	"what is not shown any more goes with the reaper":        testOverviewForgotten,
	"an overview of nothing is empty":                        testOverviewEmpty,
	"Q7 the overview reads indexes of unfinished jobs alone": testOverviewAfterEnds,
}

func overview(t *testing.T, w World) job.Overview {
	t.Helper()
	o, err := w.Repo.Overview(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// overviewOf is the overview of the type that most cases use.
func overviewOf(t *testing.T, w World) job.TypeOverview {
	t.Helper()
	found := overview(t, w).Types[kind]
	if found == nil {
		t.Fatal("the type is not known")
	}
	return *found
}

func testOverview(t *testing.T, w World) {
	accept(t, w, submission(w, "runs", `{}`))
	c := claim(t, w, "worker 1", lease)
	accept(t, w, submission(w, "retries", `{}`))
	if !requeue(t, w, retry(claim(t, w, "w", lease).Lease, time.Hour)) {
		t.Fatal("not requeued")
	}
	end(t, w, "done", keep)
	accept(t, w, submission(w, "waits 1", `{}`))
	accept(t, w, submission(w, "waits 2", `{}`))
	accept(t, w, submission(w, "later", `{}`, scheduledIn(time.Hour)))
	for i := range 4 {
		accept(t, w, submission(w, fmt.Sprint("queued ", i), `{}`, ofType("other"), withBusinessKey("order", job.ConflictQueue)))
	}
	o := overview(t, w)
	if len(o.Types) != 2 || o.Capped || len(o.Workers) != 0 {
		t.Errorf("overview: %+v", o)
	}
	got := overviewOf(t, w)
	if got.Waiting != (job.Waiting{Pending: 2, Scheduled: 1, Retrying: 1}) || got.Busy != 1 || !got.PausedAt.IsZero() {
		t.Errorf("overview: %+v", got)
	}
	want := job.Running{
		ID: c.ID, Tenant: tenant, Key: "runs", Type: kind, Attempt: 1, WorkerID: "worker 1", StartedAt: c.ClaimedAt, LeaseEndsAt: c.LeaseEndsAt,
	}
	if !slices.Equal(got.Running, []job.Running{want}) {
		t.Errorf("running %+v, want %+v", got.Running, want)
	}
	if other := o.Types["other"]; other == nil || other.Waiting != (job.Waiting{Pending: 1, Blocked: 3}) || other.Busy != 0 {
		t.Errorf("the other type: %+v", other)
	}
}

func testOverviewListed(t *testing.T, w World) {
	const most = job.RunningListed + 5
	acceptN(t, w, most)
	accept(t, w, submission(w, "other", `{}`, ofType("other")))
	for name, n := range map[job.Type]int{kind: most, "other": 1} {
		if claimed, err := w.Repo.Claim(t.Context(), job.Claiming{Type: name, Max: n, Worker: "w", Lease: lease}); err != nil || len(claimed) != n {
			t.Fatalf("%d claimed, %v", len(claimed), err)
		}
	}
	got := overviewOf(t, w)
	if len(got.Running) != job.RunningListed || got.Busy != most {
		t.Errorf("%d listed of %d", len(got.Running), got.Busy)
	}
	byPlace := func(a, b job.Running) int {
		if a.ID.Slot() != b.ID.Slot() {
			return int(a.ID.Slot()) - int(b.ID.Slot())
		}
		return slices.Compare([]byte(a.ID), []byte(b.ID))
	}
	if !slices.IsSortedFunc(got.Running, byPlace) {
		t.Error("the list has another order each time")
	}
	if other := overview(t, w).Types["other"]; len(other.Running) != 1 || other.Busy != 1 {
		t.Errorf("the other type: %+v", other)
	}
}

func testWorkers(t *testing.T, w World) {
	report := func(worker job.Worker) {
		if err := w.Repo.Report(t.Context(), worker, nil); err != nil {
			t.Fatal(err)
		}
	}
	report(job.Worker{ID: "b", Slots: 4, Types: []job.Type{kind}})
	report(job.Worker{ID: "a", Slots: 8, Types: []job.Type{kind, "other"}})
	report(job.Worker{ID: "b", Slots: 5})
	got := overview(t, w).Workers
	if len(got) != 2 || got[0].ID != "a" || got[0].Slots != 8 || !slices.Equal(got[0].Types, []job.Type{kind, "other"}) ||
		got[1].ID != "b" || got[1].Slots != 5 || len(got[1].Types) != 0 || !within(got[0].SeenAt, w.Repo.Clock().Now(), time.Minute) {
		t.Errorf("workers: %+v", got)
	}
	execute(t, w, `update workers set seen_at = $1 where id = 'a'`, stored(w, -2*time.Minute))
	if got := overview(t, w).Workers; len(got) != 1 || got[0].ID != "b" {
		t.Errorf("workers: %+v", got)
	}
	report(job.Worker{ID: "a", Slots: 1})
	for range 2 {
		if err := w.Repo.Leave(t.Context(), "b"); err != nil {
			t.Error(err)
		}
	}
	if got := overview(t, w).Workers; len(got) != 1 || got[0].ID != "a" {
		t.Errorf("workers: %+v", got)
	}
}

// stored is the time so far from now, as both engines take it.
func stored(w World, d time.Duration) string {
	return w.Repo.Clock().Now().Add(d).Format("2006-01-02T15:04:05.000Z")
}

func testTallies(t *testing.T, w World) {
	hour := len(job.TallyBuckets)
	done := []job.Tally{
		{Type: kind, Outcome: job.AttemptSucceeded, Bucket: 3, Count: 4, Total: 32 * time.Millisecond},
		{Type: "other", Outcome: job.AttemptSucceeded, Bucket: hour, Count: 2, Total: 4 * time.Hour},
		{Type: kind, Outcome: job.AttemptFailed, Bucket: 3, Count: 1, Total: 8 * time.Millisecond},
		{Type: kind, Outcome: job.AttemptReleased, Bucket: 17, Count: 3, Total: 3 * time.Hour},
		{Type: kind, Outcome: job.AttemptLost, Bucket: 14, Count: 1, Total: 31 * time.Second},
	}
	for range 2 {
		if err := w.Repo.Report(t.Context(), job.Worker{ID: "w"}, done); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Repo.Report(t.Context(), job.Worker{ID: "w"}, []job.Tally{
		{Type: kind, Outcome: job.AttemptCancelled, Bucket: 0, Count: 1, Total: time.Millisecond},
	}); err != nil {
		t.Fatal(err)
	}
	got := overviewOf(t, w).Ended
	if got.Succeeded != 8 || got.Failed != 2 || got.Lost != 2 || got.Released != 6 || got.Cancelled != 1 {
		t.Errorf("ended: %+v", got)
	}
	// 13 attempts took 64 + 16 + 62,000 + 1 milliseconds; the released ones do not count.
	if want := 62081 * time.Millisecond / 13; got.Mean != want {
		t.Errorf("mean %v, want %v", got.Mean, want)
	}
	// Of 13 the longest two took between half a minute and a minute.
	if got.P95 < 30*time.Second || got.P95 > time.Minute {
		t.Errorf("p95 %v", got.P95)
	}
	if other := overview(t, w).Types["other"].Ended; other.Succeeded != 4 || other.Mean != 2*time.Hour || other.P95 < time.Hour || other.P95 > 2*time.Hour {
		t.Errorf("the other type: %+v", other)
	}
	// If a minute began between the reports, rows of two would become equal.
	execute(t, w, `delete from attempt_tallies where minute < (select max(minute) from attempt_tallies)`)
	execute(t, w, `update attempt_tallies set minute = $1`, stored(w, -61*time.Minute))
	if o := overview(t, w); len(o.Types) != 0 {
		t.Errorf("after an hour: %+v", o.Types[kind])
	}
}

func testTalliesSpread(t *testing.T, w World) {
	// 100 attempts in one bucket, of 50 to 100 ms: the 95th ends at 97.5 ms.
	err := w.Repo.Report(t.Context(), job.Worker{ID: "w"}, []job.Tally{{Type: kind, Outcome: job.AttemptSucceeded, Bucket: 6, Count: 100, Total: 7 * time.Second}})
	if err != nil {
		t.Fatal(err)
	}
	got := overviewOf(t, w).Ended
	if want := 97500 * time.Microsecond; !within(time.Time{}.Add(got.P95), time.Time{}.Add(want), time.Microsecond) || got.Mean != 70*time.Millisecond {
		t.Errorf("ended: %+v", got)
	}
}

func testPauseKept(t *testing.T, w World) {
	pause := func() time.Time {
		if err := w.Repo.Pause(t.Context(), kind); err != nil {
			t.Fatal(err)
		}
		return overviewOf(t, w).PausedAt
	}
	if at := pause(); !within(at, w.Repo.Clock().Now(), time.Minute) {
		t.Errorf("paused at %v", at)
	}
	execute(t, w, `update type_state set paused_at = $1`, stored(w, -time.Hour))
	if at := pause(); !within(at, w.Repo.Clock().Now().Add(-time.Hour), time.Minute) {
		t.Errorf("paused again at %v", at)
	}
	accept(t, w, submission(w, "k", `{}`))
	for _, repo := range repos(w) {
		if claimed, err := repo.Claim(t.Context(), job.Claiming{Type: kind, Max: 5, Worker: "w", Lease: lease}); err != nil || len(claimed) != 0 {
			t.Errorf("%d claimed, %v", len(claimed), err)
		}
	}
	for range 2 {
		if err := w.Repo.Resume(t.Context(), kind); err != nil {
			t.Fatal(err)
		}
	}
	claim(t, w, "w", lease)
	if got := overviewOf(t, w).PausedAt; !got.IsZero() {
		t.Errorf("paused at %v", got)
	}
	if err := w.Repo.Resume(t.Context(), "never paused"); err != nil {
		t.Error(err)
	}
}

func testOverviewForgotten(t *testing.T, w World) {
	for _, id := range []string{"old", "new"} {
		if err := w.Repo.Report(t.Context(), job.Worker{ID: id}, []job.Tally{{Type: job.Type(id), Outcome: job.AttemptSucceeded, Count: 1}}); err != nil {
			t.Fatal(err)
		}
	}
	execute(t, w, `update workers set seen_at = $1 where id = 'old'`, stored(w, -11*time.Minute))
	execute(t, w, `update workers set seen_at = $1 where id = 'new'`, stored(w, -9*time.Minute))
	execute(t, w, `update attempt_tallies set minute = $1 where type = 'old'`, stored(w, -25*time.Hour))
	execute(t, w, `update attempt_tallies set minute = $1 where type = 'new'`, stored(w, -23*time.Hour))
	reap(t, w)
	if n := count(t, w, `select count(*) from workers where id = 'new'`) + count(t, w, `select count(*) from attempt_tallies where type = 'new'`); n != 2 {
		t.Errorf("%d of the two new ones are left", n)
	}
	if n := count(t, w, `select count(*) from workers`) + count(t, w, `select count(*) from attempt_tallies`); n != 2 {
		t.Errorf("%d are left", n)
	}
}

func testOverviewEmpty(t *testing.T, w World) {
	if o := overview(t, w); o.Types == nil || len(o.Types) != 0 || len(o.Workers) != 0 || o.Capped {
		t.Errorf("overview: %+v", o)
	}
	if err := w.Repo.Report(t.Context(), job.Worker{ID: "w"}, nil); err != nil {
		t.Error(err)
	}
	if o := overview(t, w); len(o.Types) != 0 || len(o.Workers) != 1 {
		t.Errorf("overview: %+v", o)
	}
}

func testOverviewAfterEnds(t *testing.T, w World) {
	end(t, w, "k", keep)
	if o := overview(t, w); len(o.Types) != 0 {
		t.Errorf("a finished job is waiting or running: %+v", o.Types[kind])
	}
}
