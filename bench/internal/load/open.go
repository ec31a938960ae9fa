package load

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// Schedule is load at a fixed rate, whatever the answers take.
type Schedule struct {
	Address     string
	Connections int
	PerSecond   int
	Requests    int
	// Request makes the numbered one.
	Request func(n int) Request
}

// Paced is what such a load did: when each request was begun, and the times that
// the answers took. A request that was due while its connection still waited for
// an answer counts from when it was due.
type Paced struct {
	Began    []time.Time
	P50, P99 time.Duration
}

// Open sends the requests in turn on the connections and returns when all are
// answered.
func Open(ctx context.Context, s Schedule) (Paced, error) {
	conns, err := dialAll(ctx, s.Address, s.Connections)
	defer closeAll(conns)
	if err != nil {
		return Paced{}, err
	}
	p := Paced{Began: make([]time.Time, s.Requests)}
	took := make([]uint32, s.Requests)
	failures := make([]error, len(conns))
	begin := time.Now()
	var sending sync.WaitGroup
	for i, c := range conns {
		sending.Go(func() {
			for n := i; n < s.Requests && failures[i] == nil; n += len(conns) {
				due := begin.Add(time.Duration(n) * time.Second / time.Duration(s.PerSecond))
				if p.Began[n], failures[i] = whenDue(ctx, due); failures[i] == nil {
					failures[i] = c.Do(s.Request(n))
					took[n] = micros(time.Since(p.Began[n]))
				}
			}
		})
	}
	sending.Wait()
	slices.Sort(took)
	p.P50, p.P99 = Percentile(took, 50), Percentile(took, 99)
	return p, errors.Join(failures...)
}

// whenDue waits and returns the time from which a request counts: now, since a
// timer may be late by a millisecond, or when it was due if that has passed.
func whenDue(ctx context.Context, due time.Time) (time.Time, error) {
	wait := time.Until(due)
	if wait <= 0 {
		return due, nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return due, context.Cause(ctx)
	case <-timer.C:
		return time.Now(), nil
	}
}
