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
)

// Receipt is what a key stands for: its record and its job as it is now.
type Receipt struct {
	Record idempotency.Record
	Job    Job
	// Alias reports that the key is bound to another key's job.
	Alias bool
}

// Acceptor accepts one submission, or finds what its key was accepted for.
type Acceptor interface {
	// Accept returns the receipt of the key: Record.Fresh tells whether this
	// submission made it. The record is not compared with the request;
	// idempotency.Answer does that. Errors: *BusinessKeyError, an
	// *idempotency.InProgressError when another accept of the key holds it
	// longer than the lock timeout, ErrUnavailable, ErrOutcomeUnknown.
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

// Leases is the executing side: every write of a job's state after its accept.
// Go decides what becomes of a job (see Policy); these only apply it under the
// fencing token. A slot of applied is false when the token was not the job's
// any more: nothing was changed then. A call that is repeated because its
// answer was lost reports true if the first one had applied.
type Leases interface {
	// Claim takes up to n pending jobs of the type, first the ones with the
	// most head start, for lease from the database's now. It raises attempt
	// and token. Every claimed job is durably claimed when it returns.
	Claim(ctx context.Context, t Type, n int, worker string, lease time.Duration) ([]Claimed, error)
	// Extend prolongs leases from now. Of the jobs in kept the token is still the
	// job's: true means prolonged, false that somebody holds the job's row just
	// now (its own end being committed, an operator's transaction), which must
	// not keep the others waiting. A job that is not in kept has lost its lease.
	Extend(ctx context.Context, held []Lease, lease time.Duration) (kept map[ID]bool, err error)
	// Finish ends jobs.
	Finish(ctx context.Context, endings []Ending) (applied []bool, err error)
	// FinishTx runs run in a transaction and ends the job in that same one.
	// If run fails or the lease is lost (ErrLeaseLost), nothing is kept of it.
	FinishTx(ctx context.Context, lease Lease, run func(context.Context, *sql.Tx) (Ending, error)) error
	// Requeue puts jobs back to wait for their next attempt.
	Requeue(ctx context.Context, requeues []Requeue) (applied []bool, err error)
	// Promote makes due jobs pending, at most limit, and tells their types and
	// how long until the next one is due (zero: none is waiting).
	Promote(ctx context.Context, limit int) (types []Type, next time.Duration, err error)
	// Expired lists jobs whose lease has run out for good: whose holder is not
	// coming back. worker names the asking process.
	Expired(ctx context.Context, worker string, limit int) ([]Claimed, error)
}
