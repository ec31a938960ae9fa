package middleware

import (
	"golang.org/x/time/rate"

	"github.com/sekali/sekali/idempotency"
)

// Tenants is RateLimit's memory, for a look at its size.
type Tenants struct{ rates }

// NewTenants returns an empty one.
func NewTenants(limit Rate) *Tenants {
	return &Tenants{rates{limit: limit, of: map[idempotency.Tenant]*rate.Limiter{}}}
}

// Take lets one request of the tenant pass, or not.
func (l *Tenants) Take(t idempotency.Tenant) bool { return l.take(t) == 0 }

// Size is how many tenants are remembered.
func (l *Tenants) Size() int { return len(l.of) }

// Flights is Once's memory of who waits for what, for a look at its size.
type Flights struct{ *flights }

// NewFlights returns an empty one.
func NewFlights() Flights { return Flights{newFlights()} }

// Pass has one request wait for the key and leave, and the key's handler run
// here meanwhile if here says so.
func (f Flights) Pass(k idempotency.Key, here bool) {
	id := flightID{key: k}
	joined := f.join(id)
	if here {
		f.begun(id)
		f.ended(id)
	}
	f.leave(id, joined)
}

// Size is how many keys are remembered.
func (f Flights) Size() int { return len(f.waiting) + len(f.running) }
