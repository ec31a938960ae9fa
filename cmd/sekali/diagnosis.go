package main

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sekali/sekali/api"
)

// diagnose says in sentences what the findings mean: how the job stands, what
// each attempt did, what went wrong around it, and what to do.
func diagnose(f findings) []string {
	d := diagnosis{findings: f}
	if f.asked != f.job.Key {
		d.say("The key %s is bound to the job %s, which this is about.", f.asked, f.job.Key)
	}
	d.stands()
	told := f.attempts[max(0, len(f.attempts)-attemptsTold):]
	if n := len(f.attempts) - len(told); n > 0 {
		d.say("%d earlier attempts are left out here; -o json has them.", n)
	}
	for _, a := range told {
		d.attempt(a)
	}
	d.repetitions()
	d.nearMisses()
	d.operators()
	return d.sentences
}

// attemptsTold is more than anybody reads of a job that fails again and again.
const attemptsTold = 20

type diagnosis struct {
	findings

	sentences []string
}

func (d *diagnosis) say(format string, args ...any) {
	d.sentences = append(d.sentences, fmt.Sprintf(format, args...))
}

// stands says how the job stands, and what it waits for.
func (d *diagnosis) stands() {
	j := d.job
	switch j.Status {
	case "scheduled":
		d.say("The job waits for its time, %s.", j.RunAt.Format(time.RFC3339))
	case "pending":
		d.say("The job may start now.")
		d.waits()
	case "processing":
		d.say("Attempt %d of %d is running on %s.", j.Attempts, j.MaxAttempts, orNone(j.WorkerID))
	case "retrying":
		d.say("The job waits for its next attempt, at %s; %d of %d attempts are used.", when(j.NextAttemptAt), j.Attempts, j.MaxAttempts)
	case "succeeded":
		d.succeeded()
	case "failed":
		d.failed()
	case "cancelled":
		d.say("The job was cancelled at %s.", when(j.FinishedAt))
		d.doubt()
	default:
		d.say("The job is %s.", j.Status)
	}
	if j.Status == "scheduled" || j.Status == "retrying" {
		d.paused()
	}
}

// waits says what keeps a job from starting that might start.
func (d *diagnosis) waits() {
	for _, other := range d.ahead {
		d.say("The job %s (%s) has the same business key %s: where the type queues them, this one starts when that one has ended.",
			other.Key, other.Status, orNone(other.BusinessKey))
	}
	e := d.executor
	switch {
	case e == nil:
	case d.paused():
	case len(e.Workers) == 0:
		d.say("No process runs the type %s: start one that has it in its configuration, with dispatcher.slots above 0.", d.job.Type)
	case e.Free == 0:
		d.say("All %d slots of the processes that run the type %s are busy.", e.Slots, d.job.Type)
	}
}

// paused says so if the type is.
func (d *diagnosis) paused() bool {
	if d.executor == nil || d.executor.PausedAt == nil {
		return false
	}
	d.say("The type %s has been paused since %s; sekali resume %s lets its jobs start.", d.job.Type, when(d.executor.PausedAt), d.job.Type)
	return true
}

func (d *diagnosis) succeeded() {
	j := d.job
	if d.resolved() {
		d.say("The job counts as succeeded: an operator resolved it.")
		return
	}
	if j.DuplicateOf != nil {
		d.say("The job succeeded at %s without doing anything: the job %s had done its operation %s before, and this is its result.",
			when(j.FinishedAt), *j.DuplicateOf, orNone(j.OperationKey))
		return
	}
	if orNone(j.Outcome) == "duplicate_ignored" {
		d.say("The job succeeded at %s without doing anything: what it was to do was there already.", when(j.FinishedAt))
		return
	}
	d.say("The job succeeded at %s, in attempt %d of %d.", when(j.FinishedAt), j.Attempts, j.MaxAttempts)
}

func (d *diagnosis) failed() {
	j := d.job
	d.say("The job failed at %s after %d of %d attempts.", when(j.FinishedAt), j.Attempts, j.MaxAttempts)
	if j.Error != nil {
		d.say("Its last error: %s: %s.", j.Error.Code, j.Error.Detail)
	}
	if !d.doubt() {
		d.say("When the cause is gone, sekali retry %s brings it back.", shellWord(j.Key))
	}
}

// resolved reports whether the end of the job is what an operator said it was.
func (d *diagnosis) resolved() bool {
	for _, e := range slices.Backward(d.events) {
		if e.Event == "resolved" || e.Event == "retried" {
			return e.Event == "resolved"
		}
	}
	return false
}

// doubt says so if nobody knows what the last attempt did.
func (d *diagnosis) doubt() bool {
	if orNone(d.job.Outcome) != "outcome_unknown" {
		return false
	}
	d.say("Nobody knows whether its last attempt did its work. Find out with whoever received it; they know the job by its id %s.", d.job.ID)
	if d.job.Status == "failed" {
		d.say("Then settle it: sekali resolve %s --status succeeded (or failed).", shellWord(d.job.Key))
	}
	return true
}

