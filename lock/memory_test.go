package lock_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sekali/sekali/lock"
	"github.com/sekali/sekali/lock/locktest"
)

// hands is a clock that tests move.
type hands struct{ ahead atomic.Int64 }

func (h *hands) now() time.Time { return time.Unix(0, 0).Add(time.Duration(h.ahead.Load())) }

func (h *hands) pass(d time.Duration) { h.ahead.Add(int64(d)) }

func TestMemory(t *testing.T) {
	t.Parallel()
	locktest.Run(t, func(*testing.T) locktest.World {
		clock := &hands{}
		m := lock.NewMemory(clock.now)
		return locktest.World{
			Locker: m, Another: m, TTL: time.Second,
			Pass: func(_ *testing.T, d time.Duration) { clock.pass(d) },
		}
	})
}

// What ran out without being given back does not stay in memory for ever.
func TestMemory_ForgetsWhatRanOut(t *testing.T) {
	t.Parallel()
	clock := &hands{}
	m := lock.NewMemory(clock.now)
	for n := range 1000 {
		if _, err := m.Acquire(t.Context(), fmt.Sprint(n), time.Second); err != nil {
			t.Fatal(err)
		}
	}
	clock.pass(time.Hour)
	if _, err := m.Acquire(t.Context(), "k", time.Second); err != nil {
		t.Fatal(err)
	}
	if held := lock.Held(m); held != 1 {
		t.Errorf("%d locks are kept, want 1", held)
	}
}
