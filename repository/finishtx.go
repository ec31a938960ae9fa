package repository

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/sekali/sekali/job"
)

// The codes of attempts whose function did with its transaction what it must not.
const (
	codeTransactionEnded   = "transaction-ended"
	codeTransactionAborted = "transaction-aborted"
)

// errAborted reports a transaction that the database has given up, although the
// function in it went on.
var errAborted = errors.New("the transaction was given up after a statement failed")

// FinishTx implements job.Leases. It returns run's error as it is. A function
// that ends the transaction itself, or that goes on after a statement failed,
// makes the attempt fail with a *job.AttemptError (BR-80).
//
// The token is looked at last, in the statement that ends the job: until then
// the job's row is not locked, and heartbeats pass (research/scale.md, rule 4).
// On SQLite the transaction holds the one write lock from its beginning.
func (r *Repository) FinishTx(ctx context.Context, lease job.Lease, run func(context.Context, *sql.Tx) (job.Ending, error)) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	// Until the commit the transaction ends with ctx. A commit that is cut off
	// leaves unknown what became of it, so from then on it does not.
	detached, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	untie := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	defer untie()

	tx, err := r.engine.begin(sameDeadline{detached, ctx})
	if err != nil {
		return r.ended(ctx, "begin", err)
	}
	// Also after a panic and runtime.Goexit in run; after a commit it does nothing.
	defer func() { _ = tx.Rollback() }()

	wanted, err := run(ctx, tx)
	if err != nil {
		return err
	}
	wanted.Lease, wanted.IfExpired = lease, false
	e := r.encodeEnding(wanted)
	settle, stop := context.WithTimeout(detached, settleTimeout)
	defer stop()
	applied, err := r.engine.finishTx(settle, tx, e)
	if err != nil {
		return r.ended(ctx, "finish", err)
	}
	if !applied {
		return fmt.Errorf("repository: finish in a transaction: %w", job.ErrLeaseLost)
	}
	if !untie() {
		return context.Cause(ctx)
	}
	return r.commit(ctx, tx, e)
}

// sameDeadline has the deadline of another context without ending at it: the
// connection takes its own bound from there.
type sameDeadline struct {
	context.Context
	of context.Context
}

// Deadline implements context.Context.
func (s sameDeadline) Deadline() (time.Time, bool) { return s.of.Deadline() }

// ended explains why the transaction of an attempt cannot be finished.
func (r *Repository) ended(ctx context.Context, doing string, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, sql.ErrTxDone):
		return &job.AttemptError{
			Code: codeTransactionEnded, Permanent: true, Err: err,
			Detail: "the function committed or rolled back the transaction that it was given",
		}
	case errors.Is(err, errAborted):
		return &job.AttemptError{
			Code: codeTransactionAborted, Err: err,
			Detail: "the function went on after a statement of its transaction had failed",
		}
	}
	return r.fail(doing+" in a transaction", err)
}

// commit commits, and finds out what became of a commit without an answer.
func (r *Repository) commit(ctx context.Context, tx *sql.Tx, e ending) error {
	err := tx.Commit()
	if err == nil {
		return nil
	}
	if connectionFailure(err) != unavailable {
		return r.fail("commit a transaction", err) // the database said no
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	applied, unknown := r.engine.outcome(ctx, e)
	switch {
	case unknown != nil:
		return fmt.Errorf("repository: commit a transaction: %w: %w", job.ErrOutcomeUnknown, errors.Join(err, unknown))
	case applied:
		return nil
	}
	return fmt.Errorf("repository: commit a transaction: %w: %w", job.ErrUnavailable, err)
}
