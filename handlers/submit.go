package handlers

import (
	"context"
	"errors"
	"fmt"
	"io"
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
	receipt, crowded := j.awaitAccepted(r.Context(), receipt, prefer)
	if crowded {
		prefer.Wait = nil
	}

	report := api.ReportOf(r.Context())
	report.Request, report.Job = req, receipt.Job
	j.write(w, receipt, prefer, crowded)
}

// accept decodes and submits. A body that is refused today may have been
// accepted under yesterday's rules: then its key has an answer.
func (j *Jobs) accept(r *http.Request, req idempotency.Request) (job.Receipt, error) {
	body, err := readBody(r)
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

func readBody(r *http.Request) ([]byte, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", api.ErrBodyUnreadable, err)
	}
	return body, nil
}

// awaitAccepted waits as long as the client prefers and is granted. The job is
// accepted whatever happens meanwhile, so trouble while waiting, a shutdown
// included, leaves the answer as it was.
func (j *Jobs) awaitAccepted(ctx context.Context, receipt job.Receipt, prefer api.Preferences) (now job.Receipt, crowded bool) {
	wait, asked := prefer.Grant(j.maxWait)
	if !asked {
		return receipt, false
	}
	waited, crowded, err := j.await(ctx, receipt, wait, false)
	if err == nil {
		receipt.Job = waited.Job
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
