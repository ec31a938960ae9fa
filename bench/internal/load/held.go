package load

import (
	"context"
	"errors"
	"sync"
)

// Held is many connections on which requests wait for an answer.
type Held struct {
	conns []*Conn
}

// Hold opens the connections and makes one request on each, so that the server
// has whatever it keeps for a connection.
func Hold(ctx context.Context, address string, connections int, first func(connection int) Request) (*Held, error) {
	conns, err := dialAll(ctx, address, connections)
	h := &Held{conns: conns}
	if err != nil {
		return h, err
	}
	return h, h.each(func(i int, c *Conn) error { return c.Do(first(i)) })
}

// Send sends a request on the numbered connections, and waits for no answer.
func (h *Held) Send(from, to int, request func(connection int) Request) error {
	for i := from; i < to; i++ {
		if err := h.conns[i].Send(request(i)); err != nil {
			return err
		}
	}
	return nil
}

// Close closes all connections.
func (h *Held) Close() error {
	closeAll(h.conns)
	return nil
}

// holders is how many connections are worked on at once: a server takes new
// connections one by one.
const holders = 16

func (h *Held) each(do func(i int, c *Conn) error) error {
	failures := make([]error, holders)
	var working sync.WaitGroup
	for w := range holders {
		working.Go(func() {
			for i := w; i < len(h.conns) && failures[w] == nil; i += holders {
				failures[w] = do(i, h.conns[i])
			}
		})
	}
	working.Wait()
	return errors.Join(failures...)
}
