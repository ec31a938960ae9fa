package dispatcher

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sekali/sekali/job"
)

// eventsKept bounds the events that wait to be stored. Nothing that is promised
// hangs on them, and a database that is away must not fill the memory.
const eventsKept = 1000

// eventBuffer holds events until the next step of the timeline's loop: storing
// them is nobody's business while work is being done.
type eventBuffer struct {
	mu     sync.Mutex
	events []job.Event
}

func newEventBuffer() *eventBuffer { return &eventBuffer{} }

func (b *eventBuffer) add(e job.Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.events) < eventsKept {
		b.events = append(b.events, e)
	}
}

func (b *eventBuffer) take() []job.Event {
	b.mu.Lock()
	defer b.mu.Unlock()
	taken := b.events
	b.events = nil
	return taken
}

// note keeps an event of an attempt of this process for the job's timeline.
func (d *Dispatcher) note(c job.Claimed, name job.EventName, data map[string]any) {
	worker := d.WorkerID
	if c.Remote {
		worker = c.WorkerID
	}
	d.noteOf(c, worker, name, data)
}

// noteOf is note for the attempt of any worker; "" if nobody knows whose it was.
func (d *Dispatcher) noteOf(c job.Claimed, worker string, name job.EventName, data map[string]any) {
	if d.Events == nil {
		return
	}
	if data == nil {
		data = map[string]any{}
	}
	if worker != "" {
		data["worker_id"] = worker
	}
	e := job.Event{JobID: c.ID, Name: name, Attempt: c.Attempts, Data: data}
	if d.Clock != nil {
		e.Time = d.Clock.Now() // it is stored later
	}
	d.events.add(e)
}

// record stores the events that have gathered, and the repetitions of keys.
func (d *Dispatcher) record(ctx context.Context) (time.Duration, error) {
	return 0, errors.Join(d.recordEvents(ctx), d.recordRepeats(ctx, false))
}

func (d *Dispatcher) recordEvents(ctx context.Context) error {
	if d.Events == nil {
		return nil
	}
	events := d.events.take()
	if len(events) == 0 {
		return nil
	}
	err := d.Events.Record(ctx, events)
	if err != nil {
		for _, e := range events {
			d.events.add(e)
		}
	}
	return wrap("store events", err)
}

func (d *Dispatcher) recordRepeats(ctx context.Context, all bool) error {
	if d.Repeats == nil {
		return nil
	}
	return wrap("store repetitions", d.Repeats.Flush(ctx, time.Now(), all))
}
