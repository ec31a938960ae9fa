package api

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

// ExecutorList is the document of GET /executors: one for each job type, by
// name.
type ExecutorList struct {
	Executors []Executor `json:"executors"`
	// Capped: there are more unfinished jobs than were counted, so that waiting
	// and busy are lower bounds.
	Capped bool `json:"capped"`
}

// Executor tells how the jobs of one type stand over all processes: what runs
// where, what waits and why, and how attempts of the last hour ended.
type Executor struct {
	Name       string   `json:"name"`
	Executor   *string  `json:"executor"` // its kind; null where the type is not configured
	Types      []string `json:"types"`
	Configured bool     `json:"configured"` // in the gateway that answers
	// PausedAt is since when no process may claim jobs of the type.
	PausedAt *time.Time `json:"paused_at"`

	Slots   int       `json:"slots"`            // of the processes that run the type; other types may use them too
	Free    int       `json:"free"`             // of these, held by no job
	Busy    int       `json:"busy"`             // jobs of the type that run
	Limits  *Limits   `json:"limits,omitempty"` // over all processes; absent where the type has none
	Running []Running `json:"running"`
	Waiting Waiting   `json:"waiting"`
	Workers []Worker  `json:"workers"`
	// LastHeartbeatAt is when one of these processes was heard of last.
	LastHeartbeatAt *time.Time `json:"last_heartbeat_at"`

	WindowSeconds int    `json:"window_seconds"` // what follows is about so long
	Succeeded     int    `json:"succeeded"`
	Failed        int    `json:"failed"`
	Lost          int    `json:"lost"`
	Released      int    `json:"released"`
	Cancelled     int    `json:"cancelled"`
	MeanMS        *int64 `json:"mean_ms"` // null where no attempt has ended
	P95MS         *int64 `json:"p95_ms"`
}

// Running is a job that runs. Jobs of other tenants are counted, not listed.
type Running struct {
	ID             string    `json:"id"`
	Key            string    `json:"key"`
	Attempt        int       `json:"attempt"`
	WorkerID       string    `json:"worker_id"`
	StartedAt      time.Time `json:"started_at"`
	LeaseExpiresAt time.Time `json:"lease_expires_at"`
}

// Waiting counts unfinished jobs that do not run. Why says in words what they
// wait for; null where none waits.
type Waiting struct {
	Pending   int     `json:"pending"`
	Scheduled int     `json:"scheduled"`
	Retrying  int     `json:"retrying"`
	Blocked   int     `json:"blocked"`
	Why       *string `json:"why"`
}

// Worker is a process that runs jobs of the type.
type Worker struct {
	WorkerID        string    `json:"worker_id"`
	Slots           int       `json:"slots"`
	LastHeartbeatAt time.Time `json:"last_heartbeat_at"`
}

// Limits are those of a type over all processes, as the gateway that answers has
// them in its configuration.
type Limits struct {
	Concurrency *int    `json:"concurrency"` // jobs at once
	Rate        *string `json:"rate"`        // attempts that start, e.g. 50/s
	// WaitsFor is which of the two (concurrency, rate) keeps jobs that might start now; null where none does.
	WaitsFor *string `json:"waits_for"`
	// NextAt is when the rate lets the next attempt start; null where it does now.
	NextAt *time.Time `json:"next_at"`
}

// What jobs of a type with limits wait for.
const (
	WaitsForConcurrency = "concurrency"
	WaitsForRate        = "rate"
)

// ExecutorsView says what of an overview is shown, and to whom.
type ExecutorsView struct {
	// Kinds are the configured types with the kinds of their executors.
	Kinds map[job.Type]string
	// Limits are those of the configured types that have one.
	Limits map[job.Type]job.Limit
	// Now is the database's time.
	Now time.Time
	// Tenant is whose running jobs are listed; "" lists everybody's.
	Tenant idempotency.Tenant
}

// tallyWindow is how much of the past an overview counts.
const tallyWindow = time.Hour

// FromOverview renders all executors.
func (v ExecutorsView) FromOverview(o job.Overview) ExecutorList {
	list := ExecutorList{Executors: []Executor{}, Capped: o.Capped}
	types := map[job.Type]bool{}
	for t := range v.Kinds {
		types[t] = true
	}
	for t := range o.Types {
		types[t] = true
	}
	for _, t := range slices.Sorted(maps.Keys(types)) {
		executor, _ := v.One(o, t)
		list.Executors = append(list.Executors, executor)
	}
	return list
}

