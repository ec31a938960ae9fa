package handlers

import (
	"errors"
	"net/http"
	"strings"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

// errNotKeyed: the route lacks middleware.Key.
var errNotKeyed = errors.New("handlers: route takes a keyed request and gets none")

// Submit answers POST /jobs. A key that was accepted before gets the stored
// answer byte for byte, with the job's status of now in a header; a client that
// prefers to wait gets the finished job, if it finishes in time.
//
//	@ID	submitJob
//	@Summary	Submit a job
//	@Description	Accepts a job under a key. However often the same request comes with that key, there is one job, and the answer is the first one, byte for byte; Idempotent-Replayed tells which it was, and Job-Status how the job stands by now.
//	@Tags	jobs
//	@Accept	json
//	@Param	Idempotency-Key header string true "Names the operation: the same key for each repetition, a new key for a new operation. Send it quoted, or bare where it has no quote, comma or backslash." example("order-42")
//	@Param	Prefer header string false "RFC 7240: wait=N waits up to N seconds for the job to finish; respond-async does not wait; return=minimal leaves out the body. Unknown preferences are ignored." example(wait=10)
//	@Param	submission body api.Submission true "The job."
//	@Produce	application/problem+json
//	@Failure	400 {object} api.Problem "idempotency-key-missing, idempotency-key-invalid, validation-failed, unknown-job-type, body-unreadable"
//	@Failure	408 {object} api.Problem "request-timeout"
//	@Failure	409 {object} api.Problem "idempotency-key-in-use, business-key-conflict"
//	@Failure	413 {object} api.Problem "request-too-large"
//	@Failure	415 {object} api.Problem "unsupported-media-type"
//	@Failure	422 {object} api.Problem "idempotency-key-reused, idempotency-key-retired"
//	@Produce	json
//	@Success	202 {object} api.Job "Accepted, now or before: the job as it was accepted, without payload and result."
//	@Success	200 {object} api.Job "The job as it is now: it finished within the time that was waited, or the key stands for the job that holds its business key."
//	@Router	/jobs [post]
func (j *Jobs) Submit(w http.ResponseWriter, r *http.Request) error {
	req, err := j.keyed(r)
	if err != nil {
		return err
	}
	receipt, err := j.accept(r, req)
	if err != nil {
		return err
	}
	j.answer(w, r, req, receipt)
	return nil
}

// keyed is the request as middleware.Key has read it.
func (j *Jobs) keyed(r *http.Request) (idempotency.Request, error) {
	req, ok := idempotency.FromContext(r.Context())
	if !ok {
		return req, errNotKeyed
	}
	if req.Key == "" {
		// The client sent none, and may: this one lets it ask for its job.
		req.Key = idempotency.Key(job.NewID(j.clock.Now(), 0))
	}
	return req, nil
}

// answer answers a request that was accepted, now or before, and waits first if
// the client prefers to.
func (j *Jobs) answer(w http.ResponseWriter, r *http.Request, req idempotency.Request, receipt job.Receipt) {
	// The record is this request's: their fingerprints agree.
	receipt.Record.Request = req
	prefer := api.ParsePrefer(r.Header.Values("Prefer"))
	receipt, crowded := j.awaitAccepted(r, receipt, prefer)
	if crowded || receipt.Brief {
		prefer.Wait = nil // nor can a job be shown that is not known whole
	}

	report := api.ReportOf(r.Context())
	report.Request = req
	report.Names(&receipt.Job)
	j.write(w, receipt, prefer, crowded)
}

// accept decodes and submits, unless the request is known already. A body that is refused today may have been
// accepted under yesterday's rules: then its key has an answer.
func (j *Jobs) accept(r *http.Request, req idempotency.Request) (job.Receipt, error) {
	if receipt, ok := j.domain.Known(r.Context(), req); ok {
		api.ReportOf(r.Context()).Type = receipt.Job.Type
		return receipt, nil
	}
	body, err := api.ReadBody(r)
	if err != nil {
		return job.Receipt{}, err
	}
	draft, err := api.DecodeDraft(body, j.clock.Now())
	if err != nil {
		return j.domain.Refuse(r.Context(), req, err)
	}
	api.ReportOf(r.Context()).Type = draft.Type
	return j.domain.Submit(r.Context(), req, draft)
}

// awaitAccepted waits as long as the client prefers and is granted. The job is
// accepted whatever happens meanwhile, so trouble while waiting, a shutdown or the
// revocation of the token included, leaves the answer as it was.
func (j *Jobs) awaitAccepted(r *http.Request, receipt job.Receipt, prefer api.Preferences) (now job.Receipt, crowded bool) {
	wait, asked := prefer.Grant(j.maxWait)
	if !asked {
		return receipt, false
	}
	waited := receipt
	crowded, err := j.await(r, &waited, wait, false)
	if err == nil {
		receipt.Job, receipt.Brief = waited.Job, false
	}
	return receipt, crowded
}

func (j *Jobs) write(w http.ResponseWriter, receipt job.Receipt, prefer api.Preferences, crowded bool) {
	h := w.Header()
	rec, finished := receipt.Record, receipt.Job.Status.Finished()
	wait, waited := prefer.Grant(j.maxWait)
	current := receipt.Duplicate() || waited && finished
	var applied []string
	if prefer.Async && !current {
		applied = append(applied, "respond-async")
	}
	if waited {
		applied = append(applied, api.WaitApplied(wait))
	}
	if prefer.Minimal {
		applied = append(applied, "return=minimal")
	}
	if len(applied) > 0 {
		h.Set("Preference-Applied", strings.Join(applied, ", "))
	}
	if receipt.Duplicate() {
		h.Set("Idempotency-Status", job.DuplicateIgnored)
	}
	h.Set("Job-Status", string(receipt.Job.Status))
	if finished {
		rec.ExpiresAt = receipt.Job.ExpiresAt
	} else {
		j.setPace(h, receipt.Job, nil, crowded)
	}
	if current {
		rec.Response = api.Current(receipt.Job)
	}
	api.WriteRecord(w, rec.Request, rec, prefer.Minimal)
}
