package job_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

const hook = "https://shop.example/hooks"

// tellers are jobs that tell of their ends.
func (d *desk) tellers() *job.Jobs {
	s := d.jobs()
	s.Types["told"] = job.Settings{CallbackURL: hook + "/type"}
	s.Types[job.CallbackType] = job.Settings{MaxAttempts: 40, Timeout: 15 * time.Second, CallbackURL: "https://nobody.example/"}
	s.Callback = func(j job.Job, at time.Time) []byte {
		return []byte(`{"status":"` + string(j.Status) + `","at":"` + at.Format(time.RFC3339) + `","finished":"` + j.FinishedAt.Format(time.RFC3339) + `"}`)
	}
	return s
}

func TestCallback_FollowsEachEnd(t *testing.T) {
	t.Parallel()
	id := "0198f000-0000-7000-8000-000000000001"
	for name, tt := range map[string]struct {
		change func(*job.Job)
		keys   []idempotency.Key
	}{
		"a success":                         {func(j *job.Job) { j.Status = job.Succeeded }, []idempotency.Key{"callback:" + idempotency.Key(id)}},
		"a cancellation":                    {func(j *job.Job) { j.Status, j.Attempts = job.Cancelled, 0 }, []idempotency.Key{"callback:" + idempotency.Key(id)}},
		"a failure that is compensated":     {func(*job.Job) {}, []idempotency.Key{"compensate:" + idempotency.Key(id), "callback:" + idempotency.Key(id)}},
		"a failure with an open outcome":    {func(j *job.Job) { j.Outcome = job.OutcomeUnknown }, []idempotency.Key{"callback:" + idempotency.Key(id)}},
		"one that an operator brought back": {func(j *job.Job) { j.Status, j.Generation = job.Succeeded, 3 }, []idempotency.Key{"callback:" + idempotency.Key(id) + ":3"}},
		"one whose type is gone":            {func(j *job.Job) { j.Type, j.Status = "gone", job.Succeeded }, []idempotency.Key{"callback:" + idempotency.Key(id)}},
		"nobody wants to know":              {func(j *job.Job) { j.CallbackURL, j.Status = "", job.Succeeded }, nil},
		"a callback itself":                 {func(j *job.Job) { j.Type = job.CallbackType }, nil},
	} {
		d := newDesk()
		j := oneJob(job.Failed)
		j.CallbackURL, j.FinishedAt = hook, time.Time{}
		tt.change(&j)
		got := d.tellers().Following(j)
		var keys []idempotency.Key
		for _, s := range got {
			keys = append(keys, s.Request.Key)
			if s.Otherwise == nil || s.Otherwise.Request.Key == s.Request.Key || string(s.Otherwise.Job.Payload) != string(s.Job.Payload) {
				t.Errorf("%s: otherwise %+v", name, s.Otherwise)
			}
		}
		if !slices.Equal(keys, tt.keys) {
			t.Errorf("%s: %v, want %v", name, keys, tt.keys)
			continue
		}
		if len(got) == 0 {
			continue
		}
		s, now := got[len(got)-1], fixedClock{}.Now().Format(time.RFC3339)
		want := `{"status":"` + string(j.Status) + `","at":"` + now + `","finished":"` + now + `"}`
		if s.Job.Type != job.CallbackType || s.Job.CallbackURL != hook || s.Job.Tenant != "acme" || s.Job.MaxAttempts != 40 || string(s.Job.Payload) != want {
			t.Errorf("%s: %+v", name, s.Job)
		}
	}
}

// Where this process cannot call, the job waits for one that can.
func TestCallback_IsMadeWhereNobodyCanCall(t *testing.T) {
	t.Parallel()
	jobs := newDesk().tellers()
	delete(jobs.Types, job.CallbackType)
	j := oneJob(job.Succeeded)
	j.CallbackURL = hook
	if got := jobs.Following(j); len(got) != 1 || got[0].Job.Type != job.CallbackType || got[0].Job.CallbackURL != hook {
		t.Errorf("%+v", got)
	}
}

