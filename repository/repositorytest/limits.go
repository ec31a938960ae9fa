package repositorytest

import (
	"fmt"
	"testing"
	"time"

	"github.com/sekali/sekali/job"
)

var limiting = cases{
	"no more run at once than the limit lets":                   testLimitConcurrency,
	"Q31 slots are derived: a stale end frees none":             testLimitDerived,
	"BR-61 a lease that is over counts until it is rescued":     testLimitExpired,
	"BR-49 two jobs of one business key, and the first is lost": testLimitBusinessKey,
	"a limit of one type leaves the others alone":               testLimitOther,
	"a rate lets one step start, and tells when the next may":   testLimitRate,
	"a fast rate goes in batches":                               testLimitBatches,
	"a rate that has changed does not wait for the one before":  testLimitChanged,
	"both limits hold":                                        testLimitBoth,
	"tenants take turns within a limit":                       testLimitTurns,
	"an overview tells when the rate lets the next one start": testLimitOverview,
	"nothing to claim writes nothing":                         testLimitIdle,
}

// claimWithin claims at most n jobs within the limit.
func claimWithin(t *testing.T, w World, n int, limit job.Limit) job.Claims {
	t.Helper()
	claims, err := w.Repo.ClaimLimited(t.Context(), job.Claiming{Type: kind, Max: n, Worker: "w", Lease: lease}, limit)
	if err != nil {
		t.Fatal(err)
	}
	return claims
}

func wantClaimed(t *testing.T, claims job.Claims, n int) {
	t.Helper()
	if len(claims.Jobs) != n {
		t.Fatalf("%d jobs were claimed, want %d; next in %s", len(claims.Jobs), n, claims.Next)
	}
}

var five = job.Limit{Concurrency: 5}

func testLimitConcurrency(t *testing.T, w World) {
	acceptN(t, w, 20)
	first := claimWithin(t, w, 3, five)
	wantClaimed(t, first, 3)
	second := claimWithin(t, w, 9, five)
	wantClaimed(t, second, 2)
	if c := second.Jobs[0]; c.Status != job.Processing || c.Attempts != 1 || c.Lease.Token != 1 || string(c.Payload) != "{}" {
		t.Errorf("claimed: %+v", c)
	}
	wantClaimed(t, claimWithin(t, w, 9, five), 0)
	for i, c := range append(first.Jobs, second.Jobs...)[:2] {
		if !finish(t, w, succeed(c.Lease)) {
			t.Fatal("not finished")
		}
		wantClaimed(t, claimWithin(t, w, 9, five), 1)
		if n := count(t, w, `select count(*) from jobs where state = 'processing'`); n != 5 {
			t.Errorf("after %d ends %d run", i+1, n)
		}
	}
	wantClaimed(t, claimWithin(t, w, 0, five), 0)
	wantClaimed(t, claimWithin(t, w, 9, job.Limit{Concurrency: 7}), 2)
	wantClaimed(t, claimWithin(t, w, 9, job.Limit{Concurrency: 3}), 0) // the limit was lowered meanwhile
	wantClaimed(t, claimWithin(t, w, 9, job.Limit{}), 9)               // no limit at all
}

// testLimitDerived: a worker that was taken for dead ends its attempt twice, and that
// of somebody else. A slot that was counted down each time would be free.
func testLimitDerived(t *testing.T, w World) {
	acceptN(t, w, 3)
	one := job.Limit{Concurrency: 1}
	stale := lose(t, w)
	if !requeue(t, w, job.Requeue{Lease: stale.Lease, Status: job.Pending, Attempt: job.AttemptLost, IfExpired: true}) {
		t.Fatal("not rescued")
	}
	again := claimWithin(t, w, 9, one)
	wantClaimed(t, again, 1)
	for range 11 {
		if finish(t, w, succeed(stale.Lease)) {
			t.Fatal("a stale end was applied")
		}
		wantClaimed(t, claimWithin(t, w, 9, one), 0)
	}
	if !finish(t, w, succeed(again.Jobs[0].Lease)) || ending(t, w, succeed(again.Jobs[0].Lease)) == job.Refused {
		t.Fatal("an end that is repeated was refused")
	}
	wantClaimed(t, claimWithin(t, w, 9, one), 1)
	wantClaimed(t, claimWithin(t, w, 9, one), 0)
}

func testLimitExpired(t *testing.T, w World) {
	acceptN(t, w, 3)
	two := job.Limit{Concurrency: 2}
	lost := lose(t, w)
	wantClaimed(t, claimWithin(t, w, 9, two), 1)
	wantClaimed(t, claimWithin(t, w, 9, two), 0) // the lost one may still run
	if !finish(t, w, lostEnding(lost.Lease)) {
		t.Fatal("not rescued")
	}
	wantClaimed(t, claimWithin(t, w, 9, two), 1)
}

func testLimitBusinessKey(t *testing.T, w World) {
	accept(t, w, queued(w, "first", "order 1"))
	accept(t, w, queued(w, "second", "order 1"))
	one := job.Limit{Concurrency: 1}
	lost := lose(t, w)
	for range 2 {
		wantClaimed(t, claimWithin(t, w, 9, one), 0)
		if types := unblock(t, w, 5); len(types) != 0 {
			t.Fatal("the second one goes while nobody knows of the first")
		}
	}
	if !requeue(t, w, job.Requeue{Lease: lost.Lease, Status: job.Retrying, Attempt: job.AttemptLost, IfExpired: true}) {
		t.Fatal("not rescued")
	}
	unblock(t, w, 5)
	for _, want := range []string{"first", "second"} {
		promote(t, w, 5)
		claims := claimWithin(t, w, 9, one)
		wantClaimed(t, claims, 1)
		if string(claims.Jobs[0].Key) != want || !finish(t, w, succeed(claims.Jobs[0].Lease)) {
			t.Fatalf("%s runs, want %s", claims.Jobs[0].Key, want)
		}
		unblock(t, w, 5)
	}
}

