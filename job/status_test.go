package job_test

import (
	"testing"

	"github.com/sekali/sekali/job"
)

func TestStatus_Transitions(t *testing.T) {
	t.Parallel()
	for _, from := range job.Statuses() {
		for _, to := range job.Statuses() {
			can := job.CanMove(from, to)
			switch {
			case from == to && can:
				t.Errorf("%s leads to itself", from)
			case from == job.Succeeded && can:
				t.Errorf("succeeded leads to %s: success is for ever", to)
			case to == job.Processing && can != (from == job.Pending):
				t.Errorf("%s to processing: %v; only a pending job can be claimed", from, can)
			case to == job.Succeeded && can != (from == job.Processing || from == job.Failed):
				t.Errorf("%s to succeeded: %v; only an attempt can succeed, or an operator who knows better than failed", from, can)
			case from.Finished() && to.Finished() && can && (from != job.Failed || to != job.Succeeded):
				t.Errorf("%s to %s: a job ends once", from, to)
			case from == job.Cancelled && can && to != job.Pending:
				t.Errorf("cancelled leads to %s: only a retry leads on", to)
			}
		}
		if !from.Valid() {
			t.Errorf("%s is not valid", from)
		}
	}
	if job.Status("queued").Valid() {
		t.Error("queued is valid")
	}
}
