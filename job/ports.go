package job

import (
	"context"
	"database/sql"
	"time"

	"github.com/sekali/sekali/idempotency"
)

// Clock tells the time that decisions and stored times share: the database's.
type Clock interface {
	// Now returns UTC, truncated to milliseconds.
	Now() time.Time
}

// Submission is one accept: everything that is written, in one transaction.
type Submission struct {
	Request    idempotency.Request
	Job        Job
	Response   idempotency.Response
	OnConflict ConflictPolicy
	// Otherwise is accepted instead if the key stands for something else; nil:
	// nothing is. Only what follows a job has one.
	Otherwise *Submission
}

// ConflictPolicy says what becomes of a submission whose business key another
// unfinished job of the type holds (contract row 80).
type ConflictPolicy string

// The conflict policies.
const (
	// ConflictReturn binds the key to the holder for good.
	ConflictReturn ConflictPolicy = "return"
	// ConflictReject refuses with a BusinessKeyError and consumes nothing.
	ConflictReject ConflictPolicy = "reject"
	// ConflictQueue accepts the job and lets it run after the holder: never at
	// the same time, in order of arrival.
	ConflictQueue ConflictPolicy = "queue"
)

// Receipt is what a key stands for: its record and its job as it is now.
type Receipt struct {
	Record idempotency.Record
	Job    Job
	// Alias reports that the key is bound to another key's job: by a business key,
	// or because it was an operator's retry or resolution of that job.
	Alias bool
	// Brief says that the job comes without payload and result, as Facts know it.
	Brief bool
	// CachedAt is when the cache read the job that it tells of; zero: the database
	// told.
	CachedAt time.Time
}

// Duplicate reports that the key was bound to another key's job by a business
// key: it has no stored response of its own.
func (r Receipt) Duplicate() bool { return r.Alias && r.Record.Response.Status == 0 }

// Acceptor accepts one submission, or finds what its key was accepted for.
type Acceptor interface {
	// Accept returns the receipt of the key: Record.Fresh tells whether this
	// submission made it. The record is not compared with the request;
	// idempotency.Answer does that. Errors: *BusinessKeyError, an
	// *idempotency.InProgressError when another accept of the key holds it
	// longer than the lock timeout, ErrQueueFull, ErrUnavailable, ErrOutcomeUnknown.
	Accept(ctx context.Context, s Submission) (Receipt, error)
}

// Bulk accepts many submissions with one statement and one commit, and answers
// each: the two slices are as long as s, and either the receipt or the error
// of an index counts. One bad submission never fails its neighbours.
type Bulk interface {
	AcceptAll(ctx context.Context, s []Submission) ([]Receipt, []error)
}

// Reader reads jobs. No read takes a lock or scans finished jobs.
type Reader interface {
	// Find returns what the key stands for. Errors: ErrNotFound,
	// ErrUnavailable. A record whose retention is over, judged by the
	// database's clock, comes with the state idempotency.Retired.
	Find(ctx context.Context, tenant idempotency.Tenant, key idempotency.Key) (Receipt, error)
	// List returns at most f.Limit jobs, newest first, without payload and
	// result. Errors: ErrUnavailable.
	List(ctx context.Context, f Filter) ([]Job, error)
	// Versions returns the version and status of those jobs that exist, live
	// or finished, in one statement.
	Versions(ctx context.Context, ids []ID) (map[ID]Version, error)
	// Attempts returns the attempts of a job that have ended, oldest first.
	Attempts(ctx context.Context, id ID) ([]Attempt, error)
	// Events returns the stored events of a job, oldest first.
	Events(ctx context.Context, id ID) ([]Event, error)
}

// Version is how far a job has come.
type Version struct {
	Number int64
	Status Status
}

// Filter selects jobs of one tenant. Zero values do not filter.
type Filter struct {
	Tenant        idempotency.Tenant
	Status        Status
	Type          Type
	BusinessKey   string
	KeyPrefix     string
	CreatedAfter  time.Time // exclusive
	CreatedBefore time.Time // exclusive
	Before        ID        // keyset: jobs with a smaller id
	Limit         int
}

// Application is what became of a decision about a job.
type Application int

