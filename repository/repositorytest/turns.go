package repositorytest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

var turning = cases{
	"tenants have equal shares of a claim":                        testTurnsShare,
	"what does not come out even goes round":                      testTurnsUneven,
	"claims of one job each go round":                             testTurnsSingle,
	"who has less leaves the rest to the others":                  testTurnsRest,
	"a tenant that comes later is served by the next claim":       testTurnsNewcomer,
	"the head start decides within a tenant":                      testTurnsPriority,
	"more tenants than jobs are asked for are all served":         testTurnsMany,
	"a claim for one tenant takes no other's jobs":                testTurnsOwn,
	"what cannot start keeps a tenant's turn from nobody else":    testTurnsDeadline,
	"a paused type is not claimed whoever has jobs of it":         testTurnsPaused,
	"Q27 of one business key one job is claimed, however many go": testTurnsBusinessKey,
}

// ofTenant makes the submission another tenant's.
func ofTenant(of idempotency.Tenant) func(*job.Submission) {
	return func(s *job.Submission) {
		s.Request.Tenant, s.Job.Tenant = of, of
		s.Job.ID = job.NewID(s.Job.CreatedAt, job.KeySlot(of, s.Job.Key))
	}
}

// give accepts n jobs of the tenant.
func give(t *testing.T, w World, of idempotency.Tenant, n int) {
	t.Helper()
	for i := range n {
		accept(t, w, submission(w, fmt.Sprintf("%s-%03d", of, i), `{}`, ofTenant(of)))
	}
}

// claimedOf claims at most n jobs and counts them by tenant.
func claimedOf(t *testing.T, w World, n int) map[idempotency.Tenant]int {
	t.Helper()
	claimed, err := w.Repo.Claim(t.Context(), job.Claiming{Type: kind, Max: n, Worker: "w", Lease: lease})
	if err != nil {
		t.Fatal(err)
	}
	of := map[idempotency.Tenant]int{}
	for _, c := range claimed {
		of[c.Tenant]++
	}
	return of
}

func testTurnsShare(t *testing.T, w World) {
	for _, of := range []idempotency.Tenant{"a", "b", "c"} {
		give(t, w, of, 12)
	}
	for range 3 {
		if of := claimedOf(t, w, 9); of["a"] != 3 || of["b"] != 3 || of["c"] != 3 {
			t.Errorf("%v", of)
		}
	}
}

func testTurnsUneven(t *testing.T, w World) {
	for _, of := range []idempotency.Tenant{"a", "b", "c"} {
		give(t, w, of, 12)
	}
	all := map[idempotency.Tenant]int{}
	for range 3 { // four jobs each time, for three tenants
		for of, n := range claimedOf(t, w, 4) {
			all[of] += n
			if n > 2 {
				t.Errorf("%s had %d of 4", of, n)
			}
		}
	}
	if all["a"] != 4 || all["b"] != 4 || all["c"] != 4 {
		t.Errorf("%v", all)
	}
}

func testTurnsSingle(t *testing.T, w World) {
	give(t, w, "a", 20)
	give(t, w, "b", 3)
	give(t, w, "c", 3)
	var order []idempotency.Tenant
	for range 9 {
		order = append(order, claim(t, w, "w", lease).Tenant)
	}
	want := []idempotency.Tenant{"c", "b", "a", "c", "b", "a", "c", "b", "a"}
	if !slices.Equal(order, want) {
		t.Errorf("order %v, want %v", order, want)
	}
}

func testTurnsRest(t *testing.T, w World) {
	give(t, w, "large", 30)
	give(t, w, "small", 2)
	give(t, w, "tiny", 1)
	if of := claimedOf(t, w, 12); of["large"] != 9 || of["small"] != 2 || of["tiny"] != 1 {
		t.Errorf("%v", of)
	}
	if of := claimedOf(t, w, 12); of["large"] != 12 {
		t.Errorf("%v", of)
	}
}

func testTurnsNewcomer(t *testing.T, w World) {
	give(t, w, "large", 40)
	for range 3 {
		if of := claimedOf(t, w, 5); of["large"] != 5 {
			t.Errorf("%v", of)
		}
	}
	for _, of := range []idempotency.Tenant{"before", "zero"} { // on either side of the other one
		give(t, w, of, 1)
		if got := claimedOf(t, w, 5); got[of] != 1 || got["large"] != 4 {
			t.Errorf("%s: %v", of, got)
		}
		claimedOf(t, w, 5)
	}
}

