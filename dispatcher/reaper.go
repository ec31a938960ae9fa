package dispatcher

import (
	"context"
	"fmt"
	"time"

	"github.com/sekali/sekali/internal/telemetry"
	"github.com/sekali/sekali/job"
)

// Retention is what the reaper needs.
type Retention interface {
	// Reap takes away what has outlived its time, at most limit of each kind.
	Reap(ctx context.Context, limit int) (job.Reaped, error)
}

// The reaper takes small bites: a batch holds its locks, and on SQLite the file,
// for tens of milliseconds, and between two of them everybody else has several
// times as long (BR-77). Nothing depends on how far it has come: what has
// expired is judged by the clock.
const (
	reapEvery = 10 * time.Second
	reapBatch = 1000
	reapPause = 200 * time.Millisecond
)

// reap takes away one batch.
func (d *Dispatcher) reap(ctx context.Context) (time.Duration, error) {
	reaped, err := d.Retention.Reap(ctx, reapBatch)
	for what, n := range map[string]int{
		telemetry.ReapedJobs: reaped.Jobs, telemetry.ReapedResponses: reaped.Responses, telemetry.ReapedTombstones: reaped.Tombstones,
		telemetry.ReapedClaims: reaped.Claims, telemetry.ReapedResults: reaped.Results,
	} {
		d.Metrics.Reaped.WithLabelValues(what).Add(float64(n))
	}
	if err != nil {
		return 0, fmt.Errorf("reap: %w", err)
	}
	if reaped.More {
		return reapPause, nil
	}
	return 0, nil
}
