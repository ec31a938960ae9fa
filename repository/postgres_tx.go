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
	if err := p.txs.prepare(ctx, append([]string{finishAloneSQL, holdOperationSQL}, followStatements...)...); err != nil {
		return nil, err
	}
	return p.txs.db.BeginTx(ctx, nil)
}

// holdOperation waits for another transaction that has the operation as long as a
// lock may take, and no longer. The function's own statements may.
func (p *postgres) holdOperation(ctx context.Context, tx *sql.Tx, args ...any) (int64, error) {
	if _, err := tx.ExecContext(ctx, `set local lock_timeout = '1s'`); err != nil {
		return 0, err
	}
	n, err := changeIn(ctx, p.txs, tx, holdOperationSQL, args...)
	if err != nil || n == 0 {
		return n, err
	}
	_, err = tx.ExecContext(ctx, `set local lock_timeout to default`)
	return n, err
}

func (p *postgres) finishTx(ctx context.Context, tx *sql.Tx, e ending) (bool, error) {
	applied, err := p.finishIn(ctx, p.attemptTx(tx), []ending{e})
	if err != nil {
		return false, aborted(err)
	}
	return applied[0], nil
}

func (p *postgres) attemptTx(tx *sql.Tx) transaction { return transaction{tx, p.txs} }

func (p *postgres) finishStatements() []string { return []string{finishSQL, finishAloneSQL} }

func (p *postgres) finishIn(ctx context.Context, t transaction, endings []ending) ([]bool, error) {
	query, args := finishStatement(endings)
	rows, err := rowsOf[leaseRow](ctx, t, query, args...)
	if err != nil {
		return nil, err
	}
	now, applied := reached(rows), make([]bool, len(endings))
	for i, e := range endings {
		applied[i] = now[e.Lease]
	}
	return applied, nil
}

func (p *postgres) clientTx(ctx context.Context, statements []string, do func(context.Context, transaction) error) error {
	return p.shortTx(ctx, p.accepts, statements, do)
}

func (p *postgres) leaseTx(ctx context.Context, statements []string, do func(context.Context, transaction) error) error {
	return p.shortTx(ctx, p.leases, statements, do)
}

func (p *postgres) settleTx(ctx context.Context, patient bool, statements []string, do func(context.Context, transaction) error) error {
	return p.shortTx(ctx, p.settling(patient), statements, do)
}

// shortTx has, from the wait for a connection to the commit, the time that the
// pool gives one statement.
func (p *postgres) shortTx(ctx context.Context, on *pool, statements []string, do func(context.Context, transaction) error) error {
	ctx, cancel := on.within(ctx)
	defer cancel()
	if err := on.prepare(ctx, statements...); err != nil {
		return err
	}
	tx, err := on.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	if err := do(ctx, transaction{tx, on}); err != nil {
		return err
	}
	return commitShort(tx)
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
	settled, err := p.settled(ctx, []settlement{e.settlement()})
	if err != nil {
		return false, err
	}
	return settled[0] == job.Applied, nil
}
