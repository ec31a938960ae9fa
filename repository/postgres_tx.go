package repository

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/lib/pq"

	"github.com/sekali/sekali/job"
)

func (p *postgres) begin(ctx context.Context) (*sql.Tx, error) {
	if err := p.txs.prepare(ctx, finishSQL); err != nil {
		return nil, err
	}
	return p.txs.db.BeginTx(ctx, nil)
}

func (p *postgres) finishTx(ctx context.Context, tx *sql.Tx, e ending) (bool, error) {
	prepared, err := p.txs.in(ctx, tx, finishSQL)
	if err != nil {
		return false, err
	}
	rows, err := scan[leaseRow](ctx, prepared, finishArgs([]ending{e})...)
	return len(rows) == 1, aborted(err)
}

// aborted names the error of a transaction in which a statement had failed.
func aborted(err error) error {
	var answer *pq.Error
	if errors.As(err, &answer) && answer.Code == inFailedTransaction {
		return fmt.Errorf("%w: %w", errAborted, err)
	}
	return err
}

// heldSQL waits for a transaction that may still be committing: it has deleted
// the row, and holds it. What the statement then finds is the truth.
const heldSQL = `
select id, token from jobs
where slot = $1 and id = $2 and token = $3 and state = 'processing'
for update`

// outcome reads back an ending whose commit was not answered.
func (p *postgres) outcome(ctx context.Context, e ending) (bool, error) {
	held, err := collect[leaseRow](ctx, p.leases, heldSQL, int64(e.Lease.ID.Slot()), string(e.Lease.ID), e.Lease.Token)
	if err != nil || len(held) > 0 {
		return false, err
	}
	applied, err := p.applied(ctx, map[job.Lease]bool{}, []attemptOutcome{{e.Lease, e.Attempt}})
	if err != nil {
		return false, err
	}
	return applied[0], nil
}
