// Package section measures: each section is some figures that are reached in the
// same way. Its sides take turns on new tables, round by round, and a figure is
// the median of what the rounds yield, mostly of the ratio of two sides.
package section

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/sekali/sekali/bench/internal/report"
	"github.com/sekali/sekali/bench/internal/rig"
)

// Bench is one run.
type Bench struct {
	Rig      *rig.Rig
	Report   *report.Report
	Progress io.Writer
	Rounds   int
	Window   time.Duration // in which load is measured
	Finished int           // finished jobs of a long history

	windows int // so far: each has keys of its own
}

// warm passes before a window: statements are prepared and connections opened
// in it, and the processors have left their sleep.
const warm = 400 * time.Millisecond

// sections in the order in which they run.
var sections = []struct {
	name string
	run  func(ctx context.Context, b *Bench) error
	// onRequest sections take minutes and run only when they are named.
	onRequest bool
}{
	{name: "accept", run: accept},
	{name: "replay", run: replay},
	{name: "done", run: done},
	{name: "effect", run: effect},
	{name: "queue", run: queue},
	{name: "pickup", run: pickUp},
	{name: "sqlite", run: sqlite},
	{name: "memory", run: memory},
	{name: "flatness", run: flatness},
	{name: "growth", run: growth, onRequest: true},
}

// Names returns the names of all sections.
func Names() []string {
	names := make([]string, len(sections))
	for i, s := range sections {
		names[i] = s.name
	}
	return names
}

// Run runs the named sections, or all that are not on request.
func (b *Bench) Run(ctx context.Context, names []string) error {
	for _, name := range names {
		if !slices.Contains(Names(), name) {
			return fmt.Errorf("section: there is no %q; there are %s", name, strings.Join(Names(), ", "))
		}
	}
	for _, s := range sections {
		if len(names) == 0 && s.onRequest || len(names) > 0 && !slices.Contains(names, s.name) {
			continue
		}
		began := time.Now()
		if err := s.run(ctx, b); err != nil {
			return fmt.Errorf("section %s: %w", s.name, err)
		}
		b.say("%s: done in %.0f s", s.name, time.Since(began).Seconds())
	}
	return nil
}

func (b *Bench) say(format string, args ...any) { fmt.Fprintf(b.Progress, format+"\n", args...) }

// prefix returns what the keys of the next window begin with.
func (b *Bench) prefix() string {
	b.windows++
	return fmt.Sprintf("w%05d", b.windows)
}

// ending collects what must be ended, in the order of beginning.
type ending []func() error

func (e *ending) add(f func() error) { *e = append(*e, f) }

// end ends everything, the last begun first, and joins the failures to err.
func (e *ending) end(err *error) {
	for _, f := range slices.Backward(*e) {
		*err = errors.Join(*err, f())
	}
}

// patience is how long a number that is waited for may stand still.
const patience = time.Minute

// await polls until the number of the query is reached.
func await(ctx context.Context, d *rig.Database, query string, want float64) error {
	ticker := time.NewTicker(100 * time.Millisecond) // each poll costs the database a count
	defer ticker.Stop()
	last, moved := 0.0, time.Now()
	for {
		got, err := d.Number(ctx, query)
		if err != nil {
			return err
		}
		if got >= want {
			return nil
		}
		if got != last {
			last, moved = got, time.Now()
		}
		if time.Since(moved) > patience {
			return fmt.Errorf("%s: stands still at %.0f of %.0f", d.Name, got, want)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C:
		}
	}
}

// maxFill is given to load that ends by itself: when its source is exhausted.
const maxFill = 5 * time.Minute
