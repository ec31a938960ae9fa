package repositorytest

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
	"github.com/sekali/sekali/repository"
)

var racing = cases{
	"BR-01 BR-03 Row33 Row67 many first requests, two bodies": raceAccept,
	"BR-04 first requests at two replicas":                    raceReplicas,
	"Q41 Row67 a key that is held longer is in progress":      raceHeldKey,
	"Q19 the winner rolls back and a loser wins":              raceWinnerRollsBack,
	"Row80 two new keys race for one business key":            raceBusiness,
	"Q29 batches in opposite orders do not deadlock":          raceOrders,
	"BR-45 BR-46 many claimers take each job once":            raceClaim,
	"Q1 Q32 rescue, settle and claim again":                   raceRescue,
	"Q29 maintainers and claimers at once":                    raceMaintainers,
	"a transaction and a rescue race for one job":             raceTransaction,
	"a job that moves between tables is always in one":        raceVersions,
}

// together runs n goroutines that begin at once, and waits for them.
func together(n int, do func(i int)) {
	var ready, done sync.WaitGroup
	start := make(chan struct{})
	ready.Add(n)
	for i := range n {
		done.Go(func() {
			ready.Done()
			<-start
			do(i)
		})
	}
	ready.Wait()
	close(start)
	done.Wait()
}

// repos are the repositories of as many processes as the engine allows.
func repos(w World) []*repository.Repository {
	if w.Another == nil {
		return []*repository.Repository{w.Repo}
	}
	return []*repository.Repository{w.Repo, w.Another()}
}

func raceAccept(t *testing.T, w World) {
	for round := range 5 {
		key := fmt.Sprint("k", round)
		var mu sync.Mutex
		winners := map[string]int{}
		together(50, func(i int) {
			body := fmt.Sprintf(`{"body":%d}`, i%2)
			s := submission(w, key, body)
			receipt, err := w.Repo.Accept(t.Context(), s)
			if err != nil {
				t.Errorf("accept: %v", err)
				return
			}
			_, err = idempotency.Answer(receipt.Record, s.Request)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case receipt.Record.Fresh:
				winners[body] += 100
			case err == nil:
				winners[body]++
			case !errors.As(err, new(*idempotency.MismatchError)):
				t.Errorf("answer: %v", err)
			}
		})
		if len(winners) != 1 || slices.Collect(maps.Values(winners))[0] != 124 {
			t.Errorf("%v: want one accepted and 24 replays of one body", winners)
		}
	}
	if n := count(t, w, `select count(*) from jobs`); n != 5 {
		t.Errorf("%d jobs", n)
	}
}

func raceReplicas(t *testing.T, w World) {
	all := repos(w)
	var fresh atomic.Int64
	together(30, func(i int) {
		receipt, err := all[i%len(all)].Accept(t.Context(), submission(w, "k", `{}`))
		if err != nil {
			t.Errorf("accept: %v", err)
		}
		if receipt.Record.Fresh {
			fresh.Add(1)
		}
	})
	if n := count(t, w, `select count(*) from jobs`); n != 1 || fresh.Load() != 1 {
		t.Errorf("%d jobs, %d fresh", n, fresh.Load())
	}
}

// holdKey inserts the record of a key and keeps the transaction open.
func holdKey(t *testing.T, w World, key idempotency.Key) (rollback func()) {
	t.Helper()
	tx, err := w.DB.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	s := submission(w, string(key), `{}`)
	_, err = tx.ExecContext(t.Context(), `
		insert into idempotency_keys (slot, tenant, key, fingerprint, state, created_at) values ($1, $2, $3, $4, 'completed', $5)`,
		int64(job.KeySlot(tenant, key)), string(tenant), string(key), s.Request.Fingerprint.Bytes(), "2026-01-02T03:04:05.678Z")
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := tx.Rollback(); err != nil {
			t.Error(err)
		}
	}
}

func raceHeldKey(t *testing.T, w World) {
	rollback := holdKey(t, w, "k")
	began := time.Now() //nolint:forbidigo // what is measured is the patience of the repository
	_, err := w.Repo.Accept(t.Context(), submission(w, "k", `{}`))
	wantError[*idempotency.InProgressError](t, err)
	if waited := time.Since(began); waited < 500*time.Millisecond || waited > 2500*time.Millisecond {
		t.Errorf("waited %v", waited)
	}
	rollback()
	accept(t, w, submission(w, "k", `{}`))
}

