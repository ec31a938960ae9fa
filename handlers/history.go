package handlers

import (
	"net/http"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

// Attempts answers GET /jobs/{key}/attempts.
func (j *Jobs) Attempts(w http.ResponseWriter, r *http.Request) error {
	history, err := j.history(w, r, "/attempts")
	if err != nil {
		return err
	}
	api.WriteJSON(w, http.StatusOK, api.FromAttempts(history))
	return nil
}

// Events answers GET /jobs/{key}/events: the job's timeline.
func (j *Jobs) Events(w http.ResponseWriter, r *http.Request) error {
	history, err := j.history(w, r, "/events")
	if err != nil {
		return err
	}
	api.WriteJSON(w, http.StatusOK, api.FromTimeline(history))
	return nil
}

// history reads what has happened to the job that the path names, and sets the
// headers of an answer about it.
func (j *Jobs) history(w http.ResponseWriter, r *http.Request, below string) (job.History, error) {
	key, err := named(r)
	if err != nil {
		return job.History{}, err
	}
	history, err := j.domain.History(r.Context(), idempotency.TenantOf(r.Context()), key)
	if err != nil {
		return job.History{}, err
	}
	api.ReportOf(r.Context()).Job = history.Receipt.Job
	j.setJobHeader(w.Header(), history.Receipt, below)
	return history, nil
}
