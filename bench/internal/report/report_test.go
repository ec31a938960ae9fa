package report_test

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/sekali/sekali/bench/internal/report"
)

func TestFigure(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		values  []float64
		goal    *report.Goal
		median  float64
		verdict string
	}{
		"odd":            {[]float64{3, 1, 2}, report.AtLeast(2), 2, "ok"},
		"even":           {[]float64{4, 1, 3, 2}, report.AtLeast(2.6), 2.5, "below"},
		"small is good":  {[]float64{0.3}, report.AtMost(0.3), 0.3, "ok"},
		"too large":      {[]float64{0.31}, report.AtMost(0.3), 0.31, "below"},
		"without a goal": {[]float64{7}, nil, 7, ""},
	} {
		f := report.Figure{Values: c.values, Goal: c.goal}
		if f.Median() != c.median || f.Verdict() != c.verdict {
			t.Errorf("%s: median %v, verdict %q", name, f.Median(), f.Verdict())
		}
	}
	if got := report.Ratios([]float64{6, 8}, []float64{3, 2}); !slices.Equal(got, []float64{2, 4}) {
		t.Errorf("the ratios are %v", got)
	}
}

// sample is a report with figures within and beyond their bounds.
func sample() *report.Report {
	r := &report.Report{Machine: "2 processors."}
	r.Add(
		report.Figure{Section: "accept", Name: "accept ÷ naive", Unit: report.Ratio, Values: []float64{3.1, 2.9, 3.3}, Goal: report.AtLeast(3)},
		report.Figure{Section: "accept", Name: "CPU per job ÷ naive", Unit: report.Ratio, Values: []float64{0.41}, Goal: report.AtMost(0.3), Bound: report.AtMost(0.4)},
		report.Figure{Section: "accept", Name: "peak memory", Unit: report.Megabytes, Values: []float64{61}, Goal: report.AtMost(60), Bound: report.AtMost(70)},
		report.Figure{Section: "accept", Name: "not measured", Bound: report.AtMost(1)},
	)
	r.Sides = append(r.Sides, report.Side{Section: "accept", Name: "sekali", Connections: 64, Rate: 23512.7, P50: 2.41})
	r.Plots = append(r.Plots, report.Plot{File: "accept.svg", Title: "Accepted"})
	return r
}

func TestReport_WorseAreTheFiguresBeyondTheirBounds(t *testing.T) {
	t.Parallel()
	worse := sample().Worse()
	if len(worse) != 1 || worse[0].Name != "CPU per job ÷ naive" {
		t.Errorf("worse: %v", worse)
	}
}

func TestReport_EachFigureIsALineOfJSON(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := sample().WriteLines(&out); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 4 {
		t.Fatalf("%d lines: %s", len(lines), out.String())
	}
	var first struct {
		Figure, Goal, Verdict string
		Median, Min, Max      float64
	}
	if err := json.Unmarshal([]byte(lines[0]), &first); err != nil {
		t.Fatal(err)
	}
	if first.Figure != "accept ÷ naive" || first.Median != 3.1 || first.Min != 2.9 || first.Max != 3.3 || first.Goal != "≥ 3" || first.Verdict != "ok" {
		t.Errorf("the line is %+v", first)
	}
}

func TestReport_TableAndPageSayTheSame(t *testing.T) {
	t.Parallel()
	var table, page strings.Builder
	if err := errors.Join(sample().WriteTable(&table), sample().WritePage(&page)); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"table": table.String(), "page": page.String()} {
		for _, part := range []string{"3.10 ×", "[2.90–3.30]", "≥ 3", "ok", "0.41 ×", "≤ 0.30", "below", "23.5k", "2.41"} {
			if !strings.Contains(text, part) {
				t.Errorf("the %s has no %q:\n%s", name, part, text)
			}
		}
		if strings.Contains(text, "not measured") {
			t.Errorf("the %s has a figure without a value", name)
		}
	}
	if !strings.Contains(page.String(), "![Accepted](accept.svg)") {
		t.Error("the page shows no plot")
	}
}

func TestPlot_IsXMLAndSkipsWhatWasNotMeasured(t *testing.T) {
	t.Parallel()
	for _, p := range []report.Plot{
		{Title: "a < b", Labels: []string{"1", "8"}, Curves: []report.Curve{{Name: "x & y", Values: []float64{3, math.NaN()}}, {Name: "z", Values: []float64{1, 12_000}}}},
		{Labels: []string{"1", "8"}, Logarithmic: true, Curves: []report.Curve{{Values: []float64{0.3, 150}}}},
		{Labels: []string{"a"}, Bars: true, Curves: []report.Curve{{Values: []float64{3}}, {Values: []float64{5}}}},
	} {
		var out bytes.Buffer
		if err := p.WriteSVG(&out); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(out.String(), "NaN") || strings.Contains(out.String(), "Inf") {
			t.Errorf("a position that is none: %s", out.String())
		}
		decoder := xml.NewDecoder(&out)
		for {
			if _, err := decoder.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
		}
	}
}
