package repositorytest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

// Tombstone is how long the repositories under test keep expired keys consumed.
const Tombstone = time.Hour

// Retentions of jobs that have expired, with and without their tombstones.
const (
	expired = -Tombstone / 2
	over    = -2 * Tombstone
)

var retaining = cases{
	"Row57 Row59 an expired key is refused, reaped or not":    testRetired,
	"Row58 after the tombstone a key is new, reaped or not":   testForgotten,
	"Row58 of many first requests after expiry one is fresh":  testForgottenRace,
	"Row92 Row93 the tombstone tells the final status":        testTombstone,
	"Row103 unfinished jobs and live claims are never reaped": testReapSpares,
	"Row80 an alias expires with its holder's job":            testReapAlias,
	"C31 attempts, events and jobs go together":               testReapRows,
	"C31 BR-77 batches are bounded":                           testReapBatches,
	"C31 reapers share the work":                              testReapTogether,
	"a key that is used anew is not the old job's":            testReapReused,
	"records of requests become tombstones, and go":           testReapRecords,
	"claims that nobody asks for any more go":                 testReapClaims,
	"Row98 a result may go before its job":                    testResultKept,
}

// end accepts a job and ends it, to be kept for so long.
func end(t *testing.T, w World, key string, keep time.Duration) job.Job {
	t.Helper()
	j := accept(t, w, submission(w, key, `{}`))
	endClaimed(t, w, keep)
	return j
}

func endClaimed(t *testing.T, w World, keep time.Duration) {
	t.Helper()
	e := succeed(claim(t, w, "w", lease).Lease)
	e.Keep, e.Result = keep, &job.Result{Body: []byte("done"), MediaType: "text/plain"}
	if !finish(t, w, e) {
		t.Fatal("not finished")
	}
}

// reap reaps until nothing is left, and returns what went.
func reap(t *testing.T, w World) job.Reaped {
	t.Helper()
	var all job.Reaped
	for range 100 {
		n, err := w.Repo.Reap(t.Context(), 1000)
		if err != nil {
			t.Fatalf("reap: %v", err)
		}
		all.Jobs, all.Responses, all.Tombstones = all.Jobs+n.Jobs, all.Responses+n.Responses, all.Tombstones+n.Tombstones
		all.Claims, all.Results = all.Claims+n.Claims, all.Results+n.Results
		if !n.More {
			return all
		}
	}
	t.Fatal("reaping does not end")
	return all
}

func testRetired(t *testing.T, w World) {
	end(t, w, "k", expired)
	for _, when := range []string{"before", "after"} {
		receipt, err := w.Repo.Accept(t.Context(), submission(w, "k", `{}`))
		if err != nil || receipt.Record.Fresh || receipt.Record.State != idempotency.Retired {
			t.Fatalf("%s reaping: %+v, %v", when, receipt.Record, err)
		}
		if want := w.Repo.Clock().Now().Add(expired); !within(receipt.Record.ExpiresAt, want, time.Minute) {
			t.Errorf("%s reaping: expired at %v, want about %v", when, receipt.Record.ExpiresAt, want)
		}
		other, err := w.Repo.Accept(t.Context(), submission(w, "k", `{"other":1}`))
		if err != nil || other.Record.Fresh || other.Record.Fingerprint != receipt.Record.Fingerprint {
			t.Errorf("%s reaping, another request: %+v, %v", when, other.Record, err)
		}
		if n := reap(t, w).Jobs; when == "before" && n != 1 {
			t.Errorf("%d jobs reaped", n)
		}
	}
}

func testForgotten(t *testing.T, w World) {
	for _, reaped := range []bool{false, true} {
		key := fmt.Sprint("k ", reaped)
		old := end(t, w, key, over)
		if reaped {
			reap(t, w)
		}
		if _, err := w.Repo.Find(t.Context(), tenant, idempotency.Key(key)); !errors.Is(err, job.ErrNotFound) {
			t.Errorf("%s: %v", key, err)
		}
		fresh := accept(t, w, submission(w, key, `{"other":"payload"}`))
		if fresh.ID == old.ID {
			t.Errorf("%s: the old job", key)
		}
		if j := now(t, w, idempotency.Key(key)); j.ID != fresh.ID || j.Status != job.Pending {
			t.Errorf("%s: %+v", key, j)
		}
		endClaimed(t, w, keep)
	}
}

