package handlers

import (
	"net/http"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

// Attempts answers GET /jobs/{key}/attempts.
//
//	@ID	listAttempts
//	@Summary	List the attempts of a job
//	@Description	Each run of the job, oldest first.
//	@Tags	jobs
//	@Param	key path string true "The key of the job, percent-encoded once: a slash is %2F." example(order-42)
//	@Produce	application/problem+json
//	@Failure	404 {object} api.Problem "job-not-found"
//	@Failure	410 {object} api.Problem "job-expired"
//	@Produce	json
//	@Success	200 {object} api.AttemptList "The attempts."
//	@Router	/jobs/{key}/attempts [get]
func (j *Jobs) Attempts(w http.ResponseWriter, r *http.Request) error {
	history, err := j.history(w, r, "/attempts")
	if err != nil {
		return err
	}
	api.WriteJSON(w, http.StatusOK, api.FromAttempts(history))
	return nil
}

// Events answers GET /jobs/{key}/events: the job's timeline.
//
//	@ID	listEvents
//	@Summary	Get the timeline of a job
//	@Description	What has happened to the job, oldest first. The words are an open set; docs/events.md lists them.
//	@Tags	jobs
//	@Param	key path string true "The key of the job, percent-encoded once: a slash is %2F." example(order-42)
//	@Produce	application/problem+json
//	@Failure	404 {object} api.Problem "job-not-found"
//	@Failure	410 {object} api.Problem "job-expired"
//	@Produce	json
//	@Success	200 {object} api.EventList "The timeline."
//	@Router	/jobs/{key}/events [get]
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
	api.ReportOf(r.Context()).Names(&history.Receipt.Job)
	j.setJobHeader(w.Header(), history.Receipt, below)
	return history, nil
}
