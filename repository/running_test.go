package repository_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/sekali/sekali/repository"
)

// Who stood still until both the first caller had ended and the patience was over is
// told of the end, each time, and then has no patience left for the next one.
func TestRunning_AnEndCountsAfterAStandstill(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ended, timer := make(chan struct{}), time.NewTimer(time.Second)
		close(ended)
		for range 64 {
			<-time.After(2 * time.Second)
			if over, err := repository.EndedBefore(t.Context(), ended, timer); !over || err != nil {
				t.Fatalf("the end was not seen: %v", err)
			}
		}
		if over, err := repository.EndedBefore(t.Context(), make(chan struct{}), timer); over || err != nil {
			t.Errorf("the next one ended: %v, %v", over, err)
		}
	})
}
