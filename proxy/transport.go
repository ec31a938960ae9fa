package proxy

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"time"
)

const (
	// dialTimeout ends the wait for a host that does not answer at all long
	// before a generous timeout would.
	dialTimeout = 10 * time.Second
	// idleTimeout is below the shortest keep-alive in common use (five seconds,
	// Node): whoever gives a kept connection up first should be us, since a
	// request sent into one that is closing is not sent again.
	idleTimeout = 4 * time.Second
	// keptConnections is how many are kept to one upstream.
	keptConnections = 64
	// responseHeaderLimit is generous for an API and harmless for us.
	responseHeaderLimit = 64 << 10
)

// failure is an error of an exchange with the upstream.
type failure struct {
	err  error
	sent bool // some of the request may have reached the upstream
}

func (f *failure) Error() string { return f.err.Error() }

func (f *failure) Unwrap() error { return f.err }

// transport differs from http.DefaultTransport in what could turn one request
// into two: HTTP/1 only (HTTP/2 sends a refused stream again), no proxy from the
// environment, no decoding. It tells whether anything was sent.
type transport struct{ *http.Transport }

func newTransport() *transport {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	dialer := &net.Dialer{Timeout: dialTimeout}
	return &transport{&http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dialer.DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return &countingConn{Conn: conn}, nil
		},
		TLSHandshakeTimeout:    dialTimeout,
		MaxIdleConns:           keptConnections,
		MaxIdleConnsPerHost:    keptConnections,
		IdleConnTimeout:        idleTimeout,
		MaxResponseHeaderBytes: responseHeaderLimit,
		Protocols:              &protocols,
	}}
}

// RoundTrip sends the request once. Its errors are *failure.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	var used used
	ctx := httptrace.WithClientTrace(untraced{r.Context()}, &httptrace.ClientTrace{GotConn: used.got})
	resp, err := t.Transport.RoundTrip(r.WithContext(ctx))
	if err != nil {
		return nil, &failure{err: err, sent: used.written()}
	}
	resp.Request = r // with what its context carries
	return resp, nil
}

// untraced hides the trace with which the reverse proxy passes informational
// answers on. They would clear the headers that the gateway has set by then.
type untraced struct{ context.Context }

func (untraced) Value(any) any { return nil }

// used is the connection that a request went to, and how much had been written
// to it before.
type used struct {
	conn   atomic.Pointer[countingConn]
	other  atomic.Bool // a connection that is not one of ours
	before atomic.Int64
}

func (u *used) got(info httptrace.GotConnInfo) {
	conn := info.Conn
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	counting, ok := conn.(*countingConn)
	if !ok {
		u.other.Store(true)
		return
	}
	u.before.Store(counting.written.Load())
	u.conn.Store(counting)
}

// written reports whether anything was written since.
func (u *used) written() bool {
	conn := u.conn.Load()
	return u.other.Load() || conn != nil && conn.written.Load() != u.before.Load()
}

// countingConn counts what is written, from before the first byte: a write that
// fails may have sent some.
type countingConn struct {
	net.Conn
	written atomic.Int64
}

func (c *countingConn) Write(p []byte) (int, error) {
	c.written.Add(int64(len(p)))
	return c.Conn.Write(p)
}

// hideFromTransport writes the names of two headers in lower case. When a kept
// connection breaks, http.Transport sends a request without a body again if it
// finds one of them under its canonical name. To the upstream they are the same.
func hideFromTransport(h http.Header) {
	for _, name := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
		if values, ok := h[name]; ok {
			delete(h, name)
			h[strings.ToLower(name)] = values
		}
	}
}