func TestSettings_Follows(t *testing.T) {
	t.Parallel()
	undone := job.Settings{Compensate: "undo"}
	failed, told := oneJob(job.Failed), oneJob(job.Succeeded)
	told.CallbackURL = hook
	untried := failed
	untried.Attempts = 0
	for name, tt := range map[string]struct {
		settings job.Settings
		job      job.Job
		want     [2]bool
	}{
		"a failure that is compensated": {undone, failed, [2]bool{true, true}},
		"one that nobody undoes":        {job.Settings{}, failed, [2]bool{}},
		"one that was not tried":        {undone, untried, [2]bool{}},
		"a success that is told":        {undone, told, [2]bool{true, false}},
	} {
		if follows, compensated := tt.settings.Follows(tt.job); [2]bool{follows, compensated} != tt.want {
			t.Errorf("%s: %v, %v", name, follows, compensated)
		}
	}
}

func TestSubmit_CallbackURL(t *testing.T) {
	t.Parallel()
	d := newDesk()
	jobs := d.tellers()
	for _, tt := range []struct {
		t, url, want string
	}{{"told", "", hook + "/type"}, {"ok", "", ""}} {
		receipt, err := jobs.Submit(t.Context(), idempotency.Request{Tenant: "acme", Key: idempotency.Key("k-" + tt.t)}, job.Draft{Type: job.Type(tt.t), CallbackURL: tt.url})
		if err != nil || receipt.Job.CallbackURL != tt.want {
			t.Errorf("%+v: %q, %v", tt, receipt.Job.CallbackURL, err)
		}
	}
	var refused *job.CallbackError
	submit := func(key idempotency.Key, url string) error {
		_, err := jobs.Submit(t.Context(), idempotency.Request{Tenant: "acme", Key: key}, job.Draft{Type: "told", CallbackURL: url})
		return err
	}
	if err := submit("none", hook); !errors.As(err, &refused) {
		t.Errorf("where no request may name one: %v", err)
	}
	jobs.CheckCallback = func(url string) error {
		if url != hook {
			return &job.CallbackError{Detail: "must be another one"}
		}
		return nil
	}
	if err := submit("bad", "https://evil.example/"); !errors.As(err, &refused) || refused.Detail != "must be another one" {
		t.Errorf("%v", err)
	}
	if err := submit("good", hook); err != nil || d.receipts["good"].Job.CallbackURL != hook {
		t.Errorf("%v, %+v", err, d.receipts["good"].Job)
	}
	if _, err := jobs.Submit(t.Context(), idempotency.Request{Tenant: "acme", Key: "mine"}, job.Draft{Type: job.CallbackType}); !errors.Is(err, job.ErrUnknownType) {
		t.Errorf("a client's callback: %v", err)
	}
}

func TestCancel_TellsOfTheEnd(t *testing.T) {
	t.Parallel()
	d := newDesk()
	j := oneJob(job.Pending)
	j.CallbackURL = hook
	d.put(j)
	d.finish = func(e job.Ending) (job.Application, error) {
		if len(e.Follow) != 1 || e.Follow[0].Request.Key != "callback:"+idempotency.Key(j.ID) || e.Follow[0].Job.CallbackURL != hook {
			t.Errorf("%+v", e.Follow)
		}
		return job.Applied, nil
	}
	if _, err := d.tellers().Cancel(t.Context(), "acme", "k"); err != nil || !slices.Contains(d.woken, job.CallbackType) {
		t.Errorf("%v, woken are %v", err, d.woken)
	}
}

func TestContract_Row75a_AResolutionIsToldOfAgain(t *testing.T) {
	t.Parallel()
	d := newDesk()
	j := oneJob(job.Failed)
	j.Outcome, j.CallbackURL = job.OutcomeUnknown, hook
	d.put(j)
	d.resolve = func(r job.Resolution) (job.Receipt, error) {
		want := `{"status":"succeeded","at":"` + fixedClock{}.Now().Format(time.RFC3339) + `","finished":"` + j.FinishedAt.Format(time.RFC3339) + `"}`
		if len(r.Follow) != 1 || r.Follow[0].Request.Key != "callback:"+idempotency.Key(j.ID)+":resolved" || string(r.Follow[0].Job.Payload) != want {
			t.Errorf("%+v", r.Follow)
		}
		return job.Receipt{Record: idempotency.Record{Request: r.Request, Response: r.Response, Fresh: true}, Job: r.Job, Alias: true}, nil
	}
	if _, err := d.tellers().Resolve(t.Context(), operatorRequest("op-1"), "k", job.Succeeded, nil); err != nil || !slices.Contains(d.woken, job.CallbackType) {
		t.Errorf("%v, woken are %v", err, d.woken)
	}
}
