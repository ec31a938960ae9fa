package job

import "slices"

// Status is where a job stands.
type Status string

// The statuses of a job.
const (
	Scheduled  Status = "scheduled"  // waits for its time
	Pending    Status = "pending"    // may be claimed now
	Processing Status = "processing" // an attempt holds the lease
	Retrying   Status = "retrying"   // waits between two attempts
	Succeeded  Status = "succeeded"
	Failed     Status = "failed" // attempts used up, or an error that no retry mends
	Cancelled  Status = "cancelled"
)

// transitions is the whole life of a job. docs/state-machine.md draws it; a test
// holds the two together. failed and cancelled lead back to pending because an
// operator may retry them, and failed to succeeded because one may resolve a job
// whose outcome was unknown.
var transitions = map[Status][]Status{
	Scheduled:  {Pending, Cancelled, Failed},
	Pending:    {Processing, Cancelled, Failed},
	Processing: {Succeeded, Failed, Cancelled, Retrying, Pending},
	Retrying:   {Pending, Cancelled, Failed},
	Succeeded:  {},
	Failed:     {Pending, Succeeded},
	Cancelled:  {Pending},
}

// Statuses lists every status, unfinished ones first.
func Statuses() []Status {
	return []Status{Scheduled, Pending, Processing, Retrying, Succeeded, Failed, Cancelled}
}

// CanMove reports whether a job may go from one status to the other.
func CanMove(from, to Status) bool { return slices.Contains(transitions[from], to) }

// Finished reports whether the job has ended: succeeded, failed or cancelled.
func (s Status) Finished() bool { return s == Succeeded || s == Failed || s == Cancelled }

// Valid reports whether s is one of the known statuses.
func (s Status) Valid() bool { _, known := transitions[s]; return known }

// Outcome is how one attempt ended.
type Outcome string

// The outcomes of an attempt.
const (
	AttemptSucceeded Outcome = "succeeded"
	AttemptFailed    Outcome = "failed"
	AttemptLost      Outcome = "lost"     // the lease ended before the attempt did
	AttemptReleased  Outcome = "released" // handed back at shutdown; not counted
	AttemptCancelled Outcome = "cancelled"
)

// The outcomes of a job, where it has one besides its status.
const (
	// DuplicateIgnored: the job's operation had been done before, so it succeeded
	// without doing the work again.
	DuplicateIgnored = "duplicate_ignored"
	// OutcomeUnknown: nobody knows whether the last attempt did its work. The job
	// waits for somebody to resolve it.
	OutcomeUnknown = "outcome_unknown"
)
