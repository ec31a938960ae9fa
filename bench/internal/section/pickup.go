package section

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/sekali/sekali/bench/internal/contestant"
	"github.com/sekali/sekali/bench/internal/load"
	"github.com/sekali/sekali/bench/internal/report"
	"github.com/sekali/sekali/bench/internal/rig"
)

// Pick-up is measured at a rate that leaves everything idle most of the time.
const (
	pickUpRate        = 200
	pickUpConnections = 32
	pickUpWarm        = 100 // jobs before those that count
)

// pickUpSample is the times from a submission's beginning to the job's start.
type pickUpSample struct {
	p50, p99         float64 // ms
	postP50, postP99 float64 // of the submission itself
}

// starter is a side whose jobs tell when they were started.
type starter struct {
	name     string
	begin    func(ctx context.Context, e *ending) (*rig.Process, error) // returns the process that accepts
	arrivals func(ctx context.Context, p *rig.Process) (map[string]time.Time, error)
}

// pickUp measures how soon a job is started.
func pickUp(ctx context.Context, b *Bench) (err error) {
	var e ending
	defer e.end(&err)
	calls, err := listen(ctx)
	if err != nil {
		return err
	}
	e.add(calls.close)
	starters, err := b.starters(ctx, &e, calls)
	if err != nil {
		return err
	}
	at := map[string][]pickUpSample{}
	for round := range b.Rounds {
		told := ""
		for _, s := range starters {
			got, err := b.pickUpWindow(ctx, s)
			if err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			at[s.name] = append(at[s.name], got)
			told += fmt.Sprintf(" %s %.2f/%.1f ms", s.name, got.p50, got.p99)
		}
		b.say("pickup, round %d:%s", round+1, told)
	}
	b.pickUpFigures(at)
	return nil
}

func (b *Bench) starters(ctx context.Context, e *ending, calls *receiver) ([]starter, error) {
	config := "job_types: {call: {executor: http, http: {url: " + calls.url + "}}}\n"
	database, err := b.Rig.Postgres.Database(ctx, "sekali_pickup")
	if err != nil {
		return nil, err
	}
	e.add(func() error { return b.Rig.Postgres.Drop(context.WithoutCancel(ctx), database) })
	river, err := b.Rig.Postgres.Database(ctx, "river_pickup")
	if err != nil {
		return nil, err
	}
	e.add(func() error { return b.Rig.Postgres.Drop(context.WithoutCancel(ctx), river) })
	gateway := func(ctx context.Context, e *ending, config string) (*rig.Process, error) {
		s, err := b.gateway(ctx, e, "sekali", database, config)
		return s.process, err
	}
	called := func(context.Context, *rig.Process) (map[string]time.Time, error) { return calls.arrivals(), nil }
	return []starter{
		{"sekali", func(ctx context.Context, e *ending) (*rig.Process, error) { return gateway(ctx, e, running+config) }, called},
		{"sekali-replica", func(ctx context.Context, e *ending) (*rig.Process, error) {
			if _, err := gateway(ctx, e, running+config); err != nil {
				return nil, err
			}
			return gateway(ctx, e, acceptOnly+config)
		}, called},
		{"river-default", func(ctx context.Context, e *ending) (*rig.Process, error) {
			p, err := b.Rig.Contestant(ctx, "river", contestant.Options{Database: river.URL, Work: true})
			if err == nil {
				e.add(p.Kill)
			}
			return p, err
		}, func(ctx context.Context, p *rig.Process) (map[string]time.Time, error) { return p.Arrivals(ctx) }},
	}, nil
}

// pickUpWindow submits jobs at the rate and waits until each has started.
func (b *Bench) pickUpWindow(ctx context.Context, s starter) (got pickUpSample, err error) {
	var e ending
	defer e.end(&err)
	process, err := s.begin(ctx, &e)
	if err != nil {
		return got, err
	}
	if _, _, err := b.pickUps(ctx, s, process, pickUpWarm); err != nil {
		return got, err
	}
	jobs := int(pickUpRate * max(b.Window.Seconds()*1.5, 1))
	paced, times, err := b.pickUps(ctx, s, process, jobs)
	if err != nil {
		return got, err
	}
	milliseconds := func(d time.Duration) float64 { return d.Seconds() * 1000 }
	return pickUpSample{
		p50: milliseconds(load.Percentile(times, 50)), p99: milliseconds(load.Percentile(times, 99)),
		postP50: milliseconds(paced.P50), postP99: milliseconds(paced.P99),
	}, nil
}

