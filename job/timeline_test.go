package job_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sekali/sekali/job"
)

// at is a time of the story, in seconds.
func at(seconds int) time.Time {
	return fixedClock{}.Now().Add(time.Duration(seconds) * time.Second)
}

func ran(token int64, number, from, to int, o job.Outcome) job.Attempt {
	a := job.Attempt{Number: number, Token: token, Outcome: o, WorkerID: fmt.Sprint("w-", token), StartedAt: at(from), FinishedAt: at(to)}
	if o == job.AttemptFailed || o == job.AttemptLost {
		a.Failure = &job.Failure{Code: "timeout", Attempt: number}
	}
	return a
}

func stored(id string, seconds int, name job.EventName, data map[string]any) job.Event {
	return job.Event{ID: id, Time: at(seconds), Name: name, Data: data}
}

// outline is the timeline in one line.
func outline(events []job.Event) string {
	var words []string
	for _, e := range events {
		word := fmt.Sprintf("%d:%s", int(e.Time.Sub(at(0)).Seconds()), e.Name)
		if e.Attempt > 0 {
			word += fmt.Sprintf("#%d", e.Attempt)
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

func TestContract_Row113_Timeline(t *testing.T) {
	t.Parallel()
	life := func(change func(*job.Job)) job.Job {
		j := job.Job{ID: "0198", Status: job.Pending, Generation: 1, CreatedAt: at(0)}
		change(&j)
		return j
	}
	tests := []struct {
		name     string
		job      job.Job
		attempts []job.Attempt
		stored   []job.Event
		want     string
	}{
		{"accepted", life(func(*job.Job) {}), nil, nil, "0:accepted"},
		{
			"it succeeds at the second attempt",
			life(func(j *job.Job) { j.Status, j.FinishedAt = job.Succeeded, at(9) }),
			[]job.Attempt{ran(1, 1, 1, 3, job.AttemptFailed), ran(2, 2, 5, 9, job.AttemptSucceeded)},
			nil,
			"0:accepted 1:claimed#1 3:attempt_failed#1 3:retry_scheduled#1 5:claimed#2 9:attempt_succeeded#2 9:succeeded",
		},
		{
			"it waits for the next attempt",
			life(func(j *job.Job) { j.Status, j.NextAttemptAt = job.Retrying, at(60) }),
			[]job.Attempt{ran(1, 1, 1, 3, job.AttemptLost)},
			nil,
			"0:accepted 1:claimed#1 3:attempt_lost#1 3:retry_scheduled#1",
		},
		{
			"it runs",
			life(func(j *job.Job) { j.Status = job.Processing }),
			[]job.Attempt{ran(1, 1, 1, 2, job.AttemptReleased), {Number: 1, Token: 2, StartedAt: at(3)}},
			nil,
			"0:accepted 1:claimed#1 2:attempt_released#1 3:claimed#1",
		},
		{
			"near misses stand where they happened",
			life(func(j *job.Job) { j.Status, j.FinishedAt = job.Succeeded, at(9) }),
			[]job.Attempt{ran(1, 1, 1, 3, job.AttemptLost), ran(2, 2, 5, 9, job.AttemptSucceeded)},
			[]job.Event{stored("a", 2, job.EventLockLost, nil), stored("b", 6, job.EventStaleRefused, nil), stored("c", 9, job.EventCancelTooLate, nil)},
			"0:accepted 1:claimed#1 2:lock_lost 3:attempt_lost#1 3:retry_scheduled#1 5:claimed#2 6:stale_completion_refused 9:attempt_succeeded#2 9:succeeded 9:cancel_too_late",
		},
		{
			"an operator brought it back",
			life(func(j *job.Job) { j.Status, j.FinishedAt, j.Generation = job.Succeeded, at(9), 2 }),
			[]job.Attempt{ran(1, 1, 1, 3, job.AttemptFailed), ran(2, 2, 7, 9, job.AttemptSucceeded)},
			[]job.Event{stored("a", 5, job.EventRetried, nil)},
			"0:accepted 1:claimed#1 3:attempt_failed#1 5:retried 7:claimed#2 9:attempt_succeeded#2 9:succeeded",
		},
		{
			"an operator resolved it",
			life(func(j *job.Job) { j.Status, j.FinishedAt = job.Succeeded, at(3) }),
			[]job.Attempt{ran(1, 1, 1, 3, job.AttemptLost)},
			[]job.Event{stored("a", 8, job.EventResolved, nil)},
			"0:accepted 1:claimed#1 3:attempt_lost#1 3:failed 8:resolved 8:succeeded",
		},
		{
			"it was resolved, brought back, and failed",
			life(func(j *job.Job) { j.Status, j.FinishedAt, j.Generation = job.Failed, at(12), 2 }),
			[]job.Attempt{ran(1, 1, 1, 3, job.AttemptLost), ran(2, 2, 11, 12, job.AttemptFailed)},
			[]job.Event{stored("a", 8, job.EventResolved, nil), stored("b", 10, job.EventRetried, nil)},
			"0:accepted 1:claimed#1 3:attempt_lost#1 8:resolved 10:retried 11:claimed#2 12:attempt_failed#2 12:failed",
		},
		{
			"another job had done it",
			life(func(j *job.Job) {
				j.Status, j.FinishedAt, j.Outcome, j.DuplicateOf = job.Succeeded, at(2), job.DuplicateIgnored, "first"
			}),
			[]job.Attempt{ran(1, 1, 1, 2, job.AttemptSucceeded)},
			nil,
			"0:accepted 1:claimed#1 2:attempt_succeeded#1 2:duplicate_ignored 2:succeeded",
		},
		{
			"it was cancelled while it waited",
			life(func(j *job.Job) { j.Status, j.FinishedAt = job.Cancelled, at(4) }), nil, nil,
			"0:accepted 4:cancelled",
		},
		{
			"the end of the attempt is timed a moment after the job's",
			life(func(j *job.Job) { j.Status, j.FinishedAt = job.Failed, at(3) }),
			[]job.Attempt{ran(1, 1, 1, 4, job.AttemptLost)},
			nil,
			"0:accepted 1:claimed#1 4:attempt_lost#1 4:failed",
		},
		{
			"the database's clock is behind the gateway's",
			life(func(j *job.Job) { j.Status, j.CreatedAt = job.Processing, at(2) }),
			[]job.Attempt{{Number: 1, Token: 1, StartedAt: at(1)}},
			nil,
			"2:accepted 1:claimed#1",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			events := job.Timeline(tt.job, tt.attempts, tt.stored)
			if got := outline(events); got != tt.want {
				t.Errorf("\n got %s\nwant %s", got, tt.want)
			}
			ids := map[string]bool{}
			for _, e := range events {
				if e.ID == "" || ids[e.ID] || e.JobID != "0198" {
					t.Errorf("event %+v has no id of its own", e)
				}
				ids[e.ID] = true
			}
			again := job.Timeline(tt.job, tt.attempts, tt.stored)
			if !slices.EqualFunc(events, again, func(a, b job.Event) bool { return a.ID == b.ID }) {
				t.Error("asked again, the events have other ids")
			}
		})
	}
}

func TestTimeline_Data(t *testing.T) {
	t.Parallel()
	j := job.Job{
		Status: job.Failed, CreatedAt: at(0), FinishedAt: at(3), Generation: 1, Outcome: job.OutcomeUnknown, LastError: &job.Failure{Code: "timeout"},
	}
	data := map[job.EventName]string{}
	for _, e := range job.Timeline(j, []job.Attempt{ran(1, 1, 1, 3, job.AttemptLost)}, nil) {
		data[e.Name] = fmt.Sprint(e.Data)
	}
	for name, want := range map[job.EventName]string{
		"claimed":      "map[token:1 worker_id:w-1]",
		"attempt_lost": "map[duration_ms:2000 error:timeout]",
		"failed":       "map[error:timeout outcome:outcome_unknown]",
	} {
		if data[name] != want {
			t.Errorf("%s: %s, want %s", name, data[name], want)
		}
	}
	j = job.Job{Status: job.Retrying, NextAttemptAt: at(60)}
	events := job.Timeline(j, []job.Attempt{ran(1, 1, 1, 3, job.AttemptReleased)}, nil)
	if last := events[len(events)-1]; last.Name != job.EventRetryScheduled || last.Data["next_attempt_at"] != at(60) {
		t.Errorf("%+v", last)
	}
	j = job.Job{Status: job.Scheduled, RunAt: at(60)}
	if events = job.Timeline(j, nil, nil); events[0].Data["run_at"] != at(60) {
		t.Errorf("%+v", events)
	}
}

func TestHistory_ListsTheRunningAttemptOnce(t *testing.T) {
	t.Parallel()
	d := newDesk()
	j := oneJob(job.Processing)
	j.ClaimedAt = at(5)
	d.put(j)
	history, err := d.jobs().History(t.Context(), "acme", "k")
	if err != nil || len(history.Attempts) != 1 || history.Attempts[0].Outcome != "" || history.Attempts[0].Token != 7 || !history.Attempts[0].StartedAt.Equal(at(5)) {
		t.Errorf("%+v, %v", history.Attempts, err)
	}
	d.attempts = []job.Attempt{ran(7, 4, 5, 6, job.AttemptSucceeded)} // it ended in between
	if history, err = d.jobs().History(t.Context(), "acme", "k"); err != nil || len(history.Attempts) != 1 || history.Attempts[0].Outcome != job.AttemptSucceeded {
		t.Errorf("%+v, %v", history.Attempts, err)
	}
	if _, err = d.jobs().History(t.Context(), "acme", "nobody"); !errors.Is(err, job.ErrNotFound) {
		t.Errorf("an unknown key: %v", err)
	}
	d.unread = job.ErrUnavailable
	if _, err = d.jobs().History(t.Context(), "acme", "k"); !errors.Is(err, job.ErrUnavailable) {
		t.Errorf("a database that is away: %v", err)
	}
}
