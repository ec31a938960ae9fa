package handlers

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

// ExecutionsConfig is what Executions needs besides the domain.
type ExecutionsConfig struct {
	// Kinds are the job types that are configured here, with the kinds of their
	// executors.
	Kinds map[job.Type]string
	// ForAll reports whether the caller may work on the jobs of all tenants.
	ForAll      func(context.Context) bool
	MaxWait     time.Duration // longest wait that a claim is granted
	Waiters     waiterLimit   // nil: any number may wait
	ResultLimit int64         // bytes of a result
	// Still returns an error if the caller would not be let in any more, after a wait;
	// nil: nobody is asked.
	Still func(*http.Request) error
}

// Executions answers workers outside of the gateway.
type Executions struct {
	domain job.Workers
	cfg    ExecutionsConfig
}

// NewExecutions makes the handlers of /executions.
func NewExecutions(d job.Workers, c ExecutionsConfig) *Executions {
	return &Executions{domain: d, cfg: c}
}

// Claim answers POST /executions/claim. Who has left by the time that there is
// something gets nothing: others may have it at once.
//
//	@ID	claimExecutions
//	@Summary	Claim jobs for a worker
//	@Description	Takes jobs of the types, in turn, under a lease; waits for the first one if there is none. The worker keeps the lease by heartbeats, and ends each execution by complete, fail or release. It takes no key.
//	@Tags	executions
//	@Accept	json
//	@Param	claim body api.ExecutionClaim true "What to claim."
//	@Produce	application/problem+json
//	@Failure	400 {object} api.Problem "validation-failed, body-unreadable"
//	@Failure	408 {object} api.Problem "request-timeout"
//	@Failure	413 {object} api.Problem "request-too-large"
//	@Failure	415 {object} api.Problem "unsupported-media-type"
//	@Produce	json
//	@Success	200 {object} api.ExecutionList "The executions; none came within the time if the list is empty."
//	@Router	/executions/claim [post]
func (e *Executions) Claim(w http.ResponseWriter, r *http.Request) error {
	body, err := api.ReadBody(r)
	if err != nil {
		return err
	}
	claim, err := api.DecodeExecutionClaim(body, func(t job.Type) string { return e.cfg.Kinds[t] })
	if err != nil {
		return err
	}
	claim.Tenant = e.tenant(r)
	handed, crowded, err := e.claim(r.Context(), claim)
	if err != nil {
		return err
	}
	if err := e.still(r, handed); err != nil {
		e.domain.HandBack(r.Context(), handed)
		return err
	}
	w.Header().Set("Cache-Control", "no-store")
	if crowded && len(handed) == 0 {
		api.SetRetryAfter(w.Header(), api.CrowdedPace)
	}
	api.WriteExecutions(w, handed)
	return nil
}

// still returns why jobs that came, perhaps after a long wait, must not go to the
// caller: it has left, or its token has been revoked meanwhile.
func (e *Executions) still(r *http.Request, handed []job.Handed) error {
	if err := context.Cause(r.Context()); err != nil || len(handed) == 0 || e.cfg.Still == nil {
		return err
	}
	return e.cfg.Still(r)
}

// claim waits only if there is room for one more who does.
func (e *Executions) claim(ctx context.Context, c job.WorkerClaim) (handed []job.Handed, crowded bool, err error) {
	c.Wait = min(c.Wait, e.cfg.MaxWait)
	if c.Wait > 0 && e.cfg.Waiters != nil {
		leave, ok := e.cfg.Waiters.Enter(idempotency.TenantOf(ctx))
		if ok {
			defer leave()
		} else {
			c.Wait, crowded = 0, true
		}
	}
	handed, err = e.domain.Claim(ctx, c)
	return handed, crowded, err
}

// Heartbeat answers POST /executions/{id}/heartbeat.
//
//	@ID	heartbeatExecution
//	@Summary	Keep an execution
//	@Description	Prolongs the lease from now on, up to the deadline of the attempt, and tells whether somebody asked to cancel the job. It may be repeated, and takes no key.
//	@Tags	executions
//	@Accept	json
//	@Param	id path string true "The id of the execution." example(019876a5-4c2e-7b1d-8f3a-2d5c9e7b1a40)
//	@Param	lease body api.ExecutionLease true "The lease."
//	@Produce	application/problem+json
//	@Failure	400 {object} api.Problem "validation-failed, body-unreadable"
//	@Failure	404 {object} api.Problem "execution-not-found"
//	@Failure	408 {object} api.Problem "request-timeout"
//	@Failure	410 {object} api.Problem "lease-lost"
//	@Failure	413 {object} api.Problem "request-too-large"
//	@Failure	415 {object} api.Problem "unsupported-media-type"
//	@Produce	json
//	@Success	200 {object} api.ExecutionHeartbeat "The lease goes on."
//	@Router	/executions/{id}/heartbeat [post]
func (e *Executions) Heartbeat(w http.ResponseWriter, r *http.Request) error {
	body, err := api.ReadBody(r)
	if err != nil {
		return err
	}
	token, err := api.DecodeExecutionLease(body)
	if err != nil {
		return err
	}
	call, err := e.call(r, token)
	if err != nil {
		return err
	}
	beat, err := e.domain.Heartbeat(r.Context(), call)
	if err != nil {
		return err
	}
	w.Header().Set("Cache-Control", "no-store")
	api.WriteJSON(w, http.StatusOK, api.FromHeartbeat(beat))
	return nil
}

