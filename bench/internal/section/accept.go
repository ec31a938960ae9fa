package section

import (
	"context"
	"fmt"
	"math"

	"github.com/sekali/sekali/bench/internal/contestant"
	"github.com/sekali/sekali/bench/internal/report"
	"github.com/sekali/sekali/bench/internal/rig"
)

// levels are the numbers of connections at which accepts are measured.
var levels = []int{1, 8, 64, 256}

// River's insert is measured at one level, and pgbench at two: their goals stand
// there.
const riverLevel = 64

var pgbenchLevels = map[int]bool{8: true, 64: true}

// acceptGoals are those of a level; nil: none.
type acceptGoals struct {
	naive, pgbench, cpu, p99 *report.Goal
	peak                     *report.Goal
	cpuBound, peakBound      *report.Goal
}

var acceptGoal = map[int]acceptGoals{
	1: {naive: report.AtLeast(1.2)},
	8: {naive: report.AtLeast(1.5), pgbench: report.AtLeast(0.6), cpu: report.AtMost(0.5), cpuBound: report.AtMost(1.6)},
	64: {
		naive: report.AtLeast(3), pgbench: report.AtLeast(1.2), cpu: report.AtMost(0.3),
		p99: report.AtMost(0.4), peak: report.AtMost(60), cpuBound: report.AtMost(0.7), peakBound: report.AtMost(60),
	},
	256: {
		naive: report.AtLeast(4), cpu: report.AtMost(0.22), p99: report.AtMost(0.2), peak: report.AtMost(80),
		cpuBound: report.AtMost(0.6), peakBound: report.AtMost(100),
	},
}

// accept measures the acceptance of jobs that nobody runs.
func accept(ctx context.Context, b *Bench) (err error) {
	var e ending
	defer e.end(&err)
	sides, err := b.acceptSides(ctx, &e)
	if err != nil {
		return err
	}
	single, err := b.pgbench(ctx, &e)
	if err != nil {
		return err
	}
	all := acceptSamples{}
	for _, level := range levels {
		at := map[string][]sample{}
		if err := b.Rig.Postgres.Checkpoint(ctx); err != nil {
			return err
		}
		for round := range b.Rounds {
			if err := b.acceptRound(ctx, sides, single, level, at); err != nil {
				return err
			}
			b.say("accept, %d connections, round %d: %s", level, round+1, rates(at))
		}
		all[level] = at
		b.acceptFigures(level, at)
	}
	b.Report.Plots = append(b.Report.Plots, all.plots()...)
	return nil
}

func (b *Bench) acceptSides(ctx context.Context, e *ending) ([]side, error) {
	gateway, err := b.sekali(ctx, e, "sekali", acceptOnly)
	if err != nil {
		return nil, err
	}
	sides := []side{gateway}
	for _, kind := range []string{"naive", "naive-prepared", "river"} {
		s, err := b.contestant(ctx, e, databaseName(kind), kind, contestant.Options{})
		if err != nil {
			return nil, err
		}
		s.name = kind
		sides = append(sides, s)
	}
	return sides, nil
}

func (b *Bench) acceptRound(ctx context.Context, sides []side, single rig.SingleRow, level int, at map[string][]sample) error {
	for _, s := range sides {
		if s.name == "river" && level != riverLevel {
			continue
		}
		got, err := b.acceptWindow(ctx, s, level)
		if err != nil {
			return err
		}
		at[s.name] = append(at[s.name], got)
	}
	if !pgbenchLevels[level] {
		return nil
	}
	got, err := b.singleRowWindow(ctx, single, level)
	if err != nil {
		return err
	}
	at["pgbench"] = append(at["pgbench"], got)
	return nil
}

func (b *Bench) acceptFigures(level int, at map[string][]sample) {
	goal := acceptGoal[level]
	conns := fmt.Sprintf(", %d connections", level)
	if level == 1 {
		conns = ", 1 connection"
	}
	add := func(name, unit string, values []float64, goal, bound *report.Goal) {
		b.Report.Add(report.Figure{Section: "accept", Name: name + conns, Unit: unit, Values: values, Goal: goal, Bound: bound})
	}
	ratio := func(read func(sample) float64, other string) []float64 {
		return report.Ratios(values(at["sekali"], read), values(at[other], read))
	}
	add("accept ÷ naive", report.Ratio, ratio(rate, "naive"), goal.naive, nil)
	add("accept ÷ naive prepared", report.Ratio, ratio(rate, "naive-prepared"), nil, nil)
	add("accept ÷ pgbench single-row insert", report.Ratio, ratio(rate, "pgbench"), goal.pgbench, nil)
	if level == riverLevel {
		add("accept ÷ River insert behind chi", report.Ratio, ratio(rate, "river"), report.AtLeast(5), nil)
	}
	add("CPU per job ÷ naive", report.Ratio, ratio(cpu, "naive"), goal.cpu, goal.cpuBound)
	add("CPU per job ÷ naive prepared", report.Ratio, ratio(cpu, "naive-prepared"), nil, nil)
	add("p99 ÷ naive", report.Ratio, ratio(p99, "naive"), goal.p99, nil)
	add("WAL per job ÷ naive", report.Ratio, ratio(wal, "naive"), nil, nil)
	if goal.peak != nil {
		add("peak memory", report.Megabytes, []float64{peakOf(at["sekali"])}, goal.peak, goal.peakBound)
	}
	for _, name := range []string{"sekali", "naive", "naive-prepared", "river", "pgbench"} {
		b.side("accept", name, level, at[name])
	}
}

// peakOf returns the most memory of all samples, in megabytes.
func peakOf(samples []sample) float64 {
	most := int64(0)
	for _, s := range samples {
		most = max(most, s.peak)
	}
	return float64(most) / (1 << 20)
}

// acceptSamples are those of the levels, by side.
type acceptSamples map[int]map[string][]sample

func (a acceptSamples) plots() []report.Plot {
	plot := func(file, title, unit string, read func(sample) float64, logarithmic bool, names ...string) report.Plot {
		p := report.Plot{File: file, Title: title, X: "connections", Y: unit, Logarithmic: logarithmic}
		for _, level := range levels {
			p.Labels = append(p.Labels, fmt.Sprint(level))
		}
		for _, name := range names {
			c := report.Curve{Name: name}
			for _, level := range levels {
				c.Values = append(c.Values, medianOf(a[level][name], read))
			}
			p.Curves = append(p.Curves, c)
		}
		return p
	}
	return []report.Plot{
		plot("accept-rate.svg", "Accepted jobs per second", "jobs per second", rate, false, "sekali", "naive", "naive-prepared", "pgbench", "river"),
		plot("accept-p99.svg", "Slowest of a hundred accepts", "milliseconds (p99)", p99, true, "sekali", "naive", "naive-prepared", "river"),
		plot("accept-cpu.svg", "Processor time for an accepted job, program and Postgres", "microseconds", cpu, false, "sekali", "naive", "naive-prepared", "river"),
	}
}

func medianOf(samples []sample, read func(sample) float64) float64 {
	if len(samples) == 0 {
		return math.NaN()
	}
	return report.Figure{Values: values(samples, read)}.Median()
}
