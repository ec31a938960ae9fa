package repositorytest

import (
	"fmt"
	"testing"
	"time"

	"github.com/sekali/sekali/job"
)

var remembering = cases{
	"Row113 attempts are told as they ended":            testAttempts,
	"Row113 events are told in their order":             testEvents,
	"Row113 many events are stored at once":             testEventsMany,
	"Row113 events of jobs that are not there are none": testEventsNowhere,
	"C31 events and attempts go with their job":         testEventsReaped,
}

func testAttempts(t *testing.T, w World) {
	accept(t, w, submission(w, "k", `{}`))
	first := claim(t, w, "w1", lease)
	if got, err := w.Repo.Attempts(t.Context(), first.ID); err != nil || len(got) != 0 {
		t.Errorf("before the end: %+v, %v", got, err)
	}
	if !requeue(t, w, job.Requeue{Lease: first.Lease, Status: job.Pending, Attempt: job.AttemptReleased, Uncounted: true}) {
		t.Fatal("not released")
	}
	second := claim(t, w, "w2", lease)
	if !requeue(t, w, retry(second.Lease, 0)) {
		t.Fatal("not requeued")
	}
	promote(t, w, 5)
	if !finish(t, w, succeed(claim(t, w, "w3", lease).Lease)) {
		t.Fatal("not finished")
	}
	got, err := w.Repo.Attempts(t.Context(), first.ID)
	if err != nil || len(got) != 3 {
		t.Fatalf("%+v, %v", got, err)
	}
	for i, want := range []job.Attempt{
		{Number: 1, Token: 1, Outcome: job.AttemptReleased, WorkerID: "w1"},
		{Number: 1, Token: 2, Outcome: job.AttemptFailed, WorkerID: "w2"},
		{Number: 2, Token: 3, Outcome: job.AttemptSucceeded, WorkerID: "w3"},
	} {
		a := got[i]
		if a.Number != want.Number || a.Token != want.Token || a.Outcome != want.Outcome || a.WorkerID != want.WorkerID {
			t.Errorf("attempt %d: %+v", i, a)
		}
		if (a.Failure != nil) != (want.Outcome == job.AttemptFailed) || a.FinishedAt.Before(a.StartedAt) || !within(a.StartedAt, w.Repo.Clock().Now(), time.Minute) {
			t.Errorf("attempt %d: %+v", i, a)
		}
	}
	if f := got[1].Failure; f == nil || f.Code != "http-status" || f.Attempt != 1 {
		t.Errorf("failure: %+v", f)
	}
}

func testEvents(t *testing.T, w World) {
	j, other := accept(t, w, submission(w, "k", `{}`)), accept(t, w, submission(w, "other", `{}`))
	first := []job.Event{
		{JobID: j.ID, Name: job.EventLockRefused, Attempt: 1, Data: map[string]any{"lock_key": "a", "n": 1}},
		{JobID: other.ID, Name: job.EventMismatch},
		{JobID: j.ID, Name: job.EventReplayed},
		{JobID: j.ID, Name: "something_new", Attempt: 2, Data: map[string]any{"nothing": nil}},
	}
	if err := w.Repo.Record(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	passes(w, w.Repo.Clock().Now().Add(time.Millisecond)) // events of one millisecond have no order, and the time may be rounded up
	if err := w.Repo.Record(t.Context(), []job.Event{{JobID: j.ID, Name: job.EventLockLost}}); err != nil {
		t.Fatal(err)
	}
	got := events(t, w, j.ID)
	var names []job.EventName
	ids := map[string]bool{}
	for i, e := range got {
		names = append(names, e.Name)
		ids[e.ID] = true
		if e.JobID != j.ID || !within(e.Time, w.Repo.Clock().Now(), time.Minute) || i > 0 && e.Time.Before(got[i-1].Time) {
			t.Errorf("event %d: %+v", i, e)
		}
	}
	if want := "[lock_refused replayed something_new lock_lost]"; fmt.Sprint(names) != want || len(ids) != 4 {
		t.Errorf("events %v, want %s", names, want)
	}
	if e := got[0]; e.Attempt != 1 || e.Data["lock_key"] != "a" || e.Data["n"] != 1.0 {
		t.Errorf("event: %+v", e)
	}
	if e := got[1]; e.Attempt != 0 || e.Data != nil {
		t.Errorf("event: %+v", e)
	}
}

func testEventsMany(t *testing.T, w World) {
	const most = 1203 // more than two statements
	j := accept(t, w, submission(w, "k", `{}`))
	all := make([]job.Event, most)
	for i := range all {
		all[i] = job.Event{JobID: j.ID, Name: job.EventReplayed, Data: map[string]any{"n": i}}
	}
	if err := w.Repo.Record(t.Context(), all); err != nil {
		t.Fatal(err)
	}
	got := events(t, w, j.ID)
	if len(got) != most {
		t.Fatalf("%d events", len(got))
	}
	for i, e := range got {
		if e.Data["n"] != float64(i) {
			t.Fatalf("event %d is %v", i, e.Data)
		}
	}
}

func testEventsNowhere(t *testing.T, w World) {
	ended := end(t, w, "ended", keep)
	err := w.Repo.Record(t.Context(), []job.Event{
		{JobID: job.NewID(w.Repo.Clock().Now(), 7), Name: job.EventReplayed},
		{JobID: "no id at all", Name: job.EventReplayed},
		{Name: job.EventReplayed},
		{JobID: ended.ID, Name: job.EventReplayed},
	})
	if err != nil {
		t.Error(err)
	}
	if n := count(t, w, `select count(*) from job_events`); n != 1 || len(events(t, w, ended.ID)) != 1 {
		t.Errorf("%d events", n)
	}
	if err := w.Repo.Record(t.Context(), nil); err != nil {
		t.Error(err)
	}
	if err := w.Repo.Record(t.Context(), []job.Event{{JobID: ended.ID, Name: "bad", Data: map[string]any{"f": func() {}}}}); err == nil {
		t.Error("what is no JSON was stored")
	}
}

func testEventsReaped(t *testing.T, w World) {
	gone, stays := end(t, w, "gone", over), end(t, w, "stays", keep)
	both := []job.Event{{JobID: gone.ID, Name: job.EventReplayed}, {JobID: stays.ID, Name: job.EventReplayed}}
	if err := w.Repo.Record(t.Context(), both); err != nil {
		t.Fatal(err)
	}
	reap(t, w)
	for j, want := range map[job.ID]int{gone.ID: 0, stays.ID: 1} {
		kept, err := w.Repo.Attempts(t.Context(), j)
		if err != nil || len(kept) != want || len(events(t, w, j)) != want {
			t.Errorf("%d attempts and %d events, want %d; %v", len(kept), len(events(t, w, j)), want, err)
		}
	}
}
