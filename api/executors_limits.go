package api

import (
	"time"

	"github.com/sekali/sekali/job"
)

// rateRecent is for how long a rate that has let a job start is what the others
// wait for: longer than an overview is old, and than a step of most rates.
const rateRecent = 2 * time.Second

// limits tells the limits of the type, and which of them keeps its jobs.
func (v ExecutorsView) limits(t job.Type, of *job.TypeOverview, e Executor) *Limits {
	limit := v.Limits[t]
	if limit.None() {
		return nil
	}
	l := &Limits{WaitsFor: optional(v.waitsFor(limit, of, e))}
	if limit.Concurrency > 0 {
		l.Concurrency = &limit.Concurrency
	}
	if !limit.Rate.None() {
		l.Rate = optional(limit.Rate.String())
		if of.NextAt.After(v.Now) {
			l.NextAt = optionalTime(of.NextAt)
		}
	}
	return l
}

// waitsFor is which limit keeps the type's jobs; "" if none does. A rate of several
// a second moves on all the time: where it has just done so and there are slots, it is
// what they wait for.
func (v ExecutorsView) waitsFor(limit job.Limit, of *job.TypeOverview, e Executor) string {
	slots := e.Free > 0 || e.Executor != nil && *e.Executor == KindRemote
	switch {
	case of.Waiting.Pending == 0:
		return ""
	case limit.Concurrency > 0 && of.Busy >= limit.Concurrency:
		return WaitsForConcurrency
	case limit.Rate.None() || of.NextAt.IsZero():
		return ""
	case of.NextAt.After(v.Now) || slots && v.Now.Sub(of.NextAt) < rateRecent:
		return WaitsForRate
	}
	return ""
}

// waitsFor reports whether the limit keeps the type's jobs.
func (e Executor) waitsFor(limit string) bool {
	return e.Limits != nil && e.Limits.WaitsFor != nil && *e.Limits.WaitsFor == limit
}
