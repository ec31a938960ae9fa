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

// workLevel is the number of connections that submit while jobs are run.
const workLevel = 64

// crew is a side that runs jobs. Its process lives for one turn only: one that
// polls would take time from the others.
type crew struct {
	side

	begin func(ctx context.Context) (*rig.Process, error)
	fill  func(ctx context.Context, jobs int) error // puts jobs into its queue, which nobody works off
	done  string                                    // counts the jobs that are done
	first string                                    // when the first was taken, in seconds since 1970
	last  string                                    // when the last was done, likewise
	mark  func()                                    // if not nil: has the queries count from now on
}

// empty makes the tables empty, or counts from now on.
func (c *crew) empty(ctx context.Context) error {
	if c.mark != nil {
		c.mark()
	}
	return c.side.empty(ctx)
}

const (
	sekaliDone  = `select count(*) from job_attempts where outcome = 'succeeded'`
	sekaliFirst = `select extract(epoch from min(started_at)) from job_attempts`
	sekaliLast  = `select extract(epoch from max(finished_at)) from job_attempts`
	riverDone   = `select count(*) from river_job where state = 'completed'`
	riverFirst  = `select extract(epoch from min(attempted_at)) from river_job`
	riverLast   = `select extract(epoch from max(finalized_at)) from river_job`
)

// effectType is a job type with one effect per job, written with its end in one
// transaction.
const effectType = `job_types:
  effect:
    executor: sql
    sql:
      setup: create table if not exists effects (job text primary key)
      statement: insert into effects (job) values ({{ .key }})
`

// lockedType is a no-op that takes a Redis lock first.
const lockedType = "job_types: {locked: {executor: echo, lock: key}}\n"

// sekaliCrew is a gateway with a new database and the configuration; jobs are of
// the type.
func (b *Bench) sekaliCrew(ctx context.Context, e *ending, name, jobType, config string) (*crew, error) {
	database, err := b.Rig.Postgres.Database(ctx, databaseName(name))
	if err != nil {
		return nil, err
	}
	e.add(func() error { return b.Rig.Postgres.Drop(context.WithoutCancel(ctx), database) })
	c := &crew{
		side: side{
			name: name, database: database, jobType: jobType,
			reset: sekaliReset, accepted: `select count(*) from idempotency_keys`,
		},
		done: sekaliDone, first: sekaliFirst, last: sekaliLast,
	}
	c.begin = func(ctx context.Context) (*rig.Process, error) {
		return b.Rig.Gateway(ctx, database.URL, running+config)
	}
	c.fill = func(ctx context.Context, jobs int) (err error) {
		var e ending
		defer e.end(&err)
		accepts, err := b.gateway(ctx, &e, name, database, acceptOnly+config)
		if err != nil {
			return err
		}
		return b.submitAll(ctx, accepts.process, jobType, jobs)
	}
	return c, nil
}

// submitAll submits so many jobs.
func (b *Bench) submitAll(ctx context.Context, p *rig.Process, jobType string, jobs int) error {
	keys := make([]string, jobs)
	prefix := b.prefix()
	for i := range keys {
		keys[i] = load.Key(prefix, i%workLevel, i/workLevel)
	}
	_, err := load.Closed(ctx, load.Plan{
		Address: p.Address, Connections: workLevel, Window: maxFill, Source: load.Repost(jobType, keys, workLevel, false),
	})
	return err
}

// riverCrew is River with a new database.
func (b *Bench) riverCrew(ctx context.Context, e *ending, name string, o contestant.Options) (*crew, error) {
	database, err := b.Rig.Postgres.Database(ctx, databaseName(name))
	if err != nil {
		return nil, err
	}
	e.add(func() error { return b.Rig.Postgres.Drop(context.WithoutCancel(ctx), database) })
	c := &crew{
		side: side{
			name: name, database: database, jobType: "echo",
			reset: `truncate river_job, effects`, accepted: `select count(*) from river_job`,
		},
		done: riverDone, first: riverFirst, last: riverLast,
	}
	o.Database, o.Work = database.URL, true
	c.begin = func(ctx context.Context) (*rig.Process, error) { return b.Rig.Contestant(ctx, "river", o) }
	c.fill = func(ctx context.Context, jobs int) (err error) {
		idle := o
		idle.Work = false
		process, err := b.Rig.Contestant(ctx, "river", idle)
		if err != nil {
			return err
		}
		var e ending
		e.add(process.Kill)
		defer e.end(&err)
		return process.Fill(ctx, jobs)
	}
	return c, nil
}

