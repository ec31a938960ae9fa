// Package lock excludes others early: one holder for each key, for as long as
// it refreshes. A lock is no fence. Whatever it protects must stay correct when
// two believe that they hold it, because a lock can be lost, flushed or failed
// over; here the fencing token of the lease is what makes that harmless.
package lock

import (
	"context"
	"errors"
	"time"
)

// Errors of lockers, wrapped.
var (
	// ErrHeld: somebody else holds the lock.
	ErrHeld = errors.New("lock: held by another")
	// ErrLost: the lock was ours and is somebody else's now.
	ErrLost = errors.New("lock: lost")
	// ErrUnavailable: whoever keeps the locks cannot be asked. Nothing is known.
	ErrUnavailable = errors.New("lock: unavailable")
)

// Locker gives locks. It is safe for concurrent use.
type Locker interface {
	// Acquire takes the lock of the key for ttl, counted from before the call. Every
	// acquisition has an owner token of its own. It does not wait. Errors: ErrHeld,
	// ErrUnavailable.
	Acquire(ctx context.Context, key string, ttl time.Duration) (Lock, error)
}

// Lock is one acquisition.
type Lock interface {
	// Key is what is locked.
	Key() string
	// Refresh prolongs the lock to ttl from before the call. A lock that nobody has
	// any more, because it was flushed or has run out, is taken again. Errors:
	// ErrLost, ErrUnavailable.
	Refresh(ctx context.Context, ttl time.Duration) error
	// Release gives the lock back if it is still ours. It does so when ctx has
	// ended too. Errors: ErrUnavailable; then the lock runs out by itself.
	Release(ctx context.Context) error
}
