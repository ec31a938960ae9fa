package job

import (
	"context"
	"time"
)

// Attempt is one claim of a job that has ended.
type Attempt struct {
	Number     int   // counted attempts, this one included
	Token      int64 // fencing token of the claim
	Outcome    Outcome
	WorkerID   string
	Failure    *Failure
	StartedAt  time.Time
	FinishedAt time.Time
}

// Event is one thing that happened to a job.
type Event struct {
	ID      string // unique within the job
	JobID   ID
	Time    time.Time // by the database's clock; zero when recorded: now
	Name    EventName
	Attempt int            // 0: of no attempt
	Data    map[string]any // JSON values; no payloads, no other people's answers
}

// EventName is the word for an event, in snake_case: an open set.
type EventName string

// The events that leave no other trace, and are therefore stored.
const (
	EventCancelRequested EventName = "cancel_requested"
	EventCancelTooLate   EventName = "cancel_too_late" // the work was committed first
	EventRetried         EventName = "retried"         // by an operator
	EventResolved        EventName = "resolved"        // by an operator
	EventLockRefused     EventName = "lock_refused"
	EventLockLost        EventName = "lock_lost"
	EventHeartbeatLost   EventName = "heartbeat_lost" // a holder learned that its lease was gone
	EventStaleRefused    EventName = "stale_completion_refused"
	EventReconciled      EventName = "reconciled"
	EventOperationBusy   EventName = "operation_busy" // another job is doing the operation
	EventReplayed        EventName = "replayed"
	EventMismatch        EventName = "mismatch_refused"
)

// The events that are read from the job and its attempts.
const (
	EventAccepted         EventName = "accepted"
	EventClaimed          EventName = "claimed"
	EventAttemptEnded     EventName = "attempt_" // followed by the attempt's outcome
	EventRetryScheduled   EventName = "retry_scheduled"
	EventDuplicateIgnored EventName = "duplicate_ignored"
)

// EventLog stores events.
type EventLog interface {
	// Record stores events. Nothing that is promised hangs on it: callers go on
	// when it fails.
	Record(ctx context.Context, events []Event) error
}
