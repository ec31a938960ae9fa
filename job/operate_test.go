package job_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

// desk is a repository whose answers each test chooses, and what the service told
// others.
type desk struct {
	*shelf
	job.Leases

	finish  func(job.Ending) (job.Application, error)
	ask     func(job.Lease) (bool, error)
	revive  func(job.Revival) (job.Receipt, error)
	resolve func(job.Resolution) (job.Receipt, error)

	woken      []job.Type
	cancelling []job.Lease
	moved      []job.Job
}

func (d *desk) Finish(_ context.Context, endings []job.Ending) ([]job.Application, error) {
	a, err := d.finish(endings[0])
	return []job.Application{a}, err
}

func (d *desk) RequestCancel(_ context.Context, l job.Lease) (bool, error) { return d.ask(l) }

func (d *desk) Revive(_ context.Context, r job.Revival) (job.Receipt, error) { return d.revive(r) }

func (d *desk) Resolve(_ context.Context, r job.Resolution) (job.Receipt, error) {
	return d.resolve(r)
}

func newDesk() *desk { return &desk{shelf: newShelf()} }

// put makes the job the one of its key, as it is read from now on.
func (d *desk) put(j job.Job) {
	record := idempotency.Record{Request: idempotency.Request{Tenant: "acme", Key: j.Key}, State: idempotency.Completed}
	d.receipts[j.Key] = job.Receipt{Record: record, Job: j}
}

func (d *desk) jobs() *job.Jobs {
	rendered := func(status int) func(job.Job) idempotency.Response {
		return func(j job.Job) idempotency.Response {
			return idempotency.Response{Status: status, Body: []byte(j.Status)}
		}
	}
	return &job.Jobs{
		Types: job.Types{
			"ok":   {Retention: time.Hour, OnConflict: job.ConflictReject, Compensate: "undo"},
			"undo": {MaxAttempts: 3, BusinessKey: fromPayload("business_key")},
		},
		Unknown:  job.Settings{Retention: time.Minute},
		Acceptor: d.shelf, Bulk: d.shelf, Reader: d.shelf, Leases: d, Operator: d, Clock: fixedClock{}, Waiters: &job.Waiters{},
		Render: rendered(http.StatusAccepted), RenderCurrent: rendered(http.StatusOK),
		Document:   func(j job.Job) []byte { return []byte(`{"of":"` + string(j.Key) + `"}`) },
		Wake:       func(t job.Type) { d.woken = append(d.woken, t) },
		Cancelling: func(l job.Lease) { d.cancelling = append(d.cancelling, l) },
		Moved:      func(j job.Job) { d.moved = append(d.moved, j) },
	}
}

// fromPayload makes a key of a payload that is a text in quotes, and of no other.
func fromPayload(key string) func(job.Job) (string, error) {
	return func(j job.Job) (string, error) {
		if len(j.Payload) < 2 || j.Payload[0] != '"' {
			return "", &job.KeyPartError{Key: key, Path: "order_id", Reason: "is missing"}
		}
		return string(j.Payload[1 : len(j.Payload)-1]), nil
	}
}

func oneJob(status job.Status) job.Job {
	now := fixedClock{}.Now()
	j := job.Job{
		ID: "0198f000-0000-7000-8000-000000000001", Tenant: "acme", Key: "k", Type: "ok", Status: status, Payload: []byte(`{}`),
		MaxAttempts: 4, Attempts: 4, Generation: 1, Version: 9, Token: 7, WorkerID: "w-1", CreatedAt: now.Add(-time.Hour),
	}
	if status.Finished() {
		j.FinishedAt, j.ExpiresAt = now.Add(-time.Minute), now.Add(time.Hour)
		j.LastError = &job.Failure{Code: "timeout", Attempt: 4}
	}
	return j
}

func operatorRequest(key idempotency.Key) idempotency.Request {
	return idempotency.Request{Tenant: "acme", Key: key, Fingerprint: idempotency.NewFingerprint("POST", "/jobs/k/retry", nil, "", nil)}
}

