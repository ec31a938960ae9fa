// Package storetest is the contract of an idempotency.Store as tests: whatever
// store passes Run keeps the promises on which package middleware builds.
// RunCorrupt and RunTx are for stores that can be damaged, and for those whose
// records share a transaction with the handler's effect.
//
// The numbers in the names of cases are those of the contract's rows (Row) and
// of failures/idempotency.md (C).
package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/sekali/sekali/idempotency"
)

// Tombstone is how long the stores under test keep expired keys consumed.
const Tombstone = time.Hour

// Open returns an empty store for one case, which keeps tombstones for Tombstone
// and is removed when the case ends.
type Open func(t *testing.T) idempotency.Store

// cases names cases and runs each with a store of its own.
type cases map[string]func(t *testing.T, s idempotency.Store)

// Run runs the contract: the same for every store, so that they cannot differ (C44).
func Run(t *testing.T, open Open) {
	for name, run := range map[string]cases{"claim": claiming, "end": ending, "expiry": expiring} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for name, check := range run {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					check(t, open(t))
				})
			}
		})
	}
}

// RunCorrupt runs the case of a damaged record (contract row 60). open also
// returns a function that damages the record of a key.
func RunCorrupt(t *testing.T, open func(t *testing.T) (idempotency.Store, func(t *testing.T, r idempotency.Request))) {
	t.Run("Row60 a corrupt record is an error and never run over", func(t *testing.T) {
		t.Parallel()
		s, damage := open(t)
		req := request("k", "body")
		finish(t, s, begin(t, s, req, long), answer("done"), time.Hour)
		damage(t, req)
		_, _, ok, err := s.Begin(t.Context(), req, idempotency.Beginning{Lease: time.Minute, Takeover: true, AfterExpiry: true})
		if ok || !errors.Is(err, idempotency.ErrCorrupt) {
			t.Errorf("begin: claimed %v, %v", ok, err)
		}
		if rec, err := s.Find(t.Context(), req.Tenant, req.Key); !errors.Is(err, idempotency.ErrCorrupt) {
			t.Errorf("find: %+v, %v", rec, err)
		}
	})
}

// What most cases use. A lease or a retention below zero has ended already, so
// that nothing here waits for time to pass.
const (
	tenant idempotency.Tenant = "acme"
	long                      = time.Hour
	ended                     = -time.Second
)

var (
	careful = idempotency.Beginning{Lease: long}                 // takes nothing over
	again   = idempotency.Beginning{Lease: long, Takeover: true} // runs an interrupted request again
)

// request is one of the tenant; the body makes its fingerprint.
func request(key, body string) idempotency.Request {
	return idempotency.Request{
		Tenant: tenant, Key: idempotency.Key(key),
		Fingerprint: idempotency.NewFingerprint("POST", "/charges", nil, "text/plain", []byte(body)),
	}
}

func answer(body string) idempotency.Response {
	return idempotency.Response{
		Status: http.StatusCreated, Body: []byte(body),
		Header: http.Header{"Content-Type": {"text/plain"}, "Link": {"<a>", "<b>"}},
	}
}

// begin claims a key that must be free.
func begin(t *testing.T, s idempotency.Store, req idempotency.Request, lease time.Duration) idempotency.Claim {
	t.Helper()
	return claim(t, s, req, idempotency.Beginning{Lease: lease})
}

// claim begins and must get the claim.
func claim(t *testing.T, s idempotency.Store, req idempotency.Request, b idempotency.Beginning) idempotency.Claim {
	t.Helper()
	c, rec, ok, err := s.Begin(t.Context(), req, b)
	if err != nil || !ok {
		t.Fatalf("begin %s: claimed %v, record %+v, %v", req.Key, ok, rec, err)
	}
	if c.Tenant != req.Tenant || c.Key != req.Key || c.Owner == "" || c.Attempt < 1 {
		t.Fatalf("begin %s: claim %+v", req.Key, c)
	}
	return c
}

// meet begins and must get a record in the state.
func meet(t *testing.T, s idempotency.Store, req idempotency.Request, b idempotency.Beginning, state idempotency.State) idempotency.Record {
	t.Helper()
	c, rec, ok, err := s.Begin(t.Context(), req, b)
	if err != nil || ok || rec.State != state || rec.Fresh {
		t.Fatalf("begin %s: claimed %v (%+v), record %+v, %v; want the state %s", req.Key, ok, c, rec, err, state)
	}
	if rec.Tenant != req.Tenant || rec.Key != req.Key {
		t.Fatalf("record of %s/%s for %s/%s", rec.Tenant, rec.Key, req.Tenant, req.Key)
	}
	return rec
}

// find reads the record, which must be in the state.
func find(t *testing.T, s idempotency.Store, req idempotency.Request, state idempotency.State) idempotency.Record {
	t.Helper()
	rec, err := s.Find(t.Context(), req.Tenant, req.Key)
	if err != nil || rec.State != state || rec.Fingerprint != req.Fingerprint {
		t.Fatalf("find %s: %+v, %v; want the state %s", req.Key, rec, err, state)
	}
	return rec
}

// absent checks that the key has no record.
func absent(t *testing.T, s idempotency.Store, req idempotency.Request) {
	t.Helper()
	if rec, err := s.Find(t.Context(), req.Tenant, req.Key); !errors.Is(err, idempotency.ErrNotFound) {
		t.Fatalf("find %s: %+v, %v; want none", req.Key, rec, err)
	}
}

func finish(t *testing.T, s idempotency.Store, c idempotency.Claim, resp idempotency.Response, keep time.Duration) {
	t.Helper()
	if err := s.Finish(t.Context(), c, resp, keep); err != nil {
		t.Fatalf("finish %s: %v", c.Key, err)
	}
}

// lost checks that the claim can do nothing any more.
func lost(t *testing.T, s idempotency.Store, c idempotency.Claim) {
	t.Helper()
	for what, err := range map[string]error{
		"extend":    s.Extend(t.Context(), c, long),
		"finish":    s.Finish(t.Context(), c, answer("of the loser"), long),
		"release":   s.Release(t.Context(), c),
		"interrupt": s.Interrupt(t.Context(), c, long),
	} {
		if !errors.Is(err, idempotency.ErrClaimLost) {
			t.Errorf("%s with a lost claim: %v", what, err)
		}
	}
}

func equal(a, b idempotency.Response) bool {
	return a.Status == b.Status && a.NotRetained == b.NotRetained && bytes.Equal(a.Body, b.Body) &&
		fmt.Sprint(a.Header) == fmt.Sprint(b.Header)
}

// eventually polls until the check holds: for what only time brings about.
func eventually(t *testing.T, what string, check func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for !check() {
		select {
		case <-ctx.Done():
			t.Fatalf("not in time: %s", what)
		case <-ticker.C:
		}
	}
}
