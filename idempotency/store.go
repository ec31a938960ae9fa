package idempotency

import (
	"context"
	"database/sql"
	"errors"
	"time"
)

// Claim is the right to run one keyed request: the owner token of its record.
// Every write about the run names it, and changes nothing once somebody else
// has taken the record over.
type Claim struct {
	Tenant  Tenant
	Key     Key
	Owner   string // random for each claim
	Attempt int    // 1 for the first run, more after a takeover
}

// ErrClaimLost reports that the record is not the claim's any more.
var ErrClaimLost = errors.New("idempotency: claim lost")

// Failures of a store, of which no request's fate can be told.
var (
	// ErrUnavailable reports a store that did not answer, or not in time.
	ErrUnavailable = errors.New("idempotency: store unavailable")
	// ErrOutcomeUnknown reports a commit of which nobody knows what became; the
	// same request again tells.
	ErrOutcomeUnknown = errors.New("idempotency: outcome of the commit is unknown")
	// ErrCorrupt reports a record that cannot be read, or is of a version that is
	// not known here. It is never run over: somebody has to look at it.
	ErrCorrupt = errors.New("idempotency: record is corrupt")
)

// Beginning says how Store.Begin claims.
type Beginning struct {
	// Lease is how long the claim holds without being extended.
	Lease time.Duration
	// Takeover lets this request run when an earlier run's lease has ended
	// without a word; otherwise the record comes back as Interrupted.
	Takeover bool
	// AfterExpiry lets this request run when the record has expired; otherwise
	// it comes back as Retired for as long as its tombstone is kept.
	AfterExpiry bool
}

// Store keeps the records of requests whose effects are outside the store's own
// database: begin, run, finish. Leases and expiry are judged by the store's
// clock alone. storetest.Run is the contract that every store must pass.
//
// Errors other than those named are failures of the store: nothing was decided.
type Store interface {
	// Begin claims the key for this request, or returns the record that stands
	// in its way. Exactly one of any number of concurrent callers gets a claim
	// (ok); the others get the record. A record whose fingerprint differs is
	// returned as it is, whatever its state; one that has expired is no record
	// where AfterExpiry says so.
	Begin(ctx context.Context, req Request, b Beginning) (c Claim, rec Record, ok bool, err error)
	// Extend prolongs the claim, from now. Error: ErrClaimLost.
	Extend(ctx context.Context, c Claim, lease time.Duration) error
	// Finish stores the response and ends the claim. It works after the lease
	// has ended if nobody has taken the record over: the work is done, and doing
	// it again would be the harm. keep counts from now. Error: ErrClaimLost.
	Finish(ctx context.Context, c Claim, resp Response, keep time.Duration) error
	// Release forgets the claim: the key may be used again, by the same or by
	// another request. Error: ErrClaimLost.
	Release(ctx context.Context, c Claim) error
	// Interrupt ends the claim with an outcome that nobody knows: from now on
	// the record is Interrupted, for keep. Error: ErrClaimLost.
	Interrupt(ctx context.Context, c Claim, keep time.Duration) error
	// Find returns the record of the key. Error: ErrNotFound.
	Find(ctx context.Context, t Tenant, k Key) (Record, error)
}

// TxStore is for handlers that write in the store's own database: the effect
// and the record are one commit, so there is no claim to lose.
type TxStore interface {
	// Do runs run in a transaction that also holds the record, and commits both;
	// or it returns the record that was there. A concurrent second request waits
	// for the first one's end, at most as long as the store's lock timeout, and
	// gets an *InProgressError then. If run fails, nothing is kept, the key
	// neither. A commit of which nobody knows the outcome is an error; the same
	// request again tells.
	Do(ctx context.Context, req Request, keep time.Duration, run func(context.Context, *sql.Tx) (Response, error)) (Record, error)
}
