package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sekali/sekali/dispatcher"
	"github.com/sekali/sekali/job"
)

// sum adds tallies up, by everything that tells them apart.
func (r *reporter) sum() map[job.Tally]job.Tally {
	r.mu.Lock()
	defer r.mu.Unlock()
	sums := map[job.Tally]job.Tally{}
	for _, t := range r.tallies {
		key := job.Tally{Type: t.Type, Outcome: t.Outcome, Bucket: t.Bucket}
		s := sums[key]
		sums[key] = job.Tally{Count: s.Count + t.Count, Total: s.Total + t.Total}
	}
	return sums
}

func TestReport_TellsWhoIsAliveAndWhatWasDone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		took := map[job.ID]time.Duration{"a": 3 * time.Millisecond, "b": 4 * time.Millisecond, "c": 5 * time.Millisecond, "d": 2 * time.Hour, "e": 0}
		work := plain(func(_ context.Context, c job.Claimed) (*job.Result, error) {
			pass(took[c.ID])
			if c.ID == "b" {
				return nil, errors.New("no")
			}
			return nil, nil
		})
		work["another"] = dispatcher.Work{Settings: settings(), Execute: funcExecutor(succeeds)}
		pending := make([]job.Claimed, 0, len(took))
		for id := range took {
			pending = append(pending, with(string(id), func(c *job.Claimed) { c.Timeout = 24 * time.Hour }))
		}
		w := setup(t, work, nil, pending...)
		elapse(10 * time.Second)
		w.reports.mu.Lock()
		at, worker := slices.Clone(w.reports.at), w.reports.workers[0]
		w.reports.mu.Unlock()
		if len(at) < 5 {
			t.Errorf("%d reports in ten seconds", len(at))
		}
		if worker.ID != "w-test" || worker.Slots != 8 || !slices.Equal(worker.Types, []job.Type{"another", "t"}) {
			t.Errorf("worker %+v", worker)
		}
		elapse(2 * time.Hour)
		w.end()
		ms := time.Millisecond
		want := map[job.Tally]job.Tally{
			{Type: "t", Outcome: job.AttemptSucceeded, Bucket: 0}:                     {Count: 1, Total: 0},
			{Type: "t", Outcome: job.AttemptSucceeded, Bucket: 2}:                     {Count: 2, Total: 8 * ms}, // 5 ms is still within its bound
			{Type: "t", Outcome: job.AttemptFailed, Bucket: 2}:                        {Count: 1, Total: 4 * ms},
			{Type: "t", Outcome: job.AttemptSucceeded, Bucket: len(job.TallyBuckets)}: {Count: 1, Total: 2 * time.Hour},
		}
		got := w.reports.sum()
		for key, tally := range want {
			if got[key] != tally {
				t.Errorf("%+v: %+v, want %+v", key, got[key], tally)
			}
		}
		if len(got) != len(want) {
			t.Errorf("tallies %+v", got)
		}
	})
}

// A file that may only be read lets a claim find that there is nothing to claim.
func TestReport_OneThatCannotWriteIsNotHealthy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var refusal atomic.Pointer[error]
		readOnly := fmt.Errorf("attempt to write a readonly database: %w", job.ErrUnavailable)
		refusal.Store(&readOnly)
		w := setup(t, plain(succeeds), func(w *world) {
			w.reports.onReport = func(context.Context, int) error {
				if refused := refusal.Load(); refused != nil {
					return *refused
				}
				return nil
			}
		})
		healthy := func(after time.Duration, want bool) {
			t.Helper()
			elapse(after)
			if err := w.d.Healthy(t.Context()); (err == nil) != want {
				t.Errorf("healthy: %v", err)
			}
		}
		healthy(time.Minute, false)
		refusal.Store(nil)
		healthy(10*time.Second, true)
		refusal.Store(&readOnly)
		healthy(10*time.Second, true) // a short loss
		healthy(20*time.Second, false)
		refusal.Store(new(errors.New("the report itself is at fault")))
		healthy(time.Minute, true)
		w.end()
	})
}

