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
}

func newPool(db *sql.DB, size int, timeout time.Duration) *pool {
	db.SetMaxOpenConns(size)
	db.SetMaxIdleConns(size) // the default of two would open and close all the others again and again
	return &pool{db: db, timeout: timeout, statements: map[string]*sql.Stmt{}}
}

// stmt returns the prepared statement. Do not call it while a transaction of
// the same pool is open: preparing may need a second connection (BR-76).
func (p *pool) stmt(ctx context.Context, query string) (*sql.Stmt, error) {
	p.mu.RLock()
	prepared, ok := p.statements[query]
	p.mu.RUnlock()
	if ok {
		return prepared, nil
	}
	fresh, err := p.db.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if prepared, ok := p.statements[query]; ok {
		return prepared, fresh.Close()
	}
	p.statements[query] = fresh
	return fresh, nil
}

// within returns ctx with the pool's timeout.
func (p *pool) within(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, p.timeout)
}

// collect runs a statement and returns its rows.
func collect[T any](ctx context.Context, p *pool, query string, args ...any) ([]T, error) {
	ctx, cancel := p.within(ctx)
	defer cancel()
	prepared, err := p.stmt(ctx, query)
	if err != nil {
		return nil, err
	}
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

// in returns the pool's prepared statement for use within the transaction. It
// must have been prepared before the transaction began; see stmt.
func (p *pool) in(ctx context.Context, tx *sql.Tx, query string) (*sql.Stmt, error) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	prepared, ok := p.statements[query]
	if !ok {
		return nil, fmt.Errorf("statement was not prepared before its transaction: %.60s", query)
	}
	return tx.StmtContext(ctx, prepared), nil
}

// close ends the pool and its statements.
func (p *pool) close() error { return p.db.Close() }
