package job_test

import (
	"math"
	"testing"
	"time"

	"github.com/sekali/sekali/job"
)

func TestFailure_BR67_BackoffNeverOverflows(t *testing.T) {
	t.Parallel()
	b := job.Backoff{Base: 200 * time.Millisecond, Cap: 2 * time.Second}
	for _, attempt := range []int{40, 63, 64, 65, 100, 1000, math.MaxInt32} {
		for _, random := range []float64{0, 0.5, 0.999999} {
			got := b.Delay(attempt, func() float64 { return random })
			if got < time.Second || got > 2*time.Second {
				t.Errorf("attempt %d, random %v: %v, want between half of the cap and the cap", attempt, random, got)
			}
		}
	}
	huge := job.Backoff{Base: math.MaxInt64, Cap: math.MaxInt64}
	if got := huge.Delay(3, func() float64 { return 0.999 }); got < math.MaxInt64/2 {
		t.Errorf("a huge base gave %v", got)
	}
}

func TestBackoff_DoublesUpToTheCap(t *testing.T) {
	t.Parallel()
	b := job.Backoff{Base: time.Second, Cap: 10 * time.Second}
	for attempt, most := range map[int]time.Duration{1: 1e9, 2: 2e9, 3: 4e9, 4: 8e9, 5: 10e9, 6: 10e9} {
		if got := b.Delay(attempt, func() float64 { return 0 }); got != most/2 {
			t.Errorf("attempt %d: least delay %v, want %v", attempt, got, most/2)
		}
		if got := b.Delay(attempt, func() float64 { return math.Nextafter(1, 0) }); got > most || got < most-time.Microsecond {
			t.Errorf("attempt %d: most delay %v, want %v", attempt, got, most)
		}
	}
}

func TestSettings_Fail(t *testing.T) {
	t.Parallel()
	s := job.Settings{Backoff: job.Backoff{Base: time.Second, Cap: time.Minute}, Retention: time.Hour}
	lease := job.Lease{ID: "0198", Token: 7}
	claimed := func(attempt int) job.Claimed {
		return job.Claimed{Lease: lease, Job: job.Job{Attempts: attempt, MaxAttempts: 3}}
	}
	tests := []struct {
		name    string
		attempt int
		err     job.AttemptError
		ends    bool
		atLeast time.Duration
		atMost  time.Duration
	}{
		{"another attempt is left", 1, job.AttemptError{}, false, time.Second / 2, time.Second},
		{"the last attempt", 3, job.AttemptError{}, true, 0, 0},
		{"more attempts than allowed", 4, job.AttemptError{}, true, 0, 0},
		{"a permanent error", 1, job.AttemptError{Permanent: true}, true, 0, 0},
		{"BR68 the other side's wish is kept", 1, job.AttemptError{After: 3 * time.Second}, false, 3 * time.Second, 3 * time.Second},
		{"BR68 but not beyond the cap", 1, job.AttemptError{After: 999999 * time.Second}, false, time.Minute, time.Minute},
		{"BR68 and never shortens the backoff", 1, job.AttemptError{After: time.Millisecond}, false, time.Second / 2, time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := s.Fail(claimed(tt.attempt), job.AttemptFailed, &tt.err)
			ending, requeue := d.Ending, d.Requeue
			if (ending != nil) != tt.ends || (requeue != nil) == tt.ends {
				t.Fatalf("ending %v, requeue %v", ending, requeue)
			}
			if tt.ends {
				if ending.Status != job.Failed || ending.Lease != lease || ending.Keep != time.Hour || ending.Failure.Attempt != tt.attempt {
					t.Fatalf("ending %+v", ending)
				}
				return
			}
			if requeue.In < tt.atLeast || requeue.In > tt.atMost || requeue.Status != job.Retrying || requeue.Uncounted {
				t.Fatalf("requeue %+v, want a wait of %v to %v", requeue, tt.atLeast, tt.atMost)
			}
		})
	}
}
