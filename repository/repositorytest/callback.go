package repositorytest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

var tellingOfEnds = cases{
	"each way to end a job accepts what follows":           testFollowEachEnd,
	"a job has a callback URL as long as it is known":      testCallbackURL,
	"many jobs end with what follows them":                 testFollowMany,
	"callers who end jobs together have what follows each": testFollowTogether,
	"one that cannot end leaves the others their ends":     testFollowBesideAWrongOne,
	"a callback whose key was used comes under another":    testFollowUsedKey,
	"a transaction that fails leaves nothing that follows": testFollowTx,
	"what follows a job that waits comes with its end":     testFollowWaiting,
	"a compensation and a callback follow one failure":     testFollowBoth,
}

const hookURL = "https://shop.example/hooks/a?x=1"

// callback tells of the job's end.
func callback(w World, c job.Claimed) job.Submission {
	return submission(w, "callback:"+string(c.ID), `{"of":"`+string(c.Key)+`"}`, ofType(job.CallbackType), func(s *job.Submission) {
		s.Job.CallbackURL, s.Job.MaxAttempts, s.Job.Timeout = hookURL, 40, 15*time.Second
	})
}

// telling is the ending with its callback.
func telling(w World, c job.Claimed, e job.Ending) job.Ending {
	e.Follow = append(e.Follow, callback(w, c))
	return e
}

func told(t *testing.T, w World) int {
	t.Helper()
	return count(t, w, `select count(*) from jobs where type = 'sekali.callback'`)
}

func testFollowEachEnd(t *testing.T, w World) {
	acceptN(t, w, 3)
	all, err := w.Repo.Claim(t.Context(), job.Claiming{Type: kind, Max: 3, Worker: "w", Lease: lease})
	if err != nil || len(all) != 3 {
		t.Fatalf("%d claimed, %v", len(all), err)
	}
	for i, e := range []job.Ending{
		succeed(all[0].Lease), failedEnding(all[1]), {Lease: all[2].Lease, Status: job.Cancelled, Attempt: job.AttemptCancelled, Keep: keep},
	} {
		for again := range 2 { // the answer may have been lost
			if got := ending(t, w, telling(w, all[i], e)); got != job.Applied {
				t.Errorf("%s: %v", e.Status, got)
			}
			if n := told(t, w); n != i+1 {
				t.Errorf("%s, %d: %d callbacks", e.Status, again, n)
			}
		}
		j := now(t, w, idempotency.Key("callback:"+string(all[i].ID)))
		if j.Type != job.CallbackType || j.CallbackURL != hookURL || j.Status != job.Pending || string(j.Payload) != `{"of":"`+string(all[i].Key)+`"}` ||
			j.MaxAttempts != 40 || j.Timeout != 15*time.Second || j.Version != 1 {
			t.Errorf("the callback: %+v", j)
		}
	}
	claimed, err := w.Repo.Claim(t.Context(), job.Claiming{Type: job.CallbackType, Max: 9, Worker: "w", Lease: lease})
	if err != nil || len(claimed) != 3 || claimed[0].CallbackURL != hookURL {
		t.Errorf("claimed: %+v, %v", claimed, err)
	}
}

func testCallbackURL(t *testing.T, w World) {
	with := func(s *job.Submission) { s.Job.CallbackURL = hookURL }
	accept(t, w, submission(w, "late", `{}`, ofType("late"), with, func(s *job.Submission) { s.Job.Deadline = s.Job.CreatedAt.Add(-time.Hour) }))
	overdue, err := w.Repo.Overdue(t.Context(), 5)
	if err != nil || len(overdue) != 1 || overdue[0].CallbackURL != hookURL {
		t.Errorf("overdue: %+v, %v", overdue, err)
	}
	accept(t, w, submission(w, "k", `{}`, with))
	c := claim(t, w, "w", time.Millisecond)
	if loaded, err := w.Repo.Load(t.Context(), c.ID); err != nil || c.CallbackURL != hookURL || loaded.CallbackURL != hookURL {
		t.Errorf("claimed: %q, loaded: %q, %v", c.CallbackURL, loaded.CallbackURL, err)
	}
	if got := ending(t, w, failedEnding(c)); got != job.Applied {
		t.Fatalf("finish: %v", got)
	}
	j := now(t, w, "k")
	if j.CallbackURL != hookURL {
		t.Errorf("finished: %+v", j)
	}
}

func testFollowMany(t *testing.T, w World) {
	const jobs = 40
	acceptN(t, w, jobs)
	all, err := w.Repo.Claim(t.Context(), job.Claiming{Type: kind, Max: jobs, Worker: "w", Lease: lease})
	if err != nil || len(all) != jobs {
		t.Fatalf("%d claimed, %v", len(all), err)
	}
	var endings []job.Ending
	var want []job.Application
	for i, c := range all {
		e, is := succeed(c.Lease), job.Applied
		if i%4 == 1 {
			e.Lease.Token++ // somebody else has it
			is = job.Refused
		}
		if i%4 != 2 {
			e = telling(w, c, e)
		}
		endings, want = append(endings, e), append(want, is)
	}
	got, err := w.Repo.Finish(t.Context(), endings)
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("finish: %v, %v", got, err)
	}
	if n := told(t, w); n != jobs/2 {
		t.Errorf("%d callbacks, want %d", n, jobs/2)
	}
}

