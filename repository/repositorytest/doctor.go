package repositorytest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sekali/sekali/job"
	"github.com/sekali/sekali/repository"
)

var examining = cases{
	"a sound database has nothing to tell": testExamineNothing,
	"jobs that tell of trouble":            testExamineTroubles,
	"jobs in good order tell of none":      testExamineGoodOrder,
	"the oldest job of each type":          testExamineOldest,
	"trying to write leaves nothing":       testTryWrite,
}

func readJobs(t *testing.T, w World) repository.JobsReading {
	t.Helper()
	reading, err := w.Repo.ReadJobs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return reading
}

func testExamineNothing(t *testing.T, w World) {
	server, err := w.Repo.ReadServer(t.Context())
	if err != nil || server.Version == "" || server.RoundTrip <= 0 || server.Ahead.Abs() > time.Second {
		t.Errorf("server %+v, %v", server, err)
	}
	if upkeep, err := w.Repo.ReadUpkeep(t.Context()); err != nil || len(upkeep.InvalidIndexes)+len(upkeep.Transactions)+len(upkeep.Unvacuumed) > 0 {
		t.Errorf("upkeep %+v, %v", upkeep, err)
	}
	got := readJobs(t, w)
	if len(got.Overdue)+len(got.Waiting)+len(got.Silent)+len(got.Unknown)+got.NotMoved+got.Reapable+len(got.Overview.Types) > 0 || got.Now.IsZero() {
		t.Errorf("jobs %+v", got)
	}
}

// longAgo is further back than anything healthy lies.
const longAgo = -2 * time.Hour

func testExamineTroubles(t *testing.T, w World) {
	accept(t, w, submission(w, "stuck", `{}`))
	claim(t, w, "dead", longAgo)
	fails(t, w, "unknown", parked)
	fails(t, w, "known")
	accept(t, w, submission(w, "due", `{}`, scheduledIn(longAgo)))
	end(t, w, "expired", longAgo)
	if err := w.Repo.Report(t.Context(), job.Worker{ID: "silent", Slots: 3, Types: []job.Type{"a"}}, nil); err != nil {
		t.Fatal(err)
	}
	execute(t, w, `update workers set seen_at = $1`, "2026-01-01T00:00:00.000Z")

	got := readJobs(t, w)
	if len(got.Overdue) != 1 || got.Overdue[0].Key != "stuck" || got.Overdue[0].WorkerID != "dead" || got.Now.Sub(got.Overdue[0].Ended) < time.Hour {
		t.Errorf("overdue %+v", got.Overdue)
	}
	if !slices.Equal(got.Unknown, []string{"unknown"}) || got.NotMoved != 1 || got.Reapable != 1 {
		t.Errorf("unknown %q, not moved %d, reapable %d", got.Unknown, got.NotMoved, got.Reapable)
	}
	if len(got.Silent) != 1 || got.Silent[0].ID != "silent" || got.Silent[0].Slots != 3 || len(got.Overview.Workers) != 0 {
		t.Errorf("silent %+v of %+v", got.Silent, got.Overview.Workers)
	}
}

func testExamineGoodOrder(t *testing.T, w World) {
	accept(t, w, submission(w, "runs", `{}`))
	claim(t, w, "w", lease)
	accept(t, w, submission(w, "later", `{}`, scheduledIn(time.Hour)))
	end(t, w, "done", keep)
	if err := w.Repo.Report(t.Context(), job.Worker{ID: "w", Slots: 3}, nil); err != nil {
		t.Fatal(err)
	}
	got := readJobs(t, w)
	if len(got.Overdue)+len(got.Silent)+len(got.Unknown)+got.NotMoved+got.Reapable > 0 || len(got.Overview.Workers) != 1 {
		t.Errorf("%+v", got)
	}
}

func testExamineOldest(t *testing.T, w World) {
	want := map[job.Type]time.Time{}
	for _, name := range []job.Type{"b", "a", "zz", "c"} {
		for i := range 3 {
			s := submission(w, fmt.Sprint(name, i), `{}`, ofType(name))
			s.Job.RunAt = s.Job.RunAt.Add(-time.Duration(i) * time.Minute)
			want[name] = accept(t, w, s).RunAt
		}
	}
	accept(t, w, submission(w, "later", `{}`, ofType("later"), scheduledIn(time.Hour)))
	accept(t, w, submission(w, "holds", `{}`, ofType("held"), withBusinessKey("order", job.ConflictQueue)))
	accept(t, w, submission(w, "waits", `{}`, ofType("held"), withBusinessKey("order", job.ConflictQueue)))
	if claimed, err := w.Repo.Claim(t.Context(), job.Claiming{Type: "held", Max: 1, Worker: "w", Lease: lease}); err != nil || len(claimed) != 1 {
		t.Fatalf("%d claimed, %v", len(claimed), err)
	}
	var names []job.Type
	for _, oldest := range readJobs(t, w).Waiting {
		names = append(names, oldest.Type)
		if !oldest.Due.Equal(want[oldest.Type]) {
			t.Errorf("%s waits since %v, want %v", oldest.Type, oldest.Due, want[oldest.Type])
		}
	}
	if !slices.Equal(names, []job.Type{"a", "b", "c", "zz"}) {
		t.Errorf("types %q", names)
	}
}

func testTryWrite(t *testing.T, w World) {
	accept(t, w, submission(w, "k", `{}`))
	end(t, w, "done", keep)
	for range 2 {
		if err := w.Repo.TryWrite(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if n := count(t, w, `select count(*) from workers`); n != 0 {
		t.Errorf("%d workers", n)
	}
	if n := count(t, w, `select count(*) from jobs`) + count(t, w, `select count(*) from finished_jobs`); n != 2 {
		t.Errorf("%d jobs", n)
	}
}
