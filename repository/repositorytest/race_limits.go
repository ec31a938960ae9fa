package repositorytest

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

var racingLimits = cases{
	"Q31 BR-61 a limit holds among many who claim, lose and end": raceLimit,
	"no second sees more starts than the rate":                   raceRate,
	"many claim in turn, and each job once":                      raceTurns,
}

// raceLimit lets many claim, end, hand back and lose jobs, and counts for itself how
// many are in hand.
func raceLimit(t *testing.T, w World) {
	const jobs, limit = 150, 4
	acceptN(t, w, jobs)
	all := repos(w)
	var inHand, most, ended atomic.Int64
	together(10, func(i int) {
		repo := all[i%len(all)]
		for ended.Load() < jobs && !t.Failed() {
			claims, err := repo.ClaimLimited(t.Context(), job.Claiming{Type: kind, Max: 1 + rand.IntN(6), Worker: "w", Lease: lease}, job.Limit{Concurrency: limit})
			if err != nil {
				t.Errorf("claim: %v", err)
				return
			}
			now := inHand.Add(int64(len(claims.Jobs)))
			for seen := most.Load(); now > seen && !most.CompareAndSwap(seen, now); seen = most.Load() {
			}
			for _, c := range claims.Jobs {
				inHand.Add(-1) // before the end is written: another may claim as soon as it is
				if rand.IntN(4) == 0 {
					back := job.Requeue{Lease: c.Lease, Status: job.Pending, Attempt: job.AttemptReleased, Uncounted: true}
					if applied, err := repo.Requeue(t.Context(), []job.Requeue{back}); err != nil || applied[0] != job.Applied {
						t.Errorf("hand back: %v, %v", applied, err)
					}
					continue
				}
				if applied, err := repo.Finish(t.Context(), []job.Ending{succeed(c.Lease)}); err != nil || applied[0] != job.Applied {
					t.Errorf("finish: %v, %v", applied, err)
				}
				ended.Add(1)
			}
		}
	})
	if most.Load() > limit || ended.Load() != jobs {
		t.Errorf("%d were in hand at once, the limit is %d; %d of %d have ended", most.Load(), limit, ended.Load(), jobs)
	}
}

// raceRate judges by the times that are stored, as the promise is worded.
func raceRate(t *testing.T, w World) {
	const jobs = 60
	rate := job.Rate{Count: 120, Per: time.Second} // three every 25 ms
	acceptN(t, w, jobs)
	all := repos(w)
	var claimed atomic.Int64
	together(6, func(i int) {
		for claimed.Load() < jobs && !t.Failed() {
			claims, err := all[i%len(all)].ClaimLimited(t.Context(), job.Claiming{Type: kind, Max: 9, Worker: "w", Lease: lease}, job.Limit{Rate: rate})
			if err != nil {
				t.Errorf("claim: %v", err)
				return
			}
			claimed.Add(int64(len(claims.Jobs)))
		}
	})
	batch, every := rate.Steps()
	starts := claimTimes(t, w)
	if len(starts) != jobs {
		t.Fatalf("%d starts", len(starts))
	}
	for i := range starts {
		if i >= batch && starts[i].Sub(starts[i-batch]) < every {
			t.Errorf("starts %d and %d are %s apart, %d may start every %s", i-batch, i, starts[i].Sub(starts[i-batch]), batch, every)
		}
		if i >= rate.Count && starts[i].Sub(starts[i-rate.Count]) < rate.Per {
			t.Errorf("more than %d starts in a second", rate.Count)
		}
	}
}

// claimTimes are the stored times at which running jobs were claimed, in order.
func claimTimes(t *testing.T, w World) []time.Time {
	t.Helper()
	rows, err := w.DB.QueryContext(t.Context(), `select claimed_at from jobs where state = 'processing' order by claimed_at`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var times []time.Time
	for rows.Next() {
		var stored any
		if err := rows.Scan(&stored); err != nil {
			t.Fatal(err)
		}
		at, is := stored.(time.Time)
		if !is { // a file has texts
			if at, err = time.Parse(time.RFC3339, fmt.Sprint(stored)); err != nil {
				t.Fatal(err)
			}
		}
		times = append(times, at)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return times
}

// raceTurns claims the jobs of many tenants from many sides.
func raceTurns(t *testing.T, w World) {
	const tenants, each = 7, 20
	for i := range tenants {
		give(t, w, idempotency.Tenant(fmt.Sprint("t", i)), each)
	}
	all := repos(w)
	var claimed atomic.Int64
	together(8, func(i int) {
		for {
			jobs, err := all[i%len(all)].Claim(t.Context(), job.Claiming{Type: kind, Max: 1 + rand.IntN(9), Worker: "w", Lease: lease})
			if err != nil {
				t.Errorf("claim: %v", err)
				return
			}
			for _, c := range jobs {
				if c.Attempts != 1 {
					t.Errorf("claimed twice: %s", c.Key)
				}
			}
			claimed.Add(int64(len(jobs)))
			if len(jobs) == 0 {
				return
			}
		}
	})
	eventually(t, func() bool { // who found all of a tenant's jobs taken may have gone
		claimed.Add(int64(sum(claimedOf(t, w, 50))))
		return claimed.Load() >= tenants*each
	})
	if n := count(t, w, `select count(*) from jobs where state = 'processing'`); n != tenants*each || claimed.Load() != tenants*each {
		t.Errorf("%d jobs run, %d were claimed", n, claimed.Load())
	}
}
