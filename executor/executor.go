// Package executor does the work of one attempt. Each executor says in its
// comment what it promises; none of them writes a job's state: it returns, and
// the dispatcher settles under the lease.
package executor

import (
	"context"
	"database/sql"

	"github.com/sekali/sekali/job"
)

// Executor does one attempt of a job. It returns when the work is over or
// soon after ctx ends; context.Cause(ctx) tells why it ended
// (job.ErrTimeout, job.ErrLeaseLost, job.ErrShutdown). A nil *job.Result with a
// nil error means: done, and there is nothing to show.
//
// An error that is an *job.AttemptError tells the retry policy what it knows;
// any other is one that a retry may mend.
type Executor interface {
	Execute(ctx context.Context, c job.Claimed) (*job.Result, error)
}

// TxExecutor does its work in the transaction that marks the job succeeded: its
// writes and the job's end are one commit, so they happen exactly once. It must
// not commit or roll back tx itself.
type TxExecutor interface {
	ExecuteTx(ctx context.Context, tx *sql.Tx, c job.Claimed) (Done, error)
}

// Done is what a TxExecutor did.
type Done struct {
	Result *job.Result
	// Outcome is job.DuplicateIgnored if the work had been done before.
	Outcome string
}
