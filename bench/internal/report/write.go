package report

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// line is a figure as JSON has it.
type line struct {
	Section string    `json:"section"`
	Figure  string    `json:"figure"`
	Unit    string    `json:"unit"`
	Median  float64   `json:"median"`
	Min     float64   `json:"min"`
	Max     float64   `json:"max"`
	Values  []float64 `json:"values"`
	Goal    string    `json:"goal,omitempty"`
	Verdict string    `json:"verdict,omitempty"`
	Bound   string    `json:"bound,omitempty"`
}

// WriteLines writes one line of JSON for each figure.
func (r *Report) WriteLines(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	for _, f := range r.told() {
		l := line{
			Section: f.Section, Figure: f.Name, Unit: f.Unit, Median: f.Median(), Min: slices.Min(f.Values), Max: slices.Max(f.Values),
			Values: f.Values, Goal: f.Goal.String(), Verdict: f.Verdict(), Bound: f.Bound.String(),
		}
		if err := encoder.Encode(l); err != nil {
			return fmt.Errorf("report: line: %w", err)
		}
	}
	for _, s := range r.Sides {
		if err := encoder.Encode(s); err != nil {
			return fmt.Errorf("report: line: %w", err)
		}
	}
	return nil
}

// told returns the figures that have a value.
func (r *Report) told() []Figure {
	return slices.DeleteFunc(slices.Clone(r.Figures), func(f Figure) bool { return len(f.Values) == 0 })
}

var sideTitles = []string{
	"section", "side", "connections", "per second", "p50 ms", "p99 ms", "program CPU µs", "backends CPU µs",
	"WAL writer µs", "checkpointer µs", "WAL bytes", "allocations", "peak MB",
}

// cells leaves out what was not measured.
func (s Side) cells() []string {
	cells := []string{s.Section, s.Name}
	for _, v := range []float64{
		float64(s.Connections), s.Rate, s.P50, s.P99, s.ProgramCPU, s.BackendCPU,
		s.WriterCPU, s.CheckCPU, s.WAL, s.Allocations, s.Peak,
	} {
		cell := ""
		if v != 0 {
			cell = number(v)
		}
		cells = append(cells, cell)
	}
	return cells
}

// WriteTable writes the table that people read on a terminal.
func (r *Report) WriteTable(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	section := ""
	for _, f := range r.told() {
		if f.Section != section {
			section = f.Section
			fmt.Fprintf(table, "\n%s\tmedian\tmin–max\tgoal\t\n", strings.ToUpper(section))
		}
		fmt.Fprintf(table, "%s\n", strings.Join(f.cells(), "\t"))
	}
	fmt.Fprintf(table, "\nEACH SIDE BY ITSELF, for one job or request\n%s\n", strings.Join(sideTitles, "\t"))
	for _, s := range r.Sides {
		fmt.Fprintf(table, "%s\n", strings.Join(s.cells(), "\t"))
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("report: table: %w", err)
	}
	return nil
}

func (f Figure) cells() []string {
	span := "[" + number(slices.Min(f.Values)) + "–" + number(slices.Max(f.Values)) + "]"
	if len(f.Values) == 1 {
		span = ""
	}
	value := number(f.Median())
	if f.Unit != "" {
		value += " " + f.Unit
	}
	return []string{f.Name, value, span, f.Goal.String(), f.Verdict()}
}

// WritePage writes the figures and the plots as a page of the documents.
func (r *Report) WritePage(w io.Writer) error {
	var page strings.Builder
	fmt.Fprintf(&page, "# Results of `make bench`\n\nWritten by the benchmark itself. How each figure is reached: [performance.md](../performance.md).\n\n%s\n", r.Machine)
	section := ""
	for _, f := range r.told() {
		if f.Section != section {
			section = f.Section
			fmt.Fprintf(&page, "\n## %s\n\n| figure | median | min–max | goal | |\n|---|---|---|---|---|\n", section)
		}
		fmt.Fprintf(&page, "| %s |\n", strings.Join(f.cells(), " | "))
	}
	page.WriteString("\n## Each side by itself\n\nMedians, for one job or request; these move with the machine.\n\n")
	fmt.Fprintf(&page, "| %s |\n|%s\n", strings.Join(sideTitles, " | "), strings.Repeat("---|", len(sideTitles)))
	for _, s := range r.Sides {
		fmt.Fprintf(&page, "| %s |\n", strings.Join(s.cells(), " | "))
	}
	if len(r.Plots) > 0 {
		page.WriteString("\n## Curves\n")
	}
	for _, p := range r.Plots {
		fmt.Fprintf(&page, "\n![%s](%s)\n", p.Title, p.File)
	}
	if _, err := io.WriteString(w, page.String()); err != nil {
		return fmt.Errorf("report: page: %w", err)
	}
	return nil
}
