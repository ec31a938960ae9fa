package section

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sekali/sekali/bench/internal/load"
	"github.com/sekali/sekali/bench/internal/report"
	"github.com/sekali/sekali/bench/internal/rig"
)

// historySQL makes the finished jobs of a history, which ended within the last
// six days, so that none is due for retention while they are measured.
const historySQL = `
with history as (
  select n, n % 256 as slot, n * 7 % 256 as key_slot, 'history-' || n as key, t,
    cast(lpad(to_hex(cast(extract(epoch from t) * 1000 as bigint)), 12, '0') || '7' || substr(md5(cast(n as text)), 1, 3)
      || '8' || substr(md5(cast(n as text)), 4, 15) as uuid) as id
  from (select n, timestamptz 'NOW' - interval '6 days' * (1 - n / cast(JOBS as float)) as t from generate_series(1, JOBS) n) times)
`

// historyRows is what a finished job leaves: its row, its record with the stored
// response, and its attempt.
var historyRows = []string{
	`insert into finished_jobs (slot, id, tenant, key, key_slot, type, state, payload, priority, run_at, timeout_ms, max_attempts,
  attempt, generation, version, token, worker_id, created_at, started_at, claimed_at, result, result_type, result_hash, finished_at, expires_at)
select slot, id, 'default', key, key_slot, 'echo', 'succeeded', cast(repeat('x', 270) as bytea), 0, t, 300000, 10,
  1, 1, 3, 1, 'worker', t, t, t, cast(repeat('x', 270) as bytea), 'application/json', cast(repeat('h', 32) as bytea), t, now() + interval '7 days'
from history`,
	`insert into idempotency_keys (slot, tenant, key, fingerprint, state, job_slot, job_id, response_status, response_headers, response_body, created_at)
select key_slot, 'default', key, cast(repeat('f', 49) as bytea), 'completed', slot, id, 202, cast('{}' as bytea), cast(repeat('y', 350) as bytea), t
from history`,
	`insert into job_attempts (slot, job_id, token, number, outcome, worker_id, started_at, finished_at)
select slot, id, 1, 1, 'succeeded', 'worker', t, t
from history`,
}

// loadHistory writes the tables at the same time, each on a connection of its own.
func (b *Bench) loadHistory(ctx context.Context, d *rig.Database) error {
	began := time.Now()
	history := strings.NewReplacer("JOBS", strconv.Itoa(b.Finished), "NOW", began.UTC().Format(time.RFC3339)).Replace(historySQL)
	failures := make([]error, len(historyRows))
	var loading sync.WaitGroup
	for i, rows := range historyRows {
		loading.Go(func() {
			db, err := sql.Open("postgres", d.URL)
			if err != nil {
				failures[i] = err
				return
			}
			defer db.Close()
			_, failures[i] = db.ExecContext(ctx, history+rows)
		})
	}
	loading.Wait()
	if err := errors.Join(failures...); err != nil {
		return fmt.Errorf("load the history: %w", err)
	}
	if err := d.Exec(ctx, `vacuum analyze`); err != nil {
		return err
	}
	b.say("flatness: %d finished jobs loaded in %.0f s", b.Finished, time.Since(began).Seconds())
	return b.Rig.Postgres.Checkpoint(ctx)
}

// flatness measures the same with a long history and with none.
func flatness(ctx context.Context, b *Bench) (err error) {
	var e ending
	defer e.end(&err)
	empty, err := b.historyCrew(ctx, &e, "sekali-empty", sekaliReset)
	if err != nil {
		return err
	}
	full, err := b.historyCrew(ctx, &e, "sekali-full", `truncate jobs`)
	if err != nil {
		return err
	}
	if err := b.loadHistory(ctx, full.database); err != nil {
		return err
	}
	return b.flatnessRounds(ctx, empty, full)
}

