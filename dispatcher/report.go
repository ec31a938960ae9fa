package dispatcher

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/sekali/sekali/internal/telemetry"
	"github.com/sekali/sekali/job"
)

// Reporter is what the dispatcher needs of job.Executors.
type Reporter interface {
	Report(ctx context.Context, w job.Worker, done []job.Tally) error
	Leave(ctx context.Context, workerID string) error
}

const (
	// reportEvery is how often a process says that it is alive, and what it has
	// done since: soon enough for people who watch.
	reportEvery = 2 * time.Second
	// leaveAfter bounds what the end of a process waits for to say so.
	leaveAfter = 300 * time.Millisecond
)

// tallies counts attempts until they are reported.
type tallies struct {
	mu     sync.Mutex
	counts map[tallyKey]*job.Tally
}

type tallyKey struct {
	t       job.Type
	outcome job.Outcome
	bucket  int
}

func newTallies() *tallies { return &tallies{counts: map[tallyKey]*job.Tally{}} }

func (t *tallies) add(of job.Type, outcome job.Outcome, took time.Duration) {
	bucket, _ := slices.BinarySearch(job.TallyBuckets, took)
	t.merge(job.Tally{Type: of, Outcome: outcome, Bucket: bucket, Count: 1, Total: took})
}

func (t *tallies) merge(tally job.Tally) {
	t.mu.Lock()
	defer t.mu.Unlock()
	key := tallyKey{tally.Type, tally.Outcome, tally.Bucket}
	known := t.counts[key]
	if known == nil {
		known = &job.Tally{Type: tally.Type, Outcome: tally.Outcome, Bucket: tally.Bucket}
		t.counts[key] = known
	}
	known.Count += tally.Count
	known.Total += tally.Total
}

func (t *tallies) take() []job.Tally {
	t.mu.Lock()
	defer t.mu.Unlock()
	taken := make([]job.Tally, 0, len(t.counts))
	for _, tally := range t.counts {
		taken = append(taken, *tally)
	}
	t.counts = map[tallyKey]*job.Tally{}
	slices.SortFunc(taken, func(a, b job.Tally) int {
		return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.Outcome, b.Outcome), cmp.Compare(a.Bucket, b.Bucket))
	})
	return taken
}

// reportSelf tells that this process is alive. What could not be reported is
// reported the next time; if the answer was lost, it may count twice.
func (d *Dispatcher) reportSelf(ctx context.Context) (time.Duration, error) {
	if d.Executors == nil {
		return 0, nil
	}
	done := d.tallies.take()
	self := job.Worker{ID: d.WorkerID, Slots: d.Slots, Types: d.types}
	if d.Slots == 0 {
		self.Types = nil // it runs none of them
	}
	if err := d.Executors.Report(ctx, self, done); err != nil {
		for _, tally := range done {
			d.tallies.merge(tally)
		}
		if !errors.Is(err, job.ErrUnavailable) { // it answers: something is wrong with the report
			d.reported.Store(new(time.Now()))
		}
		return 0, wrap("report", err)
	}
	d.reported.Store(new(time.Now()))
	return 0, nil
}

// leave stores what is left to tell, and that this process ends. A database that
// does not answer must not hold up the end.
func (d *Dispatcher) leave() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(d.base), leaveAfter)
	defer cancel()
	left := make(chan struct{})
	var err error
	go func() {
		defer close(left)
		err = errors.Join(d.recordEvents(ctx), d.recordRepeats(ctx, true))
		if d.tends() && d.Executors != nil {
			_, failed := d.reportSelf(ctx)
			err = errors.Join(err, failed, d.Executors.Leave(ctx, d.WorkerID))
		}
	}()
	failed := context.DeadlineExceeded // whoever is left behind has nobody to tell
	if waitFor(left, leaveAfter) {
		failed = err
	}
	if failed != nil {
		d.Log.LogAttrs(ctx, slog.LevelWarn, "the last report was not stored", slog.Any(telemetry.Error, failed))
	}
}
