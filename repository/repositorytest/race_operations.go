package repositorytest

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
	"github.com/sekali/sekali/repository"
)

func raceTake(t *testing.T, w World) {
	all := repos(w)
	for round := range 8 {
		var contenders []job.Claimed
		for i := range 6 {
			contenders = append(contenders, contender(t, w, fmt.Sprint(round, " ", i), fmt.Sprint("op ", round)))
		}
		var mine atomic.Int64
		var holder atomic.Value
		together(12, func(i int) {
			c := contenders[i%6]
			taken, err := all[i%len(all)].Take(t.Context(), c)
			if err != nil || taken.Done {
				t.Errorf("taken: %+v, %v", taken, err)
			}
			if taken.Mine {
				mine.Add(1)
				holder.Store(c.Key)
			}
		})
		if mine.Load() != 2 { // the one that has it, both times
			t.Errorf("%d took it", mine.Load())
		}
		for _, c := range contenders {
			if c.Key != holder.Load() {
				refused(t, w, c, string(holder.Load().(idempotency.Key)))
			}
		}
		for _, c := range contenders {
			if !finish(t, w, succeed(c.Lease)) {
				t.Fatal("not finished")
			}
		}
	}
}

// raceTakeOver lets a job that is back take its operation again while others take
// it over from it.
func raceTakeOver(t *testing.T, w World) {
	all := repos(w)
	for round := range 10 {
		first := contender(t, w, fmt.Sprint(round, " first"), fmt.Sprint("op ", round))
		take(t, w, first)
		if !finish(t, w, failedEnding(first)) {
			t.Fatal("not finished")
		}
		from := now(t, w, first.Key)
		others := []job.Claimed{
			contender(t, w, fmt.Sprint(round, " a"), fmt.Sprint("op ", round)), contender(t, w, fmt.Sprint(round, " b"), fmt.Sprint("op ", round)),
		}
		var mine atomic.Int64
		took := func(repo *repository.Repository, c job.Claimed) {
			taken, err := repo.Take(t.Context(), c)
			if err != nil || taken.Done {
				t.Errorf("taken: %+v, %v", taken, err)
			}
			if taken.Mine {
				mine.Add(1)
			}
		}
		together(3, func(i int) {
			if i < 2 {
				took(all[i%len(all)], others[i])
				return
			}
			repo := all[len(all)-1]
			if _, err := repo.Revive(t.Context(), revival(w, fmt.Sprint("op ", round), from)); err != nil {
				t.Errorf("revive: %v", err)
				return
			}
			claimed, err := repo.Claim(t.Context(), job.Claiming{Type: kind, Max: 1, Worker: "w", Lease: lease})
			if err != nil || len(claimed) != 1 {
				t.Errorf("%d claimed, %v", len(claimed), err)
				return
			}
			took(repo, claimed[0])
		})
		if mine.Load() != 1 {
			t.Errorf("round %d: %d took it", round, mine.Load())
		}
		execute(t, w, `delete from jobs`)
	}
}

func raceTxOperation(t *testing.T, w World) {
	execute(t, w, `create table effects (n integer not null)`)
	all := repos(w)
	const rounds = 6
	for round := range rounds {
		var contenders []job.Claimed
		for i := range 6 {
			contenders = append(contenders, contender(t, w, fmt.Sprint(round, " ", i), fmt.Sprint("op ", round)))
		}
		var did atomic.Int64
		together(6, func(i int) {
			err := all[i%len(all)].FinishTx(t.Context(), contenders[i], effect(nil))
			switch {
			case err == nil:
				did.Add(1)
			case !errors.Is(err, job.ErrOperationTaken):
				t.Errorf("%d: %v", i, err)
			}
		})
		if did.Load() != 1 {
			t.Errorf("%d did it", did.Load())
		}
		for _, c := range contenders {
			if now(t, w, c.Key).Status == job.Processing {
				if taken := tryTake(t, w, c); !taken.Done {
					t.Errorf("taken: %+v", taken)
				}
			}
		}
	}
	wantEffects(t, w, rounds)
}

func raceCompensate(t *testing.T, w World) {
	all := repos(w)
	for round := range 8 {
		accept(t, w, submission(w, fmt.Sprint("k", round), `{}`))
		c := claim(t, w, "w", lease)
		together(4, func(i int) {
			got, err := all[i%len(all)].Finish(t.Context(), []job.Ending{undoing(w, c)})
			if err != nil || got[0] != job.Applied {
				t.Errorf("finish: %v, %v", got, err)
			}
		})
		if n := undone(t, w); n != round+1 {
			t.Fatalf("%d compensations of %d jobs", n, round+1)
		}
	}
}

func raceCompensateBusiness(t *testing.T, w World) {
	all := repos(w)
	for round := range 6 {
		var failed []job.Claimed
		for i := range 4 {
			accept(t, w, submission(w, fmt.Sprint(round, " ", i), `{}`))
			failed = append(failed, claim(t, w, "w", lease))
		}
		together(4, func(i int) {
			e := undoing(w, failed[i], withBusinessKey(fmt.Sprint("order ", round), job.ConflictReturn))
			got, err := all[i%len(all)].Finish(t.Context(), []job.Ending{e})
			if err != nil || got[0] != job.Applied {
				t.Errorf("finish: %v, %v", got, err)
			}
		})
		if n, free := undone(t, w), count(t, w, `select count(*) from jobs where type = 'undo' and not blocked`); n != 4*(round+1) || free != round+1 {
			t.Errorf("%d compensations, %d of them may run", n, free)
		}
	}
}

func raceReports(t *testing.T, w World) {
	const reports, types = 20, 10
	all := repos(w)
	together(4, func(i int) {
		for range reports {
			var done []job.Tally
			for n := range types {
				if i%2 == 1 {
					n = types - 1 - n
				}
				done = append(done, job.Tally{Type: job.Type(fmt.Sprint("type ", n)), Outcome: job.AttemptSucceeded, Bucket: n, Count: 1, Total: time.Millisecond})
			}
			if err := all[i%len(all)].Report(t.Context(), job.Worker{ID: fmt.Sprint("w", i), Slots: i}, done); err != nil {
				t.Errorf("report: %v", err)
			}
		}
	})
	o := overview(t, w)
	if len(o.Workers) != 4 || len(o.Types) != types {
		t.Errorf("%d workers, %d types", len(o.Workers), len(o.Types))
	}
	for name, found := range o.Types {
		if found.Ended.Succeeded != 4*reports {
			t.Errorf("%s: %d", name, found.Ended.Succeeded)
		}
	}
}
