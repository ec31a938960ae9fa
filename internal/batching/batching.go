// Package batching lets calls that come together share one round trip.
//
// While a flush is under way, the calls that arrive wait for it and then go
// together in the next one: the busier the other side is, the more of them share
// its answer. No timer holds anybody back, and a call that finds the batcher idle
// is flushed by its own goroutine, without a hand-over, unless it may leave.
package batching

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Errors of Do. With each of them the call was not flushed, except for ErrPanic.
var (
	// ErrFull: as many calls wait as may.
	ErrFull = errors.New("batching: too many calls wait")
	// ErrPatience: the call waited longer than it may for its flush to begin.
	ErrPatience = errors.New("batching: waited too long for a flush")
	// ErrPanic: the flush panicked before it had answered the call.
	ErrPanic = errors.New("batching: the flush panicked")
)

// Config says how calls are put together. The zero value is one flush at a time,
// of any size, for any number of calls.
type Config[In any] struct {
	// Flushes is how many may be under way at once; 0 means 1.
	Flushes int
	// Size is how many calls go together at most; 0: no bound.
	Size int
	// Weigh is what a call weighs, and Weight what all calls of a flush may weigh
	// together; a heavier one goes alone. nil: no bound.
	Weigh  func(In) int
	Weight int
	// Room is how many calls may wait; 0: no bound.
	Room int
	// Patience is how long a call may wait for its flush to begin; 0: no bound.
	Patience time.Duration
	// Leave lets a caller whose ctx ends leave although its flush is under way. It
	// does not learn then what became of the call.
	Leave bool
}

// Batcher puts calls together. It is safe for concurrent use.
type Batcher[In, Out any] struct {
	config Config[In]
	do     func(context.Context, []*Call[In, Out])

	mu      sync.Mutex
	waiting []*Call[In, Out]
	running int // flushes under way
}

// Call is one call of Do, as a flush sees it.
type Call[In, Out any] struct {
	In In

	ctx      context.Context
	out      Out
	err      error
	answered atomic.Bool
	done     chan struct{}
	taken    bool // by a flush; guarded by the batcher
}

// New returns a batcher that flushes by do, which must answer each call. It may
// answer some of them later than others, and after it has returned (see Later).
// The context of a flush has the values of its first call's and never ends.
func New[In, Out any](c Config[In], do func(context.Context, []*Call[In, Out])) *Batcher[In, Out] {
	c.Flushes = max(c.Flushes, 1)
	return &Batcher[In, Out]{config: c, do: do}
}

// Answer ends the call. Only the first answer counts.
func (c *Call[In, Out]) Answer(out Out) { c.end(out, nil) }

// Later answers the call by find, which may take its time: neither the flush nor
// the others wait for it.
func (c *Call[In, Out]) Later(find func() Out) {
	go func() {
		defer c.guard()
		c.Answer(find())
	}()
}

// guard answers the call with an error if it is deferred by what panics.
func (c *Call[In, Out]) guard() {
	if p := recover(); p != nil {
		var none Out
		c.end(none, fmt.Errorf("%w: %v\n%s", ErrPanic, p, debug.Stack()))
	}
}

func (c *Call[In, Out]) end(out Out, err error) {
	if c.answered.CompareAndSwap(false, true) {
		c.out, c.err = out, err
		close(c.done)
	}
}

// Do has the call flushed and returns its answer. Once a flush has begun, neither
// the end of ctx nor anything else takes the call back; see Config.Leave.
func (b *Batcher[In, Out]) Do(ctx context.Context, in In) (Out, error) {
	c := &Call[In, Out]{In: in, ctx: ctx, done: make(chan struct{})}
	b.mu.Lock()
	switch {
	case b.running < b.config.Flushes && len(b.waiting) == 0:
		b.running++
		c.taken = true
		b.mu.Unlock()
		if b.config.Leave {
			go b.begin(c)
		} else {
			b.begin(c)
		}
	case b.config.Room > 0 && len(b.waiting) >= b.config.Room:
		b.mu.Unlock()
		return c.out, ErrFull
	default:
		b.waiting = append(b.waiting, c)
		b.mu.Unlock()
	}
	return b.await(ctx, c)
}

// begin flushes a call that found the batcher idle.
func (b *Batcher[In, Out]) begin(c *Call[In, Out]) {
	b.flush([]*Call[In, Out]{c})
	if b.more() {
		go b.work()
	}
}

// Waiting is how many calls wait for a flush to take them.
func (b *Batcher[In, Out]) Waiting() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.waiting)
}

func (b *Batcher[In, Out]) await(ctx context.Context, c *Call[In, Out]) (Out, error) {
	if c.answered.Load() { // by this goroutine, as a rule: it needs no timer
		<-c.done
		return c.out, c.err
	}
	var expired <-chan time.Time
	if b.config.Patience > 0 {
		timer := time.NewTimer(b.config.Patience)
		defer timer.Stop()
		expired = timer.C
	}
	err := ErrPatience
	select {
	case <-c.done:
		return c.out, c.err
	case <-expired:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if b.takeBack(c) || b.config.Leave {
		var none Out
		return none, err
	}
	<-c.done
	return c.out, c.err
}

// takeBack removes a call that no flush has taken yet.
func (b *Batcher[In, Out]) takeBack(c *Call[In, Out]) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.taken {
		return false
	}
	b.waiting = slices.DeleteFunc(b.waiting, func(other *Call[In, Out]) bool { return other == c })
	return true
}

// work flushes until nobody waits.
func (b *Batcher[In, Out]) work() {
	for {
		b.flush(b.take())
		if !b.more() {
			return
		}
	}
}

// more reports whether the flush that has ended must be followed by another one.
func (b *Batcher[In, Out]) more() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.waiting) == 0 {
		b.running--
		return false
	}
	return true
}

// take takes the calls of the next flush, which may have left meanwhile.
func (b *Batcher[In, Out]) take() []*Call[In, Out] {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.together()
	taken := b.waiting[:n:n]
	b.waiting = b.waiting[n:]
	if len(b.waiting) == 0 {
		b.waiting = nil
	}
	for _, c := range taken {
		c.taken = true
	}
	return taken
}

// together is how many of the waiting calls may go in one flush.
func (b *Batcher[In, Out]) together() int {
	n := len(b.waiting)
	if b.config.Size > 0 {
		n = min(n, b.config.Size)
	}
	if b.config.Weigh == nil {
		return n
	}
	weight := 0
	for i, c := range b.waiting[:n] {
		weight += b.config.Weigh(c.In)
		if i > 0 && weight > b.config.Weight {
			return i
		}
	}
	return n
}

// flush runs do. Whatever it did not come to, because it panicked, is answered
// with an error: the callers must not wait for ever.
func (b *Batcher[In, Out]) flush(calls []*Call[In, Out]) {
	if len(calls) == 0 {
		return
	}
	returned := false
	defer func() {
		if returned {
			return
		}
		err := fmt.Errorf("%w: %v\n%s", ErrPanic, recover(), debug.Stack())
		for _, c := range calls {
			var none Out
			c.end(none, err)
		}
	}()
	b.do(context.WithoutCancel(calls[0].ctx), calls)
	returned = true
}
