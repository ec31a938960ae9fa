package main

import (
	"slices"
	"time"

	"github.com/sekali/sekali/api"
)

// repetitions says how often clients sent the key again.
func (d *diagnosis) repetitions() {
	replays, lastReplay := d.total("replayed")
	if replays > 0 {
		d.say("Clients sent the same request with this key again %s, until about %s%s, and got the stored answer: a duplicate that did nothing.", times(replays), lastReplay, d.sender("replayed"))
	}
	mismatches, lastMismatch := d.total("mismatch_refused")
	if mismatches > 0 {
		d.say("Clients sent another request with this key %s, until about %s%s, and were refused (422): somewhere one key is used for two operations.", times(mismatches), lastMismatch, d.sender("mismatch_refused"))
	}
	if replays+mismatches == 0 {
		d.missing("a duplicate of the request (they are stored at most a minute late)")
	}
}

// sender says who sent the last of the repetitions, as far as it told.
func (d *diagnosis) sender(event string) string {
	for _, e := range slices.Backward(d.events) {
		if name, ok := e.Data["last_sender"].(string); ok && e.Event == event {
			return ", the last one from " + name
		}
	}
	return ""
}

// misses are events that tell of something that went wrong and did no harm.
var misses = []struct {
	event, sentence string
	early           bool // a lock or a lease ended before the attempt
}{
	{"lock_refused", "The job's lock was held by somebody else %s, last at %s: the job was put off, uncounted.", false},
	{"lock_lost", "A running attempt lost its lock to somebody else %s, last at %s, and was stopped. The lock's time is too short, or the lock was deleted.", true},
	{"heartbeat_lost", "The lease ended before the attempt did %s, last at %s: its process found it gone, and stopped the attempt. The process stood still or could not reach the database for longer than the lease.", true},
	{"stale_completion_refused", "A process tried to end its attempt after its lease was gone %s, last at %s. It was refused and changed nothing; what its work did elsewhere may have happened twice.", true},
	{"operation_busy", "Another job was doing the same operation %s, last at %s: this one waited for it, uncounted.", false},
	{"cancel_too_late", "Somebody asked to cancel the job %s, last at %s, but its work was done first.", false},
}

// nearMisses says what went wrong around the job.
func (d *diagnosis) nearMisses() {
	early := false
	for _, miss := range misses {
		if n, last := d.total(miss.event); n > 0 {
			d.say(miss.sentence, times(n), last)
			early = early || miss.early
		}
	}
	for _, a := range d.attempts {
		early = early || orNone(a.Outcome) == "lost"
	}
	if !early {
		d.missing("a lock or a lease that ended before its attempt")
	}
	for _, e := range d.events {
		if e.Event == "reconciled" {
			d.say("At %s the receiver was asked what an attempt of unknown outcome had done, and answered: %v.", e.Time.Format(time.RFC3339), e.Data["answer"])
		}
	}
}

const (
	// hastySpan is shorter than what ails receivers usually lasts: a restart, a
	// deploy, a failover.
	hastySpan = time.Minute
	// hastyFailures are the fewest that tell of haste.
	hastyFailures = 3
)

// tooFast says so if the attempts were nearly used up before a receiver in trouble
// could recover.
func (d *diagnosis) tooFast() {
	var failed []api.Attempt
	for _, a := range d.attempts {
		if outcome := orNone(a.Outcome); outcome == "failed" || outcome == "lost" {
			failed = append(failed, a)
		}
	}
	n := len(failed)
	if n < hastyFailures || 5*d.job.Attempts < 4*d.job.MaxAttempts || d.job.Status == "succeeded" {
		d.missing("retries that came too fast")
		return
	}
	// The time that the attempts themselves took is no haste.
	waited := time.Duration(0)
	for i := 1; i < n; i++ {
		if failed[i-1].FinishedAt != nil {
			waited += failed[i].StartedAt.Sub(*failed[i-1].FinishedAt)
		}
	}
	if waited >= hastySpan {
		d.missing("retries that came too fast")
		return
	}
	d.say("Retries come too fast: there were only %s between %d failed attempts, and %d of %d are used. "+
		"Whoever receives them hardly recovers in that time: a larger backoff.base of the type, or a Retry-After in the receiver's answer, spreads them.",
		waited.Round(time.Millisecond), n, d.job.Attempts, d.job.MaxAttempts)
}

// constraint says which unique constraint has refused something.
func (d *diagnosis) constraint() {
	j := d.job
	switch {
	case j.Error != nil && j.Error.Code == "unique-violation" && j.Status == "failed":
		d.say("A unique constraint of your database refused the row that the statement writes, and the statement was undone; the gateway's log names it in the line of the attempt. "+
			"If that row is this job's own work, done before, let job_types.%s.sql.existing select it: then the job succeeds (duplicate_ignored). Else the payload names what another job has made.", j.Type)
	case j.DuplicateOf != nil:
		d.say("What refused a second effect was the operation key %s: it is done once.", orNone(j.OperationKey))
	case orNone(j.Outcome) == "duplicate_ignored":
		d.say("What refused a second effect was a unique constraint of your database.")
	case d.asked != j.Key && j.BusinessKey != nil && d.boundByBusinessKey():
		d.say("What refused a second job was the business key %s.", *j.BusinessKey)
	default:
		d.missing("a unique constraint that refused the work")
	}
}

// boundByBusinessKey reports whether the key that was asked for is no call's of an
// operator: then it was bound to the job because of the business key.
func (d *diagnosis) boundByBusinessKey() bool {
	for _, e := range d.events {
		if (e.Event == "retried" || e.Event == "resolved") && e.Data["key"] == d.asked {
			return false
		}
	}
	return true
}
