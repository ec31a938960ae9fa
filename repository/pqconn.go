package repository

import (
	"cmp"
	"context"
	"database/sql/driver"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/lib/pq"
)

// connector opens lib/pq's connections and wraps them; see conn.
type connector struct {
	config pq.Config
	// cancels passes the end of a context on to lib/pq, which then asks the
	// server to cancel the statement, at the price of the connection. It is for
	// statements of unbounded length, the user's; ours the server ends itself.
	cancels bool
	// closing is set while the pool is being closed: nobody waits for a server
	// to hear of it then.
	closing *atomic.Bool
	// keeps is set once a pooler was found before the database that keeps sessions.
	keeps *atomic.Bool
}

// Connect implements driver.Connector.
func (c *connector) Connect(ctx context.Context) (driver.Conn, error) {
	// lib/pq bounds the start of a connection by the connect timeout alone; who
	// asks may have less time.
	config := c.config.Clone()
	if deadline, ok := ctx.Deadline(); ok {
		left := max(deadline.Sub(processTime()), time.Millisecond)
		config.ConnectTimeout = min(cmp.Or(config.ConnectTimeout, left), left)
	}
	config, mark := marked(config)
	opened, err := c.dial(ctx, config)
	if refusesParameter(err) {
		opened, err = c.dialBare(ctx)
	}
	if err != nil {
		return nil, err
	}
	found, err := opened.ask(ctx, markSQL, processTime().Add(cmp.Or(config.ConnectTimeout, connectTimeout)))
	if err == nil && found != mark {
		err = c.adopt(ctx, opened)
	}
	if err != nil {
		_ = opened.Close()
		return nil, err
	}
	return opened, nil
}

// dial opens a connection with these settings, and looks no further.
func (c *connector) dial(ctx context.Context, config pq.Config) (*conn, error) {
	inner, err := pq.NewConnectorConfig(config)
	if err != nil {
		return nil, err
	}
	socket := &dialer{}
	inner.Dialer(socket)
	raw, err := inner.Connect(ctx)
	if err != nil {
		return nil, err
	}
	socket.done.Store(true)
	return &conn{pqConn: raw.(pqConn), socket: socket.last, cancels: c.cancels, closing: c.closing}, nil
}

// Driver implements driver.Connector.
func (c *connector) Driver() driver.Driver { return &pq.Driver{} }

// dialer remembers the socket of the connection that is being opened. Later
// calls are for requests to cancel, which have sockets of their own.
type dialer struct {
	net.Dialer
	last net.Conn
	done atomic.Bool
}

// DialTimeout implements pq.Dialer; lib/pq prefers DialContext.
func (d *dialer) DialTimeout(network, address string, timeout time.Duration) (net.Conn, error) {
	return (&net.Dialer{Timeout: timeout}).Dial(network, address)
}

// DialContext implements pq.DialerContext.
func (d *dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := d.Dialer.DialContext(ctx, network, address)
	if err == nil && !d.done.Load() {
		d.last = c
	}
	return c, err
}

// pqConn is what lib/pq's connection is beside driver.Conn. Embedding it hands
// all of it on.
type pqConn interface {
	driver.Conn
	driver.ConnPrepareContext
	driver.ConnBeginTx
	driver.QueryerContext
	driver.ExecerContext
	driver.Pinger
	driver.NamedValueChecker
	driver.SessionResetter
	driver.Validator
}

// conn is a connection of lib/pq that does four things which lib/pq does not:
//
//   - It takes itself out of the pool when lib/pq 1.12 believes for ever that a
//     query is running (lib/pq#1320): the server answered with an error and then
//     dropped the socket.
//   - It notices before it sends anything that the server has gone.
//   - It bounds each statement by a deadline of the socket. lib/pq's own answer
//     to the end of a context waits for the server, which may be silent for ever.
//   - It tells, through a delivery, whether a statement was left unanswered.
type conn struct {
	pqConn
	socket  net.Conn
	cancels bool
	closing *atomic.Bool
	stuck   bool
	// aborted is the last error of the open transaction, other than "it is
	// aborted": what a function that goes on after an error did not look at.
	aborted *pq.Error
}

// cancelGrace is how long a statement whose context has ended may take to come
// back as cancelled, before its socket is given up.
const cancelGrace = 5 * time.Second

// closeTimeout is how long saying goodbye may take; a few bytes that a server
// which is silent leaves in the buffer of the socket.
const closeTimeout = 100 * time.Millisecond

// enter prepares for a statement and returns the context for lib/pq.
func (c *conn) enter(ctx context.Context) context.Context {
	deadline, ok := ctx.Deadline()
	if !c.cancels {
		_ = c.socket.SetDeadline(deadline) // the zero time takes an older one away
		return context.WithoutCancel(ctx)
	}
	if ok {
		deadline = deadline.Add(cancelGrace)
	}
	_ = c.socket.SetDeadline(deadline)
	return ctx
}

// leave looks at the error of a statement.
func (c *conn) leave(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	var answer *pq.Error
	switch {
	case errors.As(err, &answer):
		settle(ctx)
		return c.explain(answer)
	case isStuck(err):
		c.stuck = true
		settle(ctx)
		return driver.ErrBadConn // nothing was sent: database/sql takes another connection
	case c.pqConn.IsValid():
		settle(ctx) // an argument that cannot be sent, or the like
	}
	return err
}

