package load

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Plan is one run of load.
type Plan struct {
	Address     string
	Connections int
	// Warm passes before the window in which requests count.
	Warm, Window time.Duration
	// Source makes the requests of the numbered connection.
	Source func(connection int) Source
	// Began and Ended, if not nil, are called at the ends of the window, while
	// the load goes on: they read the counters of the measured processes.
	Began, Ended func() error
}

// Result is what a run of load did. Sent counts all requests, the others those
// that were answered within the window.
type Result struct {
	Sent     int
	Answered int
	Took     time.Duration
	P50, P99 time.Duration
	// Began is when the window did.
	Began time.Time
	// Exhausted says that the sources had no more before the window's end; Took
	// is then the time until they had none.
	Exhausted bool
}

// Rate returns the answers per second.
func (r Result) Rate() float64 { return float64(r.Answered) / r.Took.Seconds() }

// sample is one answered request: when, counted from the run's beginning, and
// after how long, both in microseconds.
type sample struct{ at, took uint32 }

// Closed keeps each connection asking again as soon as it has its answer. It
// returns when every request has been answered, and fails if one has failed.
func Closed(ctx context.Context, p Plan) (Result, error) {
	conns, err := dialAll(ctx, p.Address, p.Connections)
	defer closeAll(conns)
	if err != nil {
		return Result{}, err
	}
	run := closedRun{plan: p, begin: time.Now(), failed: make(chan struct{})}
	samples := make([][]sample, len(conns))
	var asking sync.WaitGroup
	for i, c := range conns {
		samples[i] = make([]sample, 0, 4096)
		asking.Go(func() {
			if err := run.ask(c, p.Source(i), &samples[i]); err != nil {
				run.fail(err)
			}
		})
	}
	idle := make(chan struct{})
	go func() {
		asking.Wait()
		close(idle)
	}()
	from, to, err := run.window(ctx, idle)
	run.over.Store(true)
	<-idle
	if err := errors.Join(err, run.err); err != nil {
		return Result{}, err
	}
	return run.result(samples, from, to), nil
}

// closedRun is what the connections of one run share.
type closedRun struct {
	plan   Plan
	begin  time.Time
	over   atomic.Bool
	once   sync.Once
	failed chan struct{}
	err    error
}

func (r *closedRun) fail(err error) {
	r.once.Do(func() {
		r.err = err
		close(r.failed)
	})
	r.over.Store(true)
}

func (r *closedRun) ask(c *Conn, source Source, samples *[]sample) error {
	for !r.over.Load() {
		request, ok := source()
		if !ok {
			return nil
		}
		sent := time.Since(r.begin)
		if err := c.Do(request); err != nil {
			return err
		}
		now := time.Since(r.begin)
		*samples = append(*samples, sample{at: micros(now), took: micros(now - sent)})
	}
	return nil
}

// window waits for the warm-up and the window to pass.
func (r *closedRun) window(ctx context.Context, idle <-chan struct{}) (from, to time.Duration, err error) {
	if err := r.pass(ctx, r.plan.Warm, idle); err != nil {
		return 0, 0, err
	}
	if err := call(r.plan.Began); err != nil {
		return 0, 0, err
	}
	from = time.Since(r.begin)
	if err := r.pass(ctx, r.plan.Window, idle); err != nil {
		return 0, 0, err
	}
	to = time.Since(r.begin)
	return from, to, call(r.plan.Ended)
}

func (r *closedRun) pass(ctx context.Context, d time.Duration, idle <-chan struct{}) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-r.failed:
		return errors.New("load: a request failed")
	case <-idle: // the sources are exhausted, or a request has just failed
		return nil
	case <-timer.C:
		return nil
	}
}

func (r *closedRun) result(samples [][]sample, from, to time.Duration) Result {
	var took []uint32
	result := Result{Took: to - from, Began: r.begin.Add(from)}
	last := uint32(0)
	for _, s := range samples {
		result.Sent += len(s)
		for _, one := range s {
			last = max(last, one.at)
			if one.at >= micros(from) && one.at < micros(to) {
				took = append(took, one.took)
			}
		}
	}
	if last < micros(to) && to-from < r.plan.Window {
		result.Exhausted, result.Took = true, time.Duration(last)*time.Microsecond-from
	}
	slices.Sort(took)
	result.Answered = len(took)
	result.P50, result.P99 = Percentile(took, 50), Percentile(took, 99)
	return result
}

// Percentile returns the value below which that many of a hundred lie; sorted is
// in microseconds.
func Percentile(sorted []uint32, percent int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	i := min(len(sorted)*percent/100, len(sorted)-1)
	return time.Duration(sorted[i]) * time.Microsecond
}

func micros(d time.Duration) uint32 { return uint32(max(d.Microseconds(), 0)) }

func call(f func() error) error {
	if f == nil {
		return nil
	}
	return f()
}

func dialAll(ctx context.Context, address string, n int) ([]*Conn, error) {
	conns := make([]*Conn, 0, n)
	for range n {
		c, err := Dial(ctx, address)
		if err != nil {
			return conns, fmt.Errorf("connection %d: %w", len(conns)+1, err)
		}
		conns = append(conns, c)
	}
	return conns, nil
}

func closeAll(conns []*Conn) {
	for _, c := range conns {
		_ = c.Close() // nothing is waited for on it any more
	}
}