// historyCrew is a gateway whose own jobs are told from those of the history by
// their ids, which begin with the time.
func (b *Bench) historyCrew(ctx context.Context, e *ending, name, reset string) (*crew, error) {
	c, err := b.sekaliCrew(ctx, e, name, "echo", "")
	if err != nil {
		return nil, err
	}
	c.reset = reset
	c.mark = func() {
		since := fmt.Sprintf(`where tenant = 'default' and id >= '%s'`, firstID(time.Now()))
		c.accepted = `select (select count(*) from jobs ` + since + `) + (select count(*) from finished_jobs ` + since + `)`
		c.done = `select count(*) from finished_jobs ` + since + ` and state = 'succeeded'`
		c.first = `select extract(epoch from min(started_at)) from finished_jobs ` + since
		c.last = `select extract(epoch from max(finished_at)) from finished_jobs ` + since
	}
	// The first start makes the schema, and partitions ahead of time.
	return c, c.turn(ctx, func() error { return nil })
}

// firstID returns the least id (UUIDv7) of the time.
func firstID(t time.Time) string {
	digits := fmt.Sprintf("%012x", t.UnixMilli())
	return digits[:8] + "-" + digits[8:] + "-7000-8000-000000000000"
}

func (b *Bench) flatnessRounds(ctx context.Context, empty, full *crew) error {
	kinds := []string{"accept", "claim", "accept to done"}
	at := map[string][]sample{}
	for round := range b.Rounds {
		for _, c := range []*crew{full, empty} {
			for i, measure := range []func(context.Context, *crew) (sample, error){b.acceptTurn, b.claimTurn, b.through} {
				got, err := measure(ctx, c)
				if err != nil {
					return fmt.Errorf("%s: %w", kinds[i], err)
				}
				name := kinds[i] + ", " + c.name
				at[name] = append(at[name], got)
			}
		}
		b.say("flatness, round %d: %s", round+1, rates(at))
	}
	history := fmt.Sprintf(" with %.3g M finished jobs ÷ empty", float64(b.Finished)/1e6)
	var bars [2][]float64
	for _, kind := range kinds {
		one, other := kind+", "+full.name, kind+", "+empty.name
		b.figure("long history", kind+history, report.Ratio, ratioOf(at, one, other, rate), report.AtLeast(0.95))
		b.Report.Add(report.Figure{
			Section: "long history", Name: "CPU per job, " + kind + history, Unit: report.Ratio,
			Values: ratioOf(at, one, other, cpu), Goal: report.AtMost(1.05), Bound: report.AtMost(1.5),
		})
		for i, name := range []string{one, other} {
			bars[i] = append(bars[i], medianOf(at[name], rate))
			b.side("flatness", name, workLevel, at[name])
		}
	}
	b.Report.Plots = append(b.Report.Plots, report.Plot{
		File: "history.svg", Title: "Jobs per second with a long history and with none", X: "measured", Y: "jobs per second", Labels: kinds, Bars: true,
		Curves: []report.Curve{{Name: fmt.Sprintf("%.3g M finished", float64(b.Finished)/1e6), Values: bars[0]}, {Name: "empty", Values: bars[1]}},
	})
	return nil
}

// acceptTurn submits jobs that nobody runs, and leaves them for claimTurn.
func (b *Bench) acceptTurn(ctx context.Context, c *crew) (got sample, err error) {
	var e ending
	defer e.end(&err)
	if err := c.empty(ctx); err != nil {
		return got, err
	}
	accepts, err := b.gateway(ctx, &e, c.name, c.database, acceptOnly)
	if err != nil {
		return got, err
	}
	if got, err = b.window(ctx, accepts, workLevel, load.Post(c.jobType, b.prefix())); err != nil {
		return got, err
	}
	return got, c.check(ctx, got.Sent)
}

// claimTurn works off what acceptTurn has left.
func (b *Bench) claimTurn(ctx context.Context, c *crew) (sample, error) {
	jobs, err := c.database.Number(ctx, c.accepted)
	if err != nil {
		return sample{}, err
	}
	return b.drain(ctx, c, int(jobs))
}