func (d *diagnosis) attempt(a api.Attempt) {
	outcome := orNone(a.Outcome)
	trouble := ""
	if a.Error != nil {
		trouble = fmt.Sprintf(": %s: %s", a.Error.Code, a.Error.Detail)
	}
	switch outcome {
	case "-":
		d.say("Attempt %d began at %s on %s, and holds its lease until %s.", a.Number, a.StartedAt.Format(time.RFC3339), a.WorkerID, when(a.LeaseExpiresAt))
	case "succeeded":
	case "failed":
		d.say("Attempt %d on %s failed after %s%s.", a.Number, a.WorkerID, milliseconds(a.DurationMS), trouble)
	case "lost":
		d.say("Attempt %d on %s was lost after %s%s. Its process died, stood still or lost its connection, or what it called did not answer: nobody knows what it did.",
			a.Number, a.WorkerID, milliseconds(a.DurationMS), trouble)
	case "released":
		d.say("A run on %s was handed back after %s, and not counted: its process shut down, or the job had to wait for something.", a.WorkerID, milliseconds(a.DurationMS))
	default:
		d.say("Attempt %d on %s ended %s after %s%s.", a.Number, a.WorkerID, outcome, milliseconds(a.DurationMS), trouble)
	}
}

// repetitions says how often clients sent the key again.
func (d *diagnosis) repetitions() {
	if n, last := d.total("replayed"); n > 0 {
		d.say("Clients sent the same request with this key again %s, until about %s, and got the stored answer: a duplicate that did nothing.", times(n), last)
	}
	if n, last := d.total("mismatch_refused"); n > 0 {
		d.say("Clients sent another request with this key %s, until about %s, and were refused (422): somewhere one key is used for two operations.", times(n), last)
	}
}

// misses are events that tell of something that went wrong and did no harm.
var misses = []struct{ event, sentence string }{
	{"lock_refused", "The job's lock was held by somebody else %s, last at %s: the job was put off, uncounted."},
	{"lock_lost", "A running attempt lost its lock to somebody else %s, last at %s, and was stopped. The lock's time is too short, or the lock was deleted."},
	{"heartbeat_lost", "A process found %s, last at %s, that the lease of its attempt was gone, and stopped it."},
	{"stale_completion_refused", "A process tried to end its attempt after its lease was gone %s, last at %s. It was refused and changed nothing; what its work did elsewhere may have happened twice."},
	{"operation_busy", "Another job was doing the same operation %s, last at %s: this one waited for it, uncounted."},
	{"cancel_too_late", "Somebody asked to cancel the job %s, last at %s, but its work was done first."},
}

// nearMisses says what went wrong around the job.
func (d *diagnosis) nearMisses() {
	for _, miss := range misses {
		if n, last := d.total(miss.event); n > 0 {
			d.say(miss.sentence, times(n), last)
		}
	}
	for _, e := range d.events {
		if e.Event == "reconciled" {
			d.say("At %s the receiver was asked what an attempt of unknown outcome had done, and answered: %v.", e.Time.Format(time.RFC3339), e.Data["answer"])
		}
	}
}

// operators says what people did.
func (d *diagnosis) operators() {
	for _, e := range d.events {
		at := e.Time.Format(time.RFC3339)
		switch e.Event {
		case "cancel_requested":
			d.say("At %s somebody asked to cancel the running attempt.", at)
		case "retried":
			d.say("At %s an operator brought the job back (key %v).", at, e.Data["key"])
		case "resolved":
			d.say("At %s an operator resolved the job as %v (key %v).", at, e.Data["status"], e.Data["key"])
		}
	}
}

// total counts an event, and tells when it happened last. One event may stand for
// many.
func (d *diagnosis) total(name string) (n int, last string) {
	for _, e := range d.events {
		if e.Event != name {
			continue
		}
		last = e.Time.Format(time.RFC3339)
		if count, ok := e.Data["count"].(float64); ok {
			n += int(count)
			continue
		}
		n++
	}
	return n, last
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return strconv.Itoa(n) + " times"
}

func when(t *time.Time) string {
	if t == nil {
		return "a time that is not known"
	}
	return t.Format(time.RFC3339)
}

// shellWord is a key as a shell takes it: clients choose keys, and people paste what
// they read.
func shellWord(key string) string {
	if plainWord.MatchString(key) {
		return key
	}
	return "'" + strings.ReplaceAll(key, "'", `'\''`) + "'"
}

var plainWord = regexp.MustCompile(`^[A-Za-z0-9_.:/@%+=][A-Za-z0-9_.:/@%+=-]*$`)