func raceWinnerRollsBack(t *testing.T, w World) {
	for round := range 3 {
		key := idempotency.Key(fmt.Sprint("k", round))
		rollback := holdKey(t, w, key)
		var fresh, failed atomic.Int64
		var done sync.WaitGroup
		waiting := make(chan struct{}, 8)
		for range 8 {
			done.Go(func() {
				waiting <- struct{}{}
				receipt, err := w.Repo.Accept(t.Context(), submission(w, string(key), `{}`))
				if err != nil {
					failed.Add(1)
					t.Errorf("accept: %v", err)
				} else if receipt.Record.Fresh {
					fresh.Add(1)
				}
			})
		}
		for range 8 {
			<-waiting
		}
		rollback()
		done.Wait()
		if fresh.Load() != 1 || failed.Load() != 0 {
			t.Errorf("%d fresh, %d failed", fresh.Load(), failed.Load())
		}
		if j := now(t, w, key); j.Status != job.Pending {
			t.Errorf("no job behind the key: %+v", j)
		}
	}
}

func raceBusiness(t *testing.T, w World) {
	for round := range 15 {
		business := fmt.Sprint("order ", round)
		var fresh, alias, refused atomic.Int64
		together(6, func(i int) {
			policy := job.ConflictReturn
			if i%3 == 2 {
				policy = job.ConflictReject
			}
			receipt, err := w.Repo.Accept(t.Context(), submission(w, fmt.Sprint(round, "-", i), `{}`, withBusinessKey(business, policy)))
			switch {
			case errors.As(err, new(*job.BusinessKeyError)):
				refused.Add(1)
			case err != nil:
				t.Errorf("accept: %v", err)
			case receipt.Alias:
				alias.Add(1)
			case receipt.Record.Fresh:
				fresh.Add(1)
			}
		})
		if fresh.Load() != 1 || fresh.Load()+alias.Load()+refused.Load() != 6 {
			t.Errorf("%d fresh, %d aliases, %d refused", fresh.Load(), alias.Load(), refused.Load())
		}
	}
	if n := count(t, w, `select count(*) from jobs`); n != 15 {
		t.Errorf("%d jobs", n)
	}
}

func raceOrders(t *testing.T, w World) {
	const batches, size = 20, 20
	all := repos(w)
	together(4, func(g int) {
		for b := range batches {
			var batch []job.Submission
			for i := range size {
				key := fmt.Sprint(b, "-", i)
				batch = append(batch, submission(w, key, `{}`, withBusinessKey("order "+key, job.ConflictReturn)))
			}
			if g%2 == 1 {
				slices.Reverse(batch)
			}
			_, errs := all[g%len(all)].AcceptAll(t.Context(), batch)
			if err := errors.Join(errs...); err != nil {
				t.Errorf("batch: %v", err)
			}
		}
	})
	if n := count(t, w, `select count(*) from jobs`); n != batches*size {
		t.Errorf("%d jobs, want %d", n, batches*size)
	}
}

func raceClaim(t *testing.T, w World) {
	const jobs = 300
	acceptN(t, w, jobs)
	all := repos(w)
	var mu sync.Mutex
	claims := map[job.ID]int{}
	together(12, func(i int) {
		for {
			claimed, err := all[i%len(all)].Claim(t.Context(), kind, 1+rand.IntN(7), fmt.Sprint("w", i), lease)
			if err != nil {
				t.Errorf("claim: %v", err)
				return
			}
			if len(claimed) == 0 {
				return
			}
			mu.Lock()
			for _, c := range claimed {
				claims[c.ID]++
				if c.Attempts != 1 || c.Lease.Token != 1 {
					t.Errorf("claimed: %+v", c.Lease)
				}
			}
			mu.Unlock()
		}
	})
	for id, n := range claims {
		if n != 1 {
			t.Errorf("%s was claimed %d times", id, n)
		}
	}
	if len(claims) != jobs {
		t.Errorf("%d of %d jobs were claimed", len(claims), jobs)
	}
}

// raceRescue lets the holder of an expired lease settle while the rescuer takes
// the job, and a third one claims what the rescuer put back. One of the two
// first wins, and only then the third has something to do.
func raceRescue(t *testing.T, w World) {
	const rounds = 150
	for round := range rounds {
		key := idempotency.Key(fmt.Sprint("k", round))
		accept(t, w, submission(w, string(key), `{}`))
		stale := lose(t, w)
		var settled, rescued, again bool
		together(3, func(i int) {
			var err error
			var applied []bool
			switch i {
			case 0:
				applied, err = w.Repo.Finish(t.Context(), []job.Ending{succeed(stale.Lease)})
				settled = err == nil && applied[0]
			case 1:
				applied, err = w.Repo.Requeue(t.Context(), []job.Requeue{{
					Lease: stale.Lease, Status: job.Pending, Attempt: job.AttemptLost, IfExpired: true,
				}})
				rescued = err == nil && applied[0]
			case 2:
				var claimed []job.Claimed
				claimed, err = w.Repo.Claim(t.Context(), kind, 1, "alive", lease)
				again = len(claimed) == 1
			}
			if err != nil {
				t.Errorf("%d: %v", i, err)
			}
		})
		if settled == rescued || again && !rescued {
			t.Fatalf("settled %v, rescued %v, claimed again %v", settled, rescued, again)
		}
		j := now(t, w, key)
		if settled != (j.Status == job.Succeeded) {
			t.Fatalf("settled %v, but the job is %s", settled, j.Status)
		}
		if rescued { // leave nothing for the next round
			if !again {
				again = claim(t, w, "alive", lease).ID == stale.ID
			}
			if !again || !finish(t, w, succeed(job.Lease{ID: stale.ID, Token: stale.Lease.Token + 1})) {
				t.Fatal("the next holder cannot finish")
			}
		}
	}
	if n := count(t, w, `select count(*) from finished_jobs`); n != rounds {
		t.Errorf("%d jobs ended, want %d", n, rounds)
	}
}

