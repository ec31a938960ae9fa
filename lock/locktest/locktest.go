// Package locktest is the contract of a lock.Locker as tests: whatever locker
// passes Run excludes as package dispatcher expects it to.
//
// The numbers in the names of cases are those of failures/jobs.md (BR) and of
// failures/queues.md (Q).
package locktest

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sekali/sekali/lock"
)

// World is what one case works on. Nobody else's locks are in it.
type World struct {
	Locker lock.Locker
	// Another gives locks of the same world as another process does.
	Another lock.Locker
	// TTL is a time that may pass in a test, and long against a call.
	TTL time.Duration
	// Pass returns when a time has passed.
	Pass func(t *testing.T, d time.Duration)
}

// Run runs the contract, each case in a world of its own.
func Run(t *testing.T, open func(t *testing.T) World) {
	for name, check := range map[string]func(*testing.T, World){
		"a lock excludes":                                testExcludes,
		"of a hundred at once one holds":                 testOneHolds,
		"a lock that was given back is free":             testGivenBack,
		"BR51 a late release deletes nobody's lock":      testLateRelease,
		"BR51 a release twice deletes nobody's lock":     testReleaseTwice,
		"BR54 a late refresh takes nobody's lock":        testLateRefresh,
		"a lock runs out by itself":                      testRunsOut,
		"BR52 a refreshed lock does not run out":         testRefresh,
		"a lock that nobody has is taken again":          testMissing,
		"a lock that was given back is not refreshed":    testRefreshAfterRelease,
		"Q37 a release works when its context has ended": testDetachedRelease,
		"Q37 the end of the context is told as such":     testContextEnds,
		"Q38 a lock of no length is no lock":             testNoLength,
		"keys are any text":                              testKeys,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			check(t, open(t))
		})
	}
}

const long = time.Minute

func testExcludes(t *testing.T, w World) {
	l := acquire(t, w.Locker, "k", long)
	if l.Key() != "k" {
		t.Errorf("the lock is called %q", l.Key())
	}
	refused(t, w.Locker, "k")
	refused(t, w.Another, "k")
	acquire(t, w.Another, "other", long)
}

func testOneHolds(t *testing.T, w World) {
	const callers = 100
	var inside, entered atomic.Int64
	var wg sync.WaitGroup
	for n := range callers {
		locker := w.Locker
		if n%2 == 0 {
			locker = w.Another
		}
		wg.Go(func() {
			l := await(t, locker, "k")
			if l == nil {
				return
			}
			if inside.Add(1) != 1 {
				t.Error("two hold the lock")
			}
			entered.Add(1)
			inside.Add(-1)
			release(t, l)
		})
	}
	wg.Wait()
	if entered.Load() != callers {
		t.Errorf("%d of %d held the lock", entered.Load(), callers)
	}
}

func testGivenBack(t *testing.T, w World) {
	release(t, acquire(t, w.Locker, "k", long))
	release(t, acquire(t, w.Another, "k", long))
	acquire(t, w.Locker, "k", long)
}

func testLateRelease(t *testing.T, w World) {
	late := acquire(t, w.Locker, "k", w.TTL)
	w.Pass(t, w.TTL)
	next := acquire(t, w.Locker, "k", long) // of the same process: each acquisition has its own owner token
	release(t, late)
	refused(t, w.Another, "k")
	if err := next.Refresh(t.Context(), long); err != nil {
		t.Errorf("the next holder's refresh: %v", err)
	}
}

func testReleaseTwice(t *testing.T, w World) {
	first := acquire(t, w.Locker, "k", long)
	release(t, first)
	acquire(t, w.Another, "k", long)
	release(t, first)
	refused(t, w.Locker, "k")
}

func testLateRefresh(t *testing.T, w World) {
	late := acquire(t, w.Locker, "k", w.TTL)
	w.Pass(t, w.TTL)
	next := acquire(t, w.Another, "k", long)
	lost(t, late)
	release(t, next)
	lost(t, late) // it has ended by now, and must not come back to life
	acquire(t, w.Another, "k", long)
}

