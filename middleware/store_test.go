package middleware_test

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/sekali/sekali/idempotency"
)

// store is a hand-written idempotency.Store on the test's clock. fail, if set,
// is asked before each use and may fail it; lateFail after it, when the write
// has been made.
type store struct {
	mu       sync.Mutex
	records  map[idempotency.Key]*held
	owners   int
	calls    map[string]int
	fail     func(ctx context.Context, call string) error
	lateFail func(call string) error
}

type held struct {
	rec     idempotency.Record
	owner   string
	attempt int
	until   time.Time
}

func newStore() *store {
	return &store{records: map[idempotency.Key]*held{}, calls: map[string]int{}}
}

// use runs do as one call of the store.
func (s *store) use(ctx context.Context, call string, do func() error) error {
	s.mu.Lock()
	s.calls[call]++
	fail := s.fail
	s.mu.Unlock()
	if fail != nil {
		if err := fail(ctx, call); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := do(); err != nil {
		return err
	}
	if s.lateFail != nil {
		return s.lateFail(call)
	}
	return nil
}

func (s *store) Begin(ctx context.Context, req idempotency.Request, b idempotency.Beginning) (c idempotency.Claim, rec idempotency.Record, ok bool, err error) {
	err = s.use(ctx, "begin", func() error {
		now := time.Now()
		h := s.records[req.Key]
		free := h == nil || b.AfterExpiry && h.expired(now)
		switch {
		case !free && h.rec.Fingerprint != req.Fingerprint:
			rec = h.seen(now)
			return nil
		case free:
			h = &held{rec: idempotency.Record{Request: req}}
		case h.rec.State != idempotency.InProgress || now.Before(h.until):
			rec = h.seen(now)
			return nil
		case !b.Takeover:
			h.rec.State = idempotency.Interrupted
			rec = h.seen(now)
			return nil
		}
		s.owners++
		h.owner, h.until = fmt.Sprintf("owner-%06d", s.owners), now.Add(b.Lease)
		h.attempt++
		h.rec.State = idempotency.InProgress
		s.records[req.Key] = h
		c, ok = idempotency.Claim{Tenant: req.Tenant, Key: req.Key, Owner: h.owner, Attempt: h.attempt}, true
		return nil
	})
	return c, rec, ok, err
}

func (h *held) expired(now time.Time) bool {
	return !h.rec.ExpiresAt.IsZero() && !now.Before(h.rec.ExpiresAt)
}

func (h *held) seen(now time.Time) idempotency.Record {
	rec := h.rec
	rec.RetryIn = h.until.Sub(now)
	if h.expired(now) {
		rec.State, rec.Response = idempotency.Retired, idempotency.Response{}
	}
	return rec
}

func (s *store) claimed(ctx context.Context, call string, c idempotency.Claim, do func(h *held)) error {
	return s.use(ctx, call, func() error {
		h := s.records[c.Key]
		if h == nil || h.owner != c.Owner {
			return idempotency.ErrClaimLost
		}
		do(h)
		return nil
	})
}

func (s *store) Extend(ctx context.Context, c idempotency.Claim, lease time.Duration) error {
	return s.claimed(ctx, "extend", c, func(h *held) { h.until = time.Now().Add(lease) })
}

func (s *store) Finish(ctx context.Context, c idempotency.Claim, resp idempotency.Response, keep time.Duration) error {
	return s.claimed(ctx, "finish", c, func(h *held) {
		h.owner, h.rec.State, h.rec.Response, h.rec.ExpiresAt = "", idempotency.Completed, resp, time.Now().Add(keep)
	})
}

func (s *store) Release(ctx context.Context, c idempotency.Claim) error {
	return s.claimed(ctx, "release", c, func(*held) { delete(s.records, c.Key) })
}

func (s *store) Interrupt(ctx context.Context, c idempotency.Claim, keep time.Duration) error {
	return s.claimed(ctx, "interrupt", c, func(h *held) {
		h.owner, h.rec.State, h.rec.ExpiresAt = "", idempotency.Interrupted, time.Now().Add(keep)
	})
}

func (s *store) Find(ctx context.Context, _ idempotency.Tenant, k idempotency.Key) (rec idempotency.Record, err error) {
	err = s.use(ctx, "find", func() error {
		h := s.records[k]
		if h == nil {
			return idempotency.ErrNotFound
		}
		rec = h.seen(time.Now())
		return nil
	})
	return rec, err
}

// stolen makes another owner take the key's record over.
func (s *store) stolen(k idempotency.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.records[k].owner, s.records[k].until = "other", time.Now().Add(time.Hour)
}

func (s *store) set(fail func(ctx context.Context, call string) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = fail
}

func (s *store) state(k idempotency.Key) idempotency.State {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.records[k]; h != nil {
		return h.rec.State
	}
	return ""
}

func (s *store) count(call string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.calls)[call]
}
