package job

import (
	"context"
	"slices"
	"strconv"

	"github.com/sekali/sekali/idempotency"
)

// History is what has happened to a job so far.
type History struct {
	Receipt Receipt
	// Attempts are oldest first, released ones included. The running one is the
	// last, without an outcome.
	Attempts []Attempt
	// Timeline is oldest first: the ordinary life as the job and its attempts tell
	// it, and the stored events.
	Timeline []Event
}

// History returns what has happened to the job of the key. Errors: as Get's.
func (s *Jobs) History(ctx context.Context, tenant idempotency.Tenant, key idempotency.Key) (History, error) {
	receipt, err := s.current(ctx, tenant, key)
	if err != nil {
		return History{}, err
	}
	h := History{Receipt: receipt}
	if h.Attempts, err = s.Reader.Attempts(ctx, receipt.Job.ID); err != nil {
		return History{}, err
	}
	stored, err := s.Reader.Events(ctx, receipt.Job.ID)
	if err != nil {
		return History{}, err
	}
	h.Attempts = withRunning(receipt.Job, h.Attempts)
	h.Timeline = Timeline(receipt.Job, h.Attempts, stored)
	return h, nil
}

// withRunning adds the attempt that runs. It may have ended since the job was
// read, and be among the others already.
func withRunning(j Job, ended []Attempt) []Attempt {
	same := func(a Attempt) bool { return a.Token == j.Token }
	if j.Status != Processing || slices.ContainsFunc(ended, same) {
		return ended
	}
	return append(ended, Attempt{Number: j.Attempts, Token: j.Token, WorkerID: j.WorkerID, StartedAt: j.ClaimedAt})
}

// Timeline tells the life of a job: what its row and its attempts show, merged
// with the stored events by time. Its derived events have ids that stay the same
// whenever it is asked for. The end of an earlier generation is told by its last
// attempt alone: the job's row has forgotten it.
func Timeline(j Job, attempts []Attempt, stored []Event) []Event {
	t := timeline{job: j, stored: stored}
	for i, a := range attempts {
		t.attempt(a)
		if i+1 < len(attempts) && !t.operatorBetween(a, attempts[i+1]) && retried(a) {
			t.add(Event{ID: "retry-" + ordinal(a), Time: a.FinishedAt, Name: EventRetryScheduled, Attempt: a.Number})
		}
	}
	if len(attempts) > 0 && j.Status == Retrying {
		last := attempts[len(attempts)-1]
		t.add(Event{
			ID: "retry-" + ordinal(last), Time: last.FinishedAt, Name: EventRetryScheduled, Attempt: last.Number,
			Data: map[string]any{"next_attempt_at": j.NextAttemptAt},
		})
	}
	t.end()
	return t.merged()
}

// timeline collects the derived events, each list in the order of its times.
type timeline struct {
	job     Job
	stored  []Event
	derived []Event
	settled []Event // what follows from stored events of the same time
}

func (t *timeline) add(e Event) { t.derived = append(t.derived, e) }

func ordinal(a Attempt) string { return strconv.FormatInt(a.Token, 10) }

func (t *timeline) attempt(a Attempt) {
	t.add(Event{
		ID: "claimed-" + ordinal(a), Time: a.StartedAt, Name: EventClaimed, Attempt: a.Number,
		Data: map[string]any{"worker_id": a.WorkerID, "token": a.Token},
	})
	if a.Outcome == "" {
		return
	}
	data := map[string]any{"duration_ms": a.FinishedAt.Sub(a.StartedAt).Milliseconds()}
	if a.Failure != nil {
		data["error"] = a.Failure.Code
	}
	t.add(Event{
		ID: "attempt-" + ordinal(a), Time: a.FinishedAt, Name: EventAttemptEnded + EventName(a.Outcome), Attempt: a.Number, Data: data,
	})
}

// retried reports whether an attempt that another one followed left its job to be
// tried again. One that was released was not tried.
func retried(a Attempt) bool { return a.Outcome == AttemptFailed || a.Outcome == AttemptLost }

// operatorBetween reports whether an operator's retry is what led from one
// attempt to the next.
func (t *timeline) operatorBetween(a, next Attempt) bool {
	return slices.ContainsFunc(t.stored, func(e Event) bool {
		return e.Name == EventRetried && !e.Time.Before(a.FinishedAt) && !e.Time.After(next.StartedAt)
	})
}

// end tells how the job has ended. What an operator resolved had failed before,
// with an outcome that nobody knew.
func (t *timeline) end() {
	j := t.job
	if !j.Status.Finished() {
		return
	}
	generation := strconv.Itoa(j.Generation)
	at := j.FinishedAt
	if n := len(t.derived); n > 0 && t.derived[n-1].Time.After(at) {
		at = t.derived[n-1].Time // the end of its attempt, which SQLite times a moment later
	}
	ended := Event{ID: "finished-" + generation, Time: at, Name: EventName(j.Status), Data: endData(j)}
	if resolved, ok := t.resolved(); ok {
		t.settled = append(t.settled, Event{ID: "resolved-" + generation, Time: resolved.Time, Name: EventName(j.Status)})
		ended.Name, ended.Data = EventName(Failed), map[string]any{"outcome": OutcomeUnknown}
	}
	if j.Outcome == DuplicateIgnored {
		t.add(Event{
			ID: "duplicate-" + generation, Time: at, Name: EventDuplicateIgnored,
			Data: map[string]any{"duplicate_of": string(j.DuplicateOf)},
		})
	}
	t.add(ended)
}

// resolved finds the operator's resolution of this end of the job.
func (t *timeline) resolved() (Event, bool) {
	for _, e := range slices.Backward(t.stored) {
		if e.Name == EventResolved && !e.Time.Before(t.job.FinishedAt) {
			return e, true
		}
	}
	return Event{}, false
}

func endData(j Job) map[string]any {
	data := map[string]any{}
	if j.Outcome != "" {
		data["outcome"] = j.Outcome
	}
	if j.Status == Failed && j.LastError != nil {
		data["error"] = j.LastError.Code
	}
	if len(data) == 0 {
		return nil
	}
	return data
}

// merged puts everything in order. The job's creation comes first whatever the
// clocks say: it alone is timed by a gateway, the rest by the database.
func (t *timeline) merged() []Event {
	j := t.job
	accepted := Event{ID: "accepted", JobID: j.ID, Time: j.CreatedAt, Name: EventAccepted}
	if j.Status == Scheduled {
		accepted.Data = map[string]any{"run_at": j.RunAt}
	}
	events := slices.Concat(t.derived, t.stored, t.settled)
	slices.SortStableFunc(events, func(a, b Event) int { return a.Time.Compare(b.Time) })
	events = slices.Insert(events, 0, accepted)
	for i := range events {
		events[i].JobID = j.ID
	}
	return events
}
