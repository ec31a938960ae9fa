package handlers

import (
	"net/http"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/idempotency"
)

// List answers GET /jobs: one page, newest first.
//
//	@ID	listJobs
//	@Summary	List jobs
//	@Description	One page of the jobs, newest first, without payloads and results. Pages are stable while jobs arrive: none is skipped or repeated.
//	@Tags	jobs
//	@Param	status query string false "Only jobs of this status." example(failed)
//	@Param	type query string false "Only jobs of this type." example(invoice_generate)
//	@Param	business_key query string false "Only jobs of this business key."
//	@Param	key_prefix query string false "Only jobs whose keys begin so."
//	@Param	created_after query string false "Only jobs accepted after this time (RFC 3339)." format(date-time)
//	@Param	created_before query string false "Only jobs accepted before this time (RFC 3339)." format(date-time)
//	@Param	limit query int false "Jobs of a page." minimum(1) maximum(200) default(50)
//	@Param	cursor query string false "next_cursor of the page before, with the same filters."
//	@Produce	application/problem+json
//	@Failure	400 {object} api.Problem "validation-failed"
//	@Produce	json
//	@Success	200 {object} api.JobList "A page."
//	@Router	/jobs [get]
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
