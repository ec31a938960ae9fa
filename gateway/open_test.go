package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sekali/sekali/gateway"
	"github.com/sekali/sekali/job"
)

// A database that is not there yet is waited for. One that has answered, and goes on
// to refuse what the start needs, ends it after a while, so that somebody is told.
func TestFailure_BR79_TheStartWaitsForAnAnswerAndNotForEver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		refused := fmt.Errorf("read only: %w", job.ErrUnavailable)
		began, tries := time.Now(), 0
		ask := func(context.Context) error { tries++; return refused }
		if err := gateway.Insist(t.Context(), ask); !errors.Is(err, refused) || time.Since(began) < 30*time.Second || time.Since(began) > 90*time.Second {
			t.Errorf("%v after %v and %d tries", err, time.Since(began), tries)
		}

		tries = 0
		ask = func(context.Context) error {
			if tries++; tries > 1000 {
				return nil
			}
			return refused
		}
		if err := gateway.Await(t.Context(), ask); err != nil || tries != 1001 {
			t.Errorf("%v after %d tries", err, tries)
		}

		ctx, stop := context.WithCancelCause(t.Context())
		told := errors.New("told to end")
		stop(told)
		if err := gateway.Insist(ctx, ask); err != nil { // it answers
			t.Error(err)
		}
		tries = 0
		if err := gateway.Insist(ctx, ask); !errors.Is(err, told) || tries != 1 {
			t.Errorf("%v after %d tries", err, tries)
		}
		if err := gateway.Insist(t.Context(), func(context.Context) error { return told }); !errors.Is(err, told) {
			t.Error(err)
		}
	})
}
