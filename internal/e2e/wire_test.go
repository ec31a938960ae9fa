package e2e_test

import (
	"net"
	"net/url"
	"sync/atomic"
	"testing"
)

// fate is what a wire does with bytes that the gateway sends.
type fate int

const (
	pass     fate = iota
	cut           // hand nothing on, and close both sides
	cutAfter      // hand on, let the server work on it, and close both sides
)

// wire is a connection to Postgres that can break where the test wants it to.
type wire struct {
	url    string
	decide atomic.Pointer[func(sent []byte) fate]
}

func newWire(t testing.TB, database string) *wire {
	t.Helper()
	w := &wire{}
	w.url = between(t, database, w.connect)
	return w
}

// between returns a URL in place of the database's. It hands each connection that is
// made there to connect, with the address of the server.
func between(t testing.TB, database string, connect func(gateway net.Conn, address string)) string {
	t.Helper()
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	address := u.Host
	u.Host = listener.Addr().String()
	go func() {
		for {
			gateway, err := listener.Accept()
			if err != nil {
				return
			}
			go connect(gateway, address)
		}
	}()
	return u.String()
}

// rule sets what happens from now on; nil hands everything on.
func (w *wire) rule(decide func(sent []byte) fate) {
	if decide == nil {
		w.decide.Store(nil)
		return
	}
	w.decide.Store(&decide)
}

func (w *wire) connect(gateway net.Conn, address string) {
	defer gateway.Close()
	server, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer server.Close()
	var silent atomic.Bool
	answered := make(chan struct{}, 1)
	go func() {
		defer gateway.Close()
		buffer := make([]byte, 64<<10)
		for {
			n, err := server.Read(buffer)
			if silent.Load() {
				answered <- struct{}{}
				return
			}
			if _, failed := gateway.Write(buffer[:n]); err != nil || failed != nil {
				return
			}
		}
	}()
	buffer := make([]byte, 64<<10)
	for {
		n, err := gateway.Read(buffer)
		if err != nil {
			return
		}
		decided := pass
		if decide := w.decide.Load(); decide != nil {
			decided = (*decide)(buffer[:n])
		}
		if decided == cut {
			return
		}
		silent.Store(decided == cutAfter)
		if _, err := server.Write(buffer[:n]); err != nil {
			return
		}
		if decided == cutAfter {
			<-answered
			return
		}
	}
}
