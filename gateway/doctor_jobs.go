package gateway

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sekali/sekali/job"
	"github.com/sekali/sekali/repository"
)

const (
	// waitsLong is when a job that may start should have started in any
	// installation that is large enough.
	waitsLong = 5 * time.Minute
	// manyExpired is more than the reaper leaves lying between two rounds.
	manyExpired = 1000
	// namesTold of a longer list.
	namesTold = 5
)

// judgeJobs says what the jobs tell of trouble.
func judgeJobs(r repository.JobsReading, cfg Config) []Finding {
	var f findingList
	judgeProcesses(r, cfg, &f)
	judgeLeases(r, &f)
	judgeWaiting(r, cfg, &f)
	judgeTypes(r, cfg, &f)
	judgeAttempts(r, &f)
	if r.NotMoved > 0 {
		f.problem("jobs.due", "start a gateway with dispatcher.slots above 0; if one runs, its log says what keeps it",
			"%d scheduled or retrying jobs should have become pending more than a minute ago", r.NotMoved)
	}
	if r.Reapable > manyExpired {
		f.warn("jobs.retention", "let a gateway run with dispatcher.slots above 0: it deletes them in small steps",
			"at least %d finished jobs are past their retention by more than an hour", r.Reapable)
	}
	return f
}

// judgeProcesses looks at who runs jobs.
func judgeProcesses(r repository.JobsReading, cfg Config, f *findingList) {
	const check = "jobs.processes"
	for _, silent := range r.Silent {
		f.warn(check, "find out whether it was killed or hangs; others take over what it ran, once its leases end",
			"the process %s was last heard of %s ago, and has not said that it ends", silent.ID, brief(r.Now.Sub(silent.SeenAt)))
	}
	workers := r.Overview.Workers
	if len(workers) == 0 {
		f.ok(check, "none runs jobs now")
		return
	}
	slots := 0
	for _, w := range workers {
		slots += w.Slots
	}
	f.ok(check, "%d run jobs, with %d slots", len(workers), slots)
	for _, name := range slices.Sorted(maps.Keys(cfg.JobTypes)) {
		if lock := cfg.JobTypes[name].Lock; len(workers) > 1 && cfg.RedisURL == "" && lock != "" && lock != string(job.LockNone) {
			f.warn("jobs.locks", "set redis_url: without it a lock excludes within one process only",
				"job_types.%s.lock is %s, %d processes run jobs, and there is no Redis", name, lock, len(workers))
		}
	}
}

// judgeLeases looks for jobs that nobody runs any more, and nobody takes over.
func judgeLeases(r repository.JobsReading, f *findingList) {
	const check = "jobs.leases"
	if len(r.Overdue) == 0 {
		f.ok(check, "every job that runs has a lease")
		return
	}
	advice := "start a gateway with dispatcher.slots above 0: it takes them over"
	if len(r.Overview.Workers) > 0 {
		advice = "look into the logs of the processes that run jobs: one of them should have taken these over"
	}
	var keys []string
	for _, one := range r.Overdue {
		keys = append(keys, fmt.Sprintf("%s (%s, of %s)", one.Key, one.Type, one.WorkerID))
	}
	f.problem(check, advice, "leases of running jobs ended more than a minute ago, the oldest seen %s ago: %s", brief(r.Now.Sub(oldestEnd(r.Overdue))), list(keys))
}

func oldestEnd(leases []repository.OverdueLease) time.Time {
	return slices.MinFunc(leases, func(a, b repository.OverdueLease) int { return a.Ended.Compare(b.Ended) }).Ended
}