func testForgottenRace(t *testing.T, w World) {
	const keys, callers = 10, 8
	for n := range keys {
		end(t, w, fmt.Sprint("k", n), over)
	}
	var mu sync.Mutex
	fresh := map[idempotency.Key]int{}
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for n := range keys {
				s := submission(w, fmt.Sprint("k", n), `{}`)
				var receipt job.Receipt
				err := patiently(func() (err error) {
					receipt, err = w.Repo.Accept(t.Context(), s)
					return err
				})
				if err != nil || receipt.Record.State != idempotency.Completed {
					t.Errorf("%+v, %v", receipt.Record, err)
				}
				if receipt.Record.Fresh {
					mu.Lock()
					fresh[receipt.Job.Key]++
					mu.Unlock()
				}
			}
		})
	}
	wg.Go(func() {
		if _, err := w.Repo.Reap(t.Context(), 3); err != nil {
			t.Error(err)
		}
	})
	wg.Wait()
	for key, n := range fresh {
		if n != 1 {
			t.Errorf("%s was accepted %d times", key, n)
		}
	}
	if n := count(t, w, `select count(*) from jobs`); len(fresh) != keys || n != keys {
		t.Errorf("%d keys were accepted, %d jobs", len(fresh), n)
	}
}

func testTombstone(t *testing.T, w World) {
	j := accept(t, w, submission(w, "k", `{}`))
	e := succeed(claim(t, w, "w", lease).Lease)
	e.Status, e.Attempt, e.Keep = job.Failed, job.AttemptFailed, expired
	if !finish(t, w, e) {
		t.Fatal("not finished")
	}
	for _, when := range []string{"before", "after"} {
		receipt, err := w.Repo.Find(t.Context(), tenant, "k")
		if err != nil || receipt.Record.State != idempotency.Retired || receipt.Job.Status != job.Failed {
			t.Fatalf("%s reaping: %+v, %v", when, receipt, err)
		}
		if want := w.Repo.Clock().Now().Add(expired); !within(receipt.Record.ExpiresAt, want, time.Minute) {
			t.Errorf("%s reaping: expired at %v", when, receipt.Record.ExpiresAt)
		}
		reap(t, w)
	}
	if n := count(t, w, `select count(*) from finished_jobs`) + len(attempts(t, w, j.ID)); n != 0 {
		t.Errorf("%d rows of the job are left", n)
	}
	if n := count(t, w, `select count(*) from idempotency_keys where response_body is not null or response_status is not null or job_id is not null`); n != 0 {
		t.Error("the tombstone holds a response or names the job")
	}
	w.age(t, 2*Tombstone)
	if _, err := w.Repo.Find(t.Context(), tenant, "k"); !errors.Is(err, job.ErrNotFound) {
		t.Errorf("after the tombstone: %v", err)
	}
	if n := reap(t, w).Tombstones; n != 1 {
		t.Errorf("%d tombstones reaped", n)
	}
	if n := count(t, w, `select count(*) from idempotency_keys`); n != 0 {
		t.Errorf("%d records are left", n)
	}
}

// age lets the records' times end so much earlier, as if time had passed.
func (w World) age(t *testing.T, d time.Duration) {
	t.Helper()
	then := w.Repo.Clock().Now().Add(-d).Format("2006-01-02T15:04:05.000Z")
	execute(t, w, `update idempotency_keys set expires_at = $1`, then)
	execute(t, w, `update idempotency_keys set claimed_until = $1 where state = 'in_progress'`, then)
}

func testReapSpares(t *testing.T, w World) {
	accept(t, w, submission(w, "pending", `{}`))
	accept(t, w, submission(w, "processing", `{}`))
	claim(t, w, "w", gone)
	accept(t, w, submission(w, "later", `{}`, scheduledIn(time.Hour)))
	accept(t, w, submission(w, "kept", `{}`, ofType("other")))
	claimed, err := w.Repo.Claim(t.Context(), job.Claiming{Type: "other", Max: 1, Worker: "w", Lease: lease})
	if err != nil || !finish(t, w, succeed(claimed[0].Lease)) {
		t.Fatal(err)
	}
	s := w.Repo.Records()
	begin(t, s, "live", time.Hour)
	begin(t, s, "ended", -time.Hour)
	c := begin(t, s, "answered", time.Hour)
	if err := s.Finish(t.Context(), c, idempotency.Response{Status: 200}, time.Hour); err != nil {
		t.Fatal(err)
	}
	// However old a claim is, its lease tells whether somebody holds it.
	execute(t, w, `update idempotency_keys set expires_at = created_at where key = 'live'`)
	if n := reap(t, w); n != (job.Reaped{}) {
		t.Errorf("reaped %+v", n)
	}
	if n := count(t, w, `select count(*) from idempotency_keys`); n != 7 {
		t.Errorf("%d records", n)
	}
}

