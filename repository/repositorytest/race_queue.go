package repositorytest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
	"github.com/sekali/sekali/repository"
)

var racingQueues = cases{
	"Row80 Q27 many newcomers, one at a time, in order":      raceQueue,
	"Q29 Q5 BR-49 sweeps and newcomers at once":              raceUnblock,
	"BR-83 cancel, claim and settle: one end, and no retry":  raceCancel,
	"a deadline, a claim and a cancellation: one of them":    raceDeadline,
	"many cancel one job: it ends once, and all are told so": raceCancelers,
}

// line watches that the jobs of each business key run one at a time.
type line struct {
	t       *testing.T
	mu      sync.Mutex
	running map[string]idempotency.Key
	order   map[string][]idempotency.Key
}

func (l *line) start(j job.Job) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if other, busy := l.running[j.BusinessKey]; busy {
		l.t.Errorf("%s runs beside %s", j.Key, other)
	}
	l.running[j.BusinessKey] = j.Key
	l.order[j.BusinessKey] = append(l.order[j.BusinessKey], j.Key)
}

func (l *line) stop(j job.Job) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.running, j.BusinessKey)
}

// raceQueue: submitters each send numbered jobs, the next one after the answer to
// the last one, while others run them. Those of one submitter keep their order.
func raceQueue(t *testing.T, w World) {
	const submitters, workers, businesses, each = 3, 2, 2, 10
	all := repos(w)
	l := &line{t: t, running: map[string]idempotency.Key{}, order: map[string][]idempotency.Key{}}
	var ended atomic.Int64
	together(submitters+workers, func(i int) {
		repo := all[i%len(all)]
		if i >= submitters {
			for ended.Load() < submitters*businesses*each && t.Context().Err() == nil && !t.Failed() {
				workQueue(t, repo, l, &ended)
			}
			return
		}
		for n := range each {
			for b := range businesses {
				s := queued(w, fmt.Sprintf("%d/%02d/%d", i, n, b), fmt.Sprint("order ", b))
				if receipt, err := repo.Accept(t.Context(), s); err != nil || !receipt.Record.Fresh || receipt.Alias {
					t.Errorf("accept: %+v, %v", receipt, err)
				}
			}
		}
	})
	for business, order := range l.order {
		last := map[string]string{}
		for _, key := range order {
			submitter, number, _ := strings.Cut(string(key), "/")
			if number <= last[submitter] {
				t.Errorf("%s: %s ran after %s", business, key, last[submitter])
			}
			last[submitter] = number
		}
		if len(order) != submitters*each {
			t.Errorf("%s: %d jobs ran", business, len(order))
		}
	}
}

// workQueue runs what can run.
func workQueue(t *testing.T, repo *repository.Repository, l *line, ended *atomic.Int64) {
	_, err := repo.Unblock(t.Context(), 2)
	claimed, err2 := repo.Claim(t.Context(), job.Claiming{Type: kind, Max: 2, Worker: "w", Lease: lease})
	if err := errors.Join(err, err2); err != nil {
		t.Error(err)
		return
	}
	for _, c := range claimed {
		l.start(c.Job)
	}
	for _, c := range claimed {
		l.stop(c.Job)
		applied, err := repo.Finish(t.Context(), []job.Ending{succeed(c.Lease)})
		if err != nil || applied[0] != job.Applied {
			t.Errorf("finish: %v, %v", applied, err)
		}
		ended.Add(1)
	}
}

// raceUnblock frees keys while several processes let jobs go and newcomers with
// and without patience arrive.
func raceUnblock(t *testing.T, w World) {
	const rounds, keys = 5, 8
	all := repos(w)
	for i := range keys {
		for n := range 3 {
			business := fmt.Sprint("order ", i)
			accept(t, w, queued(w, fmt.Sprint(business, " ", n), business))
		}
	}
	for round := range rounds {
		claimed, err := w.Repo.Claim(t.Context(), job.Claiming{Type: kind, Max: keys, Worker: "w", Lease: lease})
		if err != nil {
			t.Fatal(err)
		}
		endings := make([]job.Ending, len(claimed))
		for i, c := range claimed {
			endings[i] = succeed(c.Lease)
		}
		together(7, func(i int) {
			repo := all[i%len(all)]
			var err error
			switch {
			case i == 0:
				_, err = repo.Finish(t.Context(), endings)
			case i < 4:
				for range 4 {
					_, sweep := repo.Unblock(t.Context(), 1+rand.IntN(keys))
					err = errors.Join(err, sweep)
				}
			default:
				var batch []job.Submission
				for _, n := range rand.Perm(keys) {
					business := fmt.Sprint("order ", n)
					batch = append(batch, queued(w, fmt.Sprint(business, " round ", round, " ", i), business))
				}
				_, errs := repo.AcceptAll(t.Context(), batch)
				err = errors.Join(errs...)
			}
			if err != nil {
				t.Errorf("%d: %v", i, err)
			}
		})
		if n := count(t, w, `select count(*) from (select business_key from jobs where not blocked group by business_key having count(*) > 1) twice`); n != 0 {
			t.Fatalf("%d business keys are held twice", n)
		}
		unblock(t, w, keys)
		if n := count(t, w, `select count(*) from jobs where not blocked`); n != keys {
			t.Fatalf("%d of %d business keys go on", n, keys)
		}
	}
}

