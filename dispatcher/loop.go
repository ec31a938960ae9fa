package dispatcher

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"time"

	"github.com/sekali/sekali/internal/telemetry"
)

// A failing loop waits from failFirst, doubled each time, up to failMost: soon
// enough to notice that the database is back, seldom enough not to burden it.
const (
	failFirst = 100 * time.Millisecond
	failMost  = 5 * time.Second
)

// loop is the one way in which this package does something again and again.
type loop struct {
	name string
	// every is the longest pause between two steps; a tenth of it is random,
	// so that replicas that started together do not work in step.
	every time.Duration
	// wake cuts a pause short; nil never does.
	wake <-chan struct{}
	// step does the work once and returns how soon it wants to run again; zero
	// leaves that to every and wake.
	step func(context.Context) (time.Duration, error)
}

// run steps at once and then until ctx ends. Errors and panics of a step are
// reported and end nothing: the next step comes after a growing pause.
func (l loop) run(ctx context.Context, log *slog.Logger, failed func(loop string)) {
	failures := 0
	for ctx.Err() == nil {
		again, err := l.safely(ctx)
		pause := l.pause(again)
		switch {
		case err == nil:
			failures = 0
		case ctx.Err() != nil:
			return
		default:
			failures++
			failed(l.name)
			pause = failurePause(failures)
			log.LogAttrs(ctx, slog.LevelWarn, "dispatcher loop failed",
				slog.String(telemetry.Loop, l.name), telemetry.MillisecondsAttr("retry_in_ms", pause), slog.Any(telemetry.Error, err))
		}
		wake := l.wake
		if err != nil {
			wake = nil // a wake-up does not mend the database
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

func (l loop) safely(ctx context.Context) (again time.Duration, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return l.step(ctx)
}

func (l loop) pause(again time.Duration) time.Duration {
	if again > 0 && again < l.every {
		return again
	}
	return l.every - time.Duration(rand.Float64()*float64(l.every)/10)
}

func failurePause(failures int) time.Duration {
	pause := failFirst << min(failures-1, 10)
	return min(pause, failMost)
}
