package executor

import (
	"context"
	"crypto/tls"
	"net"
	"net/http/httptrace"
	"sync/atomic"
)

// meteredConn counts the writes of which something may have left the process.
type meteredConn struct {
	net.Conn
	writes atomic.Int64
}

// dialMetered is how the transport of an HTTP executor gets its connections.
func dialMetered(ctx context.Context, network, address string) (net.Conn, error) {
	return dialBy(ctx, &net.Dialer{Timeout: dialTimeout}, network, address)
}

func dialBy(ctx context.Context, by *net.Dialer, network, address string) (net.Conn, error) {
	conn, err := by.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &meteredConn{Conn: conn}, nil
}

// Write counts before it writes: a write that still runs when somebody looks
// counts as one that has been sent.
func (c *meteredConn) Write(b []byte) (int, error) {
	c.writes.Add(1)
	n, err := c.Conn.Write(b)
	if n == 0 {
		c.writes.Add(-1)
	}
	return n, err
}

// sending tells of one call whether any byte of it may have reached the
// receiver. Until there is a connection, its TLS included, none can have. It
// errs on the side of may: a kept TLS connection that ends says goodbye, which
// is a write too.
type sending struct {
	conn   *meteredConn
	before int64 // writes of the connection before the call
}

// trace returns the context for the call's request.
func (s *sending) trace(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: s.got})
}

// got is called by the goroutine that makes the call, before it sends.
func (s *sending) got(info httptrace.GotConnInfo) {
	conn := info.Conn
	if secured, ok := conn.(*tls.Conn); ok {
		conn = secured.NetConn()
	}
	s.conn = conn.(*meteredConn) // the transport has no other dialer
	s.before = s.conn.writes.Load()
}

// begun is asked when the call is over.
func (s *sending) begun() bool { return s.conn != nil && s.conn.writes.Load() != s.before }
