package storetest

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sekali/sekali/idempotency"
)

var ending = cases{
	"Row29 C23 C33 a response comes back as it was":     testResponse,
	"Row29 what is stored is apart from the caller's":   testAliasing,
	"Row51 C24 a body that was not retained is none":    testNotRetained,
	"I3 finish works after the lease's end":             testFinishLate,
	"an ended claim is ended":                           testEnded,
	"Row36 C17 release frees the key for any request":   testRelease,
	"Row43 C18 an interrupted request is not run again": testInterrupt,
}

var expiring = cases{
	"Row57 an expired key stays consumed":                testRetired,
	"Row57 after expiry it may run, if that is asked":    testAfterExpiry,
	"Row58 after the tombstone it is a first request":    testTombstoneOver,
	"Row59 expiry is judged by the store's clock":        testExpiryByClock,
	"Row59 C31 keys that expired long ago are as absent": testReuse,
	"C5 keeping for no time is not keeping for ever":     testNoKeep,
	"the time of expiry counts from the end":             testExpiresAt,
}

func testResponse(t *testing.T, s idempotency.Store) {
	bodies := []string{
		"", "null", "{\"b\": 1.10,\n \"a\":1e400}\n", `{"b":1,"a":2}`, "\x00\xff\xfe", `{"s":"\ud800"}`, " \t\r\n", strings.Repeat("x", 1<<20),
	}
	headers := []http.Header{
		nil, {"Content-Type": {"application/json; charset=utf-8"}}, {"Link": {"<a>; rel=next", "<b>"}, "Location": {"/charges/1?a=b&c=%20"}}, {"X-Empty": {""}},
	}
	for i, body := range bodies {
		req := request(fmt.Sprint("k", i), body)
		want := idempotency.Response{Status: 200 + i, Header: headers[i%len(headers)], Body: []byte(body)}
		finish(t, s, begin(t, s, req, long), want, time.Hour)
		for _, rec := range []idempotency.Record{meet(t, s, req, again, idempotency.Completed), find(t, s, req, idempotency.Completed)} {
			if !equal(rec.Response, want) {
				t.Errorf("%d: %d %v %.60q, want %d %v %.60q", i, rec.Response.Status, rec.Response.Header, rec.Response.Body, want.Status, want.Header, want.Body)
			}
			if answer, err := idempotency.Answer(rec, req); err != nil || !equal(answer, want) {
				t.Errorf("%d: the answer is %v", i, err)
			}
		}
	}
}

func testAliasing(t *testing.T, s idempotency.Store) {
	req, resp := request("k", "body"), answer("done")
	finish(t, s, begin(t, s, req, long), resp, time.Hour)
	for range 2 {
		resp.Body[0] = 'X'
		resp.Header.Set("Link", "changed")
		resp = find(t, s, req, idempotency.Completed).Response
		if !equal(resp, answer("done")) {
			t.Fatalf("stored is now %+v", resp)
		}
	}
}

func testNotRetained(t *testing.T, s idempotency.Store) {
	req := request("k", "body")
	resp := idempotency.Response{Status: http.StatusCreated, Header: http.Header{"Location": {"/charges/1"}}, NotRetained: true}
	finish(t, s, begin(t, s, req, long), resp, time.Hour)
	rec := meet(t, s, req, again, idempotency.Completed)
	var notRetained *idempotency.NotRetainedError
	if _, err := idempotency.Answer(rec, req); !errors.As(err, &notRetained) || notRetained.Status != http.StatusCreated || notRetained.Location != "/charges/1" {
		t.Errorf("answer: %+v, %v", notRetained, err)
	}
}

func testFinishLate(t *testing.T, s idempotency.Store) {
	req := request("k", "body")
	c := begin(t, s, req, ended)
	finish(t, s, c, answer("done"), time.Hour)
	if rec := meet(t, s, req, again, idempotency.Completed); string(rec.Response.Body) != "done" {
		t.Errorf("response %s", rec.Response.Body)
	}
}

// testEnded leaves open what a repetition of the same end returns: its answer
// may have been lost, and a store may recognise it.
func testEnded(t *testing.T, s idempotency.Store) {
	req := request("k", "body")
	c := begin(t, s, req, long)
	finish(t, s, c, answer("done"), time.Hour)
	for what, err := range map[string]error{
		"extend": s.Extend(t.Context(), c, long), "release": s.Release(t.Context(), c), "interrupt": s.Interrupt(t.Context(), c, long),
	} {
		if !errors.Is(err, idempotency.ErrClaimLost) {
			t.Errorf("%s after the end: %v", what, err)
		}
	}
	_ = s.Finish(t.Context(), c, answer("again"), time.Hour)
	if rec := find(t, s, req, idempotency.Completed); !equal(rec.Response, answer("done")) {
		t.Errorf("response %s", rec.Response.Body)
	}
}

func testRelease(t *testing.T, s idempotency.Store) {
	req := request("k", "body")
	for _, lease := range []time.Duration{long, ended} {
		if err := s.Release(t.Context(), begin(t, s, req, lease)); err != nil {
			t.Fatal(err)
		}
		absent(t, s, req)
	}
	corrected := request("k", "corrected body")
	c := claim(t, s, corrected, careful)
	if c.Attempt != 1 {
		t.Errorf("attempt %d", c.Attempt)
	}
	finish(t, s, c, answer("done"), time.Hour)
	find(t, s, corrected, idempotency.Completed)
}

