package repository_test

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/url"
	"sync"
	"testing"

	"github.com/sekali/sekali/internal/testenv"
)

// verdict is what a proxy does with a message.
type verdict int

const (
	pass     verdict = iota
	passDrop         // hand it on, then close both sides
	drop             // close both sides without handing it on
	swallow          // hand nothing on from now on, and keep both sides open
)

// proxy stands between a repository and Postgres and reads the protocol's
// messages: one byte for the type, four for the length.
type proxy struct {
	t        testing.TB
	server   string
	address  string
	mu       sync.Mutex
	listener net.Listener
	conns    map[net.Conn]struct{}
	pumps    sync.WaitGroup
	frontend func(kind byte, body string) verdict // from us to the server
	backend  func(kind byte, body string) verdict // and back
}

// newProxy returns a proxy and the URL that leads through it.
func newProxy(t testing.TB, server string) (*proxy, string) {
	t.Helper()
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{t: t, server: u.Host, conns: map[net.Conn]struct{}{}}
	p.start()
	t.Cleanup(p.stop)
	u.Host = p.address
	query := u.Query()
	query.Set("sslmode", "disable")
	u.RawQuery = query.Encode()
	return p, u.String()
}

// start listens, after stop at the address of before.
func (p *proxy) start() {
	p.t.Helper()
	address := p.address
	if address == "" {
		port, err := testenv.FreePort() // nobody else is given it while the proxy is stopped
		if err != nil {
			p.t.Fatal(err)
		}
		address = fmt.Sprintf("127.0.0.1:%d", port)
	}
	l, err := new(net.ListenConfig).Listen(p.t.Context(), "tcp", address)
	if err != nil {
		p.t.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.listener, p.address = l, l.Addr().String()
	go p.accept(l)
}

// stop closes everything, as a server that has gone does, and returns when the
// other sides can know it: a socket that is being read is closed by its reader.
func (p *proxy) stop() {
	p.mu.Lock()
	_ = p.listener.Close()
	for c := range p.conns {
		_ = c.Close()
	}
	clear(p.conns)
	p.mu.Unlock()
	p.pumps.Wait()
}

// rule sets what happens to messages; nil hands them on.
func (p *proxy) rule(frontend, backend func(kind byte, body string) verdict) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.frontend, p.backend = frontend, backend
}

func (p *proxy) accept(l net.Listener) {
	for {
		client, err := l.Accept()
		if err != nil {
			return
		}
		server, err := new(net.Dialer).DialContext(p.t.Context(), "tcp", p.server)
		if err != nil {
			_ = client.Close()
			continue
		}
		p.mu.Lock()
		p.conns[client], p.conns[server] = struct{}{}, struct{}{}
		p.mu.Unlock()
		p.pumps.Go(func() { p.pump(server, client, true, func() func(byte, string) verdict { return p.frontend }) })
		p.pumps.Go(func() { p.pump(client, server, false, func() func(byte, string) verdict { return p.backend }) })
	}
}

// pump hands messages from one side to the other until a rule or an end stops it.
func (p *proxy) pump(to, from net.Conn, startup bool, rule func() func(byte, string) verdict) {
	defer to.Close()
	defer from.Close()
	for first := startup; ; first = false {
		message, kind, body, err := read(from, first)
		if err != nil {
			return
		}
		decided := pass
		p.mu.Lock()
		decide := rule()
		p.mu.Unlock()
		if decide != nil && !first {
			decided = decide(kind, body)
		}
		switch decided {
		case drop:
			return
		case pass, passDrop:
		case swallow:
			_, _ = io.Copy(io.Discard, from)
			return
		}
		if _, err := to.Write(message); err != nil || decided == passDrop {
			return
		}
	}
}

// read reads one message; the first one of a client has no type.
func read(from io.Reader, first bool) (message []byte, kind byte, body string, err error) {
	head := make([]byte, 5)
	if first {
		head = head[:4]
	}
	if _, err = io.ReadFull(from, head); err != nil {
		return nil, 0, "", err
	}
	length := binary.BigEndian.Uint32(head[len(head)-4:])
	rest := make([]byte, length-4)
	if _, err = io.ReadFull(from, rest); err != nil {
		return nil, 0, "", err
	}
	return append(head, rest...), head[0], string(rest), nil
}