func TestContract_Row75_ARetryBringsTheJobBack(t *testing.T) {
	t.Parallel()
	for _, status := range []job.Status{job.Failed, job.Cancelled} {
		d := newDesk()
		from := oneJob(status)
		from.Outcome, from.UnknownAsks, from.Deadline, from.OperationKey = job.OutcomeUnknown, 3, from.CreatedAt, "op"
		d.put(from)
		d.revive = func(r job.Revival) (job.Receipt, error) {
			if r.From.Version != 9 || r.Request.Key != "op-1" || r.OnConflict != job.ConflictReject || string(r.Response.Body) != "pending" || r.Response.Status != http.StatusAccepted {
				t.Errorf("%s: %+v", status, r)
			}
			record := idempotency.Record{Request: r.Request, Response: r.Response, Fresh: true}
			return job.Receipt{Record: record, Job: r.Job, Alias: true}, nil
		}
		receipt, err := d.jobs().Retry(t.Context(), operatorRequest("op-1"), "k")
		if err != nil || !receipt.Record.Fresh {
			t.Fatalf("%s: %+v, %v", status, receipt, err)
		}
		want := from
		want.Status, want.Generation, want.Version, want.RunAt = job.Pending, 2, 10, fixedClock{}.Now()
		want.MaxAttempts, want.EarlierAttempts = 8, 4 // as many again as there were at first
		want.Outcome, want.UnknownAsks, want.Deadline = "", 0, time.Time{}
		want.FinishedAt, want.ExpiresAt = time.Time{}, time.Time{}
		got := receipt.Job
		if got.LastError == nil || got.Attempts != 4 || got.Token != 7 || got.OperationKey != "op" || !got.CreatedAt.Equal(from.CreatedAt) {
			t.Errorf("%s: what stays is gone: %+v", status, got)
		}
		if !equalJobs(got, want) {
			t.Errorf("%s:\n got %+v\nwant %+v", status, got, want)
		}
		if !slices.Equal(d.woken, []job.Type{"ok"}) || len(d.moved) != 1 || d.moved[0].Version != 10 {
			t.Errorf("%s: woken %v, moved %v", status, d.woken, d.moved)
		}
	}
}

// equalJobs compares jobs without bytes and pointers.
func equalJobs(a, b job.Job) bool {
	type plain struct {
		key                       idempotency.Key
		status                    job.Status
		n                         [6]int
		version, token            int64
		outcome                   string
		operation, business       string
		run, deadline, end, until time.Time
		cancel                    time.Time
	}
	of := func(j job.Job) plain {
		return plain{
			j.Key, j.Status,
			[6]int{j.MaxAttempts, j.EarlierAttempts, j.Attempts, j.Generation, j.UnknownAsks, j.Priority},
			j.Version, j.Token,
			j.Outcome, j.OperationKey, j.BusinessKey, j.RunAt, j.Deadline, j.FinishedAt, j.ExpiresAt, j.CancelRequestedAt,
		}
	}
	return of(a) == of(b)
}

// A third round has as many attempts as the first one, not as many as the two
// before it together.
func TestContract_Row75_EachRetryGivesTheSameNumberOfAttempts(t *testing.T) {
	t.Parallel()
	d := newDesk()
	d.revive = func(r job.Revival) (job.Receipt, error) {
		return job.Receipt{Job: r.Job, Record: idempotency.Record{Fresh: true}}, nil
	}
	from := oneJob(job.Failed)
	for round := 2; round < 5; round++ {
		d.put(from)
		receipt, err := d.jobs().Retry(t.Context(), operatorRequest("op"), "k")
		if err != nil || receipt.Job.MaxAttempts != 4*round || receipt.Job.Generation != round {
			t.Fatalf("round %d: %+v, %v", round, receipt.Job, err)
		}
		from = receipt.Job
		from.Status, from.Attempts = job.Failed, from.MaxAttempts
	}
}

