package job_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

func TestSubmit_KeysOfTheType(t *testing.T) {
	t.Parallel()
	d := newDesk()
	jobs := d.jobs()
	jobs.Types = job.Types{"ok": {BusinessKey: fromPayload("business_key"), OperationKey: fromPayload("operation_key")}}
	made := item("a", `"42"`)
	receipt, err := jobs.Submit(t.Context(), made.Request, made.Draft)
	if err != nil || receipt.Job.BusinessKey != "42" || receipt.Job.OperationKey != "42" {
		t.Errorf("%+v, %v", receipt.Job, err)
	}
	named := item("b", `"43"`)
	named.Draft.BusinessKey = "mine"
	receipt, err = jobs.Submit(t.Context(), named.Request, named.Draft)
	if err != nil || receipt.Job.BusinessKey != "mine" || receipt.Job.OperationKey != "43" {
		t.Errorf("the client's business key: %+v, %v", receipt.Job, err)
	}
	if operation := receipt.Job.Operation(); operation == nil || *operation != (job.Operation{Tenant: "acme", Type: "ok", Key: "43"}) {
		t.Errorf("operation %+v", operation)
	}
	lacks := item("c", `{}`)
	var part *job.KeyPartError
	if _, err = jobs.Submit(t.Context(), lacks.Request, lacks.Draft); !errors.As(err, &part) || part.Path != "order_id" {
		t.Errorf("a payload without the part: %v", err)
	}
	if got := story(jobs.SubmitAll(t.Context(), []job.Item{lacks, item("d", `"44"`), item("a", `"42"`), lacks})); got[0] != err.Error() || got[1] != "fresh" || got[2] != `replay of "42"` || got[3] != err.Error() {
		t.Errorf("in a batch: %q", got)
	}
	if _, used := d.receipts["c"]; used {
		t.Error("the refused key is used up")
	}
}

func TestSubmit_DeadlineToStart(t *testing.T) {
	t.Parallel()
	d := newDesk()
	for _, in := range []time.Duration{0, time.Minute, 365 * 24 * time.Hour} {
		i := item(idempotency.Key("k"+in.String()), "{}")
		i.Draft.ExpiresIn = &in
		receipt, err := d.jobs().Submit(t.Context(), i.Request, i.Draft)
		if want := (fixedClock{}).Now().Add(in); err != nil || !receipt.Job.Deadline.Equal(want) {
			t.Errorf("%s: deadline %s, want %s, %v", in, receipt.Job.Deadline, want, err)
		}
	}
	i := item("none", "{}")
	if receipt, err := d.jobs().Submit(t.Context(), i.Request, i.Draft); err != nil || !receipt.Job.Deadline.IsZero() {
		t.Errorf("deadline %s without a wish, %v", receipt.Job.Deadline, err)
	}
}

// memory is a cache of one job.
type memory struct {
	cached job.Cached
	known  bool
	put    []job.Job
}

func (m *memory) Put(j job.Job) { m.put = append(m.put, j) }

func (m *memory) Find(context.Context, idempotency.Tenant, idempotency.Key) (job.Cached, bool) {
	return m.cached, m.known
}

func TestContract_Row100_WhatTheCacheMayTell(t *testing.T) {
	t.Parallel()
	read := fixedClock{}.Now().Add(-3 * time.Second)
	get := func(cached job.Job, away bool) (job.Receipt, error) {
		d := newDesk()
		d.put(oneJob(job.Processing))
		if away {
			d.err = job.ErrUnavailable
		}
		m := &memory{cached: job.Cached{Job: cached, ReadAt: read}, known: true}
		jobs := d.jobs()
		jobs.Cache = m
		return jobs.Get(t.Context(), "acme", "k")
	}
	for _, tt := range []struct {
		status job.Status
		away   bool
		cached bool
	}{
		{job.Succeeded, false, true},
		{job.Succeeded, true, true},
		{job.Failed, false, false},
		{job.Failed, true, true},
		{job.Cancelled, false, false},
		{job.Cancelled, true, true},
	} {
		receipt, err := get(oneJob(tt.status), tt.away)
		if err != nil || receipt.CachedAt.Equal(read) != tt.cached || tt.cached && receipt.Job.Status != tt.status || receipt.Record.Key != "k" {
			t.Errorf("%s, away %t: %+v, %v", tt.status, tt.away, receipt, err)
		}
	}
	expired := oneJob(job.Succeeded)
	expired.ExpiresAt = fixedClock{}.Now()
	if _, err := get(expired, true); !errors.Is(err, job.ErrUnavailable) {
		t.Errorf("a job whose retention is over: %v", err)
	}
}

func TestGet_FillsTheCacheWithWhatHasFinished(t *testing.T) {
	t.Parallel()
	d := newDesk()
	m := &memory{}
	jobs := d.jobs()
	jobs.Cache = m
	for _, status := range job.Statuses() {
		d.put(oneJob(status))
		if _, err := jobs.Get(t.Context(), "acme", "k"); err != nil {
			t.Fatal(err)
		}
	}
	alias := d.receipts["k"]
	alias.Alias = true
	d.receipts["k"] = alias
	if _, err := jobs.Get(t.Context(), "acme", "k"); err != nil {
		t.Fatal(err)
	}
	if len(m.put) != 3 {
		t.Errorf("put %+v", m.put)
	}
	for _, j := range m.put {
		if !j.Status.Finished() {
			t.Errorf("put %s", j.Status)
		}
	}
}
