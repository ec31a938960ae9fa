package handlers

import (
	"net/http"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

// Cancel answers POST /jobs/{key}/cancel with the job as it is by then: 200 if it
// is cancelled, 202 if whoever runs it has been asked to stop. It may be repeated.
func (j *Jobs) Cancel(w http.ResponseWriter, r *http.Request) error {
	key, err := named(r)
	if err != nil {
		return err
	}
	receipt, err := j.domain.Cancel(r.Context(), idempotency.TenantOf(r.Context()), key)
	found := receipt.Job
	api.ReportOf(r.Context()).Job = found
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
	body, err := readBody(r)
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
