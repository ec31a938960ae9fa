package main

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/sekali/sekali/client"
)

// watcher asks how a job stands, also while the gateway is away: it has answered
// before, so the address is right, and it comes back.
type watcher struct {
	clientFlags
	t        terminal
	deadline time.Time // zero: there is none
	told     bool      // that the gateway is away
}

// left is how much time there is.
func (w *watcher) left() time.Duration {
	if w.deadline.IsZero() {
		return math.MaxInt64
	}
	return time.Until(w.deadline)
}

// ask sends a question whose answer the gateway may hold, until it is answered or
// the time is over. Errors: those of send, of the last try.
func (w *watcher) ask(ctx context.Context, r client.Request) (client.Answer, error) {
	for {
		got, err := w.send(ctx, waiting(r, w.left()))
		wait, comesBack := away(err)
		if !comesBack || wait > w.left() {
			return got, err
		}
		if !w.told {
			w.told = true
			w.t.note("%s; asking it again until it answers.", ownText(errors.Unwrap(err)))
		}
		if err := sleep(ctx, wait); err != nil {
			return got, w.explained(ctx, err)
		}
	}
}

// away reports whether the gateway may answer later, and when to ask it again.
func away(err error) (time.Duration, bool) {
	var unreachable *client.UnreachableError
	var refused *client.Problem
	switch {
	case errors.As(err, &unreachable):
		return time.Second, true
	case errors.As(err, &refused):
		return max(refused.RetryAfter, time.Second), refused.Retryable
	}
	return 0, false
}
