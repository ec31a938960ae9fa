package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/sekali/sekali/job"
)

// claim fills free slots, type by type in rotation, a share of them each time,
// so that no type's backlog keeps the others waiting. It keeps the types that
// may have more for when a slot is free again, and leaves them to others meanwhile.
func (d *Dispatcher) claim(ctx context.Context) (time.Duration, error) {
	hungry := d.hungry()
	var failed error
	later := map[job.Type]bool{}
	for len(hungry) > 0 && ctx.Err() == nil {
		free := d.Slots - d.running.count()
		if free <= 0 {
			break
		}
		t, want := d.nextOf(hungry), max(1, free/len(hungry))
		if want = min(want, d.roomOf(t)); want == 0 {
			later[t] = hungry[t] // as soon as one of its attempts ends
			delete(hungry, t)
			continue
		}
		n, next, err := d.claimSome(ctx, t, want)
		if err != nil {
			failed = errors.Join(failed, err)
			later[t] = hungry[t]
		}
		if next > 0 {
			d.rests.begin(t, next, hungry[t])
		}
		if n < want || next > 0 {
			delete(hungry, t)
		}
	}
	maps.Copy(later, hungry)
	d.leaveToOthers(later)
	d.ready.putBack(later)
	if failed == nil {
		d.claimed.Store(new(time.Now()))
	}
	return max(min(d.PollInterval-time.Since(d.polled), d.rests.shortest()), time.Millisecond), failed
}

// hungry are the types that may have claimable jobs: those that somebody marked,
// those whose rate allows the next one now, and now and then all.
func (d *Dispatcher) hungry() map[job.Type]bool {
	types := d.ready.take()
	d.leaveUnknown(types)
	if time.Since(d.polled) >= d.PollInterval*8/10 { // polling is the truth
		d.polled = time.Now()
		for _, t := range d.types {
			if _, marked := types[t]; !marked {
				types[t] = false
			}
		}
	}
	d.rests.over(types)
	return types
}

func (d *Dispatcher) claimSome(ctx context.Context, t job.Type, want int) (n int, next time.Duration, err error) {
	asked := time.Now()
	claims, err := d.claimOf(ctx, job.Claiming{Type: t, Max: want, Worker: d.WorkerID, Lease: d.Work[t].Settings.Lease})
	if err != nil {
		return 0, 0, fmt.Errorf("claim %s: %w", t, err)
	}
	d.Metrics.Claimed.WithLabelValues(string(t)).Add(float64(len(claims.Jobs)))
	for _, c := range claims.Jobs {
		d.start(c, asked)
	}
	return len(claims.Jobs), claims.Next, nil
}

// roomOf is how many more slots the type may take here.
func (d *Dispatcher) roomOf(t job.Type) int {
	most := d.Work[t].Slots
	if most <= 0 {
		return d.Slots
	}
	return max(0, most-d.running.countOf(t))
}

// nextOf returns the next type of the set in rotation; the set is not empty
// and holds configured types only.
func (d *Dispatcher) nextOf(set map[job.Type]bool) job.Type {
	for {
		t := d.types[d.next]
		d.next = (d.next + 1) % len(d.types)
		if _, in := set[t]; in {
			return t
		}
	}
}