func TestContract_Row75_WhatCannotBeRetried(t *testing.T) {
	t.Parallel()
	for _, status := range []job.Status{job.Pending, job.Scheduled, job.Processing, job.Retrying, job.Succeeded} {
		d := newDesk()
		d.put(oneJob(status))
		if _, err := d.jobs().Retry(t.Context(), operatorRequest("op"), "k"); !errors.Is(err, job.ErrNotRetryable) {
			t.Errorf("%s: %v", status, err)
		}
	}
	d := newDesk()
	gone := oneJob(job.Failed)
	gone.Type = "gone"
	d.put(gone)
	if _, err := d.jobs().Retry(t.Context(), operatorRequest("op"), "k"); !errors.Is(err, job.ErrUnknownType) {
		t.Errorf("a type that is not configured any more: %v", err)
	}
	if _, err := d.jobs().Retry(t.Context(), operatorRequest("op"), "nobody"); !errors.Is(err, job.ErrNotFound) {
		t.Errorf("an unknown key: %v", err)
	}
	d.put(oneJob(job.Failed))
	d.revive = func(job.Revival) (job.Receipt, error) { return job.Receipt{}, &job.BusinessKeyError{Holder: "other"} }
	var held *job.BusinessKeyError
	if _, err := d.jobs().Retry(t.Context(), operatorRequest("op"), "k"); !errors.As(err, &held) || len(d.woken)+len(d.moved) != 0 {
		t.Errorf("a held business key: %v, woken %v", err, d.woken)
	}
}

// The operator's key decides first: a double click gets its first answer, whatever
// has become of the job since.
func TestContract_Row75_ADoubleClickChangesOnce(t *testing.T) {
	t.Parallel()
	d := newDesk()
	req := operatorRequest("op")
	stored := job.Receipt{
		Record: idempotency.Record{Request: req, State: idempotency.Completed, Response: idempotency.Response{Status: 202, Body: []byte("first")}},
		Job:    oneJob(job.Processing), Alias: true,
	}
	for _, status := range []job.Status{job.Failed, job.Processing, job.Succeeded} {
		d.put(oneJob(status))
		d.receipts["op"] = stored
		d.revive = func(job.Revival) (job.Receipt, error) { return stored, nil }
		receipt, err := d.jobs().Retry(t.Context(), req, "k")
		if err != nil || receipt.Record.Fresh || string(receipt.Record.Response.Body) != "first" || receipt.Duplicate() {
			t.Errorf("%s: %+v, %v", status, receipt, err)
		}
		other := req
		other.Fingerprint = idempotency.NewFingerprint("POST", "/jobs", nil, "", nil)
		var mismatch *idempotency.MismatchError
		if _, err := d.jobs().Retry(t.Context(), other, "k"); !errors.As(err, &mismatch) {
			t.Errorf("%s: the key of another request: %v", status, err)
		}
	}
	delete(d.receipts, "k")
	if receipt, err := d.jobs().Retry(t.Context(), req, "k"); err != nil || string(receipt.Record.Response.Body) != "first" {
		t.Errorf("a job that is gone: %+v, %v", receipt, err)
	}
	if len(d.woken)+len(d.moved) != 0 {
		t.Errorf("woken %v, moved %v", d.woken, d.moved)
	}
}

func TestContract_Row75_AJobThatMovesIsLookedAtAgain(t *testing.T) {
	t.Parallel()
	d := newDesk()
	d.put(oneJob(job.Failed))
	tries := 0
	d.revive = func(job.Revival) (job.Receipt, error) {
		tries++
		if tries == 3 {
			d.put(oneJob(job.Processing)) // somebody else's retry
		}
		return job.Receipt{}, job.ErrMoved
	}
	if _, err := d.jobs().Retry(t.Context(), operatorRequest("op"), "k"); !errors.Is(err, job.ErrNotRetryable) || tries != 3 {
		t.Errorf("%v after %d tries", err, tries)
	}
}

