package section

import (
	"context"
	"fmt"
	"time"

	"github.com/sekali/sekali/bench/internal/contestant"
	"github.com/sekali/sekali/bench/internal/load"
	"github.com/sekali/sekali/bench/internal/report"
	"github.com/sekali/sekali/bench/internal/rig"
)

// side is one program with its database.
type side struct {
	name     string
	process  *rig.Process
	database *rig.Database // nil: it has none that can be looked into
	jobType  string
	reset    string // makes its tables empty
	accepted string // counts the keys that it has accepted
}

// sekaliReset empties the gateway's tables. What belongs to the process (workers,
// type_state, meta) stays.
const sekaliReset = `truncate idempotency_keys, jobs, finished_jobs, job_attempts, job_events, processed_operations, attempt_tallies`

// acceptOnly is a gateway that runs no jobs.
const acceptOnly = "dispatcher: {slots: 0}\n"

// running is a gateway that runs many jobs at once.
const running = "dispatcher: {slots: 1000}\n"

// sekali starts a gateway with a new database.
func (b *Bench) sekali(ctx context.Context, e *ending, name, config string) (side, error) {
	database, err := b.Rig.Postgres.Database(ctx, name)
	if err != nil {
		return side{}, err
	}
	e.add(func() error { return b.Rig.Postgres.Drop(context.WithoutCancel(ctx), database) })
	return b.gateway(ctx, e, name, database, config)
}

// gateway starts a gateway with the database.
func (b *Bench) gateway(ctx context.Context, e *ending, name string, database *rig.Database, config string) (side, error) {
	process, err := b.Rig.Gateway(ctx, database.URL, config)
	if err != nil {
		return side{}, err
	}
	e.add(process.Kill)
	return side{
		name: name, process: process, database: database, jobType: "echo", reset: sekaliReset,
		accepted: `select count(*) from idempotency_keys`,
	}, nil
}

// contestant starts one of the others, with a new database.
func (b *Bench) contestant(ctx context.Context, e *ending, name, kind string, o contestant.Options) (side, error) {
	s := side{name: name, jobType: "echo"}
	if kind != "chi" {
		database, err := b.Rig.Postgres.Database(ctx, name)
		if err != nil {
			return side{}, err
		}
		e.add(func() error { return b.Rig.Postgres.Drop(context.WithoutCancel(ctx), database) })
		o.Database, s.database = database.URL, database
		s.reset, s.accepted = `truncate jobs`, `select count(*) from jobs`
	}
	if kind == "river" {
		s.reset, s.accepted = `truncate river_job, effects`, `select count(*) from river_job`
	}
	process, err := b.Rig.Contestant(ctx, kind, o)
	if err != nil {
		return side{}, err
	}
	e.add(process.Kill)
	s.process = process
	return s, nil
}

// empty makes the side's tables empty.
func (s side) empty(ctx context.Context) error {
	if s.database == nil {
		return nil
	}
	return s.database.Exec(ctx, s.reset)
}

// sample is what one window of one side yields.
type sample struct {
	load.Result
	server  time.Duration // processor time of the program
	usage   rig.Usage     // of Postgres
	mallocs float64
	peak    int64 // bytes of memory at most, so far
}

func (s sample) per(v float64) float64 { return v / float64(s.Answered) }

// Readings of a sample, for figures.
var (
	rate       = func(s sample) float64 { return s.Rate() }
	p50        = func(s sample) float64 { return s.P50.Seconds() * 1000 }
	p99        = func(s sample) float64 { return s.P99.Seconds() * 1000 }
	serverCPU  = func(s sample) float64 { return s.per(micros(s.server)) }
	backendCPU = func(s sample) float64 { return s.per(micros(s.usage.Backends)) }
	cpu        = func(s sample) float64 { return serverCPU(s) + backendCPU(s) }
	walWriter  = func(s sample) float64 { return s.per(micros(s.usage.WALWriter)) }
	checkCPU   = func(s sample) float64 { return s.per(micros(s.usage.Checkpointer)) }
	wal        = func(s sample) float64 { return s.per(float64(s.usage.WALBytes)) }
	mallocs    = func(s sample) float64 { return s.per(s.mallocs) }
	xids       = func(s sample) float64 { return s.per(float64(s.usage.NextXID)) }
)

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }

