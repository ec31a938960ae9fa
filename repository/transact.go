package repository

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/sekali/sekali/job"
)

// transaction is a short one of ours that is open, with the pool for which its
// statements were prepared.
type transaction struct {
	tx   *sql.Tx
	pool *pool
}

// change runs a prepared statement and returns how many rows it changed.
func (t transaction) change(ctx context.Context, query string, args ...any) (int64, error) {
	return changeIn(ctx, t.pool, t.tx, query, args...)
}

// rowsOf runs a prepared statement and returns its rows.
func rowsOf[T any](ctx context.Context, t transaction, query string, args ...any) ([]T, error) {
	prepared, err := t.pool.in(ctx, t.tx, query)
	if err != nil {
		return nil, err
	}
	return scan[T](ctx, prepared, args...)
}

// errCommitLost reports a commit that was not answered: nobody knows whether it
// was done.
var errCommitLost = errors.New("the commit was not answered")

// errSettled ends a transaction that has nothing to commit, because what it was to
// do was done before, or cannot be.
var errSettled = errors.New("nothing to commit")

// commitShort commits a transaction that transact repeats if need be.
func commitShort(tx *sql.Tx) error {
	err := tx.Commit()
	if connectionFailure(err) == unavailable {
		return fmt.Errorf("%w: %w", errCommitLost, err)
	}
	return err
}

// transact runs do, which begins a transaction and commits it. It is run again
// when it lost against another one, and once more when its commit was not
// answered: then it must find out by itself whether the first one was done, and
// end with errSettled if so. Like
// write, it goes on when the caller has left.
func (r *Repository) transact(ctx context.Context, doing string, do func(context.Context) error) error {
	ctx = context.WithoutCancel(ctx)
	err := again(ctx, r.engine, do)
	if errors.Is(err, errCommitLost) {
		err = again(ctx, r.engine, do)
		if kind := r.engine.classify(err); kind == unavailable || kind == busy || kind == conflict {
			err = fmt.Errorf("%w: %w", job.ErrOutcomeUnknown, err)
		}
	}
	if errors.Is(err, errSettled) {
		return nil
	}
	return r.fail(doing, err)
}
