package middleware

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/idempotency"
)

// momentary lists the statuses that say nothing about the request itself: the
// same one may well pass later (row 36).
var momentary = []int{
	http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestTimeout,
	http.StatusTooEarly, http.StatusTooManyRequests,
}

// settlePause lies between two tries to write how a run has ended.
const settlePause = 100 * time.Millisecond

// run runs the handler under a claim, writes how it ended, and only then sends
// the answer: who has it can rely on the replay.
func (o *once) run(w http.ResponseWriter, r *http.Request, next http.Handler, claim idempotency.Claim) {
	ctx := r.Context()
	if claim.Attempt > 1 {
		o.Log.LogAttrs(ctx, slog.LevelWarn, "interrupted request runs again", o.attrs(r, claim, nil)...)
	}
	id := flightID{claim.Tenant, claim.Key}
	o.flights.begun(id)
	landed := sync.OnceFunc(func() { o.flights.ended(id) })
	defer landed()
	stop := o.keepClaim(ctx, claim)
	c := newCapture(w, r, atTheEnd, o.ResponseLimit)
	c.ignoreFlush = o.IgnoreFlush

	returned := false
	// A panic goes on as it is, with its own stack, and so does runtime.Goexit.
	defer func() {
		if !returned {
			stop()
			_ = o.settle(r, claim, o.broken(c))
		}
	}()
	next.ServeHTTP(c, o.whileWatched(r, c))
	returned = true

	stop()
	c.seal()
	end := o.ended(c)
	status := o.settle(r, claim, end)
	switch {
	case status != "":
		w.Header().Set("Idempotency-Status", status)
	case o.Now != nil && (end.outcome == Stored || end.outcome == NotRetained):
		api.SetExpires(w.Header(), o.Now().Add(o.Keep))
	}
	landed() // before a slow client has read its answer
	c.deliver()
}

// whileWatched is forHandler for a run: events without end are made for who
// watches them, and end with that client, or they would go on for nobody.
func (o *once) whileWatched(r *http.Request, c *capture) *http.Request {
	inner := o.forHandler(r)
	ctx, cancel := context.WithCancel(inner.Context())
	c.endless = func() { context.AfterFunc(r.Context(), cancel) }
	return inner.WithContext(ctx)
}

// forHandler is the request that the handler gets.
func (o *Options) forHandler(r *http.Request) *http.Request {
	if o.CancelWithClient {
		return r
	}
	return r.WithContext(context.WithoutCancel(r.Context()))
}

// keepClaim extends the claim until stop is called, which waits for the end of
// it. A claim that is lost stays so, and the end of the run will show it; a
// store that does not answer is asked again at the next beat.
func (o *once) keepClaim(ctx context.Context, claim idempotency.Claim) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	interval := max(o.Lease/3, 1)
	go func() {
		defer close(ended)
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			if err := o.extend(ctx, claim, min(o.StoreTimeout, interval)); errors.Is(err, idempotency.ErrClaimLost) {
				return
			}
		}
	}()
	return func() {
		cancel()
		<-ended
	}
}

func (o *once) extend(ctx context.Context, claim idempotency.Claim, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return o.store.Extend(ctx, claim, o.Lease)
}

// ending is one way to end a claim.
type ending struct {
	outcome Outcome
	write   func(ctx context.Context, c idempotency.Claim) error
	// applied tells from what the store holds whether the write was made.
	applied func(rec idempotency.Record, err error) bool
}

// ended is the ending of a handler that has returned.
func (o *once) ended(c *capture) ending {
	switch {
	case c.optedOut(), slices.Contains(momentary, c.status):
		return o.released()
	case c.short():
		return o.unknown()
	case c.status < http.StatusInternalServerError, o.On5xx == Store5xx:
		return o.stored(c.response(o.ReplayHeaders))
	}
	return o.unknown()
}

// broken is the ending of a handler that has panicked. If its client has seen
// an answer begin, the handler had come so far, and is not run again.
func (o *once) broken(c *capture) ending {
	if !c.stream {
		return o.unknown()
	}
	return o.ended(c)
}

// unknown is for handlers of which nobody knows what they have done.
func (o *once) unknown() ending {
	if o.On5xx == Release5xx {
		return o.released()
	}
	return ending{
		outcome: Interrupted,
		write:   func(ctx context.Context, c idempotency.Claim) error { return o.store.Interrupt(ctx, c, o.Keep) },
		applied: func(rec idempotency.Record, err error) bool {
			return err == nil && rec.State == idempotency.Interrupted
		},
	}
}

func (o *once) released() ending {
	return ending{
		outcome: Released,
		write:   o.store.Release,
		applied: func(_ idempotency.Record, err error) bool { return errors.Is(err, idempotency.ErrNotFound) },
	}
}

func (o *once) stored(response idempotency.Response) ending {
	return ending{
		outcome: outcomeOf(response),
		write: func(ctx context.Context, c idempotency.Claim) error {
			return o.store.Finish(ctx, c, response, o.Keep)
		},
		applied: func(rec idempotency.Record, err error) bool {
			return err == nil && rec.State == idempotency.Completed && rec.Response.Status == response.Status &&
				rec.Response.NotRetained == response.NotRetained && bytes.Equal(rec.Response.Body, response.Body)
		},
	}
}

func outcomeOf(response idempotency.Response) Outcome {
	if response.NotRetained {
		return NotRetained
	}
	return Stored
}

// settle writes the ending, and returns what the client has to know of it.
func (o *once) settle(r *http.Request, claim idempotency.Claim, e ending) (status string) {
	err := o.write(r.Context(), claim, e)
	switch {
	case err == nil:
		o.Count(e.outcome)
		return ""
	case errors.Is(err, idempotency.ErrClaimLost):
		o.Count(Lost)
		o.Log.LogAttrs(r.Context(), slog.LevelWarn, "claim lost while the handler ran: its answer is not stored", o.attrs(r, claim, nil)...)
		return "lease-lost"
	}
	o.Count(NotRecorded)
	o.Log.LogAttrs(r.Context(), slog.LevelError, "end of the handler could not be recorded", o.attrs(r, claim, err)...)
	return "not-recorded"
}

// write tries until it succeeds or StoreTimeout is nearly over: the handler has run,
// and a record that says so is all that keeps it from running again. After a
// try without an answer, a claim that is lost may have been ended by that try.
func (o *once) write(ctx context.Context, claim idempotency.Claim, e ending) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), o.StoreTimeout)
	defer cancel()
	// A try that begins at the very end would be cut off, and nobody would know
	// what it did.
	trying, stop := context.WithTimeout(ctx, o.StoreTimeout*3/4)
	defer stop()
	var failed error
	for {
		err := e.write(ctx, claim)
		if err == nil {
			return nil
		}
		if errors.Is(err, idempotency.ErrClaimLost) {
			if failed != nil && e.applied(o.store.Find(ctx, claim.Tenant, claim.Key)) {
				return nil
			}
			return err
		}
		failed = err
		if !pause(trying, settlePause) {
			return failed
		}
	}
}

// pause waits, and reports false if ctx has ended before.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
