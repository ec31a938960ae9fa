package repository

import "github.com/sekali/sekali/job"

// acceptPlainSQL is acceptSQL for submissions that have no business key, as most
// have none: each record names its own job, and nothing can be ahead of it. Of a key
// that has a record it writes nothing, and returns nothing. Without the wide rows of
// the input in between it costs Postgres about a third less.
//
// Records are inserted in the order of their keys, in which waves are sorted.
const acceptPlainSQL = `
with record as (
  insert into idempotency_keys (slot, tenant, key, fingerprint, state, job_slot, job_id, alias,
    response_status, response_headers, response_body, created_at)
  select i.slot, i.tenant, i.key, substring(cast($20 as bytea) from i.start for i.fingerprint), 'completed', i.job_slot, i.job_id, false,
    i.status, substring(cast($20 as bytea) from i.start + i.fingerprint for i.headers),
    substring(cast($20 as bytea) from i.start + i.fingerprint + i.headers for i.body), i.created_at
  from unnest(cast($1 as smallint[]), cast($2 as text[]), cast($3 as text[]),
    cast($4 as smallint[]), cast($5 as uuid[]), cast($6 as smallint[]), cast($7 as timestamptz[]),
    cast($8 as int[]), cast($9 as int[]), cast($10 as int[]), cast($11 as int[]))
    as i(slot, tenant, key, job_slot, job_id, status, created_at, start, fingerprint, headers, body)
  order by i.slot, i.tenant, i.key
  on conflict (slot, tenant, key) do nothing
  returning job_id)
insert into jobs (slot, id, tenant, key, key_slot, type, state, payload, operation_key, callback_url,
  priority, run_at, claim_at, deadline, timeout_ms, max_attempts, created_at)
select i.job_slot, i.job_id, i.tenant, i.key, i.slot, i.type, i.state,
  substring(cast($20 as bytea) from i.start + i.fingerprint + i.headers + i.body for i.payload),
  nullif(i.operation_key, ''), nullif(i.callback_url, ''),
  i.priority, i.run_at, i.claim_at, cast(nullif(i.deadline, '') as timestamptz), i.timeout_ms, i.max_attempts, i.created_at
from unnest(cast($1 as smallint[]), cast($2 as text[]), cast($3 as text[]), cast($4 as smallint[]), cast($5 as uuid[]),
  cast($7 as timestamptz[]), cast($8 as int[]), cast($9 as int[]), cast($10 as int[]), cast($11 as int[]), cast($12 as int[]),
  cast($13 as text[]), cast($14 as text[]), cast($15 as text[]), cast($16 as text[]), cast($17 as smallint[]),
  cast($18 as timestamptz[]), cast($19 as timestamptz[]), cast($21 as bigint[]), cast($22 as int[]), cast($23 as text[]))
  as i(slot, tenant, key, job_slot, job_id, created_at, start, fingerprint, headers, body, payload, type, state,
    operation_key, deadline, priority, run_at, claim_at, timeout_ms, max_attempts, callback_url)
where i.job_id = any(array(select job_id from record))
returning id as mine, id as bound`

// acceptOneSQL is acceptPlainSQL for one submission. Who is alone pays for the
// statement and not for its rows: this one costs Postgres half as much.
const acceptOneSQL = `
with record as (
  insert into idempotency_keys (slot, tenant, key, fingerprint, state, job_slot, job_id, alias,
    response_status, response_headers, response_body, created_at)
  values (cast($1 as smallint), $2, $3, $4, 'completed', cast($5 as smallint), cast($6 as uuid), false, $7, $8, $9, $10)
  on conflict (slot, tenant, key) do nothing
  returning slot, tenant, key, job_slot, job_id, created_at)
insert into jobs (slot, id, tenant, key, key_slot, type, state, payload, operation_key, callback_url,
  priority, run_at, claim_at, deadline, timeout_ms, max_attempts, created_at)
select r.job_slot, r.job_id, r.tenant, r.key, r.slot, $11, $12, $13, nullif($14, ''), nullif($15, ''),
  $16, cast($17 as timestamptz), cast($18 as timestamptz), cast(nullif($19, '') as timestamptz), $20, $21, r.created_at
from record r
returning id as mine, id as bound`

