package handlers_test

import (
	"testing"
	"time"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

func TestContract_Row113_AttemptsAndEvents(t *testing.T) {
	t.Parallel()
	running := pendingJob()
	running.Status, running.LeaseEndsAt = job.Processing, start.Add(time.Minute)
	d := domain{history: func(key idempotency.Key) (job.History, error) {
		if key != "order-42" {
			t.Errorf("reads %q", key)
		}
		return job.History{
			Receipt: receipt(running, false),
			Attempts: []job.Attempt{
				{Number: 1, Token: 1, Outcome: job.AttemptFailed, WorkerID: "w1", StartedAt: start, FinishedAt: start.Add(1500 * time.Millisecond), Failure: &job.Failure{Code: "timeout", Detail: "It took too long.", Attempt: 1}},
				{Number: 2, Token: 2, WorkerID: "w2", StartedAt: start.Add(2 * time.Second)},
			},
			Timeline: []job.Event{
				{ID: "accepted", Time: start, Name: job.EventAccepted},
				{ID: "x", Time: start.Add(time.Second), Name: job.EventLockLost, Attempt: 1, Data: map[string]any{"worker_id": "w1"}},
			},
		}, nil
	}}
	want{200, map[string]string{"Cache-Control": "private, no-cache", "Content-Type": "application/json", "Content-Location": ""}, []string{
		`{"attempts":[{"number":1,"outcome":"failed","worker_id":"w1","started_at":"2026-03-01T12:00:00Z","finished_at":"2026-03-01T12:00:01.5Z","duration_ms":1500,"error":{"code":"timeout","detail":"It took too long.","attempt":1}},` +
			`{"number":2,"outcome":null,"worker_id":"w2","started_at":"2026-03-01T12:00:02Z","finished_at":null,"duration_ms":null,"error":null,"lease_expires_at":"2026-03-01T12:01:00Z"}]}`,
	}, nil}.check(t, call{method: "GET", target: "/jobs/order-42/attempts"}.do(serve(d, start)))
	want{200, map[string]string{"Cache-Control": "private, no-cache"}, []string{
		`{"events":[{"id":"accepted","time":"2026-03-01T12:00:00Z","event":"accepted","attempt":null,"data":{}},` +
			`{"id":"x","time":"2026-03-01T12:00:01Z","event":"lock_lost","attempt":1,"data":{"worker_id":"w1"}}]}`,
	}, nil}.check(t, call{method: "GET", target: "/jobs/order-42/events"}.do(serve(d, start)))

	fresh := domain{history: func(idempotency.Key) (job.History, error) {
		r := receipt(pendingJob(), false)
		r.Alias = true
		return job.History{Receipt: r}, nil
	}}
	want{200, map[string]string{"Content-Location": "/jobs/order-42/attempts"}, []string{`{"attempts":[]}`}, nil}.
		check(t, call{method: "GET", target: "/jobs/retry-1/attempts"}.do(serve(fresh, start)))
	want{200, map[string]string{"Content-Location": "/jobs/order-42/events"}, []string{`{"events":[]}`}, nil}.
		check(t, call{method: "GET", target: "/jobs/retry-1/events"}.do(serve(fresh, start)))

	for err, status := range map[error]int{job.ErrNotFound: 404, &job.ExpiredError{}: 410, job.ErrUnavailable: 503} {
		broken := domain{history: func(idempotency.Key) (job.History, error) { return job.History{}, err }}
		for _, path := range []string{"/jobs/k/attempts", "/jobs/k/events"} {
			want{status: status}.check(t, call{method: "GET", target: path}.do(serve(broken, start)))
		}
	}
	want{status: 404}.check(t, call{method: "GET", target: "/jobs/%00/events"}.do(serve(domain{}, start)))
}
