// Package repositorytest is the contract of a repository as tests: whatever
// engine passes Run and RunConcurrency keeps the promises of package job.
//
// The numbers in the names of cases are those of the contract's rows (Row), of
// failures/jobs.md (BR) and of failures/queues.md (Q).
package repositorytest

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
	"github.com/sekali/sekali/repository"
)

// World is one database, new and with the schema, and what a case needs of it.
type World struct {
	// Repo is the repository under test. It keeps tombstones for Tombstone.
	Repo *repository.Repository
	// Another opens what a second process would use; nil where one process has
	// the database to itself.
	Another func() *repository.Repository
	// Brief opens one that keeps results for a moment only, in Repo's place.
	Brief func() *repository.Repository
	// DB reaches the database past the repository.
	DB *sql.DB
	// AbortsOnError tells that a transaction in which a statement has failed
	// cannot be used any more.
	AbortsOnError bool
}

// Factory makes a world for one case and removes it when the case ends.
type Factory func(t *testing.T) World

// cases names cases and runs each in a world of its own.
type cases map[string]func(t *testing.T, w World)

func (c cases) run(t *testing.T, open Factory) {
	for name, run := range c {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, open(t))
		})
	}
}

// Run runs the cases that one goroutine shows.
func Run(t *testing.T, open Factory) {
	t.Run("accept", func(t *testing.T) { t.Parallel(); accepting.run(t, open) })
	t.Run("read", func(t *testing.T) { t.Parallel(); reading.run(t, open) })
	t.Run("retention", func(t *testing.T) { t.Parallel(); retaining.run(t, open) })
	t.Run("leases", func(t *testing.T) { t.Parallel(); leasing.run(t, open) })
	t.Run("cancel", func(t *testing.T) { t.Parallel(); cancelling.run(t, open) })
	t.Run("turns", func(t *testing.T) { t.Parallel(); turning.run(t, open) })
	t.Run("limits", func(t *testing.T) { t.Parallel(); limiting.run(t, open) })
	t.Run("queue", func(t *testing.T) { t.Parallel(); queueing.run(t, open) })
	t.Run("transaction", func(t *testing.T) { t.Parallel(); transacting.run(t, open) })
	t.Run("operator", func(t *testing.T) { t.Parallel(); reviving.run(t, open) })
	t.Run("operations", func(t *testing.T) { t.Parallel(); operations.run(t, open) })
	t.Run("compensation", func(t *testing.T) { t.Parallel(); compensating.run(t, open) })
	t.Run("callbacks", func(t *testing.T) { t.Parallel(); tellingOfEnds.run(t, open) })
	t.Run("history", func(t *testing.T) { t.Parallel(); remembering.run(t, open) })
	t.Run("executors", func(t *testing.T) { t.Parallel(); overseeing.run(t, open) })
	t.Run("priorities", func(t *testing.T) { t.Parallel(); prioritising.run(t, open) })
	t.Run("schedules", func(t *testing.T) { t.Parallel(); recurring.run(t, open) })
	t.Run("outside", func(t *testing.T) { t.Parallel(); outside.run(t, open) })
	t.Run("doctor", func(t *testing.T) { t.Parallel(); examining.run(t, open) })
}

// RunConcurrency runs the races. They are apart because they take longer.
func RunConcurrency(t *testing.T, open Factory) {
	racing.run(t, open)
	racingQueues.run(t, open)
	racingLimits.run(t, open)
	racingOperators.run(t, open)
}

// The names that most cases use.
const (
	tenant idempotency.Tenant = "acme"
	kind   job.Type           = "invoice"
	lease                     = time.Minute
	keep                      = time.Hour
)

// gone is the length of a lease that ended longer ago than the takeover grace.
const gone = -2 * time.Second

