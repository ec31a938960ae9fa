package api_test

import (
	"testing"
	"time"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/job"
)

// TestExecutors_Limits: a list of executors says which limit the jobs of a type wait
// for, and only where they do.
func TestExecutors_Limits(t *testing.T) {
	t.Parallel()
	five, twenty := job.Limit{Concurrency: 5}, job.Limit{Rate: job.Rate{Count: 20, Per: time.Second}}
	both := job.Limit{Concurrency: 5, Rate: twenty.Rate}
	idle := []job.Worker{{ID: "a", Slots: 8, Types: []job.Type{"pay"}}}
	tests := []struct {
		name     string
		limit    job.Limit
		of       job.TypeOverview
		waitsFor string
		next     bool
		why      string
	}{
		{"the limit is reached", five, job.TypeOverview{Busy: 5, Waiting: job.Waiting{Pending: 95}}, "concurrency", false, "95 because of the limit of 5 at once"},
		{"and nobody waits", five, job.TypeOverview{Busy: 5}, "", false, ""},
		{"there is room", five, job.TypeOverview{Busy: 4, Waiting: job.Waiting{Pending: 1}}, "", false, "1 to be claimed, which is a matter of moments"},
		{"the next step is ahead", twenty, job.TypeOverview{NextAt: now.Add(time.Minute), Waiting: job.Waiting{Pending: 3}}, "rate", true, "3 because of the limit of 20/s"},
		{"steps pass all the time", twenty, job.TypeOverview{NextAt: now.Add(-time.Second), Waiting: job.Waiting{Pending: 3}}, "rate", false, "3 because of the limit of 20/s"},
		{"the last step was long ago", twenty, job.TypeOverview{NextAt: now.Add(-time.Minute), Waiting: job.Waiting{Pending: 3}}, "", false, "3 to be claimed, which is a matter of moments"},
		{"nothing has started yet", twenty, job.TypeOverview{Waiting: job.Waiting{Pending: 3}}, "", false, "3 to be claimed, which is a matter of moments"},
		{"both", both, job.TypeOverview{Busy: 6, NextAt: now.Add(time.Second), Waiting: job.Waiting{Pending: 3}}, "concurrency", true, "3 because of the limit of 5 at once"},
		{"paused", both, job.TypeOverview{Busy: 5, PausedAt: now, Waiting: job.Waiting{Pending: 3}}, "concurrency", false, "3 because the type is paused"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			v := api.ExecutorsView{Kinds: map[job.Type]string{"pay": "http"}, Limits: map[job.Type]job.Limit{"pay": tt.limit}, Now: now}
			e, _ := v.One(job.Overview{Types: map[job.Type]*job.TypeOverview{"pay": &tt.of}, Workers: idle}, "pay")
			waitsFor, why := "", ""
			if e.Limits == nil {
				t.Fatal("no limits")
			}
			if e.Limits.WaitsFor != nil {
				waitsFor = *e.Limits.WaitsFor
			}
			if e.Waiting.Why != nil {
				why = *e.Waiting.Why
			}
			if waitsFor != tt.waitsFor || why != tt.why || (e.Limits.NextAt != nil) != tt.next {
				t.Errorf("waits for %q, next at %v, why %q", waitsFor, e.Limits.NextAt, why)
			}
			if (e.Limits.Concurrency != nil) != (tt.limit.Concurrency > 0) || (e.Limits.Rate != nil) == tt.limit.Rate.None() {
				t.Errorf("%+v", e.Limits)
			}
		})
	}
	if e, _ := (api.ExecutorsView{Kinds: map[job.Type]string{"pay": "http"}}).One(job.Overview{}, "pay"); e.Limits != nil {
		t.Errorf("limits of a type without: %+v", e.Limits)
	}
}
