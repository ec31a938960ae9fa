package repository

import (
	"context"

	"github.com/sekali/sekali/job"
)

// Resolve implements job.Operator.
func (r *Repository) Resolve(ctx context.Context, v job.Resolution) (job.Receipt, error) {
	return r.operate(ctx, act{
		doing: "resolve", request: v.Request, response: v.Response, from: v.From, becomes: v.Job,
		statements: append([]string{resolveSQL, resolveOperationSQL}, followStatements...),
		apply:      func(ctx context.Context, t transaction) error { return r.resolve(ctx, t, v) },
	})
}

const (
	// resolveSQL relies on the row's lock, as leaveFinishedSQL does. The job has
	// ended when it ended; it is kept from now on.
	resolveSQL = `
update finished_jobs
set state = case when $4 then 'succeeded' else 'failed' end, outcome = null, result = $5, result_type = $6, result_hash = $7,
  result_expires_at = $8, last_error = case when $4 then null else last_error end, version = $9, expires_at = $10
where slot = $1 and id = $2 and version = $3 and state = 'failed' and outcome = 'outcome_unknown' and expires_at > now()`

	// resolveOperationSQL leaves an operation alone that another job has by now.
	resolveOperationSQL = `
update processed_operations
set state = 'done', result = $7, result_type = $8, result_hash = $9
where slot = $1 and tenant = $2 and operation_type = $3 and operation_key = $4
  and job_slot = $5 and job_id = $6 and state = 'processing'`
)

func (r *Repository) resolve(ctx context.Context, t transaction, v job.Resolution) error {
	j, succeeded := v.Job, v.Job.Status == job.Succeeded
	var body, mediaType, hash, resultExpires any
	if j.Result != nil {
		body, mediaType, hash = notNil(j.Result.Body), j.Result.MediaType, j.Result.Hash()
		if r.retention.result > 0 {
			resultExpires = stamp(r.clock.Now().Add(r.retention.result))
		}
	}
	n, err := t.change(ctx, resolveSQL, int64(j.Slot()), string(j.ID), v.From.Version, succeeded,
		body, mediaType, hash, resultExpires, j.Version, stamp(j.ExpiresAt))
	if err != nil {
		return err
	}
	if n == 0 {
		return job.ErrMoved
	}
	if o := j.Operation(); succeeded && o != nil {
		args := append(operationArgs(*o), int64(j.Slot()), string(j.ID), body, mediaType, hash)
		if _, err := t.change(ctx, resolveOperationSQL, args...); err != nil {
			return err
		}
	}
	if err := followAll(ctx, t, v.Follow); err != nil {
		return err
	}
	return r.note(ctx, t, j, job.EventResolved, map[string]any{"status": string(j.Status), "key": string(v.Request.Key)})
}
