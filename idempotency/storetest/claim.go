package storetest

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/sekali/sekali/idempotency"
)

var claiming = cases{
	"C7 of a hundred at once one claims":                      testOneClaims,
	"Row33 C8 losers get the record, whatever becomes of it":  testLosers,
	"Row30 a second request finds the first one in progress":  testInProgress,
	"Row24 C12 keys of two tenants are two keys":              testTenants,
	"Row27 C10 another request finds the record as it is":     testMismatch,
	"C4 a live claim is not taken over":                       testLiveClaim,
	"C4 a heartbeat after the lease's end brings it back":     testLateHeartbeat,
	"C6 a lease is extended from now, not from its old end":   testExtend,
	"Row42 C3 a claim that ended is taken over, once":         testTakeover,
	"Row42 of many takeovers at once one wins":                testOneTakesOver,
	"Row42 C1 the lease ends by the store's clock":            testLeaseEnds,
	"Row43 without takeover an ended claim is interrupted":    testInterruptedByTime,
	"C5 a lease of no length has ended, and is not for ever":  testNoLease,
	"C5 a claim has no time at which it expires":              testClaimsDoNotExpire,
	"a claim that was never given can do nothing":             testUnknownClaim,
	"owner tokens are not given twice":                        testOwners,
	"Row91 a key that is not there is not found, or no error": testNotThere,
}

func testOneClaims(t *testing.T, s idempotency.Store) {
	const callers = 100
	claims := make(chan idempotency.Claim, callers)
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			c, rec, ok, err := s.Begin(t.Context(), request("k", "body"), again)
			switch {
			case err != nil:
				t.Errorf("begin: %v", err)
			case ok:
				claims <- c
			case rec.State != idempotency.InProgress:
				t.Errorf("a loser found %+v", rec)
			}
		})
	}
	wg.Wait()
	if len(claims) != 1 {
		t.Fatalf("%d claims", len(claims))
	}
	finish(t, s, <-claims, answer("done"), time.Hour)
}

// testLosers begins while the owner ends in each of its ways: whoever does not
// get the claim gets a record, never an error.
func testLosers(t *testing.T, s idempotency.Store) {
	const callers, keys = 8, 10
	var runs sync.Map
	var wg sync.WaitGroup
	for n := range keys {
		req := request(fmt.Sprint("k", n), "body")
		for range callers {
			wg.Go(func() {
				c, _, ok, err := s.Begin(t.Context(), req, careful)
				if err != nil {
					t.Errorf("begin: %v", err)
				}
				if !ok {
					return
				}
				if _, again := runs.LoadOrStore(req.Key, true); again {
					t.Errorf("%s was claimed twice", req.Key)
				}
				if err := s.Finish(t.Context(), c, answer("done"), time.Hour); err != nil {
					t.Errorf("finish: %v", err)
				}
			})
		}
	}
	wg.Wait()
}

func testInProgress(t *testing.T, s idempotency.Store) {
	req := request("k", "body")
	begin(t, s, req, time.Minute)
	for _, rec := range []idempotency.Record{meet(t, s, req, careful, idempotency.InProgress), find(t, s, req, idempotency.InProgress)} {
		if rec.RetryIn <= 50*time.Second || rec.RetryIn > time.Minute {
			t.Errorf("may need another %v of its minute", rec.RetryIn)
		}
		if !rec.ExpiresAt.IsZero() || rec.Response.Status != 0 {
			t.Errorf("a claim has %+v", rec)
		}
	}
}

func testTenants(t *testing.T, s idempotency.Store) {
	mine := request("k", "body")
	theirs := mine
	theirs.Tenant = "other"
	finish(t, s, begin(t, s, mine, long), answer("mine"), time.Hour)
	absent(t, s, theirs)
	begin(t, s, theirs, long)
	if rec := find(t, s, mine, idempotency.Completed); string(rec.Response.Body) != "mine" {
		t.Errorf("response %s", rec.Response.Body)
	}
}

func testMismatch(t *testing.T, s idempotency.Store) {
	prepare := map[idempotency.State]func(idempotency.Request){
		idempotency.InProgress:  func(req idempotency.Request) { begin(t, s, req, ended) },
		idempotency.Completed:   func(req idempotency.Request) { finish(t, s, begin(t, s, req, long), answer("done"), time.Hour) },
		idempotency.Interrupted: func(req idempotency.Request) { interrupt(t, s, begin(t, s, req, long), time.Hour) },
		idempotency.Retired:     func(req idempotency.Request) { finish(t, s, begin(t, s, req, long), answer("done"), ended) },
	}
	for state, bring := range prepare {
		first, other := request(string(state), "body"), request(string(state), "another body")
		bring(first)
		rec := meet(t, s, other, again, state)
		if rec.Fingerprint != first.Fingerprint {
			t.Errorf("%s: the fingerprint is not the first one's", state)
		}
		var mismatch *idempotency.MismatchError
		if _, err := idempotency.Answer(rec, other); !errors.As(err, &mismatch) || mismatch.Part != idempotency.PartBody {
			t.Errorf("%s: the answer is %v", state, err)
		}
	}
}

func testLiveClaim(t *testing.T, s idempotency.Store) {
	req := request("k", "body")
	c := begin(t, s, req, time.Minute)
	for range 3 {
		meet(t, s, req, idempotency.Beginning{Lease: long, Takeover: true, AfterExpiry: true}, idempotency.InProgress)
	}
	finish(t, s, c, answer("done"), time.Hour)
}

