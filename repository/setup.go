package repository

import (
	"context"
	"time"

	"github.com/sekali/sekali/migrations"
)

// setupTries is for replicas that start together: two `create table if not
// exists` of one name at the same time can fail on Postgres, and the loser
// finds the table there when it asks again.
const setupTries = 3

// Setup runs a statement of the user's that must be safe to repeat, in a
// transaction of its own.
func (r *Repository) Setup(ctx context.Context, statement string) error {
	var err error
	for range setupTries {
		if err = r.setup(ctx, statement); err == nil {
			return nil
		}
		timer := time.NewTimer(100 * time.Millisecond)
		select {
		case <-ctx.Done():
			timer.Stop()
			return r.fail("setup", err)
		case <-timer.C:
		}
	}
	return r.fail("setup", err)
}

func (r *Repository) setup(ctx context.Context, statement string) error {
	tx, err := r.engine.begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	if _, err := tx.ExecContext(ctx, statement); err != nil {
		return err
	}
	return tx.Commit()
}

// Exclusive reports whether one process owns the database, so that leases end
// with it and never by time.
func (r *Repository) Exclusive() bool { return r.engine.name() == migrations.SQLite }
