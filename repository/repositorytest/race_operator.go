package repositorytest

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
	"github.com/sekali/sekali/repository"
)

var racingOperators = cases{
	"Row75 operators with keys of their own bring a job back once": raceOperators,
	"Row75 an operator's double click changes once":                raceDoubleClick,
	"Row75 jobs of one business key come back one at a time":       raceReviveBusiness,
	"retries and cancellations leave each job in one table":        raceReviveCancel,
	"C31 a retry and the reaper: one has the job":                  raceReviveReap,
	"two answers to one doubt: one counts":                         raceResolve,
	"many jobs take one operation, and one has it":                 raceTake,
	"an operation that is taken over is not taken back":            raceTakeOver,
	"many transactions do one operation once":                      raceTxOperation,
	"a failure that is told again is compensated once":             raceCompensate,
	"compensations of one business key wait for each other":        raceCompensateBusiness,
	"Q29 reports in opposite orders do not deadlock":               raceReports,
}

// domain is what clients and operators reach, over one of the repositories.
func domain(w World, repo *repository.Repository) *job.Jobs {
	settings := job.Settings{Retention: keep, MaxAttempts: 10, OnConflict: job.ConflictReject}
	render := func(j job.Job) idempotency.Response {
		return idempotency.Response{Status: 202, Body: fmt.Appendf(nil, "generation %d", j.Generation)}
	}
	return &job.Jobs{
		Types: job.Types{kind: settings}, Unknown: settings,
		Acceptor: repo, Bulk: repo, Reader: repo, Leases: repo, Operator: repo, Clock: w.Repo.Clock(), Waiters: &job.Waiters{},
		Render: render, RenderCurrent: render, Document: func(job.Job) []byte { return []byte("{}") },
		Wake: func(job.Type) {}, Cancelling: func(job.Lease) {}, Moved: func(job.Job) {},
	}
}

func domains(w World) []*job.Jobs {
	var all []*job.Jobs
	for _, repo := range repos(w) {
		all = append(all, domain(w, repo))
	}
	return all
}

func raceOperators(t *testing.T, w World) {
	all := domains(w)
	for round := range 8 {
		from := fails(t, w, fmt.Sprint("k", round))
		var fresh atomic.Int64
		together(6, func(i int) {
			req := operatorRequest(fmt.Sprint("op ", round, " ", i), "/jobs/"+string(from.Key)+"/retry")
			receipt, err := all[i%len(all)].Retry(t.Context(), req, from.Key)
			switch {
			case err == nil && receipt.Record.Fresh:
				fresh.Add(1)
			case !errors.Is(err, job.ErrNotRetryable):
				t.Errorf("%+v, %v", receipt, err)
			}
		})
		if j := now(t, w, from.Key); fresh.Load() != 1 || j.Generation != 2 || j.Status != job.Pending {
			t.Errorf("%d came through; %+v", fresh.Load(), j)
		}
		endClaimed(t, w, keep)
	}
	if n := count(t, w, `select count(*) from job_events`); n != 8 {
		t.Errorf("%d events", n)
	}
}

func raceDoubleClick(t *testing.T, w World) {
	all := domains(w)
	for round := range 8 {
		from := fails(t, w, fmt.Sprint("k", round))
		var fresh atomic.Int64
		together(8, func(i int) {
			req := operatorRequest(fmt.Sprint("op ", round), "/jobs/"+string(from.Key)+"/retry")
			var receipt job.Receipt
			err := patiently(func() (err error) {
				receipt, err = all[i%len(all)].Retry(t.Context(), req, from.Key)
				return err
			})
			if err != nil || string(receipt.Record.Response.Body) != "generation 2" {
				t.Errorf("%+v, %v", receipt, err)
			}
			if receipt.Record.Fresh {
				fresh.Add(1)
			}
		})
		if j := now(t, w, from.Key); fresh.Load() != 1 || j.Generation != 2 {
			t.Errorf("%d came through; %+v", fresh.Load(), j)
		}
		endClaimed(t, w, keep)
	}
}

