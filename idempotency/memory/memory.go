// Package memory is an idempotency.Store within one process, for tests and for
// programs of a single process.
//
// Its records end with the process: after a restart every key is new, so a
// program whose effects must not happen twice over a crash needs a store in a
// database. Replicas do not see each other's records. Memory is not bounded:
// records stay until they have expired, and their number is that of the keys
// used within that time. Expired records are swept now and then by calls.
package memory

import (
	"context"
	"crypto/rand"
	"slices"
	"sync"
	"time"

	"github.com/sekali/sekali/idempotency"
)

// sweepEvery is how often a call looks through all records for those that have
// ended: seldom enough that the look costs nothing on average.
const sweepEvery = time.Minute

// Store keeps records in a map. It is safe for concurrent use.
type Store struct {
	clock     func() time.Time
	tombstone time.Duration

	mu      sync.Mutex
	records map[name]*record
	swept   time.Time
}

var _ idempotency.Store = (*Store)(nil)

// Option changes what New makes.
type Option func(*Store)

// WithTombstone keeps an expired key consumed for as long; without it an expired
// key is forgotten at once.
func WithTombstone(d time.Duration) Option { return func(s *Store) { s.tombstone = d } }

// New returns an empty store on the clock, which must be there: time.Now, or a
// test's own.
func New(clock func() time.Time, options ...Option) *Store {
	s := &Store{clock: clock, records: map[name]*record{}, swept: clock()}
	for _, option := range options {
		option(s)
	}
	return s
}

// name is what a record is found by.
type name struct {
	tenant idempotency.Tenant
	key    idempotency.Key
}

// record is one record. Its times are those of the store's clock.
type record struct {
	fingerprint idempotency.Fingerprint
	state       idempotency.State // never Retired: that follows from the time
	response    idempotency.Response
	owner       string
	attempt     int
	leaseEnd    time.Time // while in progress
	expires     time.Time // once it has ended
}

// Begin implements idempotency.Store.
func (s *Store) Begin(_ context.Context, req idempotency.Request, b idempotency.Beginning) (idempotency.Claim, idempotency.Record, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock()
	s.sweep(now)
	at, attempt := name{req.Tenant, req.Key}, 1
	r := s.standing(at, now)
	if r != nil && b.AfterExpiry && r.expired(now) {
		r = nil
	}
	if r != nil {
		takeover := b.Takeover && r.abandoned(now) && r.fingerprint == req.Fingerprint
		if !takeover {
			return idempotency.Claim{}, r.seen(req, now, b.Takeover), false, nil
		}
		attempt = r.attempt + 1
	}
	owner := rand.Text()
	s.records[at] = &record{
		fingerprint: req.Fingerprint, state: idempotency.InProgress, owner: owner, attempt: attempt, leaseEnd: now.Add(b.Lease),
	}
	return idempotency.Claim{Tenant: req.Tenant, Key: req.Key, Owner: owner, Attempt: attempt}, idempotency.Record{}, true, nil
}

// Extend implements idempotency.Store.
func (s *Store) Extend(_ context.Context, c idempotency.Claim, lease time.Duration) error {
	return s.change(c, func(r *record, now time.Time) { r.leaseEnd = now.Add(lease) })
}

// Finish implements idempotency.Store.
func (s *Store) Finish(_ context.Context, c idempotency.Claim, resp idempotency.Response, keep time.Duration) error {
	return s.change(c, func(r *record, now time.Time) {
		r.state, r.response, r.expires = idempotency.Completed, clone(resp), now.Add(keep)
		if resp.NotRetained {
			r.response.Body = nil
		}
	})
}

// Release implements idempotency.Store.
func (s *Store) Release(_ context.Context, c idempotency.Claim) error {
	return s.change(c, func(*record, time.Time) { delete(s.records, name{c.Tenant, c.Key}) })
}

// Interrupt implements idempotency.Store.
func (s *Store) Interrupt(_ context.Context, c idempotency.Claim, keep time.Duration) error {
	return s.change(c, func(r *record, now time.Time) { r.state, r.expires = idempotency.Interrupted, now.Add(keep) })
}

// Find implements idempotency.Store.
func (s *Store) Find(_ context.Context, t idempotency.Tenant, k idempotency.Key) (idempotency.Record, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock()
	r := s.standing(name{t, k}, now)
	if r == nil {
		return idempotency.Record{}, idempotency.ErrNotFound
	}
	return r.seen(idempotency.Request{Tenant: t, Key: k}, now, true), nil
}

// change runs do on the claim's record, if it still is the claim's.
func (s *Store) change(c idempotency.Claim, do func(*record, time.Time)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.records[name{c.Tenant, c.Key}]
	if r == nil || r.owner != c.Owner || r.state != idempotency.InProgress {
		return idempotency.ErrClaimLost
	}
	do(r, s.clock())
	return nil
}

// standing returns the record that the key has now; nil once its tombstone is over.
func (s *Store) standing(at name, now time.Time) *record {
	r := s.records[at]
	if r == nil || s.over(r, now) {
		return nil
	}
	return r
}

// over reports whether even the record's tombstone has ended. Claims never end
// by themselves: whoever holds one may still be at work.
func (s *Store) over(r *record, now time.Time) bool {
	return r.state != idempotency.InProgress && !now.Before(r.expires.Add(max(s.tombstone, 0)))
}

func (s *Store) sweep(now time.Time) {
	if now.Sub(s.swept) < sweepEvery {
		return
	}
	s.swept = now
	for at, r := range s.records {
		if s.over(r, now) {
			delete(s.records, at)
		}
	}
}

func (r *record) expired(now time.Time) bool {
	return r.state != idempotency.InProgress && !now.Before(r.expires)
}

// abandoned reports a claim whose lease has ended.
func (r *record) abandoned(now time.Time) bool {
	return r.state == idempotency.InProgress && !now.Before(r.leaseEnd)
}

// seen is the record as another request finds it. One that may not be taken over
// is interrupted.
func (r *record) seen(req idempotency.Request, now time.Time, takeover bool) idempotency.Record {
	rec := idempotency.Record{
		Request: idempotency.Request{Tenant: req.Tenant, Key: req.Key, Fingerprint: r.fingerprint},
		State:   r.state, ExpiresAt: r.expires,
	}
	switch {
	case r.expired(now):
		rec.State = idempotency.Retired
	case r.abandoned(now) && !takeover:
		rec.State = idempotency.Interrupted
	case r.state == idempotency.InProgress:
		rec.RetryIn = max(r.leaseEnd.Sub(now), 0)
	case r.state == idempotency.Completed:
		rec.Response = clone(r.response)
	}
	return rec
}

// clone keeps what is stored apart from what callers go on to change.
func clone(resp idempotency.Response) idempotency.Response {
	resp.Header, resp.Body = resp.Header.Clone(), slices.Clone(resp.Body)
	return resp
}
