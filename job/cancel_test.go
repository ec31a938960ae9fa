package job_test

import (
	"errors"
	"testing"
	"time"

	"github.com/sekali/sekali/job"
)

func TestContract_Row102_AWaitingJobIsCancelledAtOnce(t *testing.T) {
	t.Parallel()
	for _, status := range []job.Status{job.Pending, job.Scheduled, job.Retrying} {
		d := newDesk()
		d.put(oneJob(status))
		d.finish = func(e job.Ending) (job.Application, error) {
			want := job.Ending{Lease: job.Lease{ID: oneJob(status).ID, Token: 7}, Status: job.Cancelled, Waiting: true, Keep: time.Hour}
			if e.Lease != want.Lease || e.Status != want.Status || !e.Waiting || e.Keep != want.Keep || len(e.Follow) > 0 {
				t.Errorf("%s: ended with %+v", status, e)
			}
			d.put(oneJob(job.Cancelled))
			return job.Applied, nil
		}
		jobs := d.jobs()
		woken, stop := jobs.Waiters.Wait(oneJob(status).ID, 1, true)
		defer stop()
		receipt, err := jobs.Cancel(t.Context(), "acme", "k")
		if err != nil || receipt.Job.Status != job.Cancelled || len(d.moved) != 1 || len(d.cancelling) != 0 {
			t.Errorf("%s: %+v, %v; told of %v", status, receipt.Job, err, d.moved)
		}
		select {
		case <-woken:
		default:
			t.Errorf("%s: who waits for the job is not woken", status)
		}
	}
}

func TestContract_Row102_ARunningJobIsAskedToStop(t *testing.T) {
	t.Parallel()
	d := newDesk()
	d.put(oneJob(job.Processing))
	asked := 0
	d.ask = func(l job.Lease) (bool, error) {
		asked++
		return l == job.Lease{ID: oneJob(job.Processing).ID, Token: 7}, nil
	}
	jobs := d.jobs()
	receipt, err := jobs.Cancel(t.Context(), "acme", "k")
	if err != nil || receipt.Job.Status != job.Processing || receipt.Job.CancelRequestedAt.IsZero() {
		t.Errorf("%+v, %v", receipt.Job, err)
	}
	if len(d.cancelling) != 1 || d.cancelling[0].Token != 7 || len(d.moved) != 0 {
		t.Errorf("told %v, moved %v", d.cancelling, d.moved)
	}
	d.put(receipt.Job)
	if receipt, err = jobs.Cancel(t.Context(), "acme", "k"); err != nil || receipt.Job.Status != job.Processing || asked != 1 {
		t.Errorf("a second time: %+v, %v, asked %d times", receipt.Job, err, asked)
	}
}

func TestContract_Row102_Failure_BR84_WhatIsNotCancelled(t *testing.T) {
	t.Parallel()
	for _, status := range []job.Status{job.Succeeded, job.Failed} {
		d := newDesk()
		d.put(oneJob(status))
		if receipt, err := d.jobs().Cancel(t.Context(), "acme", "k"); !errors.Is(err, job.ErrAlreadyFinished) || receipt.Job.Status != status {
			t.Errorf("%s: %+v, %v", status, receipt.Job, err)
		}
	}
	d := newDesk()
	d.put(oneJob(job.Cancelled))
	if receipt, err := d.jobs().Cancel(t.Context(), "acme", "k"); err != nil || receipt.Job.Status != job.Cancelled {
		t.Errorf("a cancelled job: %+v, %v", receipt.Job, err)
	}
	if _, err := d.jobs().Cancel(t.Context(), "acme", "nobody"); !errors.Is(err, job.ErrNotFound) {
		t.Errorf("an unknown key: %v", err)
	}
	alias := d.receipts["k"]
	alias.Alias = true
	d.receipts["alias"] = alias
	var bound *job.AliasError
	if _, err := d.jobs().Cancel(t.Context(), "acme", "alias"); !errors.As(err, &bound) || bound.Holder != "k" || !errors.Is(err, job.ErrNotFound) {
		t.Errorf("an alias: %v", err)
	}
}

// The job is claimed, ends or moves on between the reading and the writing: what
// counts is how it stands then.
func TestContract_Row102_AJobThatMovesIsLookedAtAgain(t *testing.T) {
	t.Parallel()
	d := newDesk()
	d.put(oneJob(job.Pending))
	d.finish = func(job.Ending) (job.Application, error) {
		d.put(oneJob(job.Processing))
		return job.Refused, nil
	}
	d.ask = func(job.Lease) (bool, error) {
		d.put(oneJob(job.Succeeded))
		return false, nil
	}
	if _, err := d.jobs().Cancel(t.Context(), "acme", "k"); !errors.Is(err, job.ErrAlreadyFinished) || len(d.cancelling) != 0 {
		t.Errorf("%v, told %v", err, d.cancelling)
	}
	tries := 0
	d.put(oneJob(job.Pending))
	d.finish = func(job.Ending) (job.Application, error) { tries++; return job.Refused, nil }
	if _, err := d.jobs().Cancel(t.Context(), "acme", "k"); !errors.Is(err, job.ErrUnavailable) || tries < 5 || tries > 100 {
		t.Errorf("a job that never holds still: %v after %d tries", err, tries)
	}
	d.finish = func(job.Ending) (job.Application, error) { return job.Refused, job.ErrOutcomeUnknown }
	if _, err := d.jobs().Cancel(t.Context(), "acme", "k"); !errors.Is(err, job.ErrOutcomeUnknown) {
		t.Errorf("a commit without an answer: %v", err)
	}
}
