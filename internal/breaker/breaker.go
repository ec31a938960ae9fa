// Package breaker spares callers the wait for something that is away: after
// some failures in a row it is left alone for a while, and then tried by one
// caller before the others. It is for what the program can do without.
package breaker

import (
	"sync"
	"time"
)

const (
	// Failures in a row make it rest: few, since each one costs somebody a timeout,
	// and more than a single connection that broke.
	Failures = 5
	// Rest is long enough that a timeout in each of them is no burden, and short
	// enough that nobody notices how late it comes back.
	Rest = 5 * time.Second
)

// Breaker counts the failures of one thing. It is safe for concurrent use.
type Breaker struct {
	clock func() time.Time

	mu      sync.Mutex
	failed  int // in a row
	resting time.Time
}

// New returns a breaker on the clock, which must be there: time.Now, or a test's
// own.
func New(clock func() time.Time) *Breaker { return &Breaker{clock: clock} }

// Allow reports whether to make a call. Of those who ask after a rest one is
// allowed to; unless its success is reported the rest begins again.
func (b *Breaker) Allow() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failed < Failures {
		return true
	}
	now := b.clock()
	if now.Before(b.resting) {
		return false
	}
	b.resting = now.Add(Rest)
	return true
}

// Report tells whether an allowed call succeeded. A call that was given up for
// reasons of the caller's is not reported.
func (b *Breaker) Report(ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if ok {
		b.failed = 0
		return
	}
	b.failed++
	b.resting = b.clock().Add(Rest)
}
