package handlers

import (
	"net/http"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

// SubmitBatch answers POST /jobs/batch: many submissions with one accept, each
// under a key of its own and with the result that a request of its own would
// have had. One that is refused costs the others nothing.
//
//	@ID	submitBatch
//	@Summary	Submit many jobs
//	@Description	Takes up to 1,000 submissions, each under a key of its own, as a JSON array or as lines of JSON. Each is answered as it would be alone; one that is refused costs the others nothing.
//	@Tags	jobs
//	@Accept	json
//	@Param	items body []api.Submission true "The jobs."
//	@Produce	application/problem+json
//	@Failure	400 {object} api.Problem "validation-failed, body-unreadable"
//	@Failure	408 {object} api.Problem "request-timeout"
//	@Failure	413 {object} api.Problem "request-too-large"
//	@Failure	415 {object} api.Problem "unsupported-media-type"
//	@Produce	json
//	@Success	207 {object} api.BatchResults "What became of each item, in their order."
//	@Router	/jobs/batch [post]
func (j *Jobs) SubmitBatch(w http.ResponseWriter, r *http.Request) error {
	body, err := api.ReadBody(r)
	if err != nil {
		return err
	}
	items, err := api.DecodeBatch(body, r.Header.Get("Content-Type"), j.batchRule(r))
	if err != nil {
		return err
	}
	report := api.ReportOf(r.Context())
	report.Items = make([]api.ItemReport, len(items))
	results := make([]api.BatchResult, len(items))
	receipts, errs := j.submitAll(r, items)
	for i, item := range items {
		report.Items[i].Type = item.Draft.Type
		if err := errs[i]; err != nil {
			results[i] = api.RefusalOf(item, err)
			report.Items[i].Code = results[i].Problem.Code
			if report.Err == nil && results[i].Status >= http.StatusInternalServerError {
				report.Err, report.Instance = err, results[i].Problem.Instance // the first one stands for all
			}
			continue
		}
		results[i] = api.ResultOf(item, receipts[i])
		report.Items[i].Replayed, report.Items[i].Duplicate = results[i].Replayed, receipts[i].Duplicate()
	}
	api.WriteBatch(w, results)
	return nil
}

// submitAll submits the items that can be, and answers all.
func (j *Jobs) submitAll(r *http.Request, items []api.BatchItem) ([]job.Receipt, []error) {
	receipts, errs := make([]job.Receipt, len(items)), make([]error, len(items))
	var sound []job.Item
	var at []int
	for i, item := range items {
		if errs[i] = item.Err; item.Err == nil {
			sound, at = append(sound, item.Item), append(at, i)
		}
	}
	found, failed := j.domain.SubmitAll(r.Context(), sound)
	for n, i := range at {
		receipts[i], errs[i] = found[n], failed[n]
	}
	return receipts, errs
}

func (j *Jobs) batchRule(r *http.Request) api.BatchRule {
	now := j.clock.Now()
	return api.BatchRule{
		Tenant: idempotency.TenantOf(r.Context()), Key: j.batch.KeyRule, Required: j.batch.KeyRequired,
		ItemLimit: j.batch.ItemLimit, Now: now,
		NewKey: func() idempotency.Key { return idempotency.Key(job.NewID(now, 0)) },
	}
}
