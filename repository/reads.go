package repository

import (
	"cmp"
	"context"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

// The statements that both engines share. $n is a parameter on both; now() is
// Postgres's own and on SQLite a function that sqlite.go gives each connection.

// findSQL reads a record and its job in one statement, and so in one snapshot:
// read one after the other, the job could move between the two tables and be
// seen in neither. It crosses slots: the record lives in the slot of its key.
const findSQL = `
select` + foundSQL + `
from idempotency_keys k
left join jobs j on j.slot = k.job_slot and j.id = k.job_id
left join finished_jobs f on f.slot = k.job_slot and f.id = k.job_id
where k.slot = $1 and k.tenant = $2 and k.key = $3`

const foundSQL = `
  now() as read_at, k.fingerprint, k.state as record_state, k.alias, coalesce(k.response_status, 0) as response_status,
  k.response_headers, k.response_body, k.response_status is not null and k.response_body is null as not_retained,
  k.owner, k.claimed_until, coalesce(k.claimed_until <= now(), false) as lease_ended, k.attempt as record_attempt,
  k.final_state, k.retired_at, k.expires_at as record_expires_at,
  k.job_id is not null as names_job, j.id is not null or f.id is not null as has_job,
  coalesce(k.expires_at <= now(), false) as past, coalesce(f.expires_at <= now(), false) as job_past,
  coalesce(j.id, f.id) as id, coalesce(j.tenant, f.tenant) as tenant, coalesce(j.key, f.key) as key,
  coalesce(j.type, f.type) as type, coalesce(j.state, f.state) as state, coalesce(j.payload, f.payload) as payload,
  coalesce(j.business_key, f.business_key) as business_key, coalesce(j.operation_key, f.operation_key) as operation_key,
  coalesce(j.callback_url, f.callback_url) as callback_url,
  coalesce(j.priority, f.priority, 0) as priority, coalesce(j.run_at, f.run_at) as run_at, coalesce(j.deadline, f.deadline) as deadline,
  coalesce(j.timeout_ms, f.timeout_ms, 0) as timeout_ms, coalesce(j.max_attempts, f.max_attempts, 0) as max_attempts,
  coalesce(j.earlier_attempts, f.earlier_attempts, 0) as earlier_attempts, coalesce(j.attempt, f.attempt, 0) as attempt,
  coalesce(j.generation, f.generation, 0) as generation, coalesce(j.version, f.version, 0) as version,
  coalesce(j.token, f.token, 0) as token, coalesce(j.worker_id, f.worker_id) as worker_id, j.locked_until,
  j.cancel_requested_at, coalesce(j.unknown_asks, 0) as unknown_asks, coalesce(j.last_error, f.last_error) as last_error,
  coalesce(j.created_at, f.created_at) as created_at, coalesce(j.started_at, f.started_at) as started_at,
  coalesce(j.claimed_at, f.claimed_at) as claimed_at,
  f.outcome, f.duplicate_of, f.result, f.result_type, f.result_hash, f.finished_at, f.expires_at,
  f.result_expires_at, coalesce(f.result_expires_at <= now(), false) as result_past`

func (r *Repository) find(ctx context.Context, tenant idempotency.Tenant, key idempotency.Key) (job.Receipt, error) {
	row, err := r.record(ctx, tenant, key)
	if err != nil {
		return job.Receipt{}, err
	}
	if row.over(r.retention.tombstone) {
		return job.Receipt{}, job.ErrNotFound
	}
	return row.receipt(tenant, key)
}

// record reads the row of a key, whatever its age. Error: job.ErrNotFound.
func (r *Repository) record(ctx context.Context, tenant idempotency.Tenant, key idempotency.Key) (*recordRow, error) {
	if !storable(string(tenant)) || !storable(string(key)) {
		return nil, job.ErrNotFound
	}
	f, err := r.finds.Do(ctx, recordKey{tenant, key})
	if err != nil {
		return nil, waited(err)
	}
	if f.err == nil && f.row == nil {
		return nil, job.ErrNotFound
	}
	return f.row, f.err
}

// keyArgs are the columns by which a record is found.
func keyArgs(tenant idempotency.Tenant, key idempotency.Key) []any {
	return []any{int64(job.KeySlot(tenant, key)), string(tenant), string(key)}
}

// storable reports whether a text can be in the database at all; Postgres
// refuses these bytes with an error, even where they are only looked for.
func storable(s string) bool { return utf8.ValidString(s) && !strings.Contains(s, "\x00") }

// listSQL reads a page. Each half walks the index (tenant, id) downwards and
// stops at the limit. The conditions on $2 alone are decided before a half is
// read, so that a filter on an unfinished status never walks finished jobs. The
// prefix is compared by substr because LIKE would have wildcards.
const listSQL = `
select id, tenant, key, type, state, business_key, operation_key, callback_url, priority, run_at, deadline, timeout_ms,
  max_attempts, earlier_attempts, attempt, generation, version, token, worker_id, locked_until, cancel_requested_at,
  last_error, null as outcome, null as duplicate_of, created_at, started_at, claimed_at, null as finished_at, null as expires_at
from (
  select id, tenant, key, type, state, business_key, operation_key, callback_url, priority, run_at, deadline, timeout_ms,
    max_attempts, earlier_attempts, attempt, generation, version, token, worker_id, locked_until, cancel_requested_at,
    last_error, created_at, started_at, claimed_at
  from jobs
  where tenant = $1 and ($2 = '' or $2 not in ('succeeded', 'failed', 'cancelled')) and ($2 = '' or state = $2)
    and ($3 = '' or type = $3) and ($4 = '' or business_key = $4) and substr(key, 1, length($5)) = $5
    and created_at > $6 and created_at < $7 and id > $8 and id < $9
  order by id desc limit $10) as live
union all
select id, tenant, key, type, state, business_key, operation_key, callback_url, priority, run_at, deadline, timeout_ms,
  max_attempts, earlier_attempts, attempt, generation, version, token, worker_id, null as locked_until, null as cancel_requested_at,
  last_error, outcome, duplicate_of, created_at, started_at, claimed_at, finished_at, expires_at
from (
  select id, tenant, key, type, state, business_key, operation_key, callback_url, priority, run_at, deadline, timeout_ms,
    max_attempts, earlier_attempts, attempt, generation, version, token, worker_id,
    last_error, outcome, duplicate_of, created_at, started_at, claimed_at, finished_at, expires_at
  from finished_jobs
  where tenant = $1 and ($2 = '' or $2 in ('succeeded', 'failed', 'cancelled')) and ($2 = '' or state = $2)
    and ($3 = '' or type = $3) and ($4 = '' or business_key = $4) and substr(key, 1, length($5)) = $5
    and created_at > $6 and created_at < $7 and id > $8 and id < $9
  order by id desc limit $10) as ended
order by id desc limit $10`

const (
	lowestID  job.ID = "00000000-0000-0000-0000-000000000000"
	highestID job.ID = "ffffffff-ffff-ffff-ffff-ffffffffffff"
	// idMargin widens the range of ids that a range of creation times is turned
	// into: both come from one clock, but not from one reading by contract.
	idMargin = time.Minute
)

func (r *Repository) list(ctx context.Context, f job.Filter) ([]job.Job, error) {
	for _, s := range []string{string(f.Tenant), string(f.Status), string(f.Type), f.BusinessKey, f.KeyPrefix} {
		if !storable(s) {
			return nil, nil
		}
	}
	// Ids rise with time, so a range of times is a range of the index.
	low, high := lowestID, cmp.Or(f.Before, highestID)
	before := time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)
	if !f.CreatedAfter.IsZero() {
		low = timeID(f.CreatedAfter.Add(-idMargin))
	}
	if !f.CreatedBefore.IsZero() && f.CreatedBefore.Before(before) {
		before = roundUp(f.CreatedBefore)
		high = min(high, timeID(before.Add(idMargin)))
	}
	rows, err := collect[jobRow](ctx, r.engine.reads(), listSQL,
		string(f.Tenant), string(f.Status), string(f.Type), f.BusinessKey, f.KeyPrefix,
		stamp(f.CreatedAfter), stamp(before), string(low), string(high), f.Limit)
	if err != nil {
		return nil, err
	}
	return each(rows, (*jobRow).job)
}

// roundUp returns the first time from t on that can be stored: a job of the
// millisecond in which t lies may have been created before t.
func roundUp(t time.Time) time.Time {
	if stored := t.Truncate(time.Millisecond); stored.Before(t) {
		return stored.Add(time.Millisecond)
	}
	return t
}

// timeID is the smallest id of a time.
func timeID(t time.Time) job.ID {
	const random = 19 // where the bits after the time and the version begin
	id := job.NewID(time.UnixMilli(max(t.UnixMilli(), 0)), 0)
	return id[:14] + "7000-" + lowestID[random:]
}

// versionRow is how far one job has come.
type versionRow struct {
	ID      text  `db:"id"`
	Version int64 `db:"version"`
	State   text  `db:"state"`
}

func versionsOf(rows []versionRow) map[job.ID]job.Version {
	versions := make(map[job.ID]job.Version, len(rows))
	for _, v := range rows {
		versions[job.ID(v.ID)] = job.Version{Number: v.Version, Status: job.Status(v.State)}
	}
	return versions
}
