package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
	"github.com/sekali/sekali/lock"
)

func refused(context.Context, int) error { return lock.ErrHeld }

// noting is a world in which every claim leaves an event.
func noting(change func(*world)) func(*world) {
	return func(w *world) {
		w.locks.onAcquire = refused
		if change != nil {
			change(w)
		}
	}
}

func TestTimeline_EventsAreStoredSoonAndOffThePathOfTheWork(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := setup(t, locked(plain(succeeds), job.LockKey), noting(nil))
		w.add(claimable("a", "t"))
		w.d.Wake("t")
		synctest.Wait()
		if w.log.recorded() != 0 || len(w.putOffs()) != 1 {
			t.Errorf("%d events were stored before the job was put off", w.log.recorded())
		}
		elapse(time.Second)
		got := w.log.all()
		if len(got) != 1 || got[0].JobID != "a" || got[0].Name != job.EventLockRefused || got[0].Attempt != 1 || !got[0].Time.IsZero() ||
			got[0].Data["worker_id"] != "w-test" {
			t.Errorf("events %+v", got)
		}
		w.end()
		if n := len(w.log.all()); n != 1 {
			t.Errorf("stored %d times", n)
		}
	})
}

// While events cannot be stored they are kept, and no more of them than the
// memory is worth.
func TestTimeline_EventsAreKeptWithinBoundsUntilTheyCanBeStored(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := setup(t, locked(plain(succeeds), job.LockKey), noting(func(w *world) {
			for i := range 1200 {
				w.pending = append(w.pending, claimable(fmt.Sprint(i), "t"))
			}
			w.log.onRecord = func(_ context.Context, n int) error { return upTo(8, errors.New("no database"))(n) }
		}))
		elapse(time.Minute)
		if n := len(w.putOffs()); n != 1200 {
			t.Fatalf("%d of 1200 jobs were put off", n)
		}
		seen := map[job.ID]bool{}
		for _, e := range w.log.all() {
			if seen[e.JobID] {
				t.Errorf("the event of %s was stored twice", e.JobID)
			}
			seen[e.JobID] = true
		}
		if len(seen) != 1000 {
			t.Errorf("%d events were kept, want the first thousand", len(seen))
		}
		w.end()
	})
}

// What has not been stored by then is stored at the end.
func TestTimeline_TheEndStoresWhatIsLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		repeats := &job.Repeats{}
		w := setup(t, locked(plain(succeeds), job.LockKey), noting(func(w *world) {
			repeats.Log = w.log
			w.cfg.Repeats = repeats
		}))
		w.add(claimable("a", "t"))
		w.d.Wake("t")
		synctest.Wait()
		jobs := &job.Jobs{Repeats: repeats, Reader: onlyFinds{}}
		for range 3 {
			if _, err := jobs.Refuse(t.Context(), idempotency.Request{}, errors.New("no")); err != nil {
				t.Fatal(err)
			}
		}
		if w.log.recorded() != 0 {
			t.Fatalf("events %+v", w.log.all())
		}
		w.end()
		if got := w.log.named(job.EventReplayed); len(got) != 1 || got[0].JobID != "replayed" || got[0].Data["count"] != 3 {
			t.Errorf("events %+v", w.log.all())
		}
		if got := w.log.named(job.EventLockRefused); len(got) != 1 {
			t.Errorf("events %+v", w.log.all())
		}
	})
}

// Repetitions of keys are stored while the process runs, also by one that only
// accepts.
func TestTimeline_RepetitionsAreStoredByAProcessThatRunsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		repeats := &job.Repeats{}
		w := setup(t, nil, func(w *world) {
			repeats.Log = w.log
			w.cfg.Repeats, w.cfg.Slots = repeats, 0
		})
		jobs := &job.Jobs{Repeats: repeats, Reader: onlyFinds{}}
		for second := range 90 {
			if _, err := jobs.Refuse(t.Context(), idempotency.Request{}, errors.New("no")); err != nil {
				t.Fatal(second, err)
			}
			elapse(time.Second)
		}
		// The first at once, and then once a minute at most.
		got := w.log.named(job.EventReplayed)
		if len(got) != 2 {
			t.Fatalf("events %+v", got)
		}
		w.end()
		total := 0
		for _, e := range w.log.named(job.EventReplayed) {
			total += e.Data["count"].(int)
		}
		if total != 90 {
			t.Errorf("%d repetitions were stored, want 90", total)
		}
	})
}

// onlyFinds is a reader that finds one job under any key.
type onlyFinds struct{ job.Reader }

func (onlyFinds) Find(context.Context, idempotency.Tenant, idempotency.Key) (job.Receipt, error) {
	return job.Receipt{Job: job.Job{ID: "replayed"}, Record: idempotency.Record{State: idempotency.Completed}}, nil
}