// acceptStatement is the cheapest statement that accepts the wave.
func acceptStatement(wave []*answer) (query string, args []any) {
	switch {
	case haveBusinessKey(wave):
		return acceptSQL, append(acceptArgs(wave), conflictArgs(wave)...)
	case len(wave) == 1:
		return acceptOneSQL, acceptOneArgs(wave[0])
	}
	return acceptPlainSQL, acceptArgs(wave)
}

func haveBusinessKey(wave []*answer) bool {
	for _, a := range wave {
		if a.s.Job.BusinessKey != "" {
			return true
		}
	}
	return false
}

func acceptOneArgs(a *answer) []any {
	req, j, response := a.s.Request, &a.s.Job, a.s.Response
	created := stamp(j.CreatedAt)
	return []any{
		int64(a.slot), string(req.Tenant), string(req.Key), req.Fingerprint.Bytes(), int64(j.Slot()), string(j.ID),
		int64(response.Status), encodeHeader(response.Header), response.Body, created,
		string(j.Type), string(j.Status), j.Payload, j.OperationKey, j.CallbackURL,
		int64(j.Priority), stamp(j.RunAt), stamp(claimAt(*j)), stampOrNone(j.Deadline), j.Timeout.Milliseconds(), int64(j.MaxAttempts),
	}
}

// acceptArgs turns rows into columns, and what is bytes into one value.
func acceptArgs(wave []*answer) []any {
	n := len(wave)
	var (
		slots, jobSlots, statuses, priorities     = make([]int64, n), make([]int64, n), make([]int64, n), make([]int64, n)
		timeouts, attempts                        = make([]int64, n), make([]int64, n)
		starts, prints, headers, bodies, payloads = make([]int64, n), make([]int64, n), make([]int64, n), make([]int64, n), make([]int64, n)
		tenants, keys, ids, types, states         = make([]string, n), make([]string, n), make([]string, n), make([]string, n), make([]string, n)
		created, runAt, turn                      = make([]string, n), make([]string, n), make([]string, n)
		operationKeys, callbackURLs, deadlines    = make([]string, n), make([]string, n), make([]string, n)
		all                                       = make([]byte, 0, bytesOf(wave))
	)
	part := func(bytes []byte) int64 {
		all = append(all, bytes...)
		return int64(len(bytes))
	}
	for i, a := range wave {
		req, j, response := a.s.Request, &a.s.Job, a.s.Response
		slots[i], tenants[i], keys[i] = int64(a.slot), string(req.Tenant), string(req.Key)
		jobSlots[i], ids[i], types[i], states[i] = int64(j.Slot()), string(j.ID), string(j.Type), string(j.Status)
		starts[i], statuses[i] = int64(len(all))+1, int64(response.Status)
		prints[i], headers[i], bodies[i], payloads[i] = part(req.Fingerprint.Bytes()), part(encodeHeader(response.Header)), part(response.Body), part(j.Payload)
		operationKeys[i], callbackURLs[i] = j.OperationKey, j.CallbackURL
		created[i], runAt[i], turn[i], deadlines[i] = stamp(j.CreatedAt), stamp(j.RunAt), stamp(claimAt(*j)), stampOrNone(j.Deadline)
		priorities[i], timeouts[i], attempts[i] = int64(j.Priority), j.Timeout.Milliseconds(), int64(j.MaxAttempts)
	}
	return []any{
		slots, tenants, keys, jobSlots, ids, statuses, created, starts, prints, headers, bodies, payloads,
		types, states, operationKeys, deadlines, priorities, runAt, turn, all, timeouts, attempts, callbackURLs,
	}
}

// aroundBytes is about what fingerprint and headers of a submission take.
const aroundBytes = 256

// bytesOf is about how much the bytes of a wave are.
func bytesOf(wave []*answer) int {
	n := 0
	for _, a := range wave {
		n += aroundBytes + len(a.s.Response.Body) + len(a.s.Job.Payload)
	}
	return n
}

// conflictArgs are the business keys of rows, and what becomes of those whose key
// somebody holds.
func conflictArgs(wave []*answer) []any {
	keys, rejects, queues := make([]string, len(wave)), make([]bool, len(wave)), make([]bool, len(wave))
	for i, a := range wave {
		keys[i] = a.s.Job.BusinessKey
		rejects[i], queues[i] = a.s.OnConflict == job.ConflictReject, a.s.OnConflict == job.ConflictQueue
	}
	return []any{keys, rejects, queues}
}