// raceCancel cancels a job at some moment of its life, again until that is
// answered, while an attempt runs and is settled in one way or another.
func raceCancel(t *testing.T, w World) {
	const rounds = 45
	for round := range rounds {
		key := idempotency.Key(fmt.Sprint("k", round))
		id := accept(t, w, submission(w, string(key), `{}`)).ID
		var answer string
		together(2, func(i int) {
			if i == 0 {
				answer = cancelUntilAnswered(t, w, key)
				return
			}
			claimed, err := w.Repo.Claim(t.Context(), job.Claiming{Type: kind, Max: 1, Worker: "w", Lease: lease})
			if err != nil {
				t.Errorf("claim: %v", err)
			}
			for _, c := range claimed {
				settleSomehow(t, w, c, round%3)
			}
		})
		j := now(t, w, key)
		ends := count(t, w, `select count(*) from job_attempts where slot = $1 and job_id = $2`, int64(id.Slot()), string(id))
		switch {
		case !j.Status.Finished():
			t.Fatalf("%s, but the job is %s", answer, j.Status)
		case answer == "cancelled" && j.Status != job.Cancelled, answer == "too late" && j.Status == job.Cancelled:
			t.Fatalf("%s, but the job is %s", answer, j.Status)
		case answer == "asked" && j.Status == job.Failed, answer == "asked" && ends != 1:
			t.Fatalf("asked to cancel, but the job is %s after %d attempts", j.Status, ends)
		case count(t, w, `select count(*) from jobs where id = $1`, string(id)) != 0:
			t.Fatal("the job is in both tables")
		}
	}
}

// cancelUntilAnswered cancels as job.Jobs does, and tells how that went.
func cancelUntilAnswered(t *testing.T, w World, key idempotency.Key) string {
	for t.Context().Err() == nil {
		receipt, err := w.Repo.Find(t.Context(), tenant, key)
		if err != nil {
			t.Errorf("find: %v", err)
			return "error"
		}
		j := receipt.Job
		l := job.Lease{ID: j.ID, Token: j.Token}
		switch {
		case j.Status.Finished():
			return "too late"
		case j.Status == job.Processing:
			ours, err := w.Repo.RequestCancel(t.Context(), l)
			if err != nil {
				t.Errorf("request a cancellation: %v", err)
			}
			if ours {
				return "asked"
			}
		default:
			applied, err := w.Repo.Finish(t.Context(), []job.Ending{cancelWaiting(l)})
			if err != nil {
				t.Errorf("cancel: %v", err)
				return "error"
			}
			if applied[0] == job.Applied {
				return "cancelled"
			}
		}
	}
	return "error"
}

// settleSomehow succeeds, fails or retries; told of a cancellation, it cancels.
func settleSomehow(t *testing.T, w World, c job.Claimed, how int) {
	var applied []job.Application
	var err error
	switch how {
	case 0:
		applied, err = w.Repo.Finish(t.Context(), []job.Ending{succeed(c.Lease)})
	case 1:
		applied, err = w.Repo.Finish(t.Context(), []job.Ending{failEnding(c.Lease)})
	case 2:
		applied, err = w.Repo.Requeue(t.Context(), []job.Requeue{retry(c.Lease, time.Hour)})
	}
	if err == nil && applied[0] == job.CancelPending {
		applied, err = w.Repo.Finish(t.Context(), []job.Ending{cancelEnding(c.Lease)})
	}
	if err != nil || applied[0] != job.Applied {
		t.Errorf("settle: %v, %v", applied, err)
	}
}

// raceDeadline lets a job be claimed, cancelled and expired at once.
func raceDeadline(t *testing.T, w World) {
	for round := range 30 {
		key := idempotency.Key(fmt.Sprint("k", round))
		id := accept(t, w, submission(w, string(key), `{}`)).ID
		var won [3]bool
		together(len(won), func(i int) {
			var applied []job.Application
			var err error
			switch i {
			case 0:
				var claimed []job.Claimed
				claimed, err = w.Repo.Claim(t.Context(), job.Claiming{Type: kind, Max: 1, Worker: "w", Lease: lease})
				won[i] = len(claimed) == 1
			case 1:
				applied, err = w.Repo.Finish(t.Context(), []job.Ending{cancelWaiting(job.Lease{ID: id})})
			case 2:
				applied, err = w.Repo.Finish(t.Context(), []job.Ending{expire(job.Claimed{Lease: job.Lease{ID: id}})})
			}
			if err != nil {
				t.Errorf("%d: %v", i, err)
			}
			won[i] = won[i] || len(applied) == 1 && applied[0] == job.Applied
		})
		want := []job.Status{job.Processing, job.Cancelled, job.Failed}[max(slices.Index(won[:], true), 0)]
		if n := fmt.Sprint(won); strings.Count(n, "true") != 1 || now(t, w, key).Status != want {
			t.Fatalf("won: %v, and the job is %s", won, now(t, w, key).Status)
		}
	}
}

// raceCancelers: every one of them is told that the job ended as it wished.
func raceCancelers(t *testing.T, w World) {
	all := repos(w)
	for round := range 15 {
		key := idempotency.Key(fmt.Sprint("k", round))
		id := accept(t, w, submission(w, string(key), `{}`)).ID
		together(4, func(i int) {
			applied, err := all[i%len(all)].Finish(t.Context(), []job.Ending{cancelWaiting(job.Lease{ID: id})})
			if err != nil || applied[0] != job.Applied {
				t.Errorf("cancel: %v, %v", applied, err)
			}
		})
		if j := now(t, w, key); j.Status != job.Cancelled || j.Version != 2 {
			t.Fatalf("job: %+v", j)
		}
	}
}