func testInterrupt(t *testing.T, s idempotency.Store) {
	req := request("k", "body")
	c := begin(t, s, req, long)
	interrupt(t, s, c, time.Hour)
	rec := meet(t, s, req, again, idempotency.Interrupted)
	if _, err := idempotency.Answer(rec, req); !errors.Is(err, idempotency.ErrInterrupted) {
		t.Errorf("answer: %v", err)
	}
	for what, err := range map[string]error{
		"extend": s.Extend(t.Context(), c, long), "finish": s.Finish(t.Context(), c, answer("late"), long), "release": s.Release(t.Context(), c),
	} {
		if !errors.Is(err, idempotency.ErrClaimLost) {
			t.Errorf("%s after the interruption: %v", what, err)
		}
	}
	find(t, s, req, idempotency.Interrupted)
}

func testRetired(t *testing.T, s idempotency.Store) {
	done, unknown := request("done", "body"), request("unknown", "body")
	finish(t, s, begin(t, s, done, long), answer("done"), -Tombstone/2)
	interrupt(t, s, begin(t, s, unknown, long), -Tombstone/2)
	for _, req := range []idempotency.Request{done, unknown} {
		for _, rec := range []idempotency.Record{meet(t, s, req, again, idempotency.Retired), find(t, s, req, idempotency.Retired)} {
			var retired *idempotency.RetiredError
			if _, err := idempotency.Answer(rec, req); !errors.As(err, &retired) {
				t.Fatalf("%s: the answer is %v", req.Key, err)
			}
			if ago := time.Since(retired.ExpiredAt); ago < Tombstone/2-time.Minute || ago > Tombstone/2+time.Minute {
				t.Errorf("%s expired %v ago", req.Key, ago)
			}
		}
	}
}

func testAfterExpiry(t *testing.T, s idempotency.Store) {
	execute := idempotency.Beginning{Lease: long, AfterExpiry: true}
	for n, next := range []idempotency.Request{request("k0", "body"), request("k1", "another body")} {
		first := request(fmt.Sprint("k", n), "body")
		finish(t, s, begin(t, s, first, long), answer("old"), ended)
		meet(t, s, first, careful, idempotency.Retired)
		c := claim(t, s, next, execute)
		if c.Attempt != 1 {
			t.Errorf("attempt %d", c.Attempt)
		}
		meet(t, s, next, execute, idempotency.InProgress)
		finish(t, s, c, answer("new"), time.Hour)
		if rec := meet(t, s, next, execute, idempotency.Completed); string(rec.Response.Body) != "new" {
			t.Errorf("response %s", rec.Response.Body)
		}
	}
}

func testTombstoneOver(t *testing.T, s idempotency.Store) {
	for n, next := range []idempotency.Request{request("k0", "body"), request("k1", "another body")} {
		first := request(fmt.Sprint("k", n), "body")
		finish(t, s, begin(t, s, first, long), answer("old"), -2*Tombstone)
		absent(t, s, first)
		c := claim(t, s, next, careful)
		if c.Attempt != 1 {
			t.Errorf("attempt %d", c.Attempt)
		}
		if rec := find(t, s, next, idempotency.InProgress); !rec.ExpiresAt.IsZero() {
			t.Errorf("the new claim expires at %v", rec.ExpiresAt)
		}
	}
}

func testExpiryByClock(t *testing.T, s idempotency.Store) {
	req := request("k", "body")
	finish(t, s, begin(t, s, req, long), answer("done"), 50*time.Millisecond)
	eventually(t, "the record's expiry", func() bool {
		rec, err := s.Find(t.Context(), req.Tenant, req.Key)
		if err != nil {
			t.Fatal(err)
		}
		return rec.State == idempotency.Retired
	})
}

// testReuse has many claim one key that has been forgotten: one gets it.
func testReuse(t *testing.T, s idempotency.Store) {
	finish(t, s, begin(t, s, request("k", "body"), long), answer("old"), -2*Tombstone)
	testOneClaims(t, s)
}

func testNoKeep(t *testing.T, s idempotency.Store) {
	for n, keep := range []time.Duration{0, -time.Nanosecond} {
		done, unknown := request(fmt.Sprint("done", n), "body"), request(fmt.Sprint("unknown", n), "body")
		finish(t, s, begin(t, s, done, long), answer("done"), keep)
		interrupt(t, s, begin(t, s, unknown, long), keep)
		meet(t, s, done, careful, idempotency.Retired)
		meet(t, s, unknown, careful, idempotency.Retired)
	}
}

func testExpiresAt(t *testing.T, s idempotency.Store) {
	done, unknown := request("done", "body"), request("unknown", "body")
	finish(t, s, begin(t, s, done, long), answer("done"), time.Hour)
	interrupt(t, s, begin(t, s, unknown, ended), time.Hour)
	for _, rec := range []idempotency.Record{find(t, s, done, idempotency.Completed), find(t, s, unknown, idempotency.Interrupted)} {
		if in := time.Until(rec.ExpiresAt); in < time.Hour-time.Minute || in > time.Hour+time.Minute {
			t.Errorf("%s expires in %v", rec.Key, in)
		}
	}
}
