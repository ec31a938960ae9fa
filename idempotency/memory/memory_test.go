package memory_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/idempotency/memory"
	"github.com/sekali/sekali/idempotency/storetest"
)

func TestStore(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(*testing.T) idempotency.Store {
		return memory.New(time.Now, memory.WithTombstone(storetest.Tombstone))
	})
}

// clock is moved by the test.
type clock struct{ now atomic.Pointer[time.Time] }

func newClock() *clock {
	c := &clock{}
	c.now.Store(new(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)))
	return c
}

func (c *clock) read() time.Time { return *c.now.Load() }

func (c *clock) move(d time.Duration) { c.now.Store(new(c.read().Add(d))) }

func request(key string) idempotency.Request {
	return idempotency.Request{Tenant: "acme", Key: idempotency.Key(key), Fingerprint: idempotency.NewFingerprint("POST", "/", nil, "", nil)}
}

func begin(t *testing.T, s *memory.Store, key string) idempotency.Claim {
	t.Helper()
	c, rec, ok, err := s.Begin(t.Context(), request(key), idempotency.Beginning{Lease: time.Minute, Takeover: true})
	if err != nil || !ok {
		t.Fatalf("begin: %+v, %v", rec, err)
	}
	return c
}

// Nothing but the injected clock moves leases and expiry.
func TestStore_FollowsItsClock(t *testing.T) {
	t.Parallel()
	c := newClock()
	s := memory.New(c.read)
	first := begin(t, s, "k")
	c.move(time.Minute - 1)
	if rec, err := s.Find(t.Context(), "acme", "k"); err != nil || rec.RetryIn != 1 {
		t.Fatalf("%+v, %v", rec, err)
	}
	c.move(1)
	second := begin(t, s, "k")
	if second.Attempt != 2 || second.Owner == first.Owner {
		t.Errorf("claims %+v and %+v", first, second)
	}
	if err := s.Finish(t.Context(), second, idempotency.Response{Status: 200}, time.Hour); err != nil {
		t.Fatal(err)
	}
	c.move(time.Hour)
	if third := begin(t, s, "k"); third.Attempt != 1 {
		t.Errorf("without a tombstone an expired key is new: %+v", third)
	}
}

// TestFailure_C31_Sweep: what has expired does not stay in memory.
func TestFailure_C31_Sweep(t *testing.T) {
	t.Parallel()
	c := newClock()
	s := memory.New(c.read, memory.WithTombstone(time.Hour))
	for n := range 100 {
		if err := s.Finish(t.Context(), begin(t, s, fmt.Sprint("k", n)), idempotency.Response{Status: 200}, time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	begin(t, s, "held")
	c.move(2*time.Hour - 1)
	begin(t, s, "before")
	if n := memory.Records(s); n != 102 {
		t.Errorf("%d records within their tombstones", n)
	}
	c.move(time.Hour)
	begin(t, s, "after")
	if n := memory.Records(s); n != 3 {
		t.Errorf("%d records, want the three claims", n)
	}
}
