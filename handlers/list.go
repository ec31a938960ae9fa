package handlers

import (
	"net/http"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/idempotency"
)

// List answers GET /jobs: one page, newest first.
func (j *Jobs) List(w http.ResponseWriter, r *http.Request) error {
	filter, err := api.DecodeFilter(r.URL.RawQuery, idempotency.TenantOf(r.Context()))
	if err != nil {
		return err
	}
	limit := filter.Limit
	filter.Limit++ // one more tells whether there is another page
	jobs, err := j.domain.List(r.Context(), filter)
	if err != nil {
		return err
	}
	next := ""
	if len(jobs) > limit {
		jobs = jobs[:limit]
		next = api.Cursor(jobs[limit-1].ID, filter)
	}
	w.Header().Set("Cache-Control", "private, no-cache")
	api.WriteJSON(w, http.StatusOK, api.FromJobs(jobs, next))
	return nil
}
