package job

import (
	"context"

	"github.com/sekali/sekali/idempotency"
)

// Operation names a business operation that is done once.
type Operation struct {
	Tenant idempotency.Tenant
	Type   Type
	Key    string
}

// Slot is the shard slot of the operation's row.
func (o Operation) Slot() Slot { return slotOf(string(o.Tenant), string(o.Type), o.Key) }

// Operation is the one that the job names; nil if it names none.
func (j Job) Operation() *Operation {
	if j.OperationKey == "" {
		return nil
	}
	return &Operation{Tenant: j.Tenant, Type: j.Type, Key: j.OperationKey}
}

// OperationTaken is what taking a business operation found: exactly one of Mine
// and Done, or neither, while another job has it: one that is unfinished, or
// that failed with an unknown outcome.
type OperationTaken struct {
	// Mine: the job may do the operation now.
	Mine bool
	// Done: another job has done it.
	Done   bool
	By     idempotency.Key // the key of the job that has it or has done it
	Result *Result         // what it gave
}

// Operations keeps business operations that are done once (processed
// operations). They are named by tenant, job type and the job's OperationKey.
type Operations interface {
	// Take takes the operation for the claimed job, before its work begins. A job
	// takes again what it holds; an operation whose job has ended without success
	// is taken over, except from a job that failed with an unknown outcome, until
	// somebody has resolved that. It is done when a job that holds it succeeds: see
	// Leases.Finish. Error: ErrLeaseLost if a later attempt of the job has it.
	Take(ctx context.Context, c Claimed) (OperationTaken, error)
}
