package job

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sekali/sekali/idempotency"
)

// repeatsKept bounds the memory for jobs whose keys were repeated since the last
// flush. Repetitions of more jobs than that are not told apart by job: they are
// in the metrics alone.
const repeatsKept = 10_000

// repeatsEvery is how often the repetitions of one job are stored at most.
const repeatsEvery = time.Minute

// Repeats counts, in memory, how often keys of jobs came again, and stores it as
// events when told to, off the path of any request. A crash loses what was not
// stored. A nil Repeats counts nothing.
type Repeats struct {
	Log EventLog

	mu     sync.Mutex
	counts map[ID]*repeats
}

type repeats struct {
	replays, mismatches int
	sender              string    // of the last one
	stored              time.Time // last
}

// note counts one repetition by what it was answered with.
func (r *Repeats) note(id ID, sender string, err error) {
	var other *idempotency.MismatchError
	mismatch := errors.As(err, &other)
	if r == nil || id == "" || err != nil && !mismatch {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	count := r.counts[id]
	if count == nil {
		if len(r.counts) >= repeatsKept {
			return
		}
		if r.counts == nil {
			r.counts = map[ID]*repeats{}
		}
		count = &repeats{}
		r.counts[id] = count
	}
	count.sender = sender
	if mismatch {
		count.mismatches++
		return
	}
	count.replays++
}

// Flush stores what was counted: of each job the first time at once, and then
// once a minute; with all, everything. now is the process's own time. What
// cannot be stored is dropped: the metrics have it.
func (r *Repeats) Flush(ctx context.Context, now time.Time, all bool) error {
	events := r.take(now, all)
	if len(events) == 0 {
		return nil
	}
	return r.Log.Record(ctx, events)
}

func (r *Repeats) take(now time.Time, all bool) []Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	var events []Event
	for id, count := range r.counts {
		if !all && now.Sub(count.stored) < repeatsEvery {
			continue
		}
		if count.replays+count.mismatches == 0 {
			delete(r.counts, id)
			continue
		}
		if count.replays > 0 {
			events = append(events, Event{JobID: id, Name: EventReplayed, Data: count.data(count.replays)})
		}
		if count.mismatches > 0 {
			events = append(events, Event{JobID: id, Name: EventMismatch, Data: count.data(count.mismatches)})
		}
		*count = repeats{stored: now}
	}
	return events
}

// data is what the event of n repetitions tells.
func (c *repeats) data(n int) map[string]any {
	data := map[string]any{"count": n}
	if c.sender != "" {
		data["last_sender"] = c.sender
	}
	return data
}
