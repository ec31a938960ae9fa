package dispatcher

import (
	"context"
	"time"

	"github.com/sekali/sekali/job"
)

// claimOf claims jobs within the limit of their type, if it has one. Every claim of
// this package goes through it.
func (d *Dispatcher) claimOf(ctx context.Context, c job.Claiming) (job.Claims, error) {
	limit := d.settings(c.Type).Limit
	if limit.None() {
		jobs, err := d.Leases.Claim(ctx, c)
		return job.Claims{Jobs: jobs}, err
	}
	return d.Leases.ClaimLimited(ctx, c, limit)
}

// longestRest is how long a type is not asked for at most, should somebody move its
// rate's clock by hand.
const longestRest = time.Minute

// rests are the types whose rate lets nothing start for a while: to ask for them
// before would bring nothing.
type rests map[job.Type]rest

type rest struct {
	until  time.Time
	untold bool // as in ready
}

func (r rests) begin(t job.Type, length time.Duration, untold bool) {
	r[t] = rest{until: time.Now().Add(min(length, longestRest)), untold: untold}
}

// over takes the types out of the set that rest, and adds those that have rested.
func (r rests) over(types map[job.Type]bool) {
	now := time.Now()
	for t, of := range r {
		of.untold = of.untold || types[t]
		if now.Before(of.until) {
			r[t] = of
			delete(types, t)
			continue
		}
		delete(r, t)
		types[t] = of.untold
	}
}

// shortest is how long it is until a type has rested.
func (r rests) shortest() time.Duration {
	least := longestRest
	for _, of := range r {
		least = min(least, time.Until(of.until))
	}
	return least
}
