package job

import (
	"crypto/sha256"
	"time"

	"github.com/sekali/sekali/idempotency"
)

// Type is what sort of work a job is.
type Type string

// Job is one unit of work as it stands. Times are UTC with millisecond
// precision, zero where they do not apply.
type Job struct {
	ID          ID
	Tenant      idempotency.Tenant
	Key         idempotency.Key
	Type        Type
	Status      Status
	Payload     []byte // JSON, byte for byte as submitted
	BusinessKey string // "" if none
	// OperationKey names the business operation, of the job's type, that must be
	// done once; "" if none.
	OperationKey string
	// CallbackURL is where the job's end is told; "" if nowhere.
	CallbackURL string

	Priority int           // each step is ten seconds of head start; smaller is earlier
	RunAt    time.Time     // not claimed before
	Deadline time.Time     // a job that has not started by then fails; zero: none
	Timeout  time.Duration // of one attempt
	// MaxAttempts bounds Attempts. It rises when an operator retries the job.
	MaxAttempts int
	// EarlierAttempts are those before the last retry of an operator.
	EarlierAttempts int
	Attempts        int   // counted attempts so far, the running one included
	Generation      int   // rises when an operator retries the job
	Version         int64 // rises with each transition, never with a heartbeat

	WorkerID string // of the last attempt
	// Remote says that WorkerID is the name of a worker outside of the gateway.
	Remote      bool
	Token       int64     // fencing token of the last claim
	ClaimedAt   time.Time // last claim
	LeaseEndsAt time.Time // while processing
	// CancelRequestedAt is when somebody asked to cancel the running attempt.
	CancelRequestedAt time.Time
	// UnknownAsks is not zero while nobody knows what the last attempt did: one
	// more than the number of times that reconciliation was asked in vain.
	UnknownAsks int
	LastError   *Failure // of the last attempt that did not succeed

	Outcome     string // DuplicateIgnored, OutcomeUnknown, or ""
	DuplicateOf idempotency.Key
	Result      *Result
	// ResultExpiredAt is when the result was let go, before the job; zero while
	// it is there, and if there was none.
	ResultExpiredAt time.Time

	CreatedAt     time.Time
	StartedAt     time.Time // first claim
	NextAttemptAt time.Time // while retrying
	FinishedAt    time.Time
	ExpiresAt     time.Time // when a finished job may be forgotten
}

// Slot is the shard slot of the job's row.
func (j Job) Slot() Slot { return j.ID.Slot() }

// Result is what an executor returned. A nil *Result means none.
type Result struct {
	Body      []byte
	MediaType string
}

// Hash identifies the result's bytes, for the ETag of GET …/result.
func (r Result) Hash() []byte {
	sum := sha256.Sum256(r.Body)
	return sum[:]
}

// Failure is the public account of an attempt that did not succeed. Its texts
// are shown to clients: they name a class and a status, never what a receiver
// or a program printed, unless the type allows that.
type Failure struct {
	Code    string `json:"code"`
	Detail  string `json:"detail"`
	Attempt int    `json:"attempt"`
}

// Lease is the right to run one attempt of a job: the fencing token of the
// claim. Every write that settles the attempt names it, and changes nothing
// once another claim has raised it.
type Lease struct {
	ID    ID
	Token int64
}

// Claimed is a job together with the lease under which it was claimed.
type Claimed struct {
	Job
	Lease Lease
}

// Cancelling reports that somebody asked to cancel the job.
func (c Claimed) Cancelling() bool { return !c.CancelRequestedAt.IsZero() }

// Ending ends a job: it moves from the live table to the finished one.
type Ending struct {
	Lease       Lease
	Status      Status // a finished one
	Attempt     Outcome
	Failure     *Failure // of the attempt; nil if it succeeded
	Outcome     string
	DuplicateOf idempotency.Key
	Result      *Result
	Keep        time.Duration // retention after the end, judged by the database's clock
	// IfExpired applies the ending only to a lease that has run out, judged in
	// the same statement: a heartbeat that came in between wins.
	IfExpired bool
	// Waiting ends a job that nobody holds: it applies while the token is the
	// job's and no attempt is running. No attempt is written down for it.
	Waiting bool
	// Operation is what the success has done, if the job holds it; nil: none.
	Operation *Operation
	// Follow is accepted in the transaction that ends the job. Of one whose key was
	// used before, its Otherwise is, and without one nothing.
	Follow []Submission
}

// Requeue puts a claimed job back to wait for another attempt.
type Requeue struct {
	Lease   Lease
	Status  Status        // Retrying, or Pending when it may be claimed at once
	In      time.Duration // until the next attempt, from the database's now
	Attempt Outcome
	Failure *Failure // nil leaves the job's last error as it is
	// Uncounted gives the attempt back: the job was handed back, not tried.
	Uncounted bool
	IfExpired bool // as in Ending
	// Unstarted says that the attempt did nothing: if it was the first one, the job
	// has not started yet, and its deadline still counts.
	Unstarted bool
	// UnknownAsks is what the job's UnknownAsks becomes.
	UnknownAsks int
}
