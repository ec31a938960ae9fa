// Command bench measures the gateway against what people would use in its place,
// side by side on this machine, and tells ratios. See docs/performance.md.
//
//	bench -program bin/sekali                 everything
//	bench -program bin/sekali -sections accept,replay -rounds 2 -seconds 1
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/sekali/sekali/bench/internal/contestant"
	"github.com/sekali/sekali/bench/internal/report"
	"github.com/sekali/sekali/bench/internal/rig"
	"github.com/sekali/sekali/bench/internal/section"
)

func main() {
	// The servers die with the thread that starts them, at the latest.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 2 && args[0] == "contestant" {
		return runContestant(ctx, args[1])
	}
	o, err := parse(args)
	if err != nil {
		return err
	}
	r := &report.Report{Machine: machine(o)}
	fmt.Fprintln(os.Stderr, r.Machine)
	if err := measure(ctx, o, r); err != nil {
		return err
	}
	if err := tell(o, r); err != nil {
		return err
	}
	return judge(o, r)
}

// runContestant is what this program does in the processes that it starts.
func runContestant(ctx context.Context, name string) error {
	var o contestant.Options
	if err := json.Unmarshal([]byte(os.Getenv(rig.OptionsVariable)), &o); err != nil {
		return fmt.Errorf("options: %w", err)
	}
	return contestant.Serve(ctx, name, o, os.Stdout)
}

// options of a run.
type options struct {
	program  string
	sections []string
	rounds   int
	seconds  float64
	finished int
	gate     bool
	out      string // folder of the lines
	pages    string // folder of the page and the plots; empty: none are written
}

func parse(args []string) (options, error) {
	var o options
	var names string
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.StringVar(&o.program, "program", "bin/sekali", "the gateway's program")
	flags.StringVar(&names, "sections", "", "what to measure, joined by commas: "+strings.Join(section.Names(), ", ")+"; empty: all but those on request")
	flags.IntVar(&o.rounds, "rounds", 5, "rounds, in which the sides take turns")
	flags.Float64Var(&o.seconds, "seconds", 2, "seconds of load in a window")
	flags.IntVar(&o.finished, "finished", 5_000_000, "finished jobs of a long history")
	flags.BoolVar(&o.gate, "gate", false, "fail if a figure that noise hardly moves is worse than it was (see report.Figure.Bound)")
	flags.StringVar(&o.out, "out", "bench/out", "folder for the lines of JSON")
	flags.StringVar(&o.pages, "pages", "", "folder for results.md and the plots; empty: none are written")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	for name := range strings.SplitSeq(names, ",") {
		if name = strings.TrimSpace(name); name != "" {
			o.sections = append(o.sections, name)
		}
	}
	if o.rounds < 1 || o.seconds <= 0 || flags.NArg() > 0 {
		return o, errors.New("rounds and seconds are positive, and there are no arguments")
	}
	return o, nil
}

func measure(ctx context.Context, o options, r *report.Report) (err error) {
	servers, err := rig.New(ctx, o.program)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, servers.Close()) }()
	b := &section.Bench{
		Rig: servers, Report: r, Progress: os.Stderr, Rounds: o.rounds,
		Window: time.Duration(o.seconds * float64(time.Second)), Finished: o.finished,
	}
	return b.Run(ctx, o.sections)
}

// machine says what the figures are taken on, and how.
func machine(o options) string {
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		load = []byte("unknown")
	}
	before, _, _ := strings.Cut(string(load), " ")
	sections := cmp.Or(strings.Join(o.sections, ", "), "all")
	return fmt.Sprintf("%d processors, %s %s/%s; %d rounds of %g s; sections: %s; load of the machine before the run: %s.",
		runtime.NumCPU(), runtime.Version(), runtime.GOOS, runtime.GOARCH, o.rounds, o.seconds, sections, before)
}

// tell writes the table, the lines and, where asked for, the page and the plots.
func tell(o options, r *report.Report) error {
	if err := r.WriteTable(os.Stdout); err != nil {
		return err
	}
	fmt.Println()
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	name := filepath.Join(o.out, time.Now().UTC().Format("20060102T150405Z")+".jsonl")
	if err := writeFile(name, func(w io.Writer) error { return r.WriteLines(io.MultiWriter(w, os.Stdout)) }); err != nil {
		return err
	}
	if o.pages == "" {
		return nil
	}
	if err := os.MkdirAll(o.pages, 0o755); err != nil {
		return err
	}
	for _, p := range r.Plots {
		if err := writeFile(filepath.Join(o.pages, p.File), p.WriteSVG); err != nil {
			return err
		}
	}
	return writeFile(filepath.Join(o.pages, "results.md"), r.WritePage)
}

func writeFile(name string, write func(io.Writer) error) error {
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(write(file), file.Close())
}

// judge fails where the run is asked to, and something got worse.
func judge(o options, r *report.Report) error {
	worse := r.Worse()
	if !o.gate || len(worse) == 0 {
		return nil
	}
	names := make([]string, len(worse))
	for i, f := range worse {
		names[i] = fmt.Sprintf("%s: %s (%.3g, not %s)", f.Section, f.Name, f.Median(), f.Bound)
	}
	return fmt.Errorf("worse than before: %s", strings.Join(names, "; "))
}
