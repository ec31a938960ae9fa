package gateway

import (
	"context"
	"net/http"
	"sync"
)

// calls counts the proxied requests under way, so that the end of the process
// can wait for them as it does for jobs: one that is cut off leaves its key to
// the next request, and its upstream with an outcome that nobody knows.
type calls struct {
	mu    sync.Mutex
	under int
	ended chan struct{} // closed when there are none; nil while nobody waits
}

// count is a middleware.
func (c *calls) count(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.add(1)
		defer c.add(-1)
		next.ServeHTTP(w, r)
	})
}

func (c *calls) add(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.under += n
	if c.under == 0 && c.ended != nil {
		close(c.ended)
		c.ended = nil
	}
}

// wait returns once there are none, or when ctx ends. New ones must be refused
// by then.
func (c *calls) wait(ctx context.Context) {
	c.mu.Lock()
	if c.under > 0 && c.ended == nil {
		c.ended = make(chan struct{})
	}
	ended := c.ended
	c.mu.Unlock()
	if ended == nil {
		return
	}
	select {
	case <-ended:
	case <-ctx.Done():
	}
}
