package repositorytest

import (
	"sync"
	"testing"
	"time"

	"github.com/sekali/sekali/job"
)

var recurring = cases{
	"a schedule begins once and anew with another definition":    testScheduleBegins,
	"Q22 what is settled stays so, whoever says it last":         testScheduleSettles,
	"a failure is shown until the firing is made or left out":    testScheduleFails,
	"Q22 processes that begin and settle at once do not go back": testScheduleRaces,
}

const hourly = "0 * * * * UTC"

// hour is a time of day of the day that the cases are about.
func hour(h int) time.Time { return time.Date(2026, 3, 8, h, 0, 0, 0, time.UTC) }

// scheduleState reads the one schedule that there is.
func scheduleState(t *testing.T, w World) job.ScheduleState {
	t.Helper()
	states, err := w.Repo.ScheduleStates(t.Context())
	if err != nil || len(states) != 1 {
		t.Fatalf("states %+v, %v", states, err)
	}
	return states[0]
}

func wantState(t *testing.T, w World, want job.ScheduleState) {
	t.Helper()
	want.Name = "nightly"
	if got := scheduleState(t, w); got != want {
		t.Errorf("state %+v\nwant  %+v", got, want)
	}
}

// must fails the case if one of the calls has failed.
func must(t *testing.T, errs ...error) {
	t.Helper()
	for i, err := range errs {
		if err != nil {
			t.Fatalf("call %d: %v", i, err)
		}
	}
}

func testScheduleBegins(t *testing.T, w World) {
	if states, err := w.Repo.ScheduleStates(t.Context()); err != nil || len(states) != 0 {
		t.Fatalf("states %+v, %v", states, err)
	}
	begin := hour(9).Add(250 * time.Millisecond)
	must(t, w.Repo.BeginSchedule(t.Context(), "nightly", hourly, begin), w.Repo.BeginSchedule(t.Context(), "nightly", hourly, hour(12)))
	wantState(t, w, job.ScheduleState{Definition: hourly, LastTime: begin})
	must(t, w.Repo.SettleFiring(t.Context(), "nightly", hourly, hour(10)), w.Repo.FailFiring(t.Context(), "nightly", hourly, hour(11), "quota"),
		w.Repo.BeginSchedule(t.Context(), "nightly", "@daily UTC", hour(12)))
	wantState(t, w, job.ScheduleState{Definition: "@daily UTC", LastTime: hour(12), FiredTime: hour(10)})
}

func testScheduleSettles(t *testing.T, w World) {
	must(t, w.Repo.SettleFiring(t.Context(), "nightly", hourly, hour(9))) // nobody has begun it
	must(t, w.Repo.BeginSchedule(t.Context(), "nightly", hourly, hour(9)))
	for _, h := range []int{10, 12, 11, 12, 8} { // another process is behind
		must(t, w.Repo.SettleFiring(t.Context(), "nightly", hourly, hour(h)))
	}
	wantState(t, w, job.ScheduleState{Definition: hourly, LastTime: hour(12), FiredTime: hour(12)})
	must(t, w.Repo.SkipFirings(t.Context(), "nightly", hourly, hour(15), ""), w.Repo.SkipFirings(t.Context(), "nightly", hourly, hour(14), "late"))
	wantState(t, w, job.ScheduleState{Definition: hourly, LastTime: hour(15), FiredTime: hour(12)})
	must(t, w.Repo.SettleFiring(t.Context(), "nightly", "@daily UTC", hour(20)), w.Repo.SkipFirings(t.Context(), "nightly", "@daily UTC", hour(20), "x"))
	wantState(t, w, job.ScheduleState{Definition: hourly, LastTime: hour(15), FiredTime: hour(12)})
}

func testScheduleFails(t *testing.T, w World) {
	must(t, w.Repo.BeginSchedule(t.Context(), "nightly", hourly, hour(9)), w.Repo.FailFiring(t.Context(), "nightly", hourly, hour(10), "quota"))
	wantState(t, w, job.ScheduleState{Definition: hourly, LastTime: hour(9), LastError: "quota"})
	must(t, w.Repo.SkipFirings(t.Context(), "nightly", hourly, hour(10), ""))
	wantState(t, w, job.ScheduleState{Definition: hourly, LastTime: hour(10), LastError: "quota"})
	must(t, w.Repo.SkipFirings(t.Context(), "nightly", hourly, hour(11), "its key was taken"))
	wantState(t, w, job.ScheduleState{Definition: hourly, LastTime: hour(11), LastError: "its key was taken"})
	must(t, w.Repo.SettleFiring(t.Context(), "nightly", hourly, hour(12)), w.Repo.FailFiring(t.Context(), "nightly", hourly, hour(12), "slow"))
	wantState(t, w, job.ScheduleState{Definition: hourly, LastTime: hour(12), FiredTime: hour(12)})
}

func testScheduleRaces(t *testing.T, w World) {
	processes := []job.ScheduleStates{w.Repo, w.Repo}
	if w.Another != nil {
		processes = append(processes, w.Another())
	}
	var all sync.WaitGroup
	failed := make(chan error, 1000)
	for _, p := range processes {
		all.Go(func() {
			failed <- p.BeginSchedule(t.Context(), "nightly", hourly, hour(0))
			for h := range 20 {
				failed <- p.SettleFiring(t.Context(), "nightly", hourly, hour(h))
			}
			failed <- p.BeginSchedule(t.Context(), "nightly", hourly, hour(1))
		})
	}
	all.Wait()
	close(failed)
	for err := range failed {
		must(t, err)
	}
	wantState(t, w, job.ScheduleState{Definition: hourly, LastTime: hour(19), FiredTime: hour(19)})
}
