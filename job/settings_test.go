package job_test

import (
	"testing"
	"time"

	"github.com/sekali/sekali/job"
)

func settingsOf(p job.UnknownPolicy) job.Settings {
	return job.Settings{OnUnknown: p, Backoff: job.Backoff{Base: time.Second, Cap: time.Minute}, Retention: time.Hour}
}

func held(change func(*job.Claimed)) job.Claimed {
	c := job.Claimed{Job: job.Job{Attempts: 1, MaxAttempts: 3}, Lease: job.Lease{ID: "0198", Token: 7}}
	if change != nil {
		change(&c)
	}
	return c
}

func cancelling(c *job.Claimed) { c.CancelRequestedAt = time.Unix(1, 0) }

// decision is a Decision in words.
type decision struct {
	status    job.Status
	attempt   job.Outcome
	outcome   string
	asks      int
	uncounted bool
}

func read(t *testing.T, d job.Decision) decision {
	t.Helper()
	if (d.Ending == nil) == (d.Requeue == nil) {
		t.Fatalf("decided both or neither: %+v", d)
	}
	if e := d.Ending; e != nil {
		if e.Lease.Token != 7 || e.Keep != time.Hour {
			t.Errorf("ending %+v", e)
		}
		return decision{status: e.Status, attempt: e.Attempt, outcome: e.Outcome}
	}
	r := d.Requeue
	if r.Lease.Token != 7 || r.In < 0 {
		t.Errorf("requeue %+v", r)
	}
	return decision{status: r.Status, attempt: r.Attempt, asks: r.UnknownAsks, uncounted: r.Uncounted}
}

const unknown = job.OutcomeUnknown

