package main

import (
	"fmt"
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
	d.tooFast()
	d.constraint()
	d.operators()
	d.notFound()
	return d.sentences
}

// attemptsTold is more than anybody reads of a job that fails again and again.
const attemptsTold = 20

type diagnosis struct {
	findings

	sentences []string
	absent    []string // what was looked for in vain
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
		if !d.waits() {
			d.say("The job may start now.")
		}
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

// waits says what keeps a job from starting that might start, if anything does.
func (d *diagnosis) waits() bool {
	said := len(d.sentences)
	for _, other := range d.ahead {
		d.say("The job waits for the job %s (%s), which has the same business key %s: it starts when that one has ended.",
			other.Key, other.Status, orNone(other.BusinessKey))
	}
	e := d.executor
	switch {
	case e == nil:
	case d.paused():
	case e.Limits != nil && e.Limits.WaitsFor != nil:
		d.say("The job waits for the limit of the type %s: %s.", d.job.Type, limitText(*e.Limits))
	case orNone(e.Executor) == "remote":
		d.say("The job waits for a worker to claim it (POST /executions/claim with the type %s); %d jobs of the type run.", d.job.Type, e.Busy)
	case len(e.Workers) == 0:
		d.say("The job waits for a process that runs the type %s, and there is none: start one that has it in its configuration, with dispatcher.slots above 0.", d.job.Type)
	case e.Free == 0:
		d.say("The job waits for a slot: all %d of the processes that run the type %s are busy.", e.Slots, d.job.Type)
	}
	return len(d.sentences) > said
}

// limitText is the limit that jobs wait for.
func limitText(l api.Limits) string {
	if *l.WaitsFor == "concurrency" && l.Concurrency != nil {
		return fmt.Sprintf("%d at once", *l.Concurrency)
	}
	return orNone(l.Rate)
}

// paused says so if the type is.
func (d *diagnosis) paused() bool {
	if d.executor == nil || d.executor.PausedAt == nil {
		return false
	}
	d.say("The type %s has been paused since %s; sekali resume %s lets its jobs start.", d.job.Type, when(d.executor.PausedAt), argument(d.job.Type))
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
		d.say("When the cause is gone, sekali retry %s brings it back.", argument(j.Key))
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
		d.say("Then settle it: sekali resolve --status succeeded %s (or --status failed).", argument(d.job.Key))
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
		d.say("Attempt %d on %s was lost after %s%s. Its process died, stood still or lost its connection, or what it called did not answer. Nobody knows what it did, unless its type knows no such doubt: sql, echo and a TxFunc leave nothing behind.",
			a.Number, a.WorkerID, milliseconds(a.DurationMS), trouble)
	case "released":
		d.say("A run on %s was handed back after %s, and not counted: its process shut down, or the job had to wait for something.", a.WorkerID, milliseconds(a.DurationMS))
	default:
		d.say("Attempt %d on %s ended %s after %s%s.", a.Number, a.WorkerID, outcome, milliseconds(a.DurationMS), trouble)
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

// notFound says what was looked for in vain, so that nobody looks for it again.
func (d *diagnosis) notFound() {
	if len(d.absent) > 0 {
		d.say("Looked for and not found: %s.", strings.Join(d.absent, "; "))
	}
}

func (d *diagnosis) missing(what string) { d.absent = append(d.absent, what) }

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
