package dispatcher

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/sekali/sekali/internal/telemetry"
	"github.com/sekali/sekali/job"
	"github.com/sekali/sekali/lock"
)

// lockName is the lock that an attempt takes before it runs; "" if it takes
// none. It is one for all tenants' keys, types and scopes, and tells them apart.
func lockName(c job.Claimed, scope job.LockScope) string {
	switch {
	case scope == job.LockKey:
		return "job:" + string(c.ID)
	case scope == job.LockBusinessKey && c.BusinessKey != "":
		return "business:" + string(c.Tenant) + "\x00" + string(c.Type) + "\x00" + c.BusinessKey
	}
	return ""
}

// takeLock takes the attempt's lock, where its type asks for one. The job does
// not go on if somebody else holds it. When nobody can be asked, the lease alone
// carries on: it is the fence in any case.
func (d *Dispatcher) takeLock(a *attempt) (e ended, goes bool) {
	name := lockName(a.Claimed, a.work.Settings.Lock)
	if name == "" || d.Locker == nil {
		return ended{}, true
	}
	held, err := d.Locker.Acquire(a.ctx, name, a.work.Settings.Lease)
	switch {
	case errors.Is(err, lock.ErrHeld):
		d.note(a.Claimed, job.EventLockRefused, nil)
		d.Log.LogAttrs(a.ctx, slog.LevelInfo, "lock held by another; the job is put off", d.lockAttrs(a.Claimed, name, nil)...)
		return ended{putOff: true}, false
	case err != nil && a.ctx.Err() != nil:
		return ended{err: err, untried: true}, false
	case err != nil:
		d.Metrics.Unlocked.Inc()
		d.Log.LogAttrs(a.ctx, slog.LevelWarn, "lock not available; running on the lease alone", d.lockAttrs(a.Claimed, name, err)...)
		return ended{}, true
	}
	a.holdLock(held)
	return ended{}, true
}

// lockAttrs name the job and its lock; the lock's name holds keys.
func (d *Dispatcher) lockAttrs(c job.Claimed, name string, err error) []slog.Attr {
	attrs := append(d.jobAttrs(c), d.Keys.LockAttr(name))
	if err != nil {
		attrs = append(attrs, slog.Any(telemetry.Error, err))
	}
	return attrs
}

// refreshLocks prolongs the locks of all running attempts, at once, so that they
// share round trips. One whose lock is somebody else's now ends; while nobody can
// be asked, the lease alone decides.
func (d *Dispatcher) refreshLocks(ctx context.Context) (time.Duration, error) {
	var wg sync.WaitGroup
	for _, a := range d.running.all() {
		held := a.lock.Load()
		if held == nil {
			continue
		}
		wg.Go(func() {
			if errors.Is((*held).Refresh(ctx, a.work.Settings.Lease), lock.ErrLost) {
				d.loseLock(a, (*held).Key())
			}
		})
	}
	wg.Wait()
	return 0, nil
}

// loseLock ends the attempt: somebody else may be at the same work.
func (d *Dispatcher) loseLock(a *attempt, name string) {
	if a.settling.Load() || !d.running.has(a.Lease) {
		return
	}
	a.lock.Store(nil)
	d.note(a.Claimed, job.EventLockLost, nil)
	d.Log.LogAttrs(a.ctx, slog.LevelWarn, "lock lost; the attempt is stopped", d.lockAttrs(a.Claimed, name, nil)...)
	a.cancel(job.ErrLockLost)
}

// giveLockBack releases the attempt's lock, after its end was written. If that
// fails the lock runs out by itself.
func (d *Dispatcher) giveLockBack(a *attempt) {
	if held := a.lock.Swap(nil); held != nil {
		_ = (*held).Release(a.ctx)
	}
}
