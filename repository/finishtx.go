package repository

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

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

// FinishTx implements job.Leases. It returns run's error as it is, except that
// where the database chose the transaction as the victim of a deadlock or of a
// serialization failure the error is job.ErrUnavailable too: that is no failure of
// the job (BR-46, BR-50). A function that ends the transaction itself, or that
// goes on after a statement failed, makes the attempt fail with a
// *job.AttemptError (BR-80).
//
// The job's operation is taken first, so that two jobs of one operation never do
// their work at the same time; a second one waits for it no longer than for any
// lock. The token is looked at last, in the statement that ends the job: until
// then the job's row is not locked, and heartbeats pass (research/scale.md, rule
// 4). On SQLite the transaction holds the one write lock from its beginning.
func (r *Repository) FinishTx(ctx context.Context, c job.Claimed, run func(context.Context, *sql.Tx) (job.Ending, error)) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	detached, release, end := tied(ctx)
	defer end()

	tx, err := r.engine.begin(sameDeadline{detached, ctx})
	if err != nil {
		return r.ended(ctx, "begin", err)
	}
	// Also after a panic and runtime.Goexit in run; after a commit it does nothing.
	defer func() { _ = tx.Rollback() }()

	if err := r.holdOperation(ctx, detached, tx, c); err != nil {
		return err
	}
	wanted, err := run(ctx, tx)
	if err != nil {
		return r.victim(err)
	}
	wanted.Lease, wanted.Operation = c.Lease, c.Operation()
	wanted.IfExpired, wanted.Waiting = false, false
	e := r.encodeEnding(wanted)
	if err := r.finishIn(ctx, detached, tx, e); err != nil {
		return err
	}
	if err := r.followTx(ctx, detached, r.engine.attemptTx(tx), e.Follow); err != nil {
		return err
	}
	if !release() {
		return context.Cause(ctx)
	}
	return r.commit(ctx, tx, e)
}

// holdOperation takes the operation that the job names, in the transaction.
func (r *Repository) holdOperation(ctx, detached context.Context, tx *sql.Tx, c job.Claimed) error {
	o := c.Operation()
	if o == nil {
		return nil
	}
	limited, stop := context.WithTimeout(detached, settleTimeout)
	defer stop()
	n, err := r.engine.holdOperation(limited, tx, holderArgs(*o, c)...)
	if err != nil {
		return r.ended(ctx, "take an operation", err)
	}
	if n == 0 {
		return fmt.Errorf("repository: take an operation in a transaction: %w", job.ErrOperationTaken)
	}
	return nil
}

// finishIn ends the job in the transaction.
func (r *Repository) finishIn(ctx, detached context.Context, tx *sql.Tx, e ending) error {
	limited, stop := context.WithTimeout(detached, settleTimeout)
	defer stop()
	applied, err := r.engine.finishTx(limited, tx, e)
	if err != nil {
		return r.ended(ctx, "finish", err)
	}
	if !applied {
		return fmt.Errorf("repository: finish in a transaction: %w", job.ErrLeaseLost)
	}
	return nil
}

// victim names an error of a function whose transaction the database gave up in
// favour of another one.
func (r *Repository) victim(err error) error {
	if r.engine.classify(err) != conflict {
		return err
	}
	return fmt.Errorf("repository: run in a transaction: %w: %w", job.ErrUnavailable, err)
}

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
