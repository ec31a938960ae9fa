package job_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

type fixedClock struct{}

func (fixedClock) Now() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) }

// shelf is a repository in a map: enough for what the service decides.
type shelf struct {
	receipts map[idempotency.Key]job.Receipt
	batches  int
	finds    int
	fails    map[idempotency.Key]error
	err      error
	attempts []job.Attempt
	unread   error // of the history
}

func newShelf() *shelf {
	return &shelf{receipts: map[idempotency.Key]job.Receipt{}, fails: map[idempotency.Key]error{}}
}

func (s *shelf) AcceptAll(_ context.Context, all []job.Submission) ([]job.Receipt, []error) {
	s.batches++
	receipts, errs := make([]job.Receipt, len(all)), make([]error, len(all))
	for i, one := range all {
		key := one.Request.Key
		if errs[i] = cmpErr(s.err, s.fails[key]); errs[i] != nil {
			continue
		}
		known, ok := s.receipts[key]
		if !ok {
			record := idempotency.Record{Request: one.Request, State: idempotency.Completed, Response: one.Response}
			known = job.Receipt{Record: record, Job: one.Job}
			s.receipts[key] = known
			known.Record.Fresh = true
		}
		receipts[i] = known
	}
	return receipts, errs
}

func cmpErr(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *shelf) Accept(ctx context.Context, one job.Submission) (job.Receipt, error) {
	receipts, errs := s.AcceptAll(ctx, []job.Submission{one})
	return receipts[0], errs[0]
}

func (s *shelf) Find(_ context.Context, _ idempotency.Tenant, key idempotency.Key) (job.Receipt, error) {
	s.finds++
	if s.err != nil {
		return job.Receipt{}, s.err
	}
	receipt, ok := s.receipts[key]
	if !ok {
		return job.Receipt{}, job.ErrNotFound
	}
	return receipt, nil
}

func (s *shelf) List(context.Context, job.Filter) ([]job.Job, error) { return nil, nil }

func (s *shelf) Versions(context.Context, []job.ID) (map[job.ID]job.Version, error) { return nil, nil }

func (s *shelf) Attempts(context.Context, job.ID) ([]job.Attempt, error) { return s.attempts, s.unread }

func (s *shelf) Events(context.Context, job.ID) ([]job.Event, error) { return nil, s.unread }

func (s *shelf) jobs(quota *job.Quota) *job.Jobs {
	return &job.Jobs{
		Types: job.Types{"ok": {}}, Acceptor: s, Bulk: s, Reader: s, Clock: fixedClock{}, Quota: quota,
		Render: func(j job.Job) idempotency.Response {
			return idempotency.Response{Status: http.StatusAccepted, Body: []byte(j.ID)}
		},
		Wake: func(job.Type) {},
	}
}

// item is a submission whose body is told apart by a letter.
func item(key idempotency.Key, body string) job.Item {
	fp := idempotency.NewFingerprint("POST", "/jobs", nil, "application/json", []byte(body))
	return job.Item{
		Request: idempotency.Request{Tenant: "acme", Key: key, Fingerprint: fp},
		Draft:   job.Draft{Type: "ok", Payload: []byte(body)},
	}
}

// story tells in a word what became of each item.
func story(receipts []job.Receipt, errs []error) []string {
	words := make([]string, len(errs))
	for i, err := range errs {
		var mismatch *idempotency.MismatchError
		switch {
		case errors.As(err, &mismatch):
			words[i] = "mismatch"
		case err != nil:
			words[i] = err.Error()
		case receipts[i].Record.Fresh:
			words[i] = "fresh"
		default:
			words[i] = "replay of " + string(receipts[i].Job.Payload)
		}
	}
	return words
}

