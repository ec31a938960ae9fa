package repositorytest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

var prioritising = cases{
	"a step is ten seconds of head start":             testHeadStart,
	"an old job is not starved by a stream of others": testNothingStarves,
}

// submitted is a submission as it would have been made at a time.
func submitted(w World, key string, at time.Time, priority int) job.Submission {
	return submission(w, key, `{}`, func(s *job.Submission) { s.Job.RunAt, s.Job.Priority = at, priority })
}

// claimKeys claims at most n jobs and tells their keys.
func claimKeys(t *testing.T, w World, n int) []idempotency.Key {
	t.Helper()
	claimed, err := w.Repo.Claim(t.Context(), job.Claiming{Type: kind, Max: n, Worker: "w", Lease: lease})
	if err != nil {
		t.Fatalf("claim: %v", err)
	}
	keys := make([]idempotency.Key, len(claimed))
	for i, c := range claimed {
		keys[i] = c.Key
	}
	slices.Sort(keys)
	return keys
}

func testHeadStart(t *testing.T, w World) {
	start := w.Repo.Clock().Now().Add(-time.Hour)
	for key, s := range map[string]struct {
		after    time.Duration
		priority int
	}{
		"1": {15 * time.Second, -2}, "2": {6 * time.Second, -1}, "3": {0, 0}, "4": {time.Second, 0}, "5": {11 * time.Second, -1}, "6": {0, 1}, "7": {0, 100}, "8": {1990 * time.Second, -98},
	} {
		accept(t, w, submitted(w, key, start.Add(s.after), s.priority))
	}
	// 1 runs at -5, 2 at -4, 3 at 0, 4 and 5 at 1, 6 at 10, 7 at 1000, 8 at 1010 seconds.
	for _, want := range [][]idempotency.Key{{"1"}, {"2"}, {"3"}, {"4", "5"}, {"6"}, {"7"}, {"8"}} {
		if got := claimKeys(t, w, len(want)); !slices.Equal(got, want) {
			t.Fatalf("claimed %v, want %v", got, want)
		}
	}
}

// Simulated time: more urgent jobs come all the time, as many as can be claimed, and
// one more waits. The old one, which is as unimportant as can be, goes after 2,000 seconds.
func testNothingStarves(t *testing.T, w World) {
	const step, perStep = 50 * time.Second, 2
	start := w.Repo.Clock().Now().Add(-time.Hour)
	accept(t, w, submitted(w, "old", start, 100))
	accept(t, w, submitted(w, "backlog", start, -100))
	for since := time.Duration(0); since <= 2*time.Hour; since += step {
		for i := range perStep {
			accept(t, w, submitted(w, fmt.Sprintf("new %v %d", since, i), start.Add(since), -100))
		}
		if !slices.Contains(claimKeys(t, w, perStep), "old") {
			continue
		}
		if since < 2000*time.Second || since > 2000*time.Second+2*step {
			t.Errorf("the old job went after %v", since)
		}
		return
	}
	t.Error("the old job was starved")
}
