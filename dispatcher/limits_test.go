package dispatcher_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sekali/sekali/dispatcher"
	"github.com/sekali/sekali/job"
)

// limited are n jobs of a type with a limit, each of which takes so long.
func limited(limit job.Limit, n int, takes time.Duration) (map[job.Type]dispatcher.Work, []job.Claimed) {
	s := settings()
	s.Limit = limit
	work := map[job.Type]dispatcher.Work{"t": {Settings: s, Execute: funcExecutor(func(context.Context, job.Claimed) (*job.Result, error) {
		pass(takes)
		return nil, nil
	})}}
	jobs := make([]job.Claimed, n)
	for i := range jobs {
		jobs[i] = claimable(fmt.Sprint("job-", i), "t")
	}
	return work, jobs
}

// TestDispatcher_StartsTheNextJobWhenTheRateLetsIt: not at the next poll, and without
// asking again and again until then.
func TestDispatcher_StartsTheNextJobWhenTheRateLetsIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		work, jobs := limited(job.Limit{Rate: job.Rate{Count: 10, Per: time.Second}}, 9, time.Millisecond)
		w := setup(t, work, nil, jobs...)
		elapse(850 * time.Millisecond)
		if n := len(w.endings()); n != 9 {
			t.Errorf("%d jobs ran in nine steps", n)
		}
		if w.looks > 11 {
			t.Errorf("%d looks for nine jobs", w.looks)
		}
		for range 20 {
			w.d.Wake("t") // nobody asks for a type that rests
		}
		elapse(10 * time.Millisecond)
		if w.looks > 12 {
			t.Errorf("%d looks after it was woken", w.looks)
		}
		w.end()
	})
}

// TestDispatcher_AFreedPlaceIsTakenAtOnce: the end of a job is what those wait for
// that the limit has kept.
func TestDispatcher_AFreedPlaceIsTakenAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		work, jobs := limited(job.Limit{Concurrency: 2}, 8, 100*time.Millisecond)
		w := setup(t, work, nil, jobs...)
		elapse(390 * time.Millisecond)
		if n := len(w.endings()); n != 6 {
			t.Errorf("%d jobs have ended after three rounds of two", n)
		}
		elapse(20 * time.Millisecond)
		if n := len(w.endings()); n != 8 {
			t.Errorf("%d jobs have ended after four rounds of two", n)
		}
		w.end()
	})
}