func raceReviveBusiness(t *testing.T, w World) {
	all := repos(w)
	for round := range 6 {
		business := fmt.Sprint("order ", round)
		var failed []job.Job
		for i := range 4 {
			accept(t, w, submission(w, fmt.Sprint(round, " ", i), `{}`, withBusinessKey(business, job.ConflictReject)))
			failed = append(failed, failClaimed(t, w))
		}
		var back, refused, waits atomic.Int64
		together(5, func(i int) {
			if i == 4 {
				_, err := all[0].Accept(t.Context(), submission(w, fmt.Sprint(round, " new"), `{}`, withBusinessKey(business, job.ConflictQueue)))
				if err != nil {
					t.Errorf("accept: %v", err)
				}
				waits.Add(1)
				return
			}
			v := revival(w, fmt.Sprint("op ", round, " ", i), failed[i])
			if i%2 == 0 {
				v.OnConflict = job.ConflictQueue
			}
			_, err := all[i%len(all)].Revive(t.Context(), v)
			switch {
			case errors.As(err, new(*job.BusinessKeyError)):
				refused.Add(1)
			case err != nil:
				t.Errorf("revive: %v", err)
			default:
				back.Add(1)
			}
		})
		if back.Load()+refused.Load() != 4 || back.Load() < 2 {
			t.Errorf("%d are back, %d refused", back.Load(), refused.Load())
		}
		unfinished := int(back.Load() + waits.Load())
		for n := range unfinished {
			claimed, err := w.Repo.Claim(t.Context(), job.Claiming{Type: kind, Max: 10, Worker: "w", Lease: lease})
			if err != nil || len(claimed) != 1 {
				t.Fatalf("round %d, %d of %d: %d claimed at once, %v", round, n, unfinished, len(claimed), err)
			}
			if !finish(t, w, succeed(claimed[0].Lease)) {
				t.Fatal("not finished")
			}
			if _, err := w.Repo.Unblock(t.Context(), 10); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func raceReviveCancel(t *testing.T, w World) {
	all := domains(w)
	for round := range 10 {
		from := fails(t, w, fmt.Sprint("k", round))
		together(4, func(i int) {
			jobs := all[i%len(all)]
			if i < 2 {
				req := operatorRequest(fmt.Sprint("op ", round, " ", i), "/jobs/"+string(from.Key)+"/retry")
				if _, err := jobs.Retry(t.Context(), req, from.Key); err != nil && !errors.Is(err, job.ErrNotRetryable) {
					t.Errorf("retry: %v", err)
				}
				return
			}
			if _, err := jobs.Cancel(t.Context(), tenant, from.Key); err != nil && !errors.Is(err, job.ErrAlreadyFinished) {
				t.Errorf("cancel: %v", err)
			}
		})
		rows := count(t, w, `select count(*) from jobs`) + count(t, w, `select count(*) from finished_jobs`)
		if rows != round+1 {
			t.Fatalf("%d rows of %d jobs", rows, round+1)
		}
		switch j := now(t, w, from.Key); j.Status {
		case job.Pending:
			endClaimed(t, w, keep)
		case job.Cancelled:
		default:
			t.Errorf("the job is %s", j.Status)
		}
	}
}

func raceReviveReap(t *testing.T, w World) {
	all := repos(w)
	revived := 0
	for round := range 15 {
		key := fmt.Sprint("k", round)
		from := fails(t, w, key, keptFor(15*time.Millisecond))
		stop := make(chan struct{})
		var reaper sync.WaitGroup
		reaper.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := all[len(all)-1].Reap(t.Context(), 100); err != nil {
					t.Errorf("reap: %v", err)
					return
				}
			}
		})
		var back bool
		for try := 0; ; try++ {
			v := revival(w, fmt.Sprint("op ", round), from)
			v.From.Version -= int64(min(1, max(0, 5+round%7-try))) // at first one that changes nothing
			_, err := all[0].Revive(t.Context(), v)
			if back = err == nil; back {
				break
			}
			if !errors.Is(err, job.ErrMoved) {
				t.Errorf("revive: %v", err)
			}
			if try > 5+round%7 {
				break
			}
		}
		close(stop)
		reaper.Wait()
		reap(t, w)
		live := count(t, w, `select count(*) from jobs`)
		named := count(t, w, `select count(*) from idempotency_keys where job_id is not null`)
		switch {
		case back && (live != 1 || named != 2 || now(t, w, idempotency.Key(key)).Generation != 2):
			t.Fatalf("back: %d jobs, %d records name it", live, named)
		case !back && live != 0:
			t.Fatalf("not back, but there are %d jobs", live)
		}
		if back {
			revived++
			endClaimed(t, w, over)
			reap(t, w)
		}
	}
	t.Logf("%d of 15 came back", revived)
}

func raceResolve(t *testing.T, w World) {
	all := repos(w)
	for round := range 8 {
		from := fails(t, w, fmt.Sprint("k", round), parked)
		var fresh, moved atomic.Int64
		together(6, func(i int) {
			to := []job.Status{job.Succeeded, job.Failed}[i%2]
			var receipt job.Receipt
			var err error
			if key := fmt.Sprint("op ", round, " ", i); i < 4 {
				receipt, err = all[i%len(all)].Resolve(t.Context(), resolution(w, key, from, to, nil))
			} else {
				receipt, err = all[i%len(all)].Revive(t.Context(), revival(w, key, from))
			}
			switch {
			case errors.Is(err, job.ErrMoved):
				moved.Add(1)
			case err != nil:
				t.Errorf("%+v, %v", receipt, err)
			default:
				fresh.Add(1)
			}
		})
		if fresh.Load() != 1 || moved.Load() != 5 {
			t.Errorf("%d counted, %d were told that it had moved", fresh.Load(), moved.Load())
		}
		if now(t, w, from.Key).Status == job.Pending {
			endClaimed(t, w, keep)
		}
	}
}