func TestContract_Row75a_ResolveSettlesADoubt(t *testing.T) {
	t.Parallel()
	result := &job.Result{Body: []byte(`{"n": 1.0}`), MediaType: "application/json"}
	for _, to := range []job.Status{job.Succeeded, job.Failed} {
		d := newDesk()
		from := oneJob(job.Failed)
		from.Outcome = job.OutcomeUnknown
		d.put(from)
		given := result
		if to == job.Failed {
			given = nil
		}
		d.resolve = func(r job.Resolution) (job.Receipt, error) {
			if r.From.Version != 9 || r.Response.Status != http.StatusOK || string(r.Response.Body) != string(to) {
				t.Errorf("%s: %+v", to, r)
			}
			if (len(r.Follow) > 0) != (to == job.Failed) {
				t.Errorf("%s: compensated by %+v", to, r.Follow)
			}
			return job.Receipt{Job: r.Job, Record: idempotency.Record{Request: r.Request, Fresh: true}, Alias: true}, nil
		}
		receipt, err := d.jobs().Resolve(t.Context(), operatorRequest("op"), "k", to, given)
		got := receipt.Job
		if err != nil || got.Status != to || got.Outcome != "" || got.Version != 10 || got.Result != given || !got.FinishedAt.Equal(from.FinishedAt) {
			t.Errorf("%s: %+v, %v", to, got, err)
		}
		if !got.ExpiresAt.Equal(fixedClock{}.Now().Add(time.Hour)) || (got.LastError != nil) != (to == job.Failed) {
			t.Errorf("%s: kept until %s, last error %v", to, got.ExpiresAt, got.LastError)
		}
		want := []job.Type{"undo"}
		if to == job.Succeeded {
			want = nil
		}
		if !slices.Equal(d.woken, want) || len(d.moved) != 1 {
			t.Errorf("%s: woken %v, moved %v", to, d.woken, d.moved)
		}
	}
}

func TestContract_Row75a_WhatCannotBeResolved(t *testing.T) {
	t.Parallel()
	for _, status := range job.Statuses() {
		d := newDesk()
		j := oneJob(status)
		if status != job.Failed {
			j.Outcome = job.OutcomeUnknown // a cancelled job keeps its doubt
		}
		d.put(j)
		if _, err := d.jobs().Resolve(t.Context(), operatorRequest("op"), "k", job.Succeeded, nil); !errors.Is(err, job.ErrNotResolvable) {
			t.Errorf("%s: %v", status, err)
		}
	}
}

// What an earlier attempt did is still not known when an operator brings the job
// back: where it can be asked, it is asked first.
func TestContract_Row75_ARetryOfAJobInDoubtAsksFirst(t *testing.T) {
	t.Parallel()
	for policy, asks := range map[job.UnknownPolicy]int{job.UnknownReconcile: 1, job.UnknownRetry: 0, job.UnknownPark: 0} {
		d := newDesk()
		from := oneJob(job.Failed)
		from.Outcome = job.OutcomeUnknown
		d.put(from)
		d.revive = func(r job.Revival) (job.Receipt, error) {
			return job.Receipt{Record: idempotency.Record{Request: r.Request, Fresh: true}, Job: r.Job, Alias: true}, nil
		}
		jobs := d.jobs()
		settings := jobs.Types["ok"]
		settings.OnUnknown = policy
		jobs.Types["ok"] = settings
		receipt, err := jobs.Retry(t.Context(), operatorRequest("op-1"), "k")
		if err != nil || receipt.Job.UnknownAsks != asks {
			t.Errorf("%s: %d asks, %v; want %d", policy, receipt.Job.UnknownAsks, err, asks)
		}
	}
}

func TestContract_Row102_AJobInDoubtThatWaitsIsCancelledInDoubt(t *testing.T) {
	t.Parallel()
	d := newDesk()
	waiting := oneJob(job.Retrying)
	waiting.UnknownAsks = 2
	d.put(waiting)
	d.finish = func(e job.Ending) (job.Application, error) {
		if e.Outcome != job.OutcomeUnknown {
			t.Errorf("ended with %+v", e)
		}
		d.put(oneJob(job.Cancelled))
		return job.Applied, nil
	}
	if _, err := d.jobs().Cancel(t.Context(), "acme", "k"); err != nil {
		t.Error(err)
	}
}