// Complete answers POST /executions/{id}/complete.
//
//	@ID	completeExecution
//	@Summary	Complete an execution
//	@Description	Ends the job with success, and with the result, which is kept byte for byte. The same call again gets the same answer. It takes no key.
//	@Tags	executions
//	@Accept	json
//	@Param	id path string true "The id of the execution." example(019876a5-4c2e-7b1d-8f3a-2d5c9e7b1a40)
//	@Param	completion body api.ExecutionCompletion true "The lease, and the result."
//	@Produce	application/problem+json
//	@Failure	400 {object} api.Problem "validation-failed, body-unreadable"
//	@Failure	404 {object} api.Problem "execution-not-found"
//	@Failure	408 {object} api.Problem "request-timeout"
//	@Failure	410 {object} api.Problem "lease-lost"
//	@Failure	413 {object} api.Problem "request-too-large"
//	@Failure	415 {object} api.Problem "unsupported-media-type"
//	@Failure	422 {object} api.Problem "execution-already-finished"
//	@Produce	json
//	@Success	200 {object} api.Job "The job has succeeded, now or before."
//	@Router	/executions/{id}/complete [post]
func (e *Executions) Complete(w http.ResponseWriter, r *http.Request) error {
	return e.end(w, r, func(body []byte) (string, ending, error) {
		token, result, err := api.DecodeExecutionCompletion(body, e.cfg.ResultLimit)
		return token, func(call job.WorkerCall) (job.Job, error) { return e.domain.Complete(r.Context(), call, result) }, err
	})
}

// Fail answers POST /executions/{id}/fail.
//
//	@ID	failExecution
//	@Summary	Report that an execution failed
//	@Description	Ends the attempt. The job is tried again later, unless it is not retryable or has no attempts left. It may be repeated, and takes no key.
//	@Tags	executions
//	@Accept	json
//	@Param	id path string true "The id of the execution." example(019876a5-4c2e-7b1d-8f3a-2d5c9e7b1a40)
//	@Param	failure body api.ExecutionFailure true "The lease, and what went wrong."
//	@Produce	application/problem+json
//	@Failure	400 {object} api.Problem "validation-failed, body-unreadable"
//	@Failure	404 {object} api.Problem "execution-not-found"
//	@Failure	408 {object} api.Problem "request-timeout"
//	@Failure	410 {object} api.Problem "lease-lost"
//	@Failure	413 {object} api.Problem "request-too-large"
//	@Failure	415 {object} api.Problem "unsupported-media-type"
//	@Produce	json
//	@Success	200 {object} api.Job "The job as it is now: retrying, failed, or cancelled if somebody had asked for that."
//	@Router	/executions/{id}/fail [post]
func (e *Executions) Fail(w http.ResponseWriter, r *http.Request) error {
	return e.end(w, r, func(body []byte) (string, ending, error) {
		token, failure, err := api.DecodeExecutionFailure(body)
		return token, func(call job.WorkerCall) (job.Job, error) { return e.domain.Fail(r.Context(), call, failure) }, err
	})
}

// Release answers POST /executions/{id}/release.
//
//	@ID	releaseExecution
//	@Summary	Hand an execution back
//	@Description	The job may be claimed again at once, and the attempt is not counted: for workers that say goodbye. It may be repeated, and takes no key.
//	@Tags	executions
//	@Accept	json
//	@Param	id path string true "The id of the execution." example(019876a5-4c2e-7b1d-8f3a-2d5c9e7b1a40)
//	@Param	lease body api.ExecutionLease true "The lease."
//	@Produce	application/problem+json
//	@Failure	400 {object} api.Problem "validation-failed, body-unreadable"
//	@Failure	404 {object} api.Problem "execution-not-found"
//	@Failure	408 {object} api.Problem "request-timeout"
//	@Failure	410 {object} api.Problem "lease-lost"
//	@Failure	413 {object} api.Problem "request-too-large"
//	@Failure	415 {object} api.Problem "unsupported-media-type"
//	@Produce	json
//	@Success	200 {object} api.Job "The job as it is now: pending, or cancelled if somebody had asked for that."
//	@Router	/executions/{id}/release [post]
func (e *Executions) Release(w http.ResponseWriter, r *http.Request) error {
	return e.end(w, r, func(body []byte) (string, ending, error) {
		token, err := api.DecodeExecutionLease(body)
		return token, func(call job.WorkerCall) (job.Job, error) { return e.domain.Release(r.Context(), call) }, err
	})
}

// ending ends an execution and returns its job.
type ending func(job.WorkerCall) (job.Job, error)

// end reads how the worker ends its execution, does it, and answers with the job.
func (e *Executions) end(w http.ResponseWriter, r *http.Request, decode func(body []byte) (string, ending, error)) error {
	body, err := api.ReadBody(r)
	if err != nil {
		return err
	}
	token, end, err := decode(body)
	if err != nil {
		return err
	}
	call, err := e.call(r, token)
	if err != nil {
		return err
	}
	found, err := end(call)
	if err != nil {
		return err
	}
	api.ReportOf(r.Context()).Names(&found)
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("Job-Status", string(found.Status))
	api.WriteJob(w, http.StatusOK, found)
	return nil
}

// call is about the execution that the path names. An id that no job can have is not
// looked for.
func (e *Executions) call(r *http.Request, token string) (job.WorkerCall, error) {
	text, err := url.PathUnescape(chi.URLParam(r, "id"))
	if err != nil {
		return job.WorkerCall{}, job.ErrExecutionNotFound
	}
	id, err := job.ParseID(text)
	if err != nil {
		return job.WorkerCall{}, job.ErrExecutionNotFound
	}
	return job.WorkerCall{ID: id, LeaseToken: token, Tenant: e.tenant(r)}, nil
}

// tenant is whose executions alone the caller may see; "" if those of all.
func (e *Executions) tenant(r *http.Request) idempotency.Tenant {
	if e.cfg.ForAll != nil && e.cfg.ForAll(r.Context()) {
		return ""
	}
	return idempotency.TenantOf(r.Context())
}