func begin(t *testing.T, s idempotency.Store, key string, lease time.Duration) idempotency.Claim {
	t.Helper()
	c, rec, ok, err := s.Begin(t.Context(), keyed(key), idempotency.Beginning{Lease: lease})
	if err != nil || !ok {
		t.Fatalf("begin %s: %+v, %v", key, rec, err)
	}
	return c
}

func keyed(key string) idempotency.Request {
	return idempotency.Request{Tenant: tenant, Key: idempotency.Key(key), Fingerprint: idempotency.NewFingerprint("POST", "/charges", nil, "", nil)}
}

func testReapAlias(t *testing.T, w World) {
	for _, reaped := range []bool{false, true} {
		first, second := fmt.Sprint("first ", reaped), fmt.Sprint("second ", reaped)
		accept(t, w, submission(w, first, `{}`, withBusinessKey(first, job.ConflictReturn)))
		if receipt, err := w.Repo.Accept(t.Context(), submission(w, second, `{}`, withBusinessKey(first, job.ConflictReturn))); err != nil || !receipt.Alias {
			t.Fatalf("%+v, %v", receipt, err)
		}
		endClaimed(t, w, expired)
		if reaped {
			reap(t, w)
		}
		for _, key := range []string{first, second} {
			receipt, err := w.Repo.Find(t.Context(), tenant, idempotency.Key(key))
			if err != nil || receipt.Record.State != idempotency.Retired || receipt.Job.Status != job.Succeeded {
				t.Errorf("%s: %+v, %v", key, receipt, err)
			}
			again, err := w.Repo.Accept(t.Context(), submission(w, key, `{}`, withBusinessKey(first, job.ConflictReturn)))
			if err != nil || again.Record.State != idempotency.Retired {
				t.Errorf("%s again: %+v, %v", key, again.Record, err)
			}
		}
	}
}

func testReapRows(t *testing.T, w World) {
	gone, kept := end(t, w, "gone", expired), end(t, w, "kept", keep)
	for _, j := range []job.Job{gone, kept} {
		execute(t, w, `insert into job_events (slot, job_id, id, event, created_at) values ($1, $2, $2, 'replayed', $3)`,
			int64(j.Slot()), string(j.ID), j.CreatedAt.Format("2006-01-02T15:04:05.000Z"))
	}
	reap(t, w)
	for _, table := range []string{"finished_jobs", "job_attempts", "job_events"} {
		if n := count(t, w, `select count(*) from `+table); n != 1 {
			t.Errorf("%d rows in %s, want that of the job that is kept", n, table)
		}
	}
	if j := now(t, w, "kept"); j.Status != job.Succeeded || j.Result == nil {
		t.Errorf("kept: %+v", j)
	}
}

func testReapBatches(t *testing.T, w World) {
	for n := range 7 {
		end(t, w, fmt.Sprint("k", n), expired)
	}
	var sizes []int
	for range 4 {
		n, err := w.Repo.Reap(t.Context(), 3)
		if err != nil {
			t.Fatal(err)
		}
		if n.More != (n.Jobs == 3) {
			t.Errorf("%+v", n)
		}
		sizes = append(sizes, n.Jobs)
	}
	if fmt.Sprint(sizes) != "[3 3 1 0]" {
		t.Errorf("batches %v", sizes)
	}
	if n, err := w.Repo.Reap(t.Context(), 0); err != nil || n != (job.Reaped{}) {
		t.Errorf("%+v, %v", n, err)
	}
}

func testReapTogether(t *testing.T, w World) {
	const jobs = 60
	for n := range jobs {
		end(t, w, fmt.Sprint("k", n), expired)
	}
	repos := []interface {
		Reap(ctx context.Context, limit int) (job.Reaped, error)
	}{w.Repo, w.Repo}
	if w.Another != nil {
		repos[1] = w.Another()
	}
	var mu sync.Mutex
	total := 0
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for range jobs {
				n, err := repos[i%2].Reap(t.Context(), 5)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				total += n.Jobs
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if n := count(t, w, `select count(*) from idempotency_keys where state = 'retired' and final_state = 'succeeded'`); total != jobs || n != jobs {
		t.Errorf("%d jobs reaped, %d tombstones", total, n)
	}
}

// testReapReused: a key whose job was forgotten is used again before the reaper
// has come to the old job.
func testReapReused(t *testing.T, w World) {
	end(t, w, "k", over)
	fresh := accept(t, w, submission(w, "k", `{}`))
	if n := reap(t, w); n.Jobs != 1 || n.Tombstones != 0 {
		t.Errorf("reaped %+v", n)
	}
	if j := now(t, w, "k"); j.ID != fresh.ID || j.Status != job.Pending {
		t.Errorf("the new job: %+v", j)
	}
}