// turn lets the crew work for one turn, and ends its process.
func (c *crew) turn(ctx context.Context, work func() error) (err error) {
	var e ending
	defer e.end(&err)
	if c.process, err = c.begin(ctx); err != nil {
		return err
	}
	e.add(c.process.Kill)
	return work()
}

// through submits jobs for one window and waits until all are done. Its rate is
// that of jobs between the first submission and the last end.
func (b *Bench) through(ctx context.Context, c *crew) (got sample, err error) {
	err = c.turn(ctx, func() error {
		if err := c.empty(ctx); err != nil {
			return err
		}
		if _, err := b.submitAndAwait(ctx, c, warm); err != nil {
			return err
		}
		if err := c.empty(ctx); err != nil {
			return err
		}
		meter := meter{ctx: ctx, postgres: b.Rig.Postgres, process: c.process}
		if err := meter.begin(); err != nil {
			return err
		}
		result, err := b.submitAndAwait(ctx, c, b.Window)
		if err != nil {
			return err
		}
		if err := meter.end(); err != nil {
			return err
		}
		_, peak, err := c.process.RSS()
		got = sample{Result: result, server: meter.server, usage: meter.usage, mallocs: meter.mallocs, peak: peak}
		return err
	})
	return got, err
}

// submitAndAwait returns the result with the count of all jobs and the time that
// all of them took.
func (b *Bench) submitAndAwait(ctx context.Context, c *crew, window time.Duration) (load.Result, error) {
	result, err := load.Closed(ctx, load.Plan{
		Address: c.process.Address, Connections: workLevel, Window: window, Source: load.Post(c.jobType, b.prefix()),
	})
	if err != nil {
		return result, fmt.Errorf("%s: %w", c.name, err)
	}
	if err := c.check(ctx, result.Sent); err != nil {
		return result, err
	}
	if err := await(ctx, c.database, c.done, float64(result.Sent)); err != nil {
		return result, err
	}
	last, err := c.database.Number(ctx, c.last)
	if err != nil {
		return result, err
	}
	result.Answered = result.Sent
	result.Took = seconds(last - float64(result.Began.UnixNano())/1e9)
	return result, nil
}

// workOff fills the queue and lets the crew work it off. Its rate is that of jobs
// between the first claim and the last end.
func (b *Bench) workOff(ctx context.Context, c *crew, jobs int) (got sample, err error) {
	if err := c.empty(ctx); err != nil {
		return got, err
	}
	if err := c.fill(ctx, jobs); err != nil {
		return got, err
	}
	if err := c.check(ctx, jobs); err != nil {
		return got, err
	}
	return b.drain(ctx, c, jobs)
}

// drain works off a queue of so many jobs.
func (b *Bench) drain(ctx context.Context, c *crew, jobs int) (got sample, err error) {
	if err := c.database.Quiet(ctx); err != nil { // the process that has filled it has ended
		return got, err
	}
	before, err := b.Rig.Postgres.Usage(ctx)
	if err != nil {
		return got, err
	}
	err = c.turn(ctx, func() error {
		if err := await(ctx, c.database, c.done, float64(jobs)); err != nil {
			return err
		}
		first, err := c.database.Number(ctx, c.first)
		if err != nil {
			return err
		}
		last, err := c.database.Number(ctx, c.last)
		if err != nil {
			return err
		}
		after, err := b.Rig.Postgres.Usage(ctx)
		if err != nil {
			return err
		}
		got.Sent, got.Answered, got.Took, got.usage = jobs, jobs, seconds(last-first), after.Since(before)
		got.server, err = c.process.CPU()
		return err
	})
	return got, err
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// figure is one line of the report.
func (b *Bench) figure(section, name, unit string, values []float64, goal *report.Goal) {
	b.Report.Add(report.Figure{Section: section, Name: name, Unit: unit, Values: values, Goal: goal})
}

// ratioOf divides the readings of two sides.
func ratioOf(at map[string][]sample, one, other string, read func(sample) float64) []float64 {
	return report.Ratios(values(at[one], read), values(at[other], read))
}
