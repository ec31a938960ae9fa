package job_test

import (
	"errors"
	"testing"
	"time"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

// fact is what a process knows of one key.
type fact struct{ receipt job.Receipt }

func (f *fact) Put(r job.Receipt) { f.receipt = r }

func (f *fact) Find(_ idempotency.Tenant, key idempotency.Key) (job.Receipt, bool) {
	return f.receipt, f.receipt.Record.Key == key
}

func TestKnown_OnlyTheSameRequestOfASucceededJob(t *testing.T) {
	t.Parallel()
	d := newDesk()
	jobs, facts, log := d.jobs(), &fact{}, &journal{}
	jobs.Facts, jobs.Repeats = facts, &job.Repeats{Log: log}
	first := item("k", "a")
	if _, ok := jobs.Known(t.Context(), first.Request); ok {
		t.Error("known before it was accepted")
	}
	receipt, err := jobs.Submit(t.Context(), first.Request, first.Draft)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := jobs.Known(t.Context(), first.Request); ok {
		t.Error("known while its job is unfinished")
	}
	receipt.Job.Status, receipt.Job.ExpiresAt, receipt.Record.Fresh = job.Succeeded, fixedClock{}.Now().Add(time.Hour), false
	facts.Put(receipt)
	batches := d.batches
	known, ok := jobs.Known(t.Context(), first.Request)
	if !ok || known.Job.ID != receipt.Job.ID || string(known.Record.Response.Body) != string(receipt.Record.Response.Body) {
		t.Errorf("known %t: %+v", ok, known)
	}
	other := item("k", "b")
	if _, ok := jobs.Known(t.Context(), other.Request); ok {
		t.Error("another request is taken for a known one")
	}
	var mismatch *idempotency.MismatchError
	if _, err := jobs.Submit(t.Context(), other.Request, other.Draft); !errors.As(err, &mismatch) {
		t.Errorf("another request: %v", err)
	}
	if d.batches != batches {
		t.Error("the database was asked")
	}
	if err := jobs.Repeats.Flush(t.Context(), fixedClock{}.Now(), true); err != nil {
		t.Fatal(err)
	}
	if counts := log.take(); counts[job.EventReplayed] != 1 || counts[job.EventMismatch] != 1 {
		t.Errorf("counted %v", counts)
	}
	facts.receipt.Job.ExpiresAt = fixedClock{}.Now()
	if _, ok := jobs.Known(t.Context(), first.Request); ok {
		t.Error("known although its time is over")
	}
}
