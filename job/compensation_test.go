package job_test

import (
	"testing"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

func TestCompensation(t *testing.T) {
	t.Parallel()
	d := newDesk()
	tests := []struct {
		name string
		job  func(*job.Job)
		key  idempotency.Key
	}{
		{"a failed job", func(*job.Job) {}, "compensate:0198f000-0000-7000-8000-000000000001"},
		{"one that an operator had brought back", func(j *job.Job) { j.Generation = 3 }, "compensate:0198f000-0000-7000-8000-000000000001:3"},
		{"nothing was tried", func(j *job.Job) { j.Attempts = 0 }, ""},
		{"nobody knows the outcome", func(j *job.Job) { j.Outcome = job.OutcomeUnknown }, ""},
		{"it was cancelled", func(j *job.Job) { j.Status = job.Cancelled }, ""},
		{"it succeeded", func(j *job.Job) { j.Status = job.Succeeded }, ""},
		{"its type names none", func(j *job.Job) { j.Type = "undo" }, ""},
	}
	for _, tt := range tests {
		j := oneJob(job.Failed)
		tt.job(&j)
		s := d.jobs().Compensation(j)
		if (s != nil) != (tt.key != "") {
			t.Errorf("%s: %+v", tt.name, s)
			continue
		}
		if s == nil {
			continue
		}
		if s.Request.Key != tt.key || s.Request.Tenant != "acme" || s.Job.Type != "undo" || s.Job.Status != job.Pending || s.Job.Key != tt.key {
			t.Errorf("%s: %+v", tt.name, s)
		}
		if string(s.Job.Payload) != `{"of":"k"}` || s.Job.BusinessKey != "" || s.Job.MaxAttempts != 3 {
			t.Errorf("%s: %+v", tt.name, s.Job)
		}
	}
	first, second := d.jobs().Compensation(oneJob(job.Failed)), d.jobs().Compensation(oneJob(job.Failed))
	if first.Request != second.Request {
		t.Error("two renderings of one compensation are two requests")
	}
}
