package repositorytest

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/sekali/sekali/job"
)

// What is kept of jobs in the hands of workers outside of the gateway.
var outside = cases{
	"LeasesEndByTimeAlone":   testRemoteLeases,
	"NamesAreTheirOwn":       testRemoteNames,
	"HeartbeatWins":          testRemoteHeartbeat,
	"CancelledLeaseRunsOut":  testRemoteCancelled,
	"ExecutionWhileItRuns":   testExecutionRuns,
	"ExecutionAfterItsEnd":   testExecutionEnded,
	"ExecutionOfRetriedJobs": testExecutionRetried,
	"ExecutionIsForgotten":   testExecutionForgotten,
	"SecretIsOne":            testSecret,
}

// claimRemote claims one job for a worker outside.
func claimRemote(t *testing.T, w World, worker string, length time.Duration) job.Claimed {
	t.Helper()
	claimed, err := w.Repo.Claim(t.Context(), job.Claiming{Type: kind, Max: 1, Worker: worker, Remote: true, Lease: length})
	if err != nil || len(claimed) != 1 {
		t.Fatalf("claim: %d jobs, %v", len(claimed), err)
	}
	return claimed[0]
}

func back(l job.Lease) job.Requeue {
	return job.Requeue{Lease: l, Status: job.Pending, Attempt: job.AttemptLost, IfExpired: true}
}

// requeued reports what becomes of one requeue.
func requeued(t *testing.T, w World, r job.Requeue) job.Application {
	t.Helper()
	applied, err := w.Repo.Requeue(t.Context(), []job.Requeue{r})
	if err != nil {
		t.Fatal(err)
	}
	return applied[0]
}

// A worker outlives the gateway: no start of a process ends its lease, and nothing
// else keeps it either.
func testRemoteLeases(t *testing.T, w World) {
	acceptN(t, w, 2)
	held, lost := claimRemote(t, w, "w1", lease), claimRemote(t, w, "w2", gone)
	for _, process := range []string{"", "alive"} { // one that has claimed nothing yet, and one that has
		if process != "" {
			if _, err := w.Repo.Claim(t.Context(), job.Claiming{Type: "no such type", Max: 1, Worker: process, Lease: lease}); err != nil {
				t.Fatal(err)
			}
		}
		expired, err := w.Repo.Expired(t.Context(), process, 10)
		if err != nil || len(expired) != 1 || expired[0].ID != lost.ID || !expired[0].Remote || expired[0].WorkerID != "w2" {
			t.Fatalf("by %q: %+v, %v", process, expired, err)
		}
		if applied := requeued(t, w, back(held.Lease)); applied != job.Refused {
			t.Errorf("by %q: a lease that has not ended was taken: %v", process, applied)
		}
		if finish(t, w, lostEnding(held.Lease)) {
			t.Errorf("by %q: a job whose lease has not ended was ended", process)
		}
	}
	if applied := requeued(t, w, back(lost.Lease)); applied != job.Applied {
		t.Errorf("a lease that has ended was not taken: %v", applied)
	}
}

// A worker that has a process's name is another one all the same.
func testRemoteNames(t *testing.T, w World) {
	acceptN(t, w, 2)
	ours, theirs := claim(t, w, "alive", lease), claimRemote(t, w, "alive", gone)
	expired, err := w.Repo.Expired(t.Context(), "alive", 10)
	if err != nil || len(expired) != 1 || expired[0].ID != theirs.ID {
		t.Errorf("%+v, %v", expired, err)
	}
	if j := now(t, w, theirs.Key); j.WorkerID != "alive" || !j.Remote {
		t.Errorf("%+v", j)
	}
	if j := now(t, w, ours.Key); j.WorkerID != "alive" || j.Remote {
		t.Errorf("%+v", j)
	}
	if !finish(t, w, succeed(theirs.Lease)) {
		t.Fatal("not finished")
	}
	list, err := w.Repo.Attempts(t.Context(), theirs.ID)
	if err != nil || len(list) != 1 || list[0].WorkerID != "alive" {
		t.Errorf("%+v, %v", list, err)
	}
	overview, err := w.Repo.Overview(t.Context())
	if err != nil || len(overview.Types[kind].Running) != 1 || overview.Types[kind].Running[0].Remote {
		t.Errorf("%+v, %v", overview.Types[kind], err)
	}
}

func testRemoteHeartbeat(t *testing.T, w World) {
	acceptN(t, w, 1)
	c := claimRemote(t, w, "w1", gone)
	kept, err := w.Repo.Extend(t.Context(), []job.Lease{c.Lease}, lease)
	if err != nil || !kept[c.ID].Extended {
		t.Fatalf("%+v, %v", kept, err)
	}
	if applied := requeued(t, w, back(c.Lease)); applied != job.Refused {
		t.Errorf("the rescuer wins over a heartbeat: %v", applied)
	}
}