func testLimitOther(t *testing.T, w World) {
	acceptN(t, w, 3)
	for i := range 3 {
		accept(t, w, submission(w, fmt.Sprint("other", i), `{}`, ofType("other")))
	}
	one := job.Limit{Concurrency: 1, Rate: job.Rate{Count: 1, Per: time.Hour}}
	wantClaimed(t, claimWithin(t, w, 9, one), 1)
	wantClaimed(t, claimWithin(t, w, 9, one), 0)
	claims, err := w.Repo.ClaimLimited(t.Context(), job.Claiming{Type: "other", Max: 9, Worker: "w", Lease: lease}, one)
	if err != nil || len(claims.Jobs) != 1 {
		t.Errorf("%+v, %v", claims, err)
	}
}

func testLimitRate(t *testing.T, w World) {
	rate := job.Limit{Rate: job.Rate{Count: 4, Per: time.Second}} // a step of 250 ms
	// Two of them are for the rate in between, on a machine that stood still for a step.
	acceptN(t, w, 5)
	for n := range 3 {
		var claims job.Claims
		eventually(t, func() bool {
			claims = claimWithin(t, w, 9, rate)
			return len(claims.Jobs) > 0
		})
		wantClaimed(t, claims, 1)
		if claims.Next <= 0 || claims.Next > 250*time.Millisecond {
			t.Errorf("the next one in %s", claims.Next)
		}
		if n == 2 {
			break
		}
		if held := claimWithin(t, w, 9, job.Limit{Rate: job.Rate{Count: 1, Per: time.Minute}}); len(held.Jobs) == 0 && (held.Next <= 0 || held.Next > 250*time.Millisecond) {
			t.Errorf("held for %s", held.Next)
		}
	}
	claimWithin(t, w, 9, job.Limit{}) // the rest
	if idle := claimWithin(t, w, 9, rate); idle.Next != 0 {
		t.Errorf("nothing waits, and the next one may start in %s", idle.Next)
	}
}

func testLimitBatches(t *testing.T, w World) {
	acceptN(t, w, 9)
	claims := claimWithin(t, w, 9, job.Limit{Rate: job.Rate{Count: 200, Per: time.Second}}) // four every 20 ms
	wantClaimed(t, claims, 4)
	if claims.Next <= 0 || claims.Next > 20*time.Millisecond {
		t.Errorf("the next ones in %s", claims.Next)
	}
}

func testLimitChanged(t *testing.T, w World) {
	acceptN(t, w, 5)
	slow, fast := job.Limit{Rate: job.Rate{Count: 1, Per: time.Hour}}, job.Limit{Rate: job.Rate{Count: 100, Per: time.Second}}
	wantClaimed(t, claimWithin(t, w, 9, slow), 1)
	wantClaimed(t, claimWithin(t, w, 9, slow), 0)
	changed := claimWithin(t, w, 9, fast)
	wantClaimed(t, changed, 0) // the first step is one of the new rate
	if changed.Next <= 0 || changed.Next > 20*time.Millisecond {
		t.Errorf("the next ones in %s", changed.Next)
	}
	eventually(t, func() bool { return len(claimWithin(t, w, 1, fast).Jobs) == 1 })
	eventually(t, func() bool { return len(claimWithin(t, w, 1, slow).Jobs) == 1 }) // its clock again
	wantClaimed(t, claimWithin(t, w, 9, slow), 0)
	wantClaimed(t, claimWithin(t, w, 9, five), 2)
}

func testLimitBoth(t *testing.T, w World) {
	acceptN(t, w, 9)
	both := job.Limit{Concurrency: 2, Rate: job.Rate{Count: 6_000, Per: time.Minute}} // two every 20 ms
	wantClaimed(t, claimWithin(t, w, 1, both), 1)
	eventually(t, func() bool { return len(claimWithin(t, w, 9, both).Jobs) == 1 })
	full := false
	eventually(t, func() bool {
		claims := claimWithin(t, w, 9, both)
		wantClaimed(t, claims, 0)
		full = claims.Next == 0 // the rate lets one start, the other limit does not
		return full
	})
}

func testLimitTurns(t *testing.T, w World) {
	give(t, w, "large", 20)
	give(t, w, "small", 2)
	for _, want := range []map[string]int{{"large": 2, "small": 2}, {"large": 4, "small": 0}} {
		claims := claimWithin(t, w, 9, job.Limit{Concurrency: 4})
		wantClaimed(t, claims, 4)
		got := map[string]int{}
		for _, c := range claims.Jobs {
			got[string(c.Tenant)]++
			if !finish(t, w, succeed(c.Lease)) {
				t.Fatal("not finished")
			}
		}
		if got["large"] != want["large"] || got["small"] != want["small"] {
			t.Errorf("%v, want %v", got, want)
		}
	}
}

func testLimitOverview(t *testing.T, w World) {
	acceptN(t, w, 2)
	wantClaimed(t, claimWithin(t, w, 9, job.Limit{Rate: job.Rate{Count: 1, Per: time.Minute}}), 1)
	o, err := w.Repo.Overview(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	of := o.Types[kind]
	if of == nil || of.Busy != 1 || of.Waiting.Pending != 1 || !within(of.NextAt, w.Repo.Clock().Now().Add(time.Minute), 20*time.Second) {
		t.Errorf("%+v", of)
	}
}

func testLimitIdle(t *testing.T, w World) {
	wantClaimed(t, claimWithin(t, w, 9, five), 0)
	if n := count(t, w, `select count(*) from type_state`); n != 0 {
		t.Errorf("%d rows of state", n)
	}
}
