package repositorytest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

func raceClaim(t *testing.T, w World) {
	const jobs = 300
	acceptN(t, w, jobs)
	all := repos(w)
	var mu sync.Mutex
	claims := map[job.ID]int{}
	together(12, func(i int) {
		for {
			claimed, err := all[i%len(all)].Claim(t.Context(), job.Claiming{Type: kind, Max: 1 + rand.IntN(7), Worker: fmt.Sprint("w", i), Lease: lease})
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
			var applied []job.Application
			switch i {
			case 0:
				applied, err = w.Repo.Finish(t.Context(), []job.Ending{succeed(stale.Lease)})
				settled = err == nil && applied[0] == job.Applied
			case 1:
				applied, err = w.Repo.Requeue(t.Context(), []job.Requeue{{
					Lease: stale.Lease, Status: job.Pending, Attempt: job.AttemptLost, IfExpired: true,
				}})
				rescued = err == nil && applied[0] == job.Applied
			case 2:
				var claimed []job.Claimed
				claimed, err = w.Repo.Claim(t.Context(), job.Claiming{Type: kind, Max: 1, Worker: "alive", Lease: lease})
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
			claimed, err2 := repo.Claim(t.Context(), job.Claiming{Type: kind, Max: 3, Worker: "w", Lease: lease})
			for _, c := range claimed {
				var applied []job.Application
				var err3 error
				if c.Attempts < 2 {
					applied, err3 = repo.Requeue(t.Context(), []job.Requeue{retry(c.Lease, 0)})
				} else {
					applied, err3 = repo.Finish(t.Context(), []job.Ending{succeed(c.Lease)})
					ended.Add(1)
				}
				if err3 != nil || applied[0] != job.Applied {
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
				err := w.Repo.FinishTx(t.Context(), stale, effect(nil))
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
			rescued = applied[0] == job.Applied
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