func TestFailure_BR47_OneItemNeverFailsTheOthers(t *testing.T) {
	t.Parallel()
	s := newShelf()
	jobs := s.jobs(nil)
	jobs.SubmitAll(t.Context(), []job.Item{item("known", "a"), item("other", "a")})
	s.fails["held"] = &job.BusinessKeyError{Holder: "known"}
	bad := item("bad", "x")
	bad.Refusal = errors.New("bad draft")
	badKnown := item("known", "a")
	badKnown.Refusal = errors.New("bad draft")
	unknown := item("unknown", "x")
	unknown.Draft.Type = "nothing"
	s.batches = 0
	got := story(jobs.SubmitAll(t.Context(), []job.Item{
		item("n1", "a"), bad, item("known", "a"), item("other", "b"), unknown, badKnown, item("held", "a"), item("n2", "a"),
	}))
	want := []string{
		"fresh", "bad draft", "replay of a", "mismatch", job.ErrUnknownType.Error(), "replay of a",
		"job: business key is held by another unfinished job", "fresh",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if s.batches != 1 {
		t.Errorf("%d accepts for one batch", s.batches)
	}
}

func TestContract_Row81_RepeatedKeysWithinABatch(t *testing.T) {
	t.Parallel()
	s := newShelf()
	jobs := s.jobs(nil)
	jobs.SubmitAll(t.Context(), []job.Item{item("known", "a")})
	s.fails["held"] = &job.BusinessKeyError{}
	got := story(jobs.SubmitAll(t.Context(), []job.Item{
		item("n", "a"), item("n", "a"), item("n", "b"), // the first one wins, whatever the database's order
		item("known", "b"), item("known", "a"), // a mismatch does not decide for the next one
		item("held", "a"), item("held", "a"),
	}))
	want := []string{
		"fresh", "replay of a", "mismatch", "mismatch", "replay of a",
		"job: business key is held by another unfinished job", "job: business key is held by another unfinished job",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestSubmitAll_ADatabaseThatIsAwayIsAskedOnce(t *testing.T) {
	t.Parallel()
	s := newShelf()
	s.err = fmt.Errorf("away: %w", job.ErrUnavailable)
	items := make([]job.Item, 100)
	for i := range items {
		items[i] = item(idempotency.Key(fmt.Sprint("k", i)), "a")
		items[i].Refusal = errors.New("bad draft")
	}
	_, errs := s.jobs(nil).SubmitAll(t.Context(), items)
	for i, err := range errs {
		if !errors.Is(err, job.ErrUnavailable) {
			t.Fatalf("item %d: %v", i, err)
		}
	}
	if s.finds != 1 {
		t.Errorf("asked %d times", s.finds)
	}
}

func TestContract_Row72_PendingJobsOfATenant(t *testing.T) {
	t.Parallel()
	s := newShelf()
	counted := 0
	quota := job.NewQuota(3, fixedClock{}, func(_ context.Context, _ idempotency.Tenant, atMost int) (int, error) {
		counted++
		return min(len(s.receipts), atMost), nil
	})
	jobs := s.jobs(quota)
	submit := func(i job.Item) string {
		receipt, err := jobs.Submit(t.Context(), i.Request, i.Draft)
		return story([]job.Receipt{receipt}, []error{err})[0]
	}
	got := []string{submit(item("a", "1")), submit(item("a", "1")), submit(item("a", "1")), submit(item("b", "1"))}
	got = append(got, story(jobs.SubmitAll(t.Context(), []job.Item{
		item("a", "1"), item("c", "1"), item("d", "1"), item("b", "2"), item("c", "1"), item("d", "1"),
	}))...)
	got = append(got, submit(item("e", "1")), submit(item("a", "1")), submit(item("a", "2")))
	full := job.ErrQuota.Error()
	want := []string{
		"fresh", "replay of 1", "replay of 1", "fresh", // duplicates use nothing up
		"replay of 1", "fresh", full, "mismatch", "replay of 1", full,
		full, "replay of 1", "mismatch", // the key is looked at before the quota
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if counted != 1 {
		t.Errorf("counted %d times within a second", counted)
	}
}

func TestQuota_ATenantThatCannotBeCountedIsNotLetIn(t *testing.T) {
	t.Parallel()
	s := newShelf()
	quota := job.NewQuota(3, fixedClock{}, func(context.Context, idempotency.Tenant, int) (int, error) { return 0, job.ErrUnavailable })
	jobs := s.jobs(quota)
	i := item("a", "1")
	if _, err := jobs.Submit(t.Context(), i.Request, i.Draft); !errors.Is(err, job.ErrUnavailable) {
		t.Errorf("submit: %v", err)
	}
	if _, errs := jobs.SubmitAll(t.Context(), []job.Item{i, i}); !errors.Is(errs[0], job.ErrUnavailable) || !errors.Is(errs[1], job.ErrUnavailable) {
		t.Errorf("batch: %v", errs)
	}
}