// submission makes one as the domain would; changes adjust its job.
func submission(w World, key string, payload string, changes ...func(*job.Submission)) job.Submission {
	now := w.Repo.Clock().Now()
	s := job.Submission{
		Request: idempotency.Request{
			Tenant: tenant, Key: idempotency.Key(key),
			Fingerprint: idempotency.NewFingerprint("POST", "/jobs", nil, "application/json", []byte(payload)),
		},
		Job: job.Job{
			ID: job.NewID(now, job.KeySlot(tenant, idempotency.Key(key))), Tenant: tenant, Key: idempotency.Key(key),
			Type: kind, Status: job.Pending, Payload: []byte(payload), RunAt: now, CreatedAt: now,
			Timeout: 5 * time.Minute, MaxAttempts: 10, Generation: 1, Version: 1,
		},
		Response: idempotency.Response{
			Status: http.StatusAccepted,
			Header: http.Header{"Content-Type": {"application/json"}, "Location": {"/jobs/" + key}},
			Body:   []byte(`{"key":` + strconv.Quote(key) + `}`),
		},
		OnConflict: job.ConflictReturn,
	}
	for _, change := range changes {
		change(&s)
	}
	return s
}

// withBusinessKey puts the job into the slot of its business key, as job.Jobs
// does; all that matters here is that equal keys share a slot.
func withBusinessKey(key string, policy job.ConflictPolicy) func(*job.Submission) {
	return func(s *job.Submission) {
		s.Job.BusinessKey, s.OnConflict = key, policy
		s.Job.ID = job.NewID(s.Job.CreatedAt, job.KeySlot(tenant, idempotency.Key(string(s.Job.Type)+"/"+key)))
	}
}

func scheduledIn(d time.Duration) func(*job.Submission) {
	return func(s *job.Submission) {
		s.Job.Status, s.Job.RunAt = job.Scheduled, s.Job.RunAt.Add(d)
	}
}

func ofType(t job.Type) func(*job.Submission) {
	return func(s *job.Submission) { s.Job.Type = t }
}

// accept accepts a submission that must be fresh. The next one is a later one also by
// the clock, which keeps to milliseconds: jobs of one millisecond have no order.
func accept(t *testing.T, w World, s job.Submission) job.Job {
	t.Helper()
	defer passes(w, w.Repo.Clock().Now())
	receipt, err := w.Repo.Accept(t.Context(), s)
	if err != nil {
		t.Fatalf("accept %s: %v", s.Request.Key, err)
	}
	if !receipt.Record.Fresh {
		t.Fatalf("accept %s: not fresh: %+v", s.Request.Key, receipt)
	}
	return receipt.Job
}

// passes waits until the clock has passed the time, which is about now.
func passes(w World, at time.Time) {
	for !w.Repo.Clock().Now().After(at) {
		runtime.Gosched() // for a millisecond or two
	}
}

// acceptN accepts n jobs, numbered in the order in which they are to be claimed.
func acceptN(t *testing.T, w World, n int) []job.Job {
	t.Helper()
	jobs := make([]job.Job, n)
	for i := range jobs {
		jobs[i] = accept(t, w, submission(w, fmt.Sprintf("job-%03d", i), "{}"))
	}
	return jobs
}

// claim claims exactly one job.
func claim(t *testing.T, w World, worker string, length time.Duration) job.Claimed {
	t.Helper()
	claimed, err := w.Repo.Claim(t.Context(), job.Claiming{Type: kind, Max: 1, Worker: worker, Lease: length})
	if err != nil || len(claimed) != 1 {
		t.Fatalf("claim: %d jobs, %v", len(claimed), err)
	}
	return claimed[0]
}

// lose claims one job for a worker that never comes back.
func lose(t *testing.T, w World) job.Claimed {
	t.Helper()
	lost := claim(t, w, "dead", gone)
	// On an engine where a process spares its own leases, this one is another.
	if _, err := w.Repo.Claim(t.Context(), job.Claiming{Type: "no such type", Max: 1, Worker: "alive", Lease: lease}); err != nil {
		t.Fatal(err)
	}
	return lost
}

// now reads the job of a key.
func now(t *testing.T, w World, key idempotency.Key) job.Job {
	t.Helper()
	receipt, err := w.Repo.Find(t.Context(), tenant, key)
	if err != nil {
		t.Fatalf("find %s: %v", key, err)
	}
	return receipt.Job
}

func succeed(l job.Lease) job.Ending {
	return job.Ending{Lease: l, Status: job.Succeeded, Attempt: job.AttemptSucceeded, Keep: keep}
}