func testLateHeartbeat(t *testing.T, s idempotency.Store) {
	req := request("k", "body")
	c := begin(t, s, req, ended)
	extend(t, s, c, time.Minute)
	meet(t, s, req, again, idempotency.InProgress)
	finish(t, s, c, answer("done"), time.Hour)
}

func testExtend(t *testing.T, s idempotency.Store) {
	req := request("k", "body")
	c := begin(t, s, req, time.Hour)
	for range 5 {
		extend(t, s, c, time.Minute)
	}
	if rec := find(t, s, req, idempotency.InProgress); rec.RetryIn <= 50*time.Second || rec.RetryIn > time.Minute {
		t.Errorf("after five heartbeats of a minute the lease holds for %v", rec.RetryIn)
	}
}

func testTakeover(t *testing.T, s idempotency.Store) {
	req := request("k", "body")
	first := begin(t, s, req, ended)
	second := claim(t, s, req, again)
	if second.Owner == first.Owner || second.Attempt != first.Attempt+1 {
		t.Errorf("claims %+v and %+v", first, second)
	}
	lost(t, s, first)
	find(t, s, req, idempotency.InProgress)
	finish(t, s, second, answer("of the second"), time.Hour)
	lost(t, s, first)
	if rec := meet(t, s, req, again, idempotency.Completed); string(rec.Response.Body) != "of the second" {
		t.Errorf("response %s", rec.Response.Body)
	}
}

func testOneTakesOver(t *testing.T, s idempotency.Store) {
	req := request("k", "body")
	begin(t, s, req, ended)
	var wg sync.WaitGroup
	claims := make(chan idempotency.Claim, 20)
	for range cap(claims) {
		wg.Go(func() {
			c, _, ok, err := s.Begin(t.Context(), req, again)
			if err != nil {
				t.Errorf("begin: %v", err)
			}
			if ok {
				claims <- c
			}
		})
	}
	wg.Wait()
	if len(claims) != 1 {
		t.Fatalf("%d took over", len(claims))
	}
	if c := <-claims; c.Attempt != 2 {
		t.Errorf("attempt %d", c.Attempt)
	}
}

func testLeaseEnds(t *testing.T, s idempotency.Store) {
	req := request("k", "body")
	begin(t, s, req, 50*time.Millisecond)
	eventually(t, "the takeover of a claim whose process died", func() bool {
		_, _, ok, err := s.Begin(t.Context(), req, again)
		if err != nil {
			t.Fatal(err)
		}
		return ok
	})
}

func testInterruptedByTime(t *testing.T, s idempotency.Store) {
	req := request("k", "body")
	c := begin(t, s, req, ended)
	rec := meet(t, s, req, careful, idempotency.Interrupted)
	if _, err := idempotency.Answer(rec, req); !errors.Is(err, idempotency.ErrInterrupted) {
		t.Errorf("answer: %v", err)
	}
	// Nobody has taken it over: the work is done, and its response counts.
	finish(t, s, c, answer("late"), time.Hour)
	if rec := meet(t, s, req, careful, idempotency.Completed); string(rec.Response.Body) != "late" {
		t.Errorf("response %s", rec.Response.Body)
	}
}

func testNoLease(t *testing.T, s idempotency.Store) {
	for _, lease := range []time.Duration{0, -time.Nanosecond, -time.Hour} {
		req := request(fmt.Sprint("k", lease), "body")
		begin(t, s, req, lease)
		if rec := find(t, s, req, idempotency.InProgress); rec.RetryIn != 0 {
			t.Errorf("a lease of %v holds for %v", lease, rec.RetryIn)
		}
		c := claim(t, s, req, idempotency.Beginning{Lease: lease, Takeover: true})
		extend(t, s, c, lease)
		if c = claim(t, s, req, again); c.Attempt != 3 {
			t.Errorf("attempt %d", c.Attempt)
		}
	}
}

func testClaimsDoNotExpire(t *testing.T, s idempotency.Store) {
	req := request("k", "body")
	c := begin(t, s, req, -2*Tombstone)
	meet(t, s, req, idempotency.Beginning{Lease: long, AfterExpiry: true}, idempotency.Interrupted)
	find(t, s, req, idempotency.InProgress)
	finish(t, s, c, answer("very late"), time.Hour)
}

func testUnknownClaim(t *testing.T, s idempotency.Store) {
	none := idempotency.Claim{Tenant: tenant, Key: "k"}
	lost(t, s, none)
	begin(t, s, request("k", "body"), ended)
	lost(t, s, none)
	none.Owner = "somebody else"
	lost(t, s, none)
	find(t, s, request("k", "body"), idempotency.InProgress)
}

func testOwners(t *testing.T, s idempotency.Store) {
	seen := map[string]bool{}
	for n := range 20 {
		c := begin(t, s, request(fmt.Sprint("k", n), "body"), long)
		if seen[c.Owner] {
			t.Fatalf("owner %s twice", c.Owner)
		}
		seen[c.Owner] = true
	}
}

func testNotThere(t *testing.T, s idempotency.Store) {
	for _, key := range []string{"k", "", "a b", "%00", "a\x00b", "a\xffb"} {
		absent(t, s, request(key, "body"))
	}
}

func extend(t *testing.T, s idempotency.Store, c idempotency.Claim, lease time.Duration) {
	t.Helper()
	if err := s.Extend(t.Context(), c, lease); err != nil {
		t.Fatalf("extend %s: %v", c.Key, err)
	}
}

func interrupt(t *testing.T, s idempotency.Store, c idempotency.Claim, keep time.Duration) {
	t.Helper()
	if err := s.Interrupt(t.Context(), c, keep); err != nil {
		t.Fatalf("interrupt %s: %v", c.Key, err)
	}
}