// One renders the executor of one type, if there is such a type: a configured
// one, or one that an earlier configuration has left jobs or a pause of.
func (v ExecutorsView) One(o job.Overview, t job.Type) (Executor, bool) {
	kind, configured := v.Kinds[t]
	of, known := o.Types[t]
	if !known {
		of = &job.TypeOverview{}
	}
	workers := workersOf(o, t)
	e := Executor{
		Name: string(t), Executor: optional(kind), Types: []string{string(t)}, Configured: configured, PausedAt: optionalTime(of.PausedAt),
		Busy: of.Busy, Running: v.running(of), Workers: make([]Worker, 0, len(workers)),
		WindowSeconds: int(tallyWindow / time.Second),
		Succeeded:     of.Ended.Succeeded, Failed: of.Ended.Failed, Lost: of.Ended.Lost, Released: of.Ended.Released, Cancelled: of.Ended.Cancelled,
	}
	for _, w := range workers {
		e.Workers = append(e.Workers, Worker{WorkerID: w.ID, Slots: w.Slots, LastHeartbeatAt: w.SeenAt.UTC()})
		e.Slots += w.Slots
		if e.LastHeartbeatAt == nil || w.SeenAt.After(*e.LastHeartbeatAt) {
			e.LastHeartbeatAt = optionalTime(w.SeenAt)
		}
	}
	e.Free = max(0, e.Slots-held(o, workers))
	e.durations(of.Ended)
	e.Limits = v.limits(t, of, e)
	e.Waiting = waiting(of, e)
	return e, configured || known
}

// durations tells how long attempts took; of none there is nothing to tell.
func (e *Executor) durations(ended job.Ended) {
	if ended.Succeeded+ended.Failed+ended.Lost+ended.Cancelled == 0 {
		return
	}
	mean, p95 := ended.Mean.Milliseconds(), ended.P95.Milliseconds()
	e.MeanMS, e.P95MS = &mean, &p95
}

func (v ExecutorsView) running(of *job.TypeOverview) []Running {
	list := []Running{}
	for _, r := range of.Running {
		if v.Tenant != "" && r.Tenant != v.Tenant {
			continue
		}
		list = append(list, Running{
			ID: string(r.ID), Key: string(r.Key), Attempt: r.Attempt, WorkerID: r.WorkerID,
			StartedAt: r.StartedAt.UTC(), LeaseExpiresAt: r.LeaseEndsAt.UTC(),
		})
	}
	return list
}

// workersOf lists the processes that run the type, by id.
func workersOf(o job.Overview, t job.Type) []job.Worker {
	var workers []job.Worker
	for _, w := range o.Workers {
		if slices.Contains(w.Types, t) {
			workers = append(workers, w)
		}
	}
	slices.SortFunc(workers, func(a, b job.Worker) int { return cmp.Compare(a.ID, b.ID) })
	return workers
}

// held is how many slots of the workers hold a job of any type. Where a type
// runs more jobs than are listed, nobody knows on which process the others are:
// they count as if they were on one of these.
func held(o job.Overview, workers []job.Worker) int {
	slots := 0
	for t, of := range o.Types {
		for _, r := range of.Running {
			if !r.Remote && slices.ContainsFunc(workers, func(w job.Worker) bool { return w.ID == r.WorkerID }) {
				slots++
			}
		}
		if slices.ContainsFunc(workers, func(w job.Worker) bool { return slices.Contains(w.Types, t) }) {
			slots += max(0, of.Busy-len(of.Running))
		}
	}
	return slots
}

// waiting counts what waits, and says why.
func waiting(of *job.TypeOverview, e Executor) Waiting {
	n := of.Waiting
	w := Waiting{Pending: n.Pending, Scheduled: n.Scheduled, Retrying: n.Retrying, Blocked: n.Blocked}
	var why []string
	for _, part := range []struct {
		jobs int
		why  string
	}{
		{n.Pending, pendingWhy(e)},
		{n.Scheduled, "until their time"},
		{n.Retrying, "until their next attempt"},
		{n.Blocked, "behind another job of the same business key"},
	} {
		if part.jobs > 0 {
			why = append(why, fmt.Sprintf("%d %s", part.jobs, part.why))
		}
	}
	w.Why = optional(strings.Join(why, "; "))
	return w
}

// pendingWhy says what keeps jobs from starting that might start now.
func pendingWhy(e Executor) string {
	switch {
	case e.PausedAt != nil:
		return "because the type is paused"
	case e.waitsFor(WaitsForConcurrency):
		return fmt.Sprintf("because of the limit of %d at once", *e.Limits.Concurrency)
	case e.waitsFor(WaitsForRate):
		return fmt.Sprintf("because of the limit of %s", *e.Limits.Rate)
	case e.Executor != nil && *e.Executor == KindRemote:
		return "for a worker to claim them"
	case len(e.Workers) == 0:
		return "because no process runs this type"
	case e.Slots == 0:
		return "because the processes that know this type have no slots"
	case e.Free == 0:
		return "because all slots are busy"
	}
	return "to be claimed, which is a matter of moments"
}