// judgeWaiting looks for jobs that might start, and do not. Types that nobody
// knows, and paused ones, are told of by judgeTypes.
func judgeWaiting(r repository.JobsReading, cfg Config, f *findingList) {
	const check = "jobs.waiting"
	before := len(*f)
	for _, oldest := range r.Waiting {
		waits := r.Now.Sub(oldest.Due)
		if waits < waitsLong || paused(r, oldest.Type) || !cfg.knows(oldest.Type) && !runs(r, oldest.Type) {
			continue
		}
		if limit := limitReached(r, cfg, oldest.Type); limit != "" {
			f.warn(check, "raise the limit of the type, if what it calls can bear more: docs/limits.md",
				"a job of the type %s has waited for its limit of %s for %s", oldest.Type, limit, brief(waits))
			continue
		}
		if cfg.JobTypes[string(oldest.Type)].Executor == kindRemote {
			f.warn(check, "start workers, or more of them: docs/workers.md; sekali executors shows which ones run jobs now",
				"a job of the type %s has waited for a worker to claim it for %s", oldest.Type, brief(waits))
			continue
		}
		if runs(r, oldest.Type) {
			f.warn(check, "give the type more processes or slots, or find out what its attempts wait for: sekali executors",
				"a job of the type %s has waited for a slot for %s", oldest.Type, brief(waits))
			continue
		}
		f.problem(check, "start a gateway whose configuration has the type, with dispatcher.slots above 0",
			"a job of the type %s has waited for %s, and no process runs the type", oldest.Type, brief(waits))
	}
	if len(*f) == before {
		f.ok(check, "no job has waited for longer than %s that could run", brief(waitsLong))
	}
}

// limitReached is the limit that keeps jobs of the type now, in words; "" if none
// does.
func limitReached(r repository.JobsReading, cfg Config, name job.Type) string {
	limit := cfg.JobTypes[string(name)].limit()
	of := r.Overview.Types[name]
	switch {
	case of == nil:
		return ""
	case limit.Concurrency > 0 && of.Busy >= limit.Concurrency:
		return fmt.Sprintf("%d at once", limit.Concurrency)
	case !limit.Rate.None() && of.NextAt.After(r.Now):
		return limit.Rate.String()
	}
	return ""
}

// judgeTypes looks for types that keep their jobs from starting.
func judgeTypes(r repository.JobsReading, cfg Config, f *findingList) {
	const check = "jobs.types"
	before := len(*f)
	for _, name := range slices.Sorted(maps.Keys(r.Overview.Types)) {
		t := r.Overview.Types[name]
		unfinished := t.Busy + t.Waiting.Pending + t.Waiting.Scheduled + t.Waiting.Retrying + t.Waiting.Blocked
		switch {
		case !t.PausedAt.IsZero():
			f.warn(check, "sekali resume "+string(name), "the type %s has been paused for %s; %d jobs of it are unfinished", name, brief(r.Now.Sub(t.PausedAt)), unfinished)
		case unfinished == 0 || cfg.knows(name):
		case runs(r, name):
			f.warn(check, "give all replicas one configuration", "this configuration does not have the type %s, which other processes run", name)
		default:
			f.problem(check, "bring the type back into the configuration, or cancel its jobs",
				"%d jobs of the type %s are unfinished, and neither this configuration nor any process knows the type", unfinished, name)
		}
	}
	if len(*f) == before {
		f.ok(check, "no type with unfinished jobs is paused or unknown")
	}
}

// judgeAttempts looks at how attempts have ended.
func judgeAttempts(r repository.JobsReading, f *findingList) {
	for _, name := range slices.Sorted(maps.Keys(r.Overview.Types)) {
		ended := r.Overview.Types[name].Ended
		if ended.Lost > 0 {
			f.warn("jobs.lost", "look for killed processes, and for leases that are shorter than the database or the machine stands still at times",
				"%d attempts of the type %s were lost within the last hour; %d succeeded", ended.Lost, name, ended.Succeeded)
		}
	}
	if len(r.Unknown) > 0 {
		f.warn("jobs.unknown_outcome", "sekali inspect KEY says what is known; then sekali resolve KEY --status succeeded or failed",
			"nobody knows what these jobs did, and they wait for somebody who finds out: %s", list(r.Unknown))
	}
}

// knows reports whether this configuration runs the type.
func (c Config) knows(name job.Type) bool {
	_, configured := c.JobTypes[string(name)]
	_, function := c.Executors[string(name)]
	_, txFunction := c.TxExecutors[string(name)]
	return configured || function || txFunction || name == echoType || name == job.CallbackType && c.callsBack()
}

func paused(r repository.JobsReading, name job.Type) bool {
	t := r.Overview.Types[name]
	return t != nil && !t.PausedAt.IsZero()
}

// runs reports whether a process that lives runs the type.
func runs(r repository.JobsReading, name job.Type) bool {
	return slices.ContainsFunc(r.Overview.Workers, func(w job.Worker) bool { return slices.Contains(w.Types, name) })
}

// list names the first ones.
func list(names []string) string {
	if len(names) <= namesTold {
		return strings.Join(names, ", ")
	}
	return strings.Join(names[:namesTold], ", ") + ", …"
}
