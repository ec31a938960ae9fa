package gateway

import (
	"context"
	"errors"
	"time"

	"github.com/sekali/sekali/internal/telemetry"
	"github.com/sekali/sekali/lock"
)

// countedLocker counts what becomes of calls for locks, and says at once when
// Redis fails.
type countedLocker struct {
	from    lock.Locker
	metrics *telemetry.Metrics
}

// Acquire implements lock.Locker.
func (c countedLocker) Acquire(ctx context.Context, key string, ttl time.Duration) (lock.Lock, error) {
	l, err := c.from.Acquire(ctx, key, ttl)
	c.count(telemetry.LockAcquire, err)
	if err != nil {
		return nil, err
	}
	return countedLock{l, c}, nil
}

func (c countedLocker) count(call string, err error) {
	c.metrics.LockCalls.WithLabelValues(call, lockResult(err)).Inc()
	if errors.Is(err, lock.ErrUnavailable) {
		degrade(c.metrics)
	}
}

// lockResult is the label of a call that ended so.
func lockResult(err error) string {
	switch {
	case err == nil:
		return telemetry.LockDone
	case errors.Is(err, lock.ErrHeld):
		return telemetry.LockHeld
	case errors.Is(err, lock.ErrLost):
		return telemetry.LockLost
	case errors.Is(err, lock.ErrUnavailable):
		return telemetry.LockUnavailable
	}
	return telemetry.LockGivenUp
}

// countedLock is a lock of a countedLocker.
type countedLock struct {
	lock.Lock
	by countedLocker
}

// Refresh implements lock.Lock.
func (l countedLock) Refresh(ctx context.Context, ttl time.Duration) error {
	err := l.Lock.Refresh(ctx, ttl)
	l.by.count(telemetry.LockRefresh, err)
	return err
}

// Release implements lock.Lock.
func (l countedLock) Release(ctx context.Context) error {
	err := l.Lock.Release(ctx)
	l.by.count(telemetry.LockRelease, err)
	return err
}