func lostEnding(l job.Lease) job.Ending {
	return job.Ending{
		Lease: l, Status: job.Failed, Attempt: job.AttemptLost, Keep: keep, IfExpired: true,
		Failure: &job.Failure{Code: "lost", Detail: "the lease ended", Attempt: 1},
	}
}

func retry(l job.Lease, in time.Duration) job.Requeue {
	return job.Requeue{
		Lease: l, Status: job.Retrying, In: in, Attempt: job.AttemptFailed,
		Failure: &job.Failure{Code: "http-status", Detail: "503", Attempt: 1},
	}
}

// ending ends one job and tells what became of that.
func ending(t *testing.T, w World, e job.Ending) job.Application {
	t.Helper()
	applications, err := w.Repo.Finish(t.Context(), []job.Ending{e})
	if err != nil || len(applications) != 1 {
		t.Fatalf("finish: %v, %v", applications, err)
	}
	return applications[0]
}

// finish ends one job and reports whether that was applied.
func finish(t *testing.T, w World, e job.Ending) bool {
	t.Helper()
	return ending(t, w, e) == job.Applied
}

// requeueing puts one job back and tells what became of that.
func requeueing(t *testing.T, w World, q job.Requeue) job.Application {
	t.Helper()
	applications, err := w.Repo.Requeue(t.Context(), []job.Requeue{q})
	if err != nil || len(applications) != 1 {
		t.Fatalf("requeue: %v, %v", applications, err)
	}
	return applications[0]
}

// requeue puts one job back and reports whether that was applied.
func requeue(t *testing.T, w World, q job.Requeue) bool {
	t.Helper()
	return requeueing(t, w, q) == job.Applied
}

// promote makes due jobs pending.
func promote(t *testing.T, w World, limit int) ([]job.Type, time.Duration) {
	t.Helper()
	types, next, err := w.Repo.Promote(t.Context(), limit)
	if err != nil {
		t.Fatalf("promote: %v", err)
	}
	return types, next
}

// count counts rows past the repository.
func count(t *testing.T, w World, query string, args ...any) int {
	t.Helper()
	var n int
	if err := w.DB.QueryRowContext(t.Context(), query, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

func execute(t *testing.T, w World, query string, args ...any) {
	t.Helper()
	if _, err := w.DB.ExecContext(t.Context(), query, args...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

// attempts lists the outcomes of a job's attempts in the order of their tokens.
func attempts(t *testing.T, w World, id job.ID) []string {
	t.Helper()
	rows, err := w.DB.QueryContext(t.Context(),
		`select outcome from job_attempts where slot = $1 and job_id = $2 order by token`, int64(id.Slot()), string(id))
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var outcomes []string
	for rows.Next() {
		var outcome string
		if err := rows.Scan(&outcome); err != nil {
			t.Fatal(err)
		}
		outcomes = append(outcomes, outcome)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return outcomes
}

func equalResponse(a, b idempotency.Response) bool {
	return a.Status == b.Status && bytes.Equal(a.Body, b.Body) && fmt.Sprint(a.Header) == fmt.Sprint(b.Header)
}

// eventually polls until the check holds: for what only time brings about.
func eventually(t *testing.T, check func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for !check() {
		select {
		case <-ctx.Done():
			t.Fatal("not in time")
		case <-ticker.C:
		}
	}
}

// patiently makes a call again that was given up for want of time: on a machine that
// stood still a second or less is soon over. What is refused at once is not.
func patiently(call func() error) (err error) {
	for range 20 {
		began := time.Now() //nolint:forbidigo // what is measured is the patience of the repository
		err = call()
		late := errors.As(err, new(*idempotency.InProgressError)) || errors.Is(err, job.ErrUnavailable)
		if !late || time.Since(began) < 500*time.Millisecond {
			break
		}
	}
	return err
}

// within says whether two times are close enough for two readings of one clock.
func within(a, b time.Time, d time.Duration) bool { return a.Sub(b).Abs() <= d }

func wantError[E error](t *testing.T, err error) E {
	t.Helper()
	var want E
	if !errors.As(err, &want) {
		t.Fatalf("error is %v, want a %T", err, want)
	}
	return want
}

// detached is a context that outlives the case's, for what must be undone.
func detached(t *testing.T) context.Context { return context.WithoutCancel(t.Context()) }
