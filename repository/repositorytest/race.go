package repositorytest

import (
	"errors"
	"fmt"
	"maps"
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
			var receipt job.Receipt
			err := patiently(func() (err error) {
				receipt, err = w.Repo.Accept(t.Context(), s)
				return err
			})
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
		s := submission(w, "k", `{}`)
		var receipt job.Receipt
		err := patiently(func() (err error) {
			receipt, err = all[i%len(all)].Accept(t.Context(), s)
			return err
		})
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
	_ = wantError[*idempotency.InProgressError](t, err)
	if waited := time.Since(began); waited < 500*time.Millisecond || waited > 10*time.Second {
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
				s := submission(w, string(key), `{}`)
				var receipt job.Receipt
				err := patiently(func() (err error) {
					receipt, err = w.Repo.Accept(t.Context(), s)
					return err
				})
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
