package lock_test

import (
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
)

// proxy stands between a client and Redis, and loses what Redis answers.
type proxy struct {
	server   string
	listener net.Listener
	drops    atomic.Int64 // that many answers are dropped, with their connections
	dropped  atomic.Int64
	silent   atomic.Bool // answers are held back for good, and connections stay open
	// instead is called once in place of handing the next answer on.
	instead atomic.Pointer[func()]

	mu    sync.Mutex
	conns []net.Conn
	pumps sync.WaitGroup
}

// newProxy returns a proxy and the URL that leads through it.
func newProxy(t *testing.T, server string) (*proxy, string) {
	t.Helper()
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{server: u.Host, listener: l}
	p.pumps.Go(p.accept)
	t.Cleanup(p.stop)
	u.Host = l.Addr().String()
	return p, u.String()
}

func (p *proxy) stop() {
	_ = p.listener.Close()
	p.mu.Lock()
	for _, c := range p.conns {
		_ = c.Close()
	}
	p.mu.Unlock()
	p.pumps.Wait()
}

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.server)
		if err != nil {
			_ = client.Close()
			continue
		}
		p.mu.Lock()
		p.conns = append(p.conns, client, server)
		p.mu.Unlock()
		p.pumps.Go(func() { pump(server, client, func() verdict { return pass }) })
		p.pumps.Go(func() { pump(client, server, p.judge) })
	}
}

// verdict is what becomes of some bytes.
type verdict int

const (
	pass verdict = iota
	drop         // and close the connection
	hold         // for good, and keep the connection open
)

// judge decides about an answer.
func (p *proxy) judge() verdict {
	if instead := p.instead.Swap(nil); instead != nil {
		(*instead)()
		return hold
	}
	switch {
	case p.silent.Load():
		return hold
	case p.drops.Load() > 0:
		p.drops.Add(-1)
		p.dropped.Add(1)
		return drop
	}
	return pass
}

// pump hands bytes on until one side ends, or a verdict ends both.
func pump(to, from net.Conn, judge func() verdict) {
	defer to.Close()
	defer from.Close()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		switch judge() {
		case drop:
			return
		case hold:
			continue
		case pass:
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}
