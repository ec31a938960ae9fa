package job_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

// journal keeps the events that were stored.
type journal struct{ events []job.Event }

func (j *journal) Record(_ context.Context, events []job.Event) error {
	j.events = append(j.events, events...)
	return nil
}

func (j *journal) take() map[job.EventName]any {
	counts := map[job.EventName]any{}
	for _, e := range j.events {
		counts[e.Name] = e.Data["count"]
	}
	j.events = nil
	return counts
}

func TestContract_Row113_RepetitionsAreCountedAndStoredOnceAMinute(t *testing.T) {
	t.Parallel()
	s := newShelf()
	log := &journal{}
	jobs := s.jobs(nil)
	jobs.Repeats = &job.Repeats{Log: log}
	submit := func(body string) {
		i := item("k", body)
		_, _ = jobs.Submit(t.Context(), i.Request, i.Draft)
	}
	now := fixedClock{}.Now()
	flushed := func(at time.Time, all bool, want string) {
		t.Helper()
		if err := jobs.Repeats.Flush(t.Context(), at, all); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(log.take()); got != want {
			t.Errorf("stored %s, want %s", got, want)
		}
	}
	submit("a")
	flushed(now, false, "map[]") // a first request repeats nothing
	submit("a")
	submit("a")
	submit("b")
	jobs.SubmitAll(t.Context(), []job.Item{item("k", "a")})
	flushed(now, false, "map[mismatch_refused:1 replayed:3]")
	submit("a")
	flushed(now.Add(59*time.Second), false, "map[]")
	submit("b")
	flushed(now.Add(time.Minute), false, "map[mismatch_refused:1 replayed:1]")
	submit("a")
	flushed(now.Add(61*time.Second), true, "map[replayed:1]") // the process ends

	from := func(name, body string) {
		i := item("k", body)
		_, _ = jobs.Submit(idempotency.WithSender(t.Context(), name), i.Request, i.Draft)
	}
	from("shop/1", "a")
	from("shop/2", "a")
	if err := jobs.Repeats.Flush(t.Context(), now.Add(time.Hour), true); err != nil {
		t.Fatal(err)
	}
	if len(log.events) != 1 || log.events[0].Data["last_sender"] != "shop/2" {
		t.Errorf("stored %v", log.events)
	}
	jobs.Repeats = nil
	submit("a") // counts nothing, and does no harm
}