// pickUps returns the times of all jobs, in order, in microseconds.
func (b *Bench) pickUps(ctx context.Context, s starter, p *rig.Process, jobs int) (load.Paced, []uint32, error) {
	prefix := b.prefix()
	paced, err := load.Open(ctx, load.Schedule{
		Address: p.Address, Connections: pickUpConnections, PerSecond: pickUpRate, Requests: jobs,
		Request: func(n int) load.Request { return load.One("call", load.Key(prefix, 0, n)) },
	})
	if err != nil {
		return paced, nil, err
	}
	at, err := s.all(ctx, p, jobs)
	if err != nil {
		return paced, nil, err
	}
	times := make([]uint32, jobs)
	for n := range times {
		started, ok := at[load.Key(prefix, 0, n)]
		if !ok {
			return paced, nil, fmt.Errorf("job %d was never started", n)
		}
		times[n] = uint32(max(started.Sub(paced.Began[n]).Microseconds(), 0))
	}
	slices.Sort(times)
	return paced, times, nil
}

// all waits until so many jobs have started.
func (s starter) all(ctx context.Context, p *rig.Process, jobs int) (map[string]time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	all := map[string]time.Time{}
	for {
		some, err := s.arrivals(ctx, p)
		if err != nil {
			return nil, err
		}
		maps.Copy(all, some)
		if len(all) >= jobs {
			return all, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%d of %d jobs have started: %w", len(all), jobs, context.Cause(ctx))
		case <-ticker.C:
		}
	}
}

func (b *Bench) pickUpFigures(at map[string][]pickUpSample) {
	read := func(name string, read func(pickUpSample) float64) []float64 {
		var list []float64
		for _, s := range at[name] {
			list = append(list, read(s))
		}
		return list
	}
	half := func(s pickUpSample) float64 { return s.p50 }
	most := func(s pickUpSample) float64 { return s.p99 }
	add := func(name, unit string, values []float64, goal, bound *report.Goal) {
		b.Report.Add(report.Figure{Section: "pick-up at 200 jobs a second", Name: name, Unit: unit, Values: values, Goal: goal, Bound: bound})
	}
	add("same process, p50", report.Milliseconds, read("sekali", half), report.AtMost(2), report.AtMost(15))
	add("same process, p99", report.Milliseconds, read("sekali", most), report.AtMost(15), nil)
	add("another replica, p50", report.Milliseconds, read("sekali-replica", half), nil, nil)
	add("another replica, p99", report.Milliseconds, read("sekali-replica", most), nil, nil)
	add("River default, p50", report.Milliseconds, read("river-default", half), nil, nil)
	add("River default, p99", report.Milliseconds, read("river-default", most), nil, nil)
	add("another replica p50 ÷ River default", report.Ratio,
		report.Ratios(read("sekali-replica", half), read("river-default", half)), report.AtMost(0.3), nil)
	add("POST p50", report.Milliseconds, read("sekali", func(s pickUpSample) float64 { return s.postP50 }), nil, nil)
	add("POST p99", report.Milliseconds, read("sekali", func(s pickUpSample) float64 { return s.postP99 }), nil, nil)
}

// receiver is called by http jobs, and notes when.
type receiver struct {
	url    string
	server *http.Server
	ended  chan error

	mu sync.Mutex
	at map[string]time.Time
}

func listen(ctx context.Context) (*receiver, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("receiver: %w", err)
	}
	r := &receiver{url: "http://" + listener.Addr().String() + "/", ended: make(chan error, 1), at: map[string]time.Time{}}
	r.server = &http.Server{Handler: r, ReadHeaderTimeout: time.Minute}
	go func() { r.ended <- r.server.Serve(listener) }()
	return r, nil
}

// ServeHTTP notes the call.
func (r *receiver) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	now := time.Now()
	r.mu.Lock()
	r.at[request.Header.Get("Sekali-Key")] = now
	r.mu.Unlock()
	w.WriteHeader(http.StatusNoContent)
}

// arrivals returns the calls since the last time.
func (r *receiver) arrivals() map[string]time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := r.at
	r.at = map[string]time.Time{}
	return at
}

func (r *receiver) close() error {
	if err := r.server.Close(); err != nil {
		return fmt.Errorf("receiver: %w", err)
	}
	if err := <-r.ended; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("receiver: %w", err)
	}
	return nil
}