// isStuck recognises the error of lib/pq#1320, which has neither a type nor a
// value. The test of failures/queues 39 fails if its text changes.
func isStuck(err error) bool { return strings.Contains(err.Error(), "already a query being processed") }

// explain adds to "the transaction is aborted" what had aborted it.
func (c *conn) explain(answer *pq.Error) error {
	if answer.Code != inFailedTransaction {
		c.aborted = answer
		return answer
	}
	if c.aborted == nil {
		return answer
	}
	return &abortedError{answer: answer, cause: c.aborted}
}

// abortedError is "the transaction is aborted" with what had aborted it.
type abortedError struct{ answer, cause *pq.Error }

func (e *abortedError) Error() string { return e.answer.Error() + ", after: " + e.cause.Error() }

func (e *abortedError) Unwrap() error { return e.answer }

// BeginTx implements driver.ConnBeginTx.
func (c *conn) BeginTx(ctx context.Context, o driver.TxOptions) (driver.Tx, error) {
	c.aborted = nil
	tx, err := c.pqConn.BeginTx(c.enter(ctx), o)
	return tx, c.leave(ctx, err)
}

// PrepareContext implements driver.ConnPrepareContext.
func (c *conn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	prepared, err := c.pqConn.PrepareContext(c.enter(ctx), query)
	if err != nil {
		return nil, c.leave(ctx, err)
	}
	if whole, ok := prepared.(pqStmt); ok {
		return &stmt{pqStmt: whole, conn: c}, nil
	}
	return prepared, nil // COPY, which has no queries
}

// QueryContext implements driver.QueryerContext.
func (c *conn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	send(ctx)
	rows, err := c.pqConn.QueryContext(c.enter(ctx), query, args)
	return rows, c.leave(ctx, err)
}

// ExecContext implements driver.ExecerContext.
func (c *conn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	send(ctx)
	result, err := c.pqConn.ExecContext(c.enter(ctx), query, args)
	return result, c.leave(ctx, err)
}

// Close implements driver.Conn. Whether the server heard the farewell does not
// matter, and the deadline of the last statement must not keep it from being said.
func (c *conn) Close() error {
	_ = c.socket.SetDeadline(processTime().Add(closeTimeout))
	_ = c.pqConn.Close()
	return nil
}

// Ping implements driver.Pinger.
func (c *conn) Ping(ctx context.Context) error { return c.pqConn.Ping(c.enter(ctx)) }

// ResetSession implements driver.SessionResetter: it is called before a pooled
// connection is used again.
func (c *conn) ResetSession(ctx context.Context) error {
	if c.stuck || hungUp(c.socket) {
		return driver.ErrBadConn
	}
	return c.pqConn.ResetSession(ctx)
}

// IsValid implements driver.Validator.
func (c *conn) IsValid() bool { return !c.stuck && c.pqConn.IsValid() }

type pqStmt interface {
	driver.Stmt
	driver.StmtQueryContext
	driver.StmtExecContext
}

// stmt is a prepared statement of a conn.
type stmt struct {
	pqStmt
	conn *conn
}

// Close implements driver.Stmt. It is given no context, and gets a time of its
// own. The statements of a closing pool end with their connections.
func (s *stmt) Close() error {
	if s.conn.closing.Load() {
		return nil
	}
	_ = s.conn.socket.SetDeadline(processTime().Add(cancelGrace))
	return s.pqStmt.Close()
}

// QueryContext implements driver.StmtQueryContext.
func (s *stmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	send(ctx)
	rows, err := s.pqStmt.QueryContext(s.conn.enter(ctx), args)
	return rows, s.conn.leave(ctx, err)
}

// ExecContext implements driver.StmtExecContext.
func (s *stmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	send(ctx)
	result, err := s.pqStmt.ExecContext(s.conn.enter(ctx), args)
	return result, s.conn.leave(ctx, err)
}

// delivery follows one statement through database/sql, which repeats it by
// itself on another connection when one breaks, and returns the last error
// only: that nothing listens any more hides that something was sent before.
type delivery struct {
	open bool // sent, and not answered by an error
	lost bool // an earlier sending was never answered
}

type deliveryKey struct{}

// withDelivery returns ctx with a delivery for one statement.
func withDelivery(ctx context.Context) (context.Context, *delivery) {
	d := &delivery{}
	return context.WithValue(ctx, deliveryKey{}, d), d
}

// unknown reports, for a statement that returned an error, whether it may have
// been carried out all the same.
func (d *delivery) unknown() bool { return d.open || d.lost }

// lostBefore reports whether a sending of the context's statement was never
// answered, although a later one was.
func lostBefore(ctx context.Context) bool {
	d, ok := ctx.Value(deliveryKey{}).(*delivery)
	return ok && d.lost
}

func send(ctx context.Context) {
	if d, ok := ctx.Value(deliveryKey{}).(*delivery); ok {
		d.lost = d.lost || d.open
		d.open = true
	}
}

func settle(ctx context.Context) {
	if d, ok := ctx.Value(deliveryKey{}).(*delivery); ok {
		d.open = false
	}
}