// What could not be reported is reported the next time, once.
func TestReport_IsKeptUntilItWorks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := setup(t, plain(succeeds), func(w *world) {
			w.reports.onReport = func(_ context.Context, n int) error { return upTo(6, errors.New("no database"))(n) }
		}, claimable("a", "t"), claimable("b", "t"))
		elapse(time.Second)
		w.add(claimable("c", "t"))
		elapse(time.Minute)
		key := job.Tally{Type: "t", Outcome: job.AttemptSucceeded}
		if got := w.reports.sum(); got[key].Count != 3 || len(got) != 1 {
			t.Errorf("tallies %+v", got)
		}
		w.end()
		if got := w.reports.sum(); got[key].Count != 3 {
			t.Errorf("reported again at the end: %+v", got)
		}
	})
}

// A process that ends tells what it did until then, and that it is gone.
func TestReport_TheEndOfAProcessIsTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := setup(t, locked(plain(waits(same)), job.LockKey), nil, claimable("a", "t"))
		elapse(100 * time.Millisecond)
		w.end()
		got := w.reports.sum()
		if len(got) != 1 || !slices.Equal(w.reports.left, []string{"w-test"}) {
			t.Errorf("tallies %+v, left %v", got, w.reports.left)
		}
		for key := range got {
			if key.Outcome != job.AttemptReleased {
				t.Errorf("tally %+v", key)
			}
		}
	})
}

// Who only accepts runs nothing, and is no executor.
func TestReport_AProcessThatRunsNothingIsNotListed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := setup(t, plain(succeeds), func(w *world) { w.cfg.Slots = 0 })
		elapse(time.Minute)
		w.end()
		if w.reports.calls != 0 || len(w.reports.left) != 0 {
			t.Errorf("%d reports, left %v", w.reports.calls, w.reports.left)
		}
	})
}

// TestFailure_BR66_ASilentDatabaseDoesNotHoldUpTheStop: the last report waits for
// an answer, and not for long; it counts for nothing.
func TestFailure_BR66_ASilentDatabaseDoesNotHoldUpTheStop(t *testing.T) {
	t.Parallel()
	silent := map[string]func(w *world, until func(context.Context)){
		"events": func(w *world, until func(context.Context)) {
			w.log.onRecord = func(ctx context.Context, _ int) error { until(ctx); return ctx.Err() }
		},
		"report": func(w *world, until func(context.Context)) {
			w.reports.onReport = func(ctx context.Context, n int) error {
				if n > 1 {
					until(ctx)
				}
				return ctx.Err()
			}
		},
	}
	for what, silence := range silent {
		for how, until := range map[string]func(context.Context){
			"gives up with its context": func(ctx context.Context) { <-ctx.Done() },
			"never answers":             func(context.Context) { pass(time.Hour) },
		} {
			t.Run(what+" "+how, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					w := setup(t, locked(plain(waits(same)), job.LockKey), func(w *world) {
						w.cfg.PollInterval = time.Hour // no loop is at the same call
						silence(w, until)
					}, claimable("a", "t"))
					w.d.Cancel(first)
					w.take(first)
					synctest.Wait()
					note(w)
					took, err := w.end()
					if took > 300*time.Millisecond || err != nil {
						t.Errorf("stopped after %v: %v", took, err)
					}
					if n := strings.Count(strings.Join(w.logged.all(), "\n"), "WARN the last report was not stored"); n != 1 {
						t.Errorf("%d lines tell that the last report was not stored", n)
					}
					for _, line := range w.logged.all() {
						if strings.HasPrefix(line, "ERROR") {
							t.Errorf("logged %q", line)
						}
					}
					elapse(2 * time.Hour) // whoever was left behind comes back
				})
			})
		}
	}
}

// note makes the process note an event: it claims a job whose lock is held.
func note(w *world) {
	w.locks.set(func() { w.locks.onAcquire = refused })
	w.add(claimable("noted", "t"))
	w.d.Wake("t")
	synctest.Wait()
}
