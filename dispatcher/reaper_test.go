package dispatcher_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sekali/sekali/job"
)

// attic holds expired jobs, and notes when somebody takes a batch away.
type attic struct {
	mu      sync.Mutex
	jobs    int
	batches []time.Time
	fails   int
}

func (a *attic) Reap(_ context.Context, limit int) (job.Reaped, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.batches = append(a.batches, time.Now())
	if a.fails > 0 {
		a.fails--
		return job.Reaped{}, errors.New("database away")
	}
	n := min(a.jobs, limit)
	a.jobs -= n
	return job.Reaped{Jobs: n, Tombstones: 1, More: n == limit}, nil
}

func (a *attic) seen() []time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]time.Time(nil), a.batches...)
}

func reaping(a *attic) func(*world) {
	return func(w *world) { w.cfg.Retention, w.cfg.Slots = a, 0 }
}

// TestFailure_BR77_ReapingLeavesRoom: full batches follow each other with a
// pause, also in a process that only accepts; then the reaper rests.
func TestFailure_BR77_ReapingLeavesRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := &attic{jobs: 3500}
		w := setup(t, nil, reaping(a))
		elapse(5 * time.Second)
		batches := a.seen()
		if len(batches) != 4 || a.jobs != 0 {
			t.Fatalf("%d batches in five seconds, %d jobs left", len(batches), a.jobs)
		}
		for i, at := range batches[1:] {
			if pause := at.Sub(batches[i]); pause < 100*time.Millisecond || pause > time.Second {
				t.Errorf("pause %v", pause)
			}
		}
		if n := testutil.ToFloat64(w.metrics.Reaped.WithLabelValues("jobs")); n != 3500 {
			t.Errorf("metric %v", n)
		}
		a.mu.Lock()
		a.jobs = 1
		a.mu.Unlock()
		elapse(time.Minute)
		if n := len(a.seen()); a.jobs != 0 || n < 4+5 || n > 4+8 {
			t.Errorf("%d batches in another minute, %d jobs left", n-4, a.jobs)
		}
		if _, err := w.end(); err != nil {
			t.Error(err)
		}
	})
}

func TestReaper_GoesOnAfterErrors(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := &attic{jobs: 1, fails: 3}
		w := setup(t, nil, reaping(a))
		elapse(10 * time.Second)
		if a.jobs != 0 {
			t.Errorf("%d jobs left after %d tries", a.jobs, len(a.seen()))
		}
		if n := testutil.ToFloat64(w.metrics.LoopErrors.WithLabelValues("reaper")); n != 3 {
			t.Errorf("metric %v", n)
		}
		if _, err := w.end(); err != nil {
			t.Error(err)
		}
	})
}