func testFollowBesideAWrongOne(t *testing.T, w World) {
	const jobs = 5
	acceptN(t, w, jobs)
	all, err := w.Repo.Claim(t.Context(), job.Claiming{Type: kind, Max: jobs, Worker: "w", Lease: lease})
	if err != nil || len(all) != jobs {
		t.Fatalf("%d claimed, %v", len(all), err)
	}
	var endings []job.Ending
	for i, c := range all {
		e := telling(w, c, succeed(c.Lease))
		if i == 2 {
			e.Attempt = "no such outcome" // which no table takes
		}
		if i == 3 {
			e.Follow = nil
		}
		endings = append(endings, e)
	}
	got, err := w.Repo.Finish(t.Context(), endings)
	want := []job.Application{job.Applied, job.Applied, job.Refused, job.Applied, job.Applied}
	if err == nil || !slices.Equal(got, want) {
		t.Errorf("finish: %v, want %v, and the error: %v", got, want, err)
	}
	if n := told(t, w); n != 3 {
		t.Errorf("%d callbacks, want 3", n)
	}
	if got := ending(t, w, telling(w, all[2], succeed(all[2].Lease))); got != job.Applied {
		t.Errorf("once it is right: %v", got)
	}
}

func testFollowTogether(t *testing.T, w World) {
	const jobs = 30
	acceptN(t, w, jobs)
	all, err := w.Repo.Claim(t.Context(), job.Claiming{Type: kind, Max: jobs, Worker: "w", Lease: lease})
	if err != nil || len(all) != jobs {
		t.Fatalf("%d claimed, %v", len(all), err)
	}
	var callers sync.WaitGroup
	for _, c := range all {
		callers.Go(func() {
			got, err := w.Repo.Finish(t.Context(), []job.Ending{telling(w, c, succeed(c.Lease))})
			if err != nil || got[0] != job.Applied {
				t.Errorf("finish: %v, %v", got, err)
			}
		})
	}
	callers.Wait()
	if n := told(t, w); n != jobs {
		t.Errorf("%d callbacks of %d jobs", n, jobs)
	}
}

func testFollowUsedKey(t *testing.T, w World) {
	acceptN(t, w, 3)
	all, err := w.Repo.Claim(t.Context(), job.Claiming{Type: kind, Max: 3, Worker: "w", Lease: lease})
	if err != nil || len(all) != 3 {
		t.Fatalf("%d claimed, %v", len(all), err)
	}
	var endings []job.Ending
	for i, c := range all {
		e := telling(w, c, succeed(c.Lease))
		otherwise := callback(w, c)
		otherwise.Request.Key, otherwise.Job.Key = idempotency.Key(fmt.Sprint("otherwise-", i)), idempotency.Key(fmt.Sprint("otherwise-", i))
		e.Follow[0].Otherwise = &otherwise
		endings = append(endings, e)
	}
	accept(t, w, submission(w, string(endings[1].Follow[0].Request.Key), `{"mine":1}`, ofType("other")))
	got, err := w.Repo.Finish(t.Context(), endings)
	if err != nil || slices.Contains(got, job.Refused) {
		t.Fatalf("finish: %v, %v", got, err)
	}
	if n := told(t, w); n != 3 {
		t.Errorf("%d callbacks", n)
	}
	if j := now(t, w, "otherwise-1"); j.Type != job.CallbackType || j.CallbackURL != hookURL || string(j.Payload) != string(endings[1].Follow[0].Job.Payload) {
		t.Errorf("the callback: %+v", j)
	}
}

func testFollowTx(t *testing.T, w World) {
	mine := errors.New("mine")
	for key, tt := range map[string]struct {
		fails error
		stale bool
	}{"fails": {fails: mine}, "stale": {stale: true}, "works": {}} {
		accept(t, w, submission(w, key, `{}`))
		c := claim(t, w, "w", lease)
		before, lent := told(t, w), c
		if tt.stale {
			lent.Lease.Token++
		}
		err := w.Repo.FinishTx(t.Context(), lent, func(context.Context, *sql.Tx) (job.Ending, error) {
			return telling(w, c, succeed(c.Lease)), tt.fails
		})
		want := map[bool]error{true: job.ErrLeaseLost, false: tt.fails}[tt.stale]
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", key, err, want)
		}
		made := 0
		if want == nil {
			made = 1
		}
		if n := told(t, w) - before; n != made {
			t.Errorf("%s: %d callbacks", key, n)
		}
		if want != nil && !finish(t, w, succeed(c.Lease)) {
			t.Errorf("%s: the job has ended", key)
		}
	}
}

func testFollowWaiting(t *testing.T, w World) {
	s := submission(w, "k", `{}`, func(s *job.Submission) { s.Job.RunAt, s.Job.Status = s.Job.CreatedAt.Add(time.Hour), job.Scheduled })
	j := accept(t, w, s)
	c := job.Claimed{Job: j, Lease: job.Lease{ID: j.ID}}
	e := job.Ending{Lease: c.Lease, Status: job.Cancelled, Waiting: true, Keep: keep}
	for range 2 {
		if got := ending(t, w, telling(w, c, e)); got != job.Applied {
			t.Errorf("finish: %v", got)
		}
	}
	if n := told(t, w); n != 1 || now(t, w, "k").Status != job.Cancelled {
		t.Errorf("%d callbacks", n)
	}
}

func testFollowBoth(t *testing.T, w World) {
	for _, changes := range [][]func(*job.Submission){nil, {withBusinessKey("order", job.ConflictReturn)}} {
		key := fmt.Sprint("k", len(changes))
		accept(t, w, submission(w, key, `{}`))
		c := claim(t, w, "w", lease)
		undos, tells := undone(t, w), told(t, w)
		if got := ending(t, w, telling(w, c, undoing(w, c, changes...))); got != job.Applied {
			t.Errorf("finish: %v", got)
		}
		if undone(t, w) != undos+1 || told(t, w) != tells+1 {
			t.Errorf("%d compensations, %d callbacks more", undone(t, w)-undos, told(t, w)-tells)
		}
	}
}
