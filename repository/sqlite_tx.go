package repository

import (
	"context"
	"database/sql"
	"errors"
	"slices"

	"github.com/sekali/sekali/job"
)

func (s *sqlite) begin(ctx context.Context) (*sql.Tx, error) {
	if err := s.writer.prepare(ctx, slices.Concat([]string{holdOperationSQL}, finishStatements, followStatements)...); err != nil {
		return nil, err
	}
	tx, err := s.writer.db.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	if _, err := tx.ExecContext(ctx, `savepoint attempt`); err != nil {
		return nil, errors.Join(err, tx.Rollback())
	}
	return tx, nil
}

// holdOperation waits for nobody: the transaction has the write lock.
func (s *sqlite) holdOperation(ctx context.Context, tx *sql.Tx, args ...any) (int64, error) {
	return s.change(ctx, tx, holdOperationSQL, args...)
}

// finishTx ends the job in the attempt's transaction.
func (s *sqlite) finishTx(ctx context.Context, tx *sql.Tx, e ending) (bool, error) {
	if err := s.intact(ctx, tx); err != nil {
		return false, err
	}
	return s.finishOne(ctx, tx, e)
}

// outcome is not needed here: a commit is always answered.
func (s *sqlite) outcome(ctx context.Context, e ending) (bool, error) {
	settled, err := s.settled(ctx, []settlement{e.settlement()})
	if err != nil {
		return false, err
	}
	return settled[0] == job.Applied, nil
}

func (s *sqlite) finishStatements() []string { return slices.Clone(finishStatements) }

func (s *sqlite) finishIn(ctx context.Context, t transaction, endings []ending) ([]bool, error) {
	applied := make([]bool, len(endings))
	for i, e := range endings {
		var err error
		if applied[i], err = s.finishOne(ctx, t.tx, e); err != nil {
			return nil, err
		}
	}
	return applied, nil
}

func (s *sqlite) followStatements() []string { return followStatements }

func (s *sqlite) followIn(ctx context.Context, t transaction, follow []job.Submission) error {
	return followAll(ctx, t, follow)
}

func (s *sqlite) attemptTx(tx *sql.Tx) transaction { return transaction{tx, s.writer} }

// clientTx, leaseTx and settleTx are the same here: one connection writes.
func (s *sqlite) clientTx(ctx context.Context, statements []string, do func(context.Context, transaction) error) error {
	return s.inTx(ctx, statements, func(ctx context.Context, tx *sql.Tx) error { return do(ctx, transaction{tx, s.writer}) })
}

func (s *sqlite) leaseTx(ctx context.Context, statements []string, do func(context.Context, transaction) error) error {
	return s.clientTx(ctx, statements, do)
}

func (s *sqlite) settleTx(ctx context.Context, _ bool, statements []string, do func(context.Context, transaction) error) error {
	return s.clientTx(ctx, statements, do)
}
