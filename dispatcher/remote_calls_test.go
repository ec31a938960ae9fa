package dispatcher_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sekali/sekali/job"
)

// A worker that goes on calling about a lease that is not its any more is counted
// each time, and written down once in a while.
func TestRemote_StaleCallsAreWrittenDownOnceInAWhile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := outside(t, nil)
		w.add(claimable("a", "t"))
		h := brought(t, w.asks(t.Context(), 1, "t"))
		call := job.WorkerCall{ID: "a", LeaseToken: h.jobs[0].LeaseToken, Tenant: "tenant"}
		if _, err := w.d.Remote().Complete(t.Context(), call, nil); err != nil {
			t.Fatal(err)
		}
		for range 20 {
			if _, err := w.d.Remote().Heartbeat(t.Context(), call); !errors.Is(err, job.ErrLeaseLost) {
				t.Fatal(err)
			}
			elapse(5 * time.Second)
		}
		if n := testutil.ToFloat64(w.metrics.StaleCalls.WithLabelValues("heartbeat")); n != 20 {
			t.Errorf("%v calls are counted", n)
		}
		events := w.log.named(job.EventHeartbeatLost)
		if len(events) != 2 || events[0].Data["worker_id"] != "w1" || events[0].Attempt != 1 {
			t.Errorf("written down is %+v", events)
		}
		w.end()
	})
}

func TestRemote_TokensAreGoodForTheirJobAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := outside(t, nil)
		w.add(claimable("a", "t"))
		w.add(claimable("b", "t"))
		h := brought(t, w.asks(t.Context(), 2, "t"))
		token := h.jobs[0].LeaseToken
		for name, c := range map[string]struct {
			id    job.ID
			token string
			want  error
		}{
			"another job's":     {h.jobs[1].ID, token, job.ErrLeaseLost},
			"another number":    {h.jobs[0].ID, "2" + token[1:], job.ErrLeaseLost},
			"cut off":           {h.jobs[0].ID, token[:len(token)-1], job.ErrLeaseLost},
			"without a number":  {h.jobs[0].ID, token[1:], job.ErrLeaseLost},
			"the number alone":  {h.jobs[0].ID, "1", job.ErrLeaseLost},
			"with a plus":       {h.jobs[0].ID, "+" + token, job.ErrLeaseLost},
			"of no job":         {"c", token, job.ErrExecutionNotFound},
			"of another tenant": {h.jobs[0].ID, token, job.ErrExecutionNotFound},
		} {
			call := job.WorkerCall{ID: c.id, LeaseToken: c.token, Tenant: "tenant"}
			if name == "of another tenant" {
				call.Tenant = "other"
			}
			if _, err := w.d.Remote().Complete(t.Context(), call, nil); !errors.Is(err, c.want) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if len(w.endings()) != 0 {
			t.Errorf("%+v", w.endings())
		}
		w.end()
	})
}

func TestRemote_ReleaseGivesTheAttemptBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := outside(t, nil)
		w.add(claimable("a", "t"))
		h := brought(t, w.asks(t.Context(), 1, "t"))
		// The double forgets requeued jobs, so that what the call returns is not looked at.
		_, _ = w.d.Remote().Release(t.Context(), job.WorkerCall{ID: "a", LeaseToken: h.jobs[0].LeaseToken})
		if r := w.back(t); !r.Uncounted || r.Status != job.Pending || r.Attempt != job.AttemptReleased {
			t.Errorf("%+v", r)
		}
		w.end()
	})
}
