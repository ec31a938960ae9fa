package executor

import (
	"context"

	"github.com/sekali/sekali/job"
)

// Reconciler is an Executor that can be asked what an attempt did of which
// nobody knows the outcome. It is asked before the job is tried again, in the
// place of an attempt and under the same rules: it returns soon after ctx ends,
// and c carries the lease of the claim that asks. Asking changes nothing.
//
// The error is for the log. It does not take the place of an answer: one that
// could not be got is ReconcileUnknown.
type Reconciler interface {
	Reconcile(ctx context.Context, c job.Claimed) (Reconciliation, error)
}

// Reconciliation is what a Reconciler found.
type Reconciliation struct {
	Answer ReconcileAnswer
	// Result is what the work gave, if it was done; nil: nothing to show.
	Result *job.Result
}

// ReconcileAnswer says what an earlier attempt did.
type ReconcileAnswer int

// The answers.
const (
	// ReconcileUnknown: it may have done the work, or may be doing it still.
	ReconcileUnknown ReconcileAnswer = iota
	// ReconcileDone: it did the work.
	ReconcileDone
	// ReconcileNotDone: it did nothing, and will do nothing any more.
	ReconcileNotDone
)

func (a ReconcileAnswer) String() string {
	switch a {
	case ReconcileDone:
		return "done"
	case ReconcileNotDone:
		return "not_done"
	case ReconcileUnknown:
	}
	return "unknown"
}
