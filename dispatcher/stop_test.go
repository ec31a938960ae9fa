package dispatcher_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sekali/sekali/job"
)

func TestFailure_Q8_WorkThatEndsDuringTheDrainIsRecorded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := setup(t, plain(func(context.Context, job.Claimed) (*job.Result, error) {
			pass(3 * time.Second)
			return nil, nil
		}), nil, claimable("a", "t"), claimable("b", "t"))
		took, err := w.end()
		if got := w.endings(); len(got) != 2 || err != nil {
			t.Fatalf("endings %+v, %v", got, err)
		}
		if took != 3*time.Second {
			t.Errorf("stopped after %v, want as soon as the work had ended", took)
		}
	})
}

func TestFailure_BR66_StopIsBoundedAndHandsBack(t *testing.T) {
	t.Parallel()
	for name, ignores := range map[string]bool{"heeds": false, "ignores": true} {
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
				}), nil, claimable("a", "t"))
				took, err := w.end()
				if took > 7*time.Second || err != nil {
					t.Errorf("stopped after %v: %v; grace is 5s", took, err)
				}
				if got := w.back(t); !got.Uncounted || got.Status != job.Pending || got.Attempt != job.AttemptReleased {
					t.Errorf("requeue %+v", got)
				}
				close(forever)
			})
		})
	}
}

// A stop hands jobs back and a cancellation is what somebody wished for: neither
// is a warning in the log.
func TestFailure_BR90_NeitherAShutdownNorACancellationIsAWarning(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := setup(t, plain(waits(same)), nil, claimable("stopped", "t"), claimable("cancelled", "t"))
		w.d.Cancel(job.Lease{ID: "cancelled", Token: 1})
		synctest.Wait()
		if _, err := w.end(); err != nil {
			t.Fatal(err)
		}
		if ends, backs := w.endings(), w.putOffs(); len(ends) != 1 || len(backs) != 1 {
			t.Fatalf("endings %+v, requeues %+v", ends, backs)
		}
		ended := 0
		for _, line := range w.logged.all() {
			if strings.HasPrefix(line, "WARN") || strings.HasPrefix(line, "ERROR") {
				t.Errorf("logged %q", line)
			}
			if strings.HasSuffix(line, "attempt ended") {
				ended++
			}
		}
		if ended != 2 {
			t.Errorf("%d attempts ended in the log, want one line for each", ended)
		}
	})
}
