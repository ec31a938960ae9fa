package dispatcher

import (
	"context"
	"errors"
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
	var failed error
	for length, attempts := range byLease {
		failed = errors.Join(failed, d.extend(ctx, length, attempts))
	}
	return 0, failed
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
	last := lastTokens(attempts)
	for _, a := range attempts {
		k, ours := kept[a.ID]
		if a.Lease.Token != last[a.ID] {
			k, ours = job.Kept{}, false
		}
		if k.Extended { // else the trust runs on
			a.trustFrom(asked)
		}
		if k.CancelRequested {
			a.askCancel()
		}
		if !ours && !a.settling.Load() && d.running.has(a.Lease) { // else it was settled while we asked
			d.Metrics.StaleCalls.WithLabelValues("extend").Inc()
			d.note(a.Claimed, job.EventHeartbeatLost, nil)
			a.lose()
		}
	}
	return nil
}

// lastTokens are the highest tokens of the attempts' jobs. A job that was taken
// from this process may have come back to it while the first attempt is still on
// its way out, and what the heartbeat keeps of a job is its last lease.
func lastTokens(attempts []*attempt) map[job.ID]int64 {
	last := make(map[job.ID]int64, len(attempts))
	for _, a := range attempts {
		last[a.ID] = max(last[a.ID], a.Lease.Token)
	}
	return last
}

// trustFrom lets the attempt trust its lease anew from the given moment.
func (a *attempt) trustFrom(asked time.Time) {
	if a.trust == nil {
		return
	}
	lease := a.work.Settings.Lease
	a.trust.Reset(time.Until(asked.Add(lease - trustMargin(lease))))
}