// What becomes of decisions.
const (
	// Refused: the token was not the job's any more. Nothing was changed.
	Refused Application = iota
	// Applied: the decision stands.
	Applied
	// CancelPending: somebody asked to cancel the attempt, and the decision,
	// which would leave the job alive or failed, did not know. Nothing was
	// changed: decide again.
	CancelPending
)

// Kept is what a heartbeat found about a lease that is still ours.
type Kept struct {
	// Extended: the lease was prolonged. If not, somebody holds the job's row just
	// now (its own end being committed, an operator's transaction), which must not
	// keep the others waiting.
	Extended bool
	// CancelRequested: somebody asked to cancel the attempt.
	CancelRequested bool
}

// Claiming is what a claim asks for.
type Claiming struct {
	Type   Type
	Max    int // jobs at most
	Worker string
	// Remote says that Worker is the name of a worker outside of the gateway, whose
	// leases do not end with any process of it.
	Remote bool
	Lease  time.Duration
	// Tenant whose jobs alone are claimed; "": those of all.
	Tenant idempotency.Tenant
}

// Leases is the executing side: every write of a job's state after its accept.
// Go decides what becomes of a job (see Settings); these only apply it under the
// fencing token. A call that is repeated because its answer was lost reports
// Applied if the first one had applied; where IfExpired is set it may not, because
// any other process may have done the same.
type Leases interface {
	// Claim takes pending jobs, first the ones with the most head start, for a lease
	// from the database's now. It raises attempt and token. Every claimed job is durably claimed when it returns. A paused
	// type, a job behind another one of its business key, and a job whose deadline
	// has passed are not claimed.
	//
	// Tenants that have pending jobs of the type take turns, whatever their jobs'
	// head start, so that nobody waits for all jobs of somebody else; within a tenant
	// the head start decides.
	Claim(ctx context.Context, c Claiming) ([]Claimed, error)
	// ClaimLimited is Claim within a limit over all processes, for which Claim does
	// not look. How many run is counted among the jobs themselves, under a lock that
	// claims of the type alone take. It holds among processes that claim the type in
	// this way.
	ClaimLimited(ctx context.Context, c Claiming, limit Limit) (Claims, error)
	// Extend prolongs leases from now. A job that is not in kept has lost its
	// lease.
	Extend(ctx context.Context, held []Lease, lease time.Duration) (kept map[ID]Kept, err error)
	// Finish ends jobs. An Ending as Failed is CancelPending if somebody asked to
	// cancel; as Succeeded or Cancelled it applies. A success marks the job's
	// operation done, with its result. A success that a cancellation was too late
	// for stores the event EventCancelTooLate.
	// After an error those of the applications that are there hold; a job that could
	// not be ended is Refused then.
	Finish(ctx context.Context, endings []Ending) ([]Application, error)
	// FinishTx runs run in a transaction and ends the job in that same one; if the
	// job names an operation, that is done in it too. If run fails, the lease is
	// lost (ErrLeaseLost) or another job has the operation (ErrOperationTaken),
	// nothing is kept of it.
	FinishTx(ctx context.Context, c Claimed, run func(context.Context, *sql.Tx) (Ending, error)) error
	// Requeue puts jobs back to wait for their next attempt.
	Requeue(ctx context.Context, requeues []Requeue) ([]Application, error)
	// Promote makes due jobs pending, at most limit, and tells their types and
	// how long until the next one is due (zero: none is waiting).
	Promote(ctx context.Context, limit int) (types []Type, next time.Duration, err error)
	// Expired lists jobs whose lease has run out for good: whose holder is not
	// coming back. worker names the asking process. They come without payloads.
	Expired(ctx context.Context, worker string, limit int) ([]Claimed, error)
	// Overdue lists jobs that have not started by their deadline, without
	// payloads.
	Overdue(ctx context.Context, limit int) ([]Claimed, error)
	// Unblock lets the first waiting job of each business key go that nobody holds
	// any more, at most limit, and tells their types. One that cannot go never
	// keeps the others from going.
	Unblock(ctx context.Context, limit int) ([]Type, error)
	// Load reads an unfinished job, with its payload. Errors: ErrNotFound.
	Load(ctx context.Context, id ID) (Claimed, error)
	// RequestCancel asks the holder of the lease to cancel, and stores the event
	// EventCancelRequested with the first request. It reports false if the lease is
	// not the job's any more.
	RequestCancel(ctx context.Context, lease Lease) (bool, error)
}
