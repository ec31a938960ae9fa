package executor

import (
	"context"
	"database/sql"

	"github.com/sekali/sekali/job"
)

// Func is a Go function as an executor, for those who embed the gateway. It
// runs at least once: a process that dies after the function's effect and
// before the job's end runs it again. The function should return soon after ctx
// ends. Return job.Permanent, job.RetryAfter, job.Snooze or an *job.AttemptError to
// say what should become of the job; any other error follows the retry policy.
type Func func(ctx context.Context, c job.Claimed) (*job.Result, error)

var _ Executor = Func(nil)

// Execute calls the function.
func (f Func) Execute(ctx context.Context, c job.Claimed) (*job.Result, error) { return f(ctx, c) }

// TxFunc is a Go function that gets the transaction in which the job ends.
// What it writes through tx happens exactly once; anything else it does,
// at least once. It must not commit or roll back tx. If it returns an error,
// nothing of what it wrote is kept; neither is it if it hides a failed
// statement and returns nil, because Postgres refuses to commit then. On
// SQLite it holds the one writer while it runs: keep it short.
type TxFunc func(ctx context.Context, tx *sql.Tx, c job.Claimed) (*job.Result, error)

var _ TxExecutor = TxFunc(nil)

// ExecuteTx calls the function.
func (f TxFunc) ExecuteTx(ctx context.Context, tx *sql.Tx, c job.Claimed) (Done, error) {
	result, err := f(ctx, tx, c)
	return Done{Result: result}, err
}
