package dispatcher_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sekali/sekali/dispatcher"
	"github.com/sekali/sekali/executor"
	"github.com/sekali/sekali/job"
)

func TestFailure_BR65_PanicsAreFailedAttempts(t *testing.T) {
	t.Parallel()
	broken := map[string]funcExecutor{
		"a string": func(context.Context, job.Claimed) (*job.Result, error) { panic("secret") },
		"an error": func(context.Context, job.Claimed) (*job.Result, error) { panic(errors.New("secret")) },
		"a nil map": func(context.Context, job.Claimed) (*job.Result, error) {
			emptyMap()["a"] = 1
			return nil, nil
		},
		"Goexit": func(context.Context, job.Claimed) (*job.Result, error) { runtime.Goexit(); return nil, nil },
		"a nil pointer": func(_ context.Context, _ job.Claimed) (*job.Result, error) {
			var r *job.Result
			return nil, errors.New(r.MediaType)
		},
	}
	for name, e := range broken {
		inTransaction := func(ctx context.Context, c job.Claimed) (executor.Done, error) {
			r, err := e(ctx, c)
			return executor.Done{Result: r}, err
		}
		for where, work := range map[string]map[job.Type]dispatcher.Work{"": plain(e), " in a transaction": transactional(inTransaction)} {
			t.Run(name+where, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					w := setup(t, locked(work, job.LockKey), nil, claimable("a", "t"))
					got := w.back(t)
					if got.Status != job.Retrying || got.Failure.Code != "panic" || got.Attempt != job.AttemptFailed || got.Uncounted {
						t.Fatalf("requeue %+v", got)
					}
					if d := got.Failure.Detail; d != "the executor panicked" && d != "the executor ended its goroutine" {
						t.Errorf("public detail %q", d)
					}
					if n := w.d.Running(); n != 0 {
						t.Errorf("%d slots still taken", n)
					}
					if lines := w.diary.all(); lines[len(lines)-1] != "release" {
						t.Errorf("the lock was not given back: %v", lines)
					}
					w.end()
				})
			})
		}
	}
}

func TestFailure_BR63_TimeoutIsRecordedAndBR80_AnExecutorThatIgnoresItIsLeftBehind(t *testing.T) {
	t.Parallel()
	for name, ignores := range map[string]bool{"heeds its context": false, "ignores its context": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				forever := make(chan struct{})
				w := setup(t, plain(func(ctx context.Context, _ job.Claimed) (*job.Result, error) {
					if !ignores {
						<-ctx.Done()
						return nil, ctx.Err()
					}
					<-forever
					return nil, nil
				}), nil, with("a", func(c *job.Claimed) { c.Timeout = time.Second }))
				elapse(2 * time.Second)
				got := w.back(t)
				want := job.AttemptFailed
				if ignores { // and may do anything yet
					want = job.AttemptLost
				}
				if got.Failure.Code != "timeout" || got.Attempt != want || got.Uncounted {
					t.Fatalf("two seconds after the start: %+v", got)
				}
				if n := testutil.ToFloat64(w.metrics.AbandonedAttempts); (n == 1) != ignores {
					t.Errorf("%v attempts left behind", n)
				}
				close(forever)
				w.end()
			})
		})
	}
}

// TestFailure_BR68_WhatAnExecutorAsksFor: an executor may end its job, ask for a
// later attempt, or put the job off, which does not count.
func TestFailure_BR68_WhatAnExecutorAsksFor(t *testing.T) {
	t.Parallel()
	cause := errors.New("no")
	for name, tt := range map[string]struct {
		err       error
		attempts  int // before this one
		from, to  time.Duration
		attempt   job.Outcome
		uncounted bool
		code      string // of the failure; "": none
	}{
		"any error":                 {cause, 0, time.Second / 2, time.Second, job.AttemptFailed, false, "error"},
		"later":                     {job.RetryAfter(cause, 30*time.Second), 0, 30 * time.Second, 30 * time.Second, job.AttemptFailed, false, "error"},
		"later than the cap":        {job.RetryAfter(cause, 1000*time.Hour), 0, time.Minute, time.Minute, job.AttemptFailed, false, "error"},
		"sooner than the backoff":   {job.RetryAfter(cause, time.Millisecond), 1, time.Second, 2 * time.Second, job.AttemptFailed, false, "error"},
		"put off":                   {job.Snooze(3 * time.Hour), 0, 3 * time.Hour, 3 * time.Hour, job.AttemptReleased, true, ""},
		"put off, the last attempt": {job.Snooze(time.Hour), 2, time.Hour, time.Hour, job.AttemptReleased, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := setup(t, plain(ends(tt.err)), nil, with("a", func(c *job.Claimed) { c.Attempts = tt.attempts }))
				r := w.back(t)
				if r.Status != job.Retrying || r.Attempt != tt.attempt || r.Uncounted != tt.uncounted || r.In < tt.from || r.In > tt.to {
					t.Errorf("requeue %+v", r)
				}
				if (r.Failure == nil) != (tt.code == "") || r.Failure != nil && r.Failure.Code != tt.code {
					t.Errorf("failure %+v, want %q", r.Failure, tt.code)
				}
				w.end()
			})
		})
	}
}

func TestDispatcher_FailsAtTheLastAttemptOrWhenNoRetryMendsIt(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		err      error
		attempts int // before this one
	}{
		"permanent":           {job.Permanent(errors.New("never")), 0},
		"the last attempt":    {errors.New("no"), 2},
		"last, to be retried": {job.RetryAfter(errors.New("no"), time.Hour), 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := setup(t, plain(ends(tt.err)), nil, with("a", func(c *job.Claimed) { c.Attempts = tt.attempts }))
				e := w.only(t)
				if e.Status != job.Failed || e.Attempt != job.AttemptFailed || e.Outcome != "" || e.Failure == nil || e.Failure.Attempt != tt.attempts+1 {
					t.Errorf("ending %+v", e)
				}
				w.end()
			})
		})
	}
}

// A job that puts itself off again and again uses up none of its attempts.
func TestDispatcher_ASnoozingJobKeepsItsAttempts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		runs := 0
		w := setup(t, plain(func(_ context.Context, c job.Claimed) (*job.Result, error) {
			runs++
			if c.Attempts != 1 {
				t.Errorf("run %d is attempt %d", runs, c.Attempts)
			}
			if runs <= 10 {
				return nil, job.Snooze(time.Minute)
			}
			return nil, nil
		}), func(w *world) { w.comeBack = true }, claimable("a", "t"))
		elapse(11 * time.Minute)
		if ends := w.endings(); len(ends) != 1 || ends[0].Status != job.Succeeded || runs != 11 {
			t.Errorf("endings %+v after %d runs", ends, runs)
		}
		w.end()
	})
}

func emptyMap() map[string]int { return nil }