// values reads the samples.
func values(samples []sample, read func(sample) float64) []float64 {
	list := make([]float64, len(samples))
	for i, s := range samples {
		list[i] = read(s)
	}
	return list
}

// side reports how one side did.
func (b *Bench) side(section, name string, connections int, samples []sample) {
	if len(samples) == 0 {
		return
	}
	b.Report.Sides = append(b.Report.Sides, report.Side{
		Section: section, Name: name, Connections: connections,
		Rate: medianOf(samples, rate), P50: medianOf(samples, p50), P99: medianOf(samples, p99),
		ProgramCPU: medianOf(samples, serverCPU), BackendCPU: medianOf(samples, backendCPU),
		WriterCPU: medianOf(samples, walWriter), CheckCPU: medianOf(samples, checkCPU),
		WAL: medianOf(samples, wal), Allocations: medianOf(samples, mallocs), Peak: peakOf(samples),
	})
}

// window puts load on the side for one window and reads what that cost.
func (b *Bench) window(ctx context.Context, s side, connections int, source func(int) load.Source) (sample, error) {
	meter := meter{ctx: ctx, postgres: b.Rig.Postgres, process: s.process}
	result, err := load.Closed(ctx, load.Plan{
		Address: s.process.Address, Connections: connections, Warm: warm, Window: b.Window,
		Source: source, Began: meter.begin, Ended: meter.end,
	})
	if err != nil {
		return sample{}, fmt.Errorf("%s at %d connections: %w", s.name, connections, err)
	}
	_, peak, err := s.process.RSS()
	return sample{Result: result, server: meter.server, usage: meter.usage, mallocs: meter.mallocs, peak: peak}, err
}

// meter reads what a process and Postgres use between two moments.
type meter struct {
	ctx      context.Context // here, since the callbacks of a load have none
	postgres *rig.Postgres
	process  *rig.Process
	server   time.Duration
	usage    rig.Usage
	mallocs  float64
}

// begin reads what costs the least last, so that the reading is not measured.
func (m *meter) begin() (err error) {
	if m.mallocs, err = m.process.Mallocs(m.ctx); err != nil {
		return err
	}
	if m.usage, err = m.postgres.Usage(m.ctx); err != nil {
		return err
	}
	m.server, err = m.process.CPU()
	return err
}

// end reads in the opposite order, and keeps the differences.
func (m *meter) end() error {
	server, err := m.process.CPU()
	if err != nil {
		return err
	}
	usage, err := m.postgres.Usage(m.ctx)
	if err != nil {
		return err
	}
	mallocs, err := m.process.Mallocs(m.ctx)
	m.server, m.usage, m.mallocs = server-m.server, usage.Since(m.usage), mallocs-m.mallocs
	return err
}

// acceptWindow submits new jobs on empty tables, and then looks whether each
// acknowledged key is there.
func (b *Bench) acceptWindow(ctx context.Context, s side, connections int) (sample, error) {
	if err := s.empty(ctx); err != nil {
		return sample{}, err
	}
	got, err := b.window(ctx, s, connections, load.Post(s.jobType, b.prefix()))
	if err != nil {
		return sample{}, err
	}
	return got, s.check(ctx, got.Sent)
}

// check fails unless the side has accepted exactly so many keys.
func (s side) check(ctx context.Context, want int) error {
	got, err := s.database.Number(ctx, s.accepted)
	if err != nil {
		return err
	}
	if int(got) != want {
		return fmt.Errorf("%s: %d keys were acknowledged and %.0f are in the database", s.name, want, got)
	}
	return nil
}
