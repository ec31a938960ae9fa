package job_test

import (
	"testing"
	"time"

	"github.com/sekali/sekali/job"
)

// TestRate_Steps: whatever the rate, the steps never let more start in any stretch of
// its length, are no shorter than a claim can follow, and lose little.
func TestRate_Steps(t *testing.T) {
	t.Parallel()
	for _, r := range []job.Rate{
		{Count: 1, Per: time.Second},
		{Count: 3, Per: time.Second},
		{Count: 20, Per: time.Second},
		{Count: 49, Per: time.Second},
		{Count: 50, Per: time.Second},
		{Count: 51, Per: time.Second},
		{Count: 99, Per: time.Second},
		{Count: 1000, Per: time.Second},
		{Count: 1_000_000_000, Per: time.Second},
		{Count: 1, Per: time.Minute},
		{Count: 600, Per: time.Minute},
		{Count: 5999, Per: time.Minute},
		{Count: 1, Per: time.Hour},
		{Count: 1000, Per: time.Hour},
		{Count: 1_000_000, Per: time.Hour},
	} {
		batch, every := r.Steps()
		if batch < 1 || every < 20*time.Millisecond {
			t.Errorf("%v: %d every %s", r, batch, every)
		}
		// Steps at 0, every, 2*every … lie in a stretch that ends before it has its length.
		steps := int((r.Per + every - 1) / every)
		if most := steps * batch; most > r.Count || most < r.Count*9/10 {
			t.Errorf("%v: %d every %s lets %d start", r, batch, every, most)
		}
	}
	if batch, every := (job.Rate{}).Steps(); batch != 0 || every != 0 || !(job.Limit{}).None() {
		t.Error("the zero rate has steps")
	}
}

func TestRate_String(t *testing.T) {
	t.Parallel()
	for want, r := range map[string]job.Rate{
		"50/s": {Count: 50, Per: time.Second}, "600/m": {Count: 600, Per: time.Minute},
		"1000/h": {Count: 1000, Per: time.Hour}, "2 in 10s": {Count: 2, Per: 10 * time.Second},
	} {
		if got := r.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
