package handlers_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/handlers"
	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

// workers is a fake that hands out one job, and keeps what was handed back.
type workers struct {
	job.Workers
	asked job.WorkerClaim
	leave func() // of the worker, while it claims
	back  []job.Handed
}

func (w *workers) Claim(_ context.Context, c job.WorkerClaim) ([]job.Handed, error) {
	w.asked = c
	if w.leave != nil {
		w.leave()
	}
	return []job.Handed{{Claimed: job.Claimed{Job: job.Job{Key: "k", Payload: []byte("1")}}}}, nil
}

func (w *workers) HandBack(_ context.Context, handed []job.Handed) {
	w.back = append(w.back, handed...)
}

// claims sends a claim, in the name of a tenant that may work for all or not.
func (w *workers) claims(t *testing.T, cfg handlers.ExecutionsConfig) *httptest.ResponseRecorder {
	t.Helper()
	ctx, cancel := context.WithCancel(idempotency.WithTenant(t.Context(), "acme"))
	defer cancel()
	if w.leave != nil {
		w.leave = cancel
	}
	ctx, _ = api.WithReport(ctx)
	cfg.Kinds = map[job.Type]string{"t": "remote"}
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/executions/claim", strings.NewReader(`{"worker":"w1","types":["t"],"wait_seconds":60}`))
	answer := httptest.NewRecorder()
	handlers.Handler(handlers.NewExecutions(w, cfg).Claim).ServeHTTP(answer, r)
	return answer
}

func TestClaim_IsForTheCallersTenant(t *testing.T) {
	t.Parallel()
	w := &workers{}
	if a := w.claims(t, handlers.ExecutionsConfig{MaxWait: 5 * time.Second}); a.Code != http.StatusOK || w.asked.Tenant != "acme" || w.asked.Wait != 5*time.Second {
		t.Errorf("%d, %+v", a.Code, w.asked)
	}
	all := func(context.Context) bool { return true }
	if a := w.claims(t, handlers.ExecutionsConfig{MaxWait: time.Hour, ForAll: all}); a.Code != http.StatusOK || w.asked.Tenant != "" || w.asked.Wait != time.Minute {
		t.Errorf("%d, %+v", a.Code, w.asked)
	}
}

// Who finds no place to wait gets what there is at once.
func TestClaim_WaitsOnlyWhereThereIsAPlace(t *testing.T) {
	t.Parallel()
	w := &workers{}
	if a := w.claims(t, handlers.ExecutionsConfig{MaxWait: time.Hour, Waiters: job.NewWaiterLimit(0, 0)}); a.Code != http.StatusOK || w.asked.Wait != 0 {
		t.Errorf("%d, %+v", a.Code, w.asked)
	}
}

// A worker that leaves while the answer is on its way to the writer has nothing: the
// job is for others.
func TestClaim_HandsBackWhatNobodyIsThereToGet(t *testing.T) {
	t.Parallel()
	w := &workers{leave: func() {}}
	if w.claims(t, handlers.ExecutionsConfig{}); len(w.back) != 1 || w.back[0].Key != "k" {
		t.Errorf("%+v", w.back)
	}
}