func testTurnsPriority(t *testing.T, w World) {
	for i, priority := range []int{0, -1, 5} {
		for _, of := range []idempotency.Tenant{"a", "b"} {
			accept(t, w, submission(w, fmt.Sprint(of, i), `{}`, ofTenant(of), func(s *job.Submission) { s.Job.Priority = priority }))
		}
	}
	var order []idempotency.Key
	for range 3 {
		claimed, err := w.Repo.Claim(t.Context(), job.Claiming{Type: kind, Max: 2, Worker: "w", Lease: lease})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range claimed {
			order = append(order, c.Key)
		}
	}
	if want := []idempotency.Key{"b1", "a1", "b0", "a0", "b2", "a2"}; !slices.Equal(order, want) {
		t.Errorf("order %v, want %v", order, want)
	}
}

func testTurnsMany(t *testing.T, w World) {
	const tenants = 10
	for i := range tenants {
		give(t, w, idempotency.Tenant(fmt.Sprint("t", i)), 3)
	}
	all := map[idempotency.Tenant]int{}
	for round := range 3 {
		for range 4 { // 3 + 3 + 3 + 1
			for of, n := range claimedOf(t, w, min(3, tenants*(round+1)-sum(all))) {
				all[of] += n
			}
		}
		for of, n := range all {
			if n != round+1 || len(all) != tenants {
				t.Fatalf("round %d: %s has had %d; %v", round, of, n, all)
			}
		}
	}
}

func sum(of map[idempotency.Tenant]int) (n int) {
	for _, one := range of {
		n += one
	}
	return n
}

func testTurnsOwn(t *testing.T, w World) {
	give(t, w, "a", 3)
	give(t, w, "b", 3)
	for _, want := range []int{2, 1, 0} {
		claimed, err := w.Repo.Claim(t.Context(), job.Claiming{Type: kind, Max: 2, Worker: "w", Lease: lease, Tenant: "a"})
		if err != nil || len(claimed) != want {
			t.Fatalf("%d jobs, %v", len(claimed), err)
		}
		for _, c := range claimed {
			if c.Tenant != "a" {
				t.Errorf("a job of %s", c.Tenant)
			}
		}
	}
	if of := claimedOf(t, w, 5); of["b"] != 3 {
		t.Errorf("%v", of)
	}
}

func testTurnsDeadline(t *testing.T, w World) {
	give(t, w, "a", 5)
	accept(t, w, submission(w, "late", `{}`, ofTenant("z"), func(s *job.Submission) { s.Job.Deadline = s.Job.CreatedAt.Add(-time.Second) }))
	if of := claimedOf(t, w, 4); of["a"] != 4 {
		t.Errorf("%v", of)
	}
	for range 3 { // the one that cannot start has its turn in vain
		if of := claimedOf(t, w, 1); of["a"] == 1 {
			return
		}
	}
	t.Error("the tenant that has a job is not served")
}

func testTurnsPaused(t *testing.T, w World) {
	give(t, w, "a", 2)
	give(t, w, "b", 2)
	if err := w.Repo.Pause(t.Context(), kind); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if of := claimedOf(t, w, 4); len(of) != 0 {
			t.Errorf("%v", of)
		}
	}
	if err := w.Repo.Resume(t.Context(), kind); err != nil {
		t.Fatal(err)
	}
	if of := claimedOf(t, w, 4); of["a"] != 2 || of["b"] != 2 {
		t.Errorf("%v", of)
	}
}

func testTurnsBusinessKey(t *testing.T, w World) {
	for i := range 4 {
		for order := range 3 {
			accept(t, w, queued(w, fmt.Sprint("k", order, "-", i), fmt.Sprint("order ", order)))
		}
	}
	done := map[string]int{}
	for range 4 {
		claimed, err := w.Repo.Claim(t.Context(), job.Claiming{Type: kind, Max: 50, Worker: "w", Lease: lease})
		if err != nil || len(claimed) != 3 {
			t.Fatalf("%d run at once, %v", len(claimed), err)
		}
		for _, c := range claimed {
			if want := fmt.Sprint("k", c.BusinessKey[len(c.BusinessKey)-1:], "-", done[c.BusinessKey]); string(c.Key) != want {
				t.Errorf("%s runs, want %s", c.Key, want)
			}
			done[c.BusinessKey]++
			if !finish(t, w, succeed(c.Lease)) {
				t.Fatal("not finished")
			}
		}
		unblock(t, w, 50)
	}
	if len(done) != 3 {
		t.Errorf("%v", done)
	}
}
