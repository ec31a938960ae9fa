package repository

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"time"

	"github.com/jmoiron/sqlx"
)

// pool is one pool of connections with its prepared statements. A statement is
// prepared when it is first used, so that a pool can be made while the database
// is down; database/sql prepares it again on each connection that it meets.
type pool struct {
	db *sql.DB
	// timeout bounds one statement, the wait for a connection included. It lies
	// above the server's own statement timeout, which ends a slow statement
	// without losing the connection; this one is for a server that is silent.
	timeout time.Duration

	mu         sync.RWMutex
	statements map[string]*sql.Stmt
	preparing  chan struct{} // holds one: whoever prepares, so that a crowd at the start does it once
}

func newPool(db *sql.DB, size int, timeout time.Duration) *pool {
	db.SetMaxOpenConns(size)
	db.SetMaxIdleConns(size) // the default of two would open and close all the others again and again
	return &pool{db: db, timeout: timeout, statements: map[string]*sql.Stmt{}, preparing: make(chan struct{}, 1)}
}

// prepare prepares the statements that are not yet. Do not call it while a
// transaction of the same pool is open: it may need a second connection (BR-76).
func (p *pool) prepare(ctx context.Context, queries ...string) error {
	for _, query := range queries {
		if _, ok := p.prepared(query); ok { //nolint:sqlclosecheck // statements live as long as the pool
			continue
		}
		if err := p.prepareOnce(ctx, query); err != nil {
			return err
		}
	}
	return nil
}

func (p *pool) prepareOnce(ctx context.Context, query string) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case p.preparing <- struct{}{}:
	}
	defer func() { <-p.preparing }()
	if _, ok := p.prepared(query); ok { //nolint:sqlclosecheck // statements live as long as the pool
		return nil
	}
	fresh, err := p.db.PrepareContext(ctx, query) //nolint:sqlclosecheck // as above
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.statements[query] = fresh
	return nil
}

func (p *pool) prepared(query string) (*sql.Stmt, bool) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	s, ok := p.statements[query]
	return s, ok
}

// ping asks the smallest question.
func (p *pool) ping(ctx context.Context) error {
	var one int
	return p.db.QueryRowContext(ctx, `select 1`).Scan(&one)
}

// within returns ctx with the pool's timeout.
func (p *pool) within(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, p.timeout)
}

// collect runs a statement and returns its rows.
func collect[T any](ctx context.Context, p *pool, query string, args ...any) ([]T, error) {
	ctx, cancel := p.within(ctx)
	defer cancel()
	if err := p.prepare(ctx, query); err != nil {
		return nil, err
	}
	prepared, _ := p.prepared(query)
	return scan[T](ctx, prepared, args...)
}

// scan runs a prepared statement and returns its rows.
func scan[T any](ctx context.Context, prepared *sql.Stmt, args ...any) ([]T, error) {
	rows, err := prepared.QueryContext(ctx, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var list []T
	if err := sqlx.StructScan(rows, &list); err != nil {
		return nil, err
	}
	return list, rows.Err()
}

// execIn runs a statement of the pool and returns how many rows it changed.
func execIn(ctx context.Context, p *pool, query string, args ...any) (int64, error) {
	ctx, cancel := p.within(ctx)
	defer cancel()
	if err := p.prepare(ctx, query); err != nil {
		return 0, err
	}
	prepared, _ := p.prepared(query)
	return changed(ctx, prepared, args...)
}

// changeIn runs a prepared statement in the transaction and returns how many
// rows it changed.
func changeIn(ctx context.Context, p *pool, tx *sql.Tx, query string, args ...any) (int64, error) {
	prepared, err := p.in(ctx, tx, query)
	if err != nil {
		return 0, err
	}
	return changed(ctx, prepared, args...)
}

// changed runs a prepared statement and returns how many rows it changed.
func changed(ctx context.Context, prepared *sql.Stmt, args ...any) (int64, error) {
	result, err := prepared.ExecContext(ctx, args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// in returns the statement for use within the transaction. It must have been
// prepared before the transaction began; see prepare.
func (p *pool) in(ctx context.Context, tx *sql.Tx, query string) (*sql.Stmt, error) {
	prepared, ok := p.prepared(query)
	if !ok {
		return nil, fmt.Errorf("statement was not prepared before its transaction: %.60s", query)
	}
	return tx.StmtContext(ctx, prepared), nil
}

// close ends the pool and its statements.
func (p *pool) close() error { return p.db.Close() }
