package main

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"os"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// goMemoryLimit is Go's own variable, which the runtime has read already.
const goMemoryLimit = "GOMEMLIMIT"

// collectorPercent of the container's memory is for what Go's runtime counts. The
// rest is for what it does not: stacks of the kernel, buffers of sockets, pages of
// the program and of SQLite's file.
const collectorPercent = 90

// limitMemory tells Go's garbage collector what memory the container has, as Go
// does by itself for processors: near the limit it collects more often, instead of
// being ended by the kernel. GOMEMLIMIT wins. What holds is logged.
func limitMemory(ctx context.Context, log *slog.Logger, contained func() (uint64, error)) {
	setBy := goMemoryLimit
	if os.Getenv(goMemoryLimit) == "" {
		memory, err := contained()
		if err != nil {
			if !isUnlimited(err) {
				log.WarnContext(ctx, "the container's memory limit cannot be read; set GOMEMLIMIT", slog.Any("error", err))
			}
			return
		}
		debug.SetMemoryLimit(int64(min(memory, math.MaxInt64) / 100 * collectorPercent))
		setBy = "container"
	}
	if debug.SetMemoryLimit(-1) == math.MaxInt64 {
		return // GOMEMLIMIT=off
	}
	log.InfoContext(ctx, "memory is limited", slog.Int64("memory_limit_bytes", debug.SetMemoryLimit(-1)), slog.String("set_by", setBy))
}

// Go's variable for how much the heap may grow between two collections, and ours.
const (
	goCollectPercent = "GOGC"
	collectPercent   = 200
)

// collectLess lets the heap grow to three times of what is in use, Go's default
// being twice. What this program has in use is small, and what it makes for each
// request is gone a moment later (docs/performance.md). GOGC wins.
func collectLess() {
	if os.Getenv(goCollectPercent) == "" {
		debug.SetGCPercent(collectPercent)
	}
}

// isUnlimited reports whether there is no limit to know of.
func isUnlimited(err error) bool {
	return errors.Is(err, memlimit.ErrNoLimit) || errors.Is(err, memlimit.ErrNoCgroup) || errors.Is(err, memlimit.ErrCgroupsNotSupported)
}