func testRemoteCancelled(t *testing.T, w World) {
	acceptN(t, w, 2)
	held, lost := claimRemote(t, w, "w1", lease), claimRemote(t, w, "w2", gone)
	for _, c := range []job.Claimed{held, lost} {
		if ours, err := w.Repo.RequestCancel(t.Context(), c.Lease); err != nil || !ours {
			t.Fatal(ours, err)
		}
	}
	if applied := requeued(t, w, back(held.Lease)); applied != job.Refused {
		t.Errorf("%v", applied)
	}
	if applied := requeued(t, w, back(lost.Lease)); applied != job.CancelPending {
		t.Errorf("%v", applied)
	}
}

func testExecutionRuns(t *testing.T, w World) {
	accept(t, w, submission(w, "k", `{"a" : 1}`))
	c := claimRemote(t, w, "w1", lease)
	x, err := w.Repo.Execution(t.Context(), c.Lease)
	if err != nil || !x.Runs(c.Lease) || x.Ended != nil || string(x.Job.Payload) != `{"a" : 1}` || x.Job.WorkerID != "w1" || !x.Job.LeaseEndsAt.Equal(c.LeaseEndsAt) {
		t.Errorf("%+v, %v", x, err)
	}
	other := job.Lease{ID: c.ID, Token: c.Lease.Token + 1}
	if x, err := w.Repo.Execution(t.Context(), other); err != nil || x.Runs(other) {
		t.Errorf("another token: %+v, %v", x, err)
	}
	unknown := job.Lease{ID: job.NewID(c.CreatedAt, 9), Token: 1}
	if _, err := w.Repo.Execution(t.Context(), unknown); !errors.Is(err, job.ErrNotFound) {
		t.Errorf("an unknown job: %v", err)
	}
}

func testExecutionEnded(t *testing.T, w World) {
	accept(t, w, submission(w, "k", `{}`))
	c := claimRemote(t, w, "w1", lease)
	e := succeed(c.Lease)
	e.Result = &job.Result{Body: []byte(`{"n": 1.50}`), MediaType: "application/json"}
	if !finish(t, w, e) {
		t.Fatal("not finished")
	}
	x, err := w.Repo.Execution(t.Context(), c.Lease)
	if err != nil || x.Runs(c.Lease) || !x.EndedAs(job.AttemptSucceeded) || x.Ended.WorkerID != "w1" || x.Ended.Number != 1 {
		t.Fatalf("%+v, %v", x, err)
	}
	if !x.HasResult(e.Result) || x.HasResult(nil) || x.HasResult(&job.Result{Body: []byte(`{"n":1.50}`)}) {
		t.Errorf("results are not told apart: %x", x.ResultHash)
	}
	if stored := now(t, w, "k"); x.Job.Version != stored.Version || !x.Job.FinishedAt.Equal(stored.FinishedAt) || string(x.Job.Result.Body) != `{"n": 1.50}` {
		t.Errorf("%+v, want %+v", x.Job, stored)
	}
}

func testExecutionRetried(t *testing.T, w World) {
	accept(t, w, submission(w, "k", `{}`))
	c := claimRemote(t, w, "w1", lease)
	again := job.Requeue{Lease: c.Lease, Status: job.Pending, Attempt: job.AttemptFailed, Failure: &job.Failure{Code: "worker-error", Detail: "on fire", Attempt: 1}}
	if applied := requeued(t, w, again); applied != job.Applied {
		t.Fatal(applied)
	}
	later := claimRemote(t, w, "w2", lease)
	first, err := w.Repo.Execution(t.Context(), c.Lease)
	if err != nil || first.Runs(c.Lease) || !first.EndedAs(job.AttemptFailed, job.AttemptCancelled) || first.Ended.WorkerID != "w1" {
		t.Errorf("%+v, %v", first, err)
	}
	second, err := w.Repo.Execution(t.Context(), later.Lease)
	if err != nil || !second.Runs(later.Lease) || second.Ended != nil || second.Job.LastError.Detail != "on fire" {
		t.Errorf("%+v, %v", second, err)
	}
}

func testExecutionForgotten(t *testing.T, w World) {
	accept(t, w, submission(w, "k", `{}`))
	c := claimRemote(t, w, "w1", lease)
	e := succeed(c.Lease)
	e.Keep = -time.Second
	if !finish(t, w, e) {
		t.Fatal("not finished")
	}
	if _, err := w.Repo.Execution(t.Context(), c.Lease); !errors.Is(err, job.ErrNotFound) {
		t.Errorf("after its retention: %v", err)
	}
}

func testSecret(t *testing.T, w World) {
	repos := []job.Executions{w.Repo, w.Repo}
	if w.Another != nil {
		repos = append(repos, w.Another())
	}
	var first []byte
	for _, repo := range repos {
		secret, err := repo.Secret(t.Context(), "a")
		if err != nil || len(secret) < 32 || first != nil && !bytes.Equal(first, secret) {
			t.Fatalf("%x, %v; the first was %x", secret, err, first)
		}
		first = secret
	}
	if other, err := w.Repo.Secret(t.Context(), "b"); err != nil || bytes.Equal(other, first) {
		t.Errorf("another secret: %x, %v", other, err)
	}
}
