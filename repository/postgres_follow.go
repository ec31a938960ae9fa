package repository

import (
	"context"
	"slices"

	"github.com/sekali/sekali/job"
)

// followManySQL accepts jobs that follow others, and returns those whose key was
// free. It relies on the primary key of idempotency_keys, as accepts do, and
// inserts in the order of the keys, so that those who insert several wait for each
// other in one direction. These jobs have no business key.
const followManySQL = `
with input as (
  select i.slot, i.tenant, i.key, i.fingerprint, i.job_slot, i.job_id, i.status, i.headers, i.body, i.created_at,
    i.type, i.payload, nullif(i.operation_key, '') as operation_key, nullif(i.callback_url, '') as callback_url,
    i.priority, i.run_at, i.claim_at, cast(nullif(i.deadline, '') as timestamptz) as deadline, i.timeout_ms, i.max_attempts
  from unnest(cast($1 as smallint[]), cast($2 as text[]), cast($3 as text[]), cast($4 as bytea[]), cast($5 as smallint[]),
    cast($6 as uuid[]), cast($7 as smallint[]), cast($8 as bytea[]), cast($9 as bytea[]), cast($10 as timestamptz[]),
    cast($11 as text[]), cast($12 as bytea[]), cast($13 as text[]), cast($14 as text[]),
    cast($15 as smallint[]), cast($16 as timestamptz[]), cast($17 as timestamptz[]), cast($18 as text[]), cast($19 as bigint[]),
    cast($20 as int[]))
    as i(slot, tenant, key, fingerprint, job_slot, job_id, status, headers, body, created_at,
      type, payload, operation_key, callback_url, priority, run_at, claim_at, deadline, timeout_ms, max_attempts)),
record as (
  insert into idempotency_keys (slot, tenant, key, fingerprint, state, job_slot, job_id, alias,
    response_status, response_headers, response_body, created_at)
  select i.slot, i.tenant, i.key, i.fingerprint, 'completed', i.job_slot, i.job_id, false, i.status, i.headers, i.body, i.created_at
  from input i
  order by i.slot, i.tenant, i.key
  on conflict (slot, tenant, key) do nothing
  returning job_id)
insert into jobs (slot, id, tenant, key, key_slot, type, state, blocked, payload, operation_key, callback_url,
  priority, run_at, claim_at, deadline, timeout_ms, max_attempts, created_at)
select i.job_slot, i.job_id, i.tenant, i.key, i.slot, i.type, 'pending', false, i.payload, i.operation_key, i.callback_url,
  i.priority, i.run_at, i.claim_at, i.deadline, i.timeout_ms, i.max_attempts, i.created_at
from input i
where i.job_id = any(array(select job_id from record))
returning id`

// followedRow is a job that was accepted.
type followedRow struct {
	ID text `db:"id"`
}

func (p *postgres) followStatements() []string {
	return append([]string{followManySQL}, followStatements...)
}

// followIn accepts those without a business key by one statement.
func (p *postgres) followIn(ctx context.Context, t transaction, follow []job.Submission) error {
	var together, alone []job.Submission
	for _, f := range follow {
		if f.Job.BusinessKey == "" {
			together = append(together, f)
		} else {
			alone = append(alone, f)
		}
	}
	if len(together) > 0 {
		rows, err := rowsOf[followedRow](ctx, t, followManySQL, followArgs(together)...)
		if err != nil {
			return err
		}
		alone = append(alone, others(together, rows)...)
	}
	return followAll(ctx, t, alone)
}

// others is what is accepted instead of those that are not among the rows.
func others(follow []job.Submission, rows []followedRow) []job.Submission {
	var others []job.Submission
	for _, f := range follow {
		accepted := slices.ContainsFunc(rows, func(r followedRow) bool { return string(r.ID) == string(f.Job.ID) })
		if !accepted && f.Otherwise != nil {
			others = append(others, *f.Otherwise)
		}
	}
	return others
}

// followArgs turns rows into columns.
func followArgs(follow []job.Submission) []any {
	n := len(follow)
	var (
		slots, jobSlots, statuses                = make([]int64, n), make([]int64, n), make([]int64, n)
		priorities, timeouts, attempts           = make([]int64, n), make([]int64, n), make([]int64, n)
		tenants, keys, ids, types, created       = make([]string, n), make([]string, n), make([]string, n), make([]string, n), make([]string, n)
		operations, urls, runAt, turn, deadlines = make([]string, n), make([]string, n), make([]string, n), make([]string, n), make([]string, n)
		fingerprints, headers, bodies, payloads  = make([][]byte, n), make([][]byte, n), make([][]byte, n), make([][]byte, n)
	)
	for i, f := range follow {
		req, j := f.Request, f.Job
		slots[i], tenants[i], keys[i] = int64(job.KeySlot(req.Tenant, req.Key)), string(req.Tenant), string(req.Key)
		jobSlots[i], ids[i], types[i], payloads[i] = int64(j.Slot()), string(j.ID), string(j.Type), j.Payload
		fingerprints[i], statuses[i] = req.Fingerprint.Bytes(), int64(f.Response.Status)
		headers[i], bodies[i] = encodeHeader(f.Response.Header), notNil(f.Response.Body)
		operations[i], urls[i], deadlines[i] = j.OperationKey, j.CallbackURL, stampOrNone(j.Deadline)
		created[i], runAt[i], turn[i] = stamp(j.CreatedAt), stamp(j.RunAt), stamp(claimAt(j))
		priorities[i], timeouts[i], attempts[i] = int64(j.Priority), j.Timeout.Milliseconds(), int64(j.MaxAttempts)
	}
	return []any{
		slots, tenants, keys, fingerprints, jobSlots, ids, statuses, headers, bodies, created,
		types, payloads, operations, urls, priorities, runAt, turn, deadlines, timeouts, attempts,
	}
}