// raceMaintainers runs whole lives of jobs with every loop twice at once.
func raceMaintainers(t *testing.T, w World) {
	const jobs = 60
	all := repos(w)
	for i := range jobs {
		accept(t, w, submission(w, fmt.Sprint("k", i), `{}`, scheduledIn(-time.Minute)))
	}
	var ended atomic.Int64
	together(6, func(i int) {
		repo := all[i%len(all)]
		for ended.Load() < jobs && t.Context().Err() == nil && !t.Failed() {
			_, _, err := repo.Promote(t.Context(), 5)
			claimed, err2 := repo.Claim(t.Context(), kind, 3, "w", lease)
			for _, c := range claimed {
				var applied []bool
				var err3 error
				if c.Attempts < 2 {
					applied, err3 = repo.Requeue(t.Context(), []job.Requeue{retry(c.Lease, 0)})
				} else {
					applied, err3 = repo.Finish(t.Context(), []job.Ending{succeed(c.Lease)})
					ended.Add(1)
				}
				if err3 != nil || !applied[0] {
					t.Errorf("settle: %v, %v", applied, err3)
				}
			}
			_, err4 := repo.Expired(t.Context(), "w", 5)
			_, err5 := repo.Extend(t.Context(), []job.Lease{{ID: lowest, Token: 1}}, lease)
			if err := errors.Join(err, err2, err4, err5); err != nil {
				t.Error(err)
				return
			}
		}
	})
	if n := count(t, w, `select count(*) from finished_jobs where attempt = 2 and token = 2`); n != jobs {
		t.Errorf("%d jobs ended in their second attempt, want %d", n, jobs)
	}
}

const lowest job.ID = "00000000-0000-7000-8000-000000000000"

func raceTransaction(t *testing.T, w World) {
	execute(t, w, `create table effects (n integer not null)`)
	committed := 0
	for round := range 40 {
		accept(t, w, submission(w, fmt.Sprint("k", round), `{}`))
		stale := lose(t, w)
		var kept, rescued bool
		together(2, func(i int) {
			if i == 0 {
				err := w.Repo.FinishTx(t.Context(), stale.Lease, effect(nil))
				kept = err == nil
				if err != nil && !errors.Is(err, job.ErrLeaseLost) {
					t.Errorf("transaction: %v", err)
				}
				return
			}
			applied, err := w.Repo.Finish(t.Context(), []job.Ending{lostEnding(stale.Lease)})
			if err != nil {
				t.Errorf("rescue: %v", err)
				return
			}
			rescued = applied[0]
		})
		if kept == rescued {
			t.Fatalf("committed %v, rescued %v", kept, rescued)
		}
		if kept {
			committed++
		}
	}
	wantEffects(t, w, committed)
}

// raceVersions reads a job while it moves between the tables: it is always in
// one of them, and never goes back.
func raceVersions(t *testing.T, w World) {
	const jobs = 40
	all := acceptN(t, w, jobs)
	ids := make([]job.ID, jobs)
	for i, j := range all {
		ids[i] = j.ID
	}
	var stop atomic.Bool
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() { watchVersions(t, w, all, ids, &stop) })
	}
	for range jobs {
		if !finish(t, w, succeed(claim(t, w, "w", lease).Lease)) {
			t.Error("not finished")
		}
	}
	stop.Store(true)
	readers.Wait()
}

func watchVersions(t *testing.T, w World, all []job.Job, ids []job.ID, stop *atomic.Bool) {
	last := map[job.ID]int64{}
	for !stop.Load() && t.Context().Err() == nil {
		versions, err := w.Repo.Versions(t.Context(), ids)
		if err != nil || len(versions) != len(ids) {
			t.Errorf("%d versions, %v", len(versions), err)
			return
		}
		for id, v := range versions {
			if v.Number < last[id] {
				t.Errorf("%s went from version %d to %d", id, last[id], v.Number)
			}
			last[id] = v.Number
		}
		for _, j := range all[:5] {
			if _, err := w.Repo.Find(t.Context(), tenant, j.Key); err != nil {
				t.Errorf("find: %v", err)
				return
			}
		}
	}
}
