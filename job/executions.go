package job

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/sekali/sekali/idempotency"
)

// The errors about executions: claimed jobs in the hands of workers outside of the
// gateway.
var (
	// ErrExecutionNotFound: no job has the id, or none that the caller may see.
	ErrExecutionNotFound = errors.New("job: execution not found")
	// ErrExecutionFinished: the execution has ended with another result.
	ErrExecutionFinished = errors.New("job: execution has finished with another result")
)

// WorkerClaim is what a worker asks for.
type WorkerClaim struct {
	Worker string // its name
	Types  []Type // at least one; each is taken from in turn
	Max    int    // jobs at most
	// Wait is how long to wait for the first one; 0: not at all.
	Wait time.Duration
	// Tenant whose jobs alone are claimed; "": those of all.
	Tenant idempotency.Tenant
}

// Handed is a job that was handed to a worker.
type Handed struct {
	Claimed
	// LeaseToken names the claim. Nobody else can know or make it.
	LeaseToken string
	LeaseFor   time.Duration // how long the lease lasts from now
}

// ExecutionDeadline is when the attempt's time is over: no heartbeat prolongs its
// lease beyond that.
func (j Job) ExecutionDeadline() time.Time { return j.ClaimedAt.Add(j.Timeout) }

// WorkerCall names the claim that a worker has something to say about.
type WorkerCall struct {
	ID         ID
	LeaseToken string
	// Tenant whose executions alone the caller may see; "": those of all.
	Tenant idempotency.Tenant
}

// WorkerBeat is what a heartbeat tells a worker.
type WorkerBeat struct {
	LeaseEndsAt     time.Time
	LeaseFor        time.Duration // until then, from now
	CancelRequested bool
}

// Workers is what workers outside of the gateway can do. All but Claim may be
// repeated: what was said before gets the same answer. Errors of the calls about a
// claim: ErrExecutionNotFound; ErrLeaseLost if the token is not, or not any more,
// the one of the claim under which the job runs; those of Leases.
type Workers interface {
	// Claim takes jobs for the worker, and waits for the first one. It returns none
	// when the time is over or the process is about to end.
	Claim(ctx context.Context, c WorkerClaim) ([]Handed, error)
	// HandBack returns jobs that never reached the worker, as if they had not been
	// claimed.
	HandBack(ctx context.Context, handed []Handed)
	// Heartbeat prolongs the lease.
	Heartbeat(ctx context.Context, c WorkerCall) (WorkerBeat, error)
	// Complete ends the job with success. Another result than the one that it has
	// ended with is ErrExecutionFinished.
	Complete(ctx context.Context, c WorkerCall, r *Result) (Job, error)
	// Fail ends the attempt, and the job if it is not to be tried again.
	Fail(ctx context.Context, c WorkerCall, e *AttemptError) (Job, error)
	// Release hands the job back. The attempt is not counted.
	Release(ctx context.Context, c WorkerCall) (Job, error)
}

// Execution is a job as it is now, and how the attempt under a lease has ended.
type Execution struct {
	Job Job
	// Ended is the attempt under the lease; nil while it runs, and if there was none.
	Ended *Attempt
	// ResultHash is the hash of the job's result, also when that is not kept any more.
	ResultHash []byte
}

// Runs reports whether the attempt under the lease holds the job.
func (e Execution) Runs(l Lease) bool {
	return e.Job.Status == Processing && e.Job.ID == l.ID && e.Job.Token == l.Token
}

// EndedAs reports whether the attempt under the lease has ended in one of the ways.
func (e Execution) EndedAs(ways ...Outcome) bool {
	if e.Ended == nil {
		return false
	}
	for _, way := range ways {
		if e.Ended.Outcome == way {
			return true
		}
	}
	return false
}

// HasResult reports whether the job has ended with these very bytes.
func (e Execution) HasResult(r *Result) bool {
	if r == nil {
		return len(e.ResultHash) == 0
	}
	return bytes.Equal(e.ResultHash, r.Hash())
}

// Executions keeps what workers outside of the gateway ask about.
type Executions interface {
	// Execution reads the job of the lease, finished or not, with its payload and
	// result, in one snapshot. Error: ErrNotFound.
	Execution(ctx context.Context, l Lease) (Execution, error)
	// Secret returns the secret of the name: random bytes that all processes of the
	// database share, and nobody else knows. The first who asks makes it.
	Secret(ctx context.Context, name string) ([]byte, error)
}
