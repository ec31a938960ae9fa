package api

import (
	"time"

	"github.com/sekali/sekali/job"
)

// AttemptList is the document of GET /jobs/{key}/attempts, oldest first.
type AttemptList struct {
	Attempts []Attempt `json:"attempts"`
}

// Attempt is one run of a job. The running one has no outcome yet, and tells
// until when its lease holds.
type Attempt struct {
	Number         int             `json:"number"`
	Outcome        *string         `json:"outcome"`
	WorkerID       string          `json:"worker_id"`
	StartedAt      time.Time       `json:"started_at"`
	FinishedAt     *time.Time      `json:"finished_at"`
	DurationMS     *int64          `json:"duration_ms"`
	Error          *AttemptProblem `json:"error"`
	LeaseExpiresAt *time.Time      `json:"lease_expires_at,omitempty"`
}

// EventList is the document of GET /jobs/{key}/events, oldest first.
type EventList struct {
	Events []Event `json:"events"`
}

// Event is one thing that happened to a job. The words are an open set;
// docs/events.md lists them.
type Event struct {
	ID      string         `json:"id"` // unique within the job, the same whenever it is read
	Time    time.Time      `json:"time"`
	Event   string         `json:"event"`
	Attempt *int           `json:"attempt"` // null: of none
	Data    map[string]any `json:"data"`
}

// FromAttempts renders the attempts of a job.
func FromAttempts(h job.History) AttemptList {
	list := AttemptList{Attempts: make([]Attempt, 0, len(h.Attempts))}
	for _, a := range h.Attempts {
		doc := Attempt{
			Number: a.Number, Outcome: optional(a.Outcome), WorkerID: a.WorkerID, StartedAt: a.StartedAt.UTC(),
			FinishedAt: optionalTime(a.FinishedAt), Error: attemptProblem(a.Failure),
		}
		if a.Outcome == "" {
			doc.LeaseExpiresAt = optionalTime(h.Receipt.Job.LeaseEndsAt)
		} else {
			ms := a.FinishedAt.Sub(a.StartedAt).Milliseconds()
			doc.DurationMS = &ms
		}
		list.Attempts = append(list.Attempts, doc)
	}
	return list
}

// FromTimeline renders the timeline of a job.
func FromTimeline(h job.History) EventList {
	list := EventList{Events: make([]Event, 0, len(h.Timeline))}
	for _, e := range h.Timeline {
		doc := Event{ID: e.ID, Time: e.Time.UTC(), Event: string(e.Name), Data: e.Data}
		if e.Attempt > 0 {
			doc.Attempt = &e.Attempt
		}
		if doc.Data == nil {
			doc.Data = map[string]any{}
		}
		list.Events = append(list.Events, doc)
	}
	return list
}

func attemptProblem(f *job.Failure) *AttemptProblem {
	if f == nil {
		return nil
	}
	return &AttemptProblem{Code: f.Code, Detail: f.Detail, Attempt: f.Attempt}
}