func testRunsOut(t *testing.T, w World) {
	acquire(t, w.Locker, "k", w.TTL)
	w.Pass(t, w.TTL)
	acquire(t, w.Another, "k", long)
}

func testRefresh(t *testing.T, w World) {
	l := acquire(t, w.Locker, "k", w.TTL)
	for range 3 {
		w.Pass(t, w.TTL/2)
		if err := l.Refresh(t.Context(), w.TTL); err != nil {
			t.Fatalf("refresh: %v", err)
		}
	}
	refused(t, w.Another, "k")
}

func testMissing(t *testing.T, w World) {
	l := acquire(t, w.Locker, "k", w.TTL)
	w.Pass(t, w.TTL)
	if err := l.Refresh(t.Context(), long); err != nil {
		t.Fatalf("refresh: %v", err)
	}
	refused(t, w.Another, "k")
	release(t, l)
	acquire(t, w.Another, "k", long)
}

func testRefreshAfterRelease(t *testing.T, w World) {
	l := acquire(t, w.Locker, "k", long)
	release(t, l)
	lost(t, l)
	acquire(t, w.Another, "k", long)
}

func testDetachedRelease(t *testing.T, w World) {
	l := acquire(t, w.Locker, "k", long)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.Release(ended); err != nil {
		t.Fatalf("release: %v", err)
	}
	acquire(t, w.Another, "k", long)
}

func testContextEnds(t *testing.T, w World) {
	l := acquire(t, w.Locker, "held", long)
	why := errors.New("shutting down")
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	_, err := w.Locker.Acquire(ended, "k", long)
	for what, err := range map[string]error{"acquire": err, "refresh": l.Refresh(ended, long)} {
		if !errors.Is(err, why) || errors.Is(err, lock.ErrHeld) || errors.Is(err, lock.ErrLost) || errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("%s: %v, want the cause alone", what, err)
		}
	}
	acquire(t, w.Another, "k", long) // nothing was taken
	refused(t, w.Another, "held")    // and nothing given up
}

func testNoLength(t *testing.T, w World) {
	for _, ttl := range []time.Duration{0, -time.Second} {
		if _, err := w.Locker.Acquire(t.Context(), "k", ttl); !errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("for %s: %v", ttl, err)
		}
	}
	acquire(t, w.Another, "k", long)
}

func testKeys(t *testing.T, w World) {
	for _, key := range []string{"", "a\x00b", "a", "{a}", "ä b\r\n*", strings.Repeat("k", 2000)} {
		acquire(t, w.Locker, key, long)
		refused(t, w.Another, key)
	}
}

func acquire(t *testing.T, locker lock.Locker, key string, ttl time.Duration) lock.Lock {
	t.Helper()
	l, err := locker.Acquire(t.Context(), key, ttl)
	if err != nil {
		t.Fatalf("acquire %q: %v", key, err)
	}
	return l
}

// await acquires the lock once it is free; nil if that fails.
func await(t *testing.T, locker lock.Locker, key string) lock.Lock {
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for t.Context().Err() == nil {
		l, err := locker.Acquire(t.Context(), key, long)
		if err == nil {
			return l
		}
		if !errors.Is(err, lock.ErrHeld) {
			t.Errorf("acquire: %v", err)
			return nil
		}
		<-ticker.C
	}
	return nil
}

func refused(t *testing.T, locker lock.Locker, key string) {
	t.Helper()
	if _, err := locker.Acquire(t.Context(), key, long); !errors.Is(err, lock.ErrHeld) {
		t.Errorf("acquire %q: %v, want that it is held", key, err)
	}
}

func lost(t *testing.T, l lock.Lock) {
	t.Helper()
	if err := l.Refresh(t.Context(), long); !errors.Is(err, lock.ErrLost) {
		t.Errorf("refresh: %v, want that it is lost", err)
	}
}

func release(t *testing.T, l lock.Lock) {
	t.Helper()
	if err := l.Release(t.Context()); err != nil {
		t.Errorf("release: %v", err)
	}
}
