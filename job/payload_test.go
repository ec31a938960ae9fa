package job_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

// emptyObject is what a strict type asks for; asked counts how often it was.
func emptyObject(asked *[]string) func([]byte) error {
	return func(payload []byte) error {
		*asked = append(*asked, string(payload))
		if string(payload) == "{}" {
			return nil
		}
		return &job.PayloadError{Violations: []job.Violation{{Rule: "type", Detail: "must be {}, not hush"}}}
	}
}

const refusedPayload = `job: payload has 1 violation(s), at first at "": type`

func TestContract_Row69_Row70_APayloadIsCheckedBeforeTheKeyIsUsed(t *testing.T) {
	t.Parallel()
	d := newDesk()
	jobs := d.jobs()
	var asked []string
	jobs.Types["ok"] = job.Settings{CheckPayload: emptyObject(&asked)}
	submit := func(i job.Item) string {
		receipt, err := jobs.Submit(t.Context(), i.Request, i.Draft)
		return story([]job.Receipt{receipt}, []error{err})[0]
	}
	absent := item("k", "")
	old := d.jobs() // accepted before the type had a schema
	if _, err := old.Submit(t.Context(), item("old", "7").Request, item("old", "7").Draft); err != nil {
		t.Fatal(err)
	}
	got := []string{
		submit(item("k", "7")), submit(absent), submit(item("k", "{}")), submit(item("k", "{}")),
		submit(item("k", "7")), submit(item("old", "7")), submit(item("old", "{}")), submit(item("old", "8")),
	}
	want := []string{
		refusedPayload, refusedPayload, "fresh", "replay of {}",
		"mismatch", "replay of 7", "mismatch", "mismatch",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if asked[1] != "null" {
		t.Errorf("an absent payload is checked as %q, want null", asked[1])
	}
}

func TestContract_Row69_Row81_ItemsOfABatchAreCheckedEach(t *testing.T) {
	t.Parallel()
	d := newDesk()
	jobs := d.jobs()
	var asked []string
	jobs.Types["ok"] = job.Settings{CheckPayload: emptyObject(&asked)}
	unsound := item("e", "{}")
	unsound.Refusal = errors.New("bad draft")
	got := story(jobs.SubmitAll(t.Context(), []job.Item{
		item("a", "7"), item("a", "{}"), item("b", "{}"), item("a", "7"), item("c", ""), unsound,
	}))
	want := []string{refusedPayload, "fresh", "fresh", refusedPayload, refusedPayload, "bad draft"}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if !slices.Equal(asked, []string{"7", "{}", "{}", "7", "null"}) {
		t.Errorf("asked about %q", asked)
	}
	if len(d.receipts) != 2 {
		t.Errorf("%d keys are used up, want a and b", len(d.receipts))
	}
}

// What was accepted once is not checked again, nor what the gateway writes.
func TestCheckPayload_IsForSubmissionsAlone(t *testing.T) {
	t.Parallel()
	d := newDesk()
	jobs := d.jobs()
	var asked []string
	strict := job.Settings{CheckPayload: emptyObject(&asked), MaxAttempts: 3}
	jobs.Types["ok"], jobs.Types["undo"] = job.Settings{CheckPayload: strict.CheckPayload, Compensate: "undo"}, strict
	failed := oneJob(job.Failed)
	failed.Payload = []byte("7")
	d.put(failed)
	d.revive = func(r job.Revival) (job.Receipt, error) {
		return job.Receipt{Record: idempotency.Record{Request: r.Request, Fresh: true}, Job: r.Job}, nil
	}
	if receipt, err := jobs.Retry(t.Context(), item("again", "").Request, "k"); err != nil || receipt.Job.Status != job.Pending {
		t.Errorf("retry: %+v, %v", receipt.Job, err)
	}
	if s := jobs.Compensation(failed); s == nil || string(s.Job.Payload) != `{"of":"k"}` {
		t.Errorf("compensation: %+v", s)
	}
	if len(asked) > 0 {
		t.Errorf("asked about %q", asked)
	}
}