func TestSettings_AnUnknownOutcome(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		policy job.UnknownPolicy
		change func(*job.Claimed)
		err    job.AttemptError
		want   decision
	}{
		{"retry tries again", job.UnknownRetry, nil, job.AttemptError{}, decision{job.Retrying, job.AttemptLost, "", 0, false}},
		{"retry ends with the attempts", job.UnknownRetry, func(c *job.Claimed) { c.Attempts = 3 }, job.AttemptError{}, decision{job.Failed, job.AttemptLost, "", 0, false}},
		{"reconcile asks", job.UnknownReconcile, nil, job.AttemptError{}, decision{job.Retrying, job.AttemptLost, "", 1, false}},
		{"reconcile asks after the last attempt too", job.UnknownReconcile, func(c *job.Claimed) { c.Attempts = 3 }, job.AttemptError{}, decision{job.Retrying, job.AttemptLost, "", 1, false}},
		{"reconcile asks before it believes a permanent error", job.UnknownReconcile, nil, job.AttemptError{Permanent: true}, decision{job.Retrying, job.AttemptLost, "", 1, false}},
		{"reconcile gives up", job.UnknownReconcile, func(c *job.Claimed) { c.UnknownAsks = 20 }, job.AttemptError{}, decision{job.Failed, job.AttemptLost, unknown, 0, false}},
		{"park fails", job.UnknownPark, nil, job.AttemptError{}, decision{job.Failed, job.AttemptLost, unknown, 0, false}},
		{"cancelled, the receiver will recognise it", job.UnknownRetry, cancelling, job.AttemptError{}, decision{job.Cancelled, job.AttemptLost, "", 0, false}},
		{"cancelled, in doubt", job.UnknownReconcile, cancelling, job.AttemptError{}, decision{job.Cancelled, job.AttemptLost, unknown, 0, false}},
		{"cancelled, parked", job.UnknownPark, cancelling, job.AttemptError{}, decision{job.Cancelled, job.AttemptLost, unknown, 0, false}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.err.Unknown = true
			if got := read(t, settingsOf(tt.policy).Fail(held(tt.change), job.AttemptFailed, &tt.err)); got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

// What is done in the transaction that ends the job leaves no doubt.
func TestSettings_ATransactionLeavesNoDoubt(t *testing.T) {
	t.Parallel()
	for _, policy := range []job.UnknownPolicy{job.UnknownRetry, job.UnknownReconcile, job.UnknownPark} {
		s := settingsOf(policy)
		s.Transactional = true
		e := &job.AttemptError{Unknown: true}
		if got, want := read(t, s.Fail(held(nil), job.AttemptFailed, e)), (decision{job.Retrying, job.AttemptFailed, "", 0, false}); got != want {
			t.Errorf("%s: got %+v, want %+v", policy, got, want)
		}
		if got, want := read(t, s.Release(held(nil), e)), (decision{job.Pending, job.AttemptReleased, "", 0, true}); got != want {
			t.Errorf("%s, released: got %+v, want %+v", policy, got, want)
		}
	}
}

func TestContract_Row102_CancellationDecidesWhatFails(t *testing.T) {
	t.Parallel()
	s := settingsOf(job.UnknownRetry)
	want := decision{job.Cancelled, job.AttemptCancelled, "", 0, false}
	for name, d := range map[string]job.Decision{
		"a failure":         s.Fail(held(cancelling), job.AttemptFailed, &job.AttemptError{}),
		"a permanent error": s.Fail(held(cancelling), job.AttemptFailed, &job.AttemptError{Permanent: true}),
		"a snooze":          s.Fail(held(cancelling), job.AttemptFailed, &job.AttemptError{Snooze: true, After: time.Hour}),
		"a release":         s.Release(held(cancelling), nil),
		"a cut":             s.Release(held(cancelling), &job.AttemptError{Code: "shutdown"}),
		"a put-off":         s.PutOff(held(cancelling), time.Minute),
	} {
		if got := read(t, d); got != want {
			t.Errorf("%s: got %+v, want %+v", name, got, want)
		}
	}
	lost := s.Fail(held(cancelling), job.AttemptLost, &job.AttemptError{Code: "lost"})
	if got := read(t, lost); got.status != job.Cancelled || got.attempt != job.AttemptLost {
		t.Errorf("a lost attempt: %+v", got)
	}
	if e := s.Succeed(held(cancelling), nil); e.Status != job.Succeeded {
		t.Errorf("work that was done: %+v", e)
	}
}

func TestSettings_AfterAnAskInVain(t *testing.T) {
	t.Parallel()
	s := settingsOf(job.UnknownReconcile)
	asked := func(n int) func(*job.Claimed) { return func(c *job.Claimed) { c.UnknownAsks = n } }
	for _, tt := range []struct {
		name   string
		change func(*job.Claimed)
		want   decision
	}{
		{"it is asked again, and the attempt is not counted", asked(1), decision{job.Retrying, job.AttemptReleased, "", 2, true}},
		{"it is given up", asked(20), decision{job.Failed, job.AttemptLost, unknown, 0, false}},
		{"it is cancelled, and the doubt stays", func(c *job.Claimed) { asked(1)(c); cancelling(c) }, decision{job.Cancelled, job.AttemptCancelled, unknown, 0, false}},
	} {
		d := s.StillUnknown(held(tt.change))
		if got := read(t, d); got != tt.want {
			t.Errorf("%s: got %+v, want %+v", tt.name, got, tt.want)
		}
		if d.Ending != nil && d.Ending.Failure == nil {
			t.Errorf("%s: ends without saying why", tt.name)
		}
	}
	// Each ask waits longer, so that twenty of them take hours.
	if first, tenth := s.StillUnknown(held(asked(1))).Requeue.In, s.StillUnknown(held(asked(10))).Requeue.In; tenth < 5*first {
		t.Errorf("the first wait is %s, the tenth %s", first, tenth)
	}
}

func TestSettings_WhatReconciliationSaysWasNotDone(t *testing.T) {
	t.Parallel()
	s := settingsOf(job.UnknownReconcile)
	if _, again := s.NotDone(held(func(c *job.Claimed) { c.Attempts = 3 })); !again {
		t.Error("the last attempt is not made")
	}
	d, again := s.NotDone(held(func(c *job.Claimed) { c.Attempts = 4 }))
	if got, want := read(t, d), (decision{job.Failed, job.AttemptFailed, "", 0, false}); again || got != want {
		t.Errorf("no attempt is left: again %t, %+v", again, got)
	}
	d, again = s.NotDone(held(func(c *job.Claimed) { c.Attempts = 4; cancelling(c) }))
	if got, want := read(t, d), (decision{job.Cancelled, job.AttemptCancelled, "", 0, false}); again || got != want {
		t.Errorf("cancelled: again %t, %+v", again, got)
	}
}

func TestSettings_WhatIsNotCounted(t *testing.T) {
	t.Parallel()
	doubt := func(c *job.Claimed) { c.UnknownAsks = 2 }
	cut := &job.AttemptError{Code: "shutdown", Unknown: true}
	for _, tt := range []struct {
		name string
		d    job.Decision
		want decision
	}{
		{"a shutdown before it began", settingsOf(job.UnknownPark).Release(held(nil), nil), decision{job.Pending, job.AttemptReleased, "", 0, true}},
		{"a shutdown that leaves a doubt, which stays", settingsOf(job.UnknownReconcile).Release(held(doubt), nil), decision{job.Pending, job.AttemptReleased, "", 2, true}},
		{"a cut call that is repeated", settingsOf(job.UnknownRetry).Release(held(nil), cut), decision{job.Pending, job.AttemptReleased, "", 0, true}},
		{"a cut call that is asked about", settingsOf(job.UnknownReconcile).Release(held(nil), cut), decision{job.Pending, job.AttemptReleased, "", 1, true}},
		{"a cut call that is parked", settingsOf(job.UnknownPark).Release(held(nil), cut), decision{job.Failed, job.AttemptLost, unknown, 0, false}},
		{"something outside of it is in the way", settingsOf(job.UnknownReconcile).PutOff(held(doubt), time.Minute), decision{job.Retrying, job.AttemptReleased, "", 2, true}},
		{"the executor puts it off", settingsOf(job.UnknownRetry).Fail(held(func(c *job.Claimed) { c.Attempts = 3 }), job.AttemptFailed, &job.AttemptError{Snooze: true, After: time.Hour}), decision{job.Retrying, job.AttemptReleased, "", 0, true}},
	} {
		if got := read(t, tt.d); got != tt.want {
			t.Errorf("%s: got %+v, want %+v", tt.name, got, tt.want)
		}
		if r := tt.d.Requeue; r != nil && r.Failure != nil {
			t.Errorf("%s: replaces the job's last error by %+v", tt.name, r.Failure)
		}
	}
	snooze := settingsOf(job.UnknownRetry).Fail(held(nil), job.AttemptFailed, &job.AttemptError{Snooze: true, After: 3 * time.Hour})
	if snooze.Requeue.In != 3*time.Hour {
		t.Errorf("put off by %s", snooze.Requeue.In)
	}
}

func TestSettings_Ends(t *testing.T) {
	t.Parallel()
	s := settingsOf(job.UnknownRetry)
	c := held(func(c *job.Claimed) { c.Tenant, c.Type, c.OperationKey = "acme", "pay", "evt_1" })
	result := &job.Result{Body: []byte("1")}
	e := s.Succeed(c, result)
	if e.Status != job.Succeeded || e.Attempt != job.AttemptSucceeded || e.Result != result || e.Operation == nil || e.Operation.Key != "evt_1" || e.Failure != nil {
		t.Errorf("success: %+v", e)
	}
	if s.Succeed(held(nil), nil).Operation != nil {
		t.Error("a job without an operation ends one")
	}
	e = s.Duplicate(c, job.OperationTaken{Done: true, By: "first", Result: result})
	if e.Status != job.Succeeded || e.Outcome != job.DuplicateIgnored || e.DuplicateOf != "first" || e.Result != result || e.Operation != nil {
		t.Errorf("duplicate: %+v", e)
	}
	e = s.Expire(c)
	if e.Status != job.Failed || !e.Waiting || e.Failure == nil || e.Failure.Code != "expired" || e.Attempt != "" || e.Keep != time.Hour {
		t.Errorf("deadline: %+v", e)
	}
}
