package handlers

import (
	"net/http"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

// Cancel answers POST /jobs/{key}/cancel with the job as it is by then: 200 if it
// is cancelled, 202 if whoever runs it has been asked to stop. It may be repeated.
//
//	@ID	cancelJob
//	@Summary	Cancel a job
//	@Description	A job that does not run is cancelled at once; one that runs is asked to stop, and may still succeed. It may be repeated, and takes no key.
//	@Tags	operations
//	@Param	key path string true "The key of the job, percent-encoded once: a slash is %2F." example(order-42)
//	@Produce	application/problem+json
//	@Failure	404 {object} api.Problem "job-not-found"
//	@Failure	410 {object} api.Problem "job-expired"
//	@Failure	422 {object} api.Problem "job-already-finished"
//	@Produce	json
//	@Success	200 {object} api.Job "The job is cancelled."
//	@Success	202 {object} api.Job "Whoever runs the job has been asked to stop."
//	@Router	/jobs/{key}/cancel [post]
func (j *Jobs) Cancel(w http.ResponseWriter, r *http.Request) error {
	key, err := named(r)
	if err != nil {
		return err
	}
	receipt, err := j.domain.Cancel(r.Context(), idempotency.TenantOf(r.Context()), key)
	found := receipt.Job
	api.ReportOf(r.Context()).Names(&found)
	if err != nil {
		return &api.JobError{Key: key, Status: found.Status, Err: err}
	}
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("Location", api.JobURL(found.Key))
	h.Set("Job-Status", string(found.Status))
	j.setPace(h, found, nil, false)
	status := http.StatusAccepted
	if found.Status.Finished() {
		status = http.StatusOK
	}
	api.WriteJob(w, status, found)
	return nil
}

// Retry answers POST /jobs/{key}/retry: 202 with the job as it is brought back.
// It is an accept with a key of its own, answered like a submission.
//
//	@ID	retryJob
//	@Summary	Retry a job
//	@Description	Brings a failed or cancelled job back, with new attempts. It is an accept with a key of its own.
//	@Tags	operations
//	@Param	key path string true "The key of the job, percent-encoded once: a slash is %2F." example(order-42)
//	@Param	Idempotency-Key header string true "Names this retry: the job is brought back once however often it comes. Send it quoted, or bare where it has no quote, comma or backslash." example("order-42")
//	@Param	Prefer header string false "RFC 7240: wait=N waits up to N seconds for the job to finish; respond-async does not wait; return=minimal leaves out the body. Unknown preferences are ignored." example(wait=10)
//	@Produce	application/problem+json
//	@Failure	400 {object} api.Problem "idempotency-key-missing, idempotency-key-invalid, validation-failed, unknown-job-type, body-unreadable"
//	@Failure	404 {object} api.Problem "job-not-found"
//	@Failure	408 {object} api.Problem "request-timeout"
//	@Failure	409 {object} api.Problem "idempotency-key-in-use, business-key-conflict"
//	@Failure	410 {object} api.Problem "job-expired"
//	@Failure	413 {object} api.Problem "request-too-large"
//	@Failure	415 {object} api.Problem "unsupported-media-type"
//	@Failure	422 {object} api.Problem "job-not-retryable, idempotency-key-reused, idempotency-key-retired"
//	@Produce	json
//	@Success	202 {object} api.Job "The job is brought back, now or before."
//	@Success	200 {object} api.Job "The job as it is now: it finished within the time that was waited."
//	@Router	/jobs/{key}/retry [post]
func (j *Jobs) Retry(w http.ResponseWriter, r *http.Request) error {
	return j.operate(w, r, func(body []byte, req idempotency.Request, key idempotency.Key) (job.Receipt, error) {
		if err := api.DecodeNothing(body); err != nil {
			return j.domain.Refuse(r.Context(), req, err)
		}
		return j.domain.Retry(r.Context(), req, key)
	})
}

// Resolve answers POST /jobs/{key}/resolve: 200 with the job as it is resolved.
// It is an accept likewise.
//
//	@ID	resolveJob
//	@Summary	Resolve a job of unknown outcome
//	@Description	Settles a job that failed with the outcome outcome_unknown. It is an accept with a key of its own.
//	@Tags	operations
//	@Accept	json
//	@Param	key path string true "The key of the job, percent-encoded once: a slash is %2F." example(order-42)
//	@Param	Idempotency-Key header string true "Names this resolution: the job is resolved once however often it comes. Send it quoted, or bare where it has no quote, comma or backslash." example("order-42")
//	@Param	Prefer header string false "RFC 7240: wait=N waits up to N seconds for the job to finish; respond-async does not wait; return=minimal leaves out the body. Unknown preferences are ignored." example(wait=10)
//	@Param	resolution body api.Resolution true "How the job has ended."
//	@Produce	application/problem+json
//	@Failure	400 {object} api.Problem "idempotency-key-missing, idempotency-key-invalid, validation-failed, body-unreadable"
//	@Failure	404 {object} api.Problem "job-not-found"
//	@Failure	408 {object} api.Problem "request-timeout"
//	@Failure	409 {object} api.Problem "idempotency-key-in-use"
//	@Failure	410 {object} api.Problem "job-expired"
//	@Failure	413 {object} api.Problem "request-too-large"
//	@Failure	415 {object} api.Problem "unsupported-media-type"
//	@Failure	422 {object} api.Problem "job-not-resolvable, idempotency-key-reused, idempotency-key-retired"
//	@Produce	json
//	@Success	200 {object} api.Job "The job is resolved, now or before."
//	@Router	/jobs/{key}/resolve [post]
func (j *Jobs) Resolve(w http.ResponseWriter, r *http.Request) error {
	return j.operate(w, r, func(body []byte, req idempotency.Request, key idempotency.Key) (job.Receipt, error) {
		to, result, err := api.DecodeResolution(body)
		if err != nil {
			return j.domain.Refuse(r.Context(), req, err)
		}
		return j.domain.Resolve(r.Context(), req, key, to, result)
	})
}

// operate reads the keyed request and the key in its path, acts, and answers.
func (j *Jobs) operate(w http.ResponseWriter, r *http.Request, act func([]byte, idempotency.Request, idempotency.Key) (job.Receipt, error)) error {
	req, err := j.keyed(r)
	if err != nil {
		return err
	}
	key, err := named(r)
	if err != nil {
		return err
	}
	api.ReportOf(r.Context()).Request = req
	body, err := api.ReadBody(r)
	if err != nil {
		return err
	}
	receipt, err := act(body, req, key)
	if err != nil {
		return &api.JobError{Key: key, Err: err}
	}
	j.answer(w, r, req, receipt)
	return nil
}
