package api

import (
	"context"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

// Report is what a request turned out to be about, for those who log and count
// it after it was answered. Whoever learns something writes it down; it is
// used by one request, and read when its handler has returned.
type Report struct {
	Request     idempotency.Request // tenant, key and fingerprint, as far as known
	JobID       job.ID              // of the job of the answer, if there is one
	BusinessKey string              // of that job
	Type        job.Type            // the type that a submission named, known or not
	Code        string              // of the problem that was answered
	Instance    string              // of the problem
	Err         error               // the whole error, for the log alone
	Items       []ItemReport        // of a batch
}

// Names writes down which job the answer is about.
func (r *Report) Names(j *job.Job) { r.JobID, r.BusinessKey = j.ID, j.BusinessKey }

// ItemReport is what one item of a batch turned out to be about.
type ItemReport struct {
	Type      job.Type // as in Report
	Code      string   // as in Report
	Replayed  bool
	Duplicate bool // bound to the holder of its business key
}

type reportContextKey struct{}

// WithReport returns ctx carrying a report, and that report. A ctx that has one
// already keeps it.
func WithReport(ctx context.Context) (context.Context, *Report) {
	if report, ok := ctx.Value(reportContextKey{}).(*Report); ok {
		return ctx, report
	}
	report := &Report{}
	return context.WithValue(ctx, reportContextKey{}, report), report
}

// ReportOf returns the report of ctx. Without one it returns a report that
// nobody reads.
func ReportOf(ctx context.Context) *Report {
	_, report := WithReport(ctx)
	return report
}
