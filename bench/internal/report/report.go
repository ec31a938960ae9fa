// Package report holds what was measured and says it: a table for people, a line
// of JSON for each figure, a page and plots for the documents. A figure is the
// median of values of single rounds, each mostly a ratio of two sides measured
// next to each other: those hold when the machine, or what else it does, is not
// the same.
package report

import (
	"fmt"
	"math"
	"slices"
)

// Units of figures.
const (
	Ratio        = "×"
	Milliseconds = "ms"
	Microseconds = "µs"
	Megabytes    = "MB"
	Kibibytes    = "KiB"
	Bytes        = "B"
	PerSecond    = "/s"
	Count        = ""
)

// Goal is what a figure should be: at least or at most the value.
type Goal struct {
	AtMost bool
	Value  float64
}

// AtLeast and AtMost make goals.
func AtLeast(v float64) *Goal { return &Goal{Value: v} }

// AtMost is the goal of a figure that should be small.
func AtMost(v float64) *Goal { return &Goal{AtMost: true, Value: v} }

func (g *Goal) met(v float64) bool {
	if g.AtMost {
		return v <= g.Value
	}
	return v >= g.Value
}

func (g *Goal) String() string {
	if g == nil {
		return ""
	}
	if g.AtMost {
		return "≤ " + number(g.Value)
	}
	return "≥ " + number(g.Value)
}

// Figure is one number that was measured, in each round.
type Figure struct {
	Section string
	Name    string
	Unit    string
	Values  []float64 // of the rounds
	Goal    *Goal     // nil: it is only reported
	// Bound is of a figure that noise hardly moves: what it was when it was last looked
	// at, with some room, or the goal where that is reached. A run that gates fails
	// beyond it: then a change has made something worse. nil: nothing is asked of it.
	Bound *Goal
}

// Median returns the middle of the values.
func (f Figure) Median() float64 { return median(f.Values) }

// Verdict says whether the goal is met: "ok", "below", or nothing without one.
func (f Figure) Verdict() string {
	switch {
	case f.Goal == nil:
		return ""
	case f.Goal.met(f.Median()):
		return "ok"
	default:
		return "below"
	}
}

// Report is the figures of one run.
type Report struct {
	Machine string // what the figures were taken on
	Figures []Figure
	Sides   []Side
	Plots   []Plot
}

// Side is how one side did by itself, as medians. These numbers move with the
// machine; they are for understanding the figures.
type Side struct {
	Section     string  `json:"section"`
	Name        string  `json:"side"`
	Connections int     `json:"connections,omitempty"`
	Rate        float64 `json:"per_second"`
	P50         float64 `json:"p50_ms,omitempty"`
	P99         float64 `json:"p99_ms,omitempty"`
	ProgramCPU  float64 `json:"program_cpu_us,omitempty"` // for each job or request
	BackendCPU  float64 `json:"postgres_backends_cpu_us,omitempty"`
	WriterCPU   float64 `json:"wal_writer_cpu_us,omitempty"`
	CheckCPU    float64 `json:"checkpointer_cpu_us,omitempty"`
	WAL         float64 `json:"wal_bytes,omitempty"`
	Allocations float64 `json:"allocations,omitempty"`
	Peak        float64 `json:"peak_memory_mb,omitempty"` // of the program, so far
}

// Add adds figures in the order in which they will be told.
func (r *Report) Add(f ...Figure) { r.Figures = append(r.Figures, f...) }

// Worse returns the figures that are beyond their bounds.
func (r *Report) Worse() []Figure {
	var missed []Figure
	for _, f := range r.Figures {
		if f.Bound != nil && len(f.Values) > 0 && !f.Bound.met(f.Median()) {
			missed = append(missed, f)
		}
	}
	return missed
}

// Ratios divides the values of the one side by those of the other, round by
// round.
func Ratios(a, b []float64) []float64 {
	ratios := make([]float64, min(len(a), len(b)))
	for i := range ratios {
		ratios[i] = a[i] / b[i]
	}
	return ratios
}

func median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

// number writes a number with three digits that count.
func number(v float64) string {
	switch a := math.Abs(v); {
	case a >= 10_000:
		return fmt.Sprintf("%.1fk", v/1000)
	case a >= 100 || v == math.Trunc(v):
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	case a >= 0.1:
		return fmt.Sprintf("%.2f", v)
	default:
		return fmt.Sprintf("%.3g", v)
	}
}
