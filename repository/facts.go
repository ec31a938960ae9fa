package repository

import (
	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

// factsKept is how many keys are remembered, of some two kilobytes each: enough for
// those that clients are repeating just now.
const factsKept = 8192

// Facts implements job.Facts in memory. It is bounded, and forgets first what was
// asked for least recently. It is safe for concurrent use.
type Facts struct {
	receipts *lru.Cache[recordKey, job.Receipt]
}

var _ job.Facts = (*Facts)(nil)

// NewFacts returns facts that know nothing yet.
func NewFacts() *Facts {
	receipts, err := lru.New[recordKey, job.Receipt](factsKept)
	if err != nil {
		panic(err) // only for a size that is not positive
	}
	return &Facts{receipts: receipts}
}

// Put implements job.Facts.
func (f *Facts) Put(r job.Receipt) {
	r.Job.Payload, r.Job.Result, r.Brief = nil, nil, true
	f.receipts.Add(keyOf(r.Record.Request), r)
}

// Find implements job.Facts.
func (f *Facts) Find(tenant idempotency.Tenant, key idempotency.Key) (job.Receipt, bool) {
	return f.receipts.Get(recordKey{tenant, key})
}
