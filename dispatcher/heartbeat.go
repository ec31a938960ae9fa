package dispatcher

import (
	"context"
	"fmt"
	"time"

	"github.com/sekali/sekali/job"
)

// beat extends the leases of all running attempts, one statement for each
// length of lease (usually one). An attempt whose lease is gone loses it here;
// one that could not be asked about keeps running until its trust ends.
func (d *Dispatcher) beat(ctx context.Context) (time.Duration, error) {
	byLease := map[time.Duration][]*attempt{}
	for _, a := range d.running.all() {
		byLease[a.work.Settings.Lease] = append(byLease[a.work.Settings.Lease], a)
	}
	for length, attempts := range byLease {
		if err := d.extend(ctx, length, attempts); err != nil {
			return 0, err
		}
	}
	return 0, nil
}

func (d *Dispatcher) extend(ctx context.Context, length time.Duration, attempts []*attempt) error {
	held := make([]job.Lease, len(attempts))
	for i, a := range attempts {
		held[i] = a.Lease
	}
	asked := time.Now() // the lease counts from before the call, not from its answer
	kept, err := d.Leases.Extend(ctx, held, length)
	if err != nil {
		return fmt.Errorf("extend %d leases: %w", len(held), err)
	}
	for _, a := range attempts {
		extended, ours := kept[a.ID]
		switch {
		case extended:
			a.trustFrom(asked)
		case ours: // not prolonged this time: the trust runs on
		case !a.settling.Load() && d.running.has(a.Lease): // else it was settled while we asked
			d.Metrics.StaleCalls.WithLabelValues("extend").Inc()
			a.lose()
		}
	}
	return nil
}

// trustFrom lets the attempt trust its lease anew from the given moment.
func (a *attempt) trustFrom(asked time.Time) {
	if a.trust == nil {
		return
	}
	lease := a.work.Settings.Lease
	a.trust.Reset(time.Until(asked.Add(lease - trustMargin(lease))))
}
