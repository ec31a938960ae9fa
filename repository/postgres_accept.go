package repository

import (
	"context"
	"errors"
	"slices"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

// acceptSQL writes a batch: records, stored responses and jobs.
//
// It relies on the primary key of idempotency_keys: a second insert of a key
// waits for the first transaction, and is then skipped without an error and
// without a row. The winner's record cannot be read here, because it is newer
// than this statement's snapshot; another statement has to (failures/queues 41).
//
// It relies on the unique index jobs_business too: two new keys that race for one
// business key both see no holder, and the later one fails with 23505. Nothing
// of its batch was written; run again, it sees the holder.
//
// A job that queues waits behind any unfinished job of its business key, one that
// waits itself included, or it would overtake that. queued_at is when the
// statement began: the order of arrival.
//
// Records are inserted in the order of their keys, then jobs in the order of
// their business keys, so that batches wait for each other in one direction.
const acceptSQL = `
with input as (
  select i.slot, i.tenant, i.key, i.fingerprint, i.job_slot, i.job_id, i.status, i.headers, i.body, i.created_at,
    i.type, i.state, i.payload, nullif(i.business_key, '') as business_key, i.rejects, i.queues,
    nullif(i.operation_key, '') as operation_key, cast(nullif(i.deadline, '') as timestamptz) as deadline,
    i.priority, i.run_at, i.claim_at, i.timeout_ms, i.max_attempts
  from unnest(cast($1 as smallint[]), cast($2 as text[]), cast($3 as text[]), cast($4 as bytea[]),
    cast($5 as smallint[]), cast($6 as uuid[]), cast($7 as smallint[]), cast($8 as bytea[]), cast($9 as bytea[]),
    cast($10 as timestamptz[]), cast($11 as text[]), cast($12 as text[]), cast($13 as bytea[]), cast($14 as text[]),
    cast($15 as boolean[]), cast($16 as boolean[]), cast($17 as text[]), cast($18 as text[]),
    cast($19 as smallint[]), cast($20 as timestamptz[]), cast($21 as timestamptz[]), cast($22 as bigint[]), cast($23 as int[]))
    as i(slot, tenant, key, fingerprint, job_slot, job_id, status, headers, body, created_at,
      type, state, payload, business_key, rejects, queues, operation_key, deadline,
      priority, run_at, claim_at, timeout_ms, max_attempts)),
ahead as (
  select i.job_id as newcomer, i.queues, a.id, a.key
  from input i
  cross join lateral (
    select u.id, u.key
    from (
      (select j.id, j.key, j.blocked from jobs j
      where j.slot = i.job_slot and j.tenant = i.tenant and j.type = i.type and j.business_key = i.business_key and not j.blocked
      limit 1)
      union all
      (select j.id, j.key, j.blocked from jobs j
      where j.slot = i.job_slot and j.tenant = i.tenant and j.type = i.type and j.business_key = i.business_key and j.blocked
      order by j.queued_at, j.id
      limit 1)) u
    order by u.blocked
    limit 1) a),
holder as (
  select newcomer, id, key from ahead where not queues),
record as (
  insert into idempotency_keys (slot, tenant, key, fingerprint, state, job_slot, job_id, alias,
    response_status, response_headers, response_body, created_at)
  select i.slot, i.tenant, i.key, i.fingerprint, 'completed', i.job_slot, coalesce(h.id, i.job_id), h.id is not null,
    case when h.id is null then i.status end, case when h.id is null then i.headers end,
    case when h.id is null then i.body end, i.created_at
  from input i
  left join holder h on h.newcomer = i.job_id
  where h.id is null or not i.rejects
  order by i.slot, i.tenant, i.key
  on conflict (slot, tenant, key) do nothing
  returning slot, tenant, key, job_id),
accepted as (
  insert into jobs (slot, id, tenant, key, key_slot, type, state, blocked, payload, business_key, operation_key,
    priority, run_at, claim_at, deadline, timeout_ms, max_attempts, created_at)
  select i.job_slot, i.job_id, i.tenant, i.key, i.slot, i.type, i.state, a.id is not null, i.payload, i.business_key, i.operation_key,
    i.priority, i.run_at, i.claim_at, i.deadline, i.timeout_ms, i.max_attempts, i.created_at
  from input i
  join record r on r.job_id = i.job_id
  left join ahead a on a.newcomer = i.job_id
  order by i.job_slot, i.tenant, i.type, i.business_key, i.job_id)
select i.job_id as mine, r.job_id as bound, h.id as holder, h.key as holder_key
from input i
left join record r on r.slot = i.slot and r.tenant = i.tenant and r.key = i.key
left join holder h on h.newcomer = i.job_id`

type acceptRow struct {
	Mine      text `db:"mine"`
	Bound     text `db:"bound"` // the job that the new record names; none if the key had one
	Holder    text `db:"holder"`
	HolderKey text `db:"holder_key"`
}

func (p *postgres) acceptAll(ctx context.Context, r *Repository, s []job.Submission) []answer {
	answers := answersFor(s)
	for _, wave := range waves(answers) {
		p.acceptWave(ctx, r, wave, acceptTries)
	}
	return answers
}

// acceptWave runs the statement and answers each submission of the wave.
func (p *postgres) acceptWave(ctx context.Context, r *Repository, wave []*answer, tries int) {
	if len(wave) == 0 {
		return
	}
	rows, err := p.acceptOnce(ctx, wave)
	if err != nil {
		p.acceptFailed(ctx, r, wave, tries, err)
		return
	}
	var vanished []*answer
	for _, a := range wave {
		if !a.take(ctx, r, rows[a.s.Job.ID]) {
			vanished = append(vanished, a)
		}
	}
	if tries > 1 {
		p.acceptWave(ctx, r, vanished, tries-1)
		return
	}
	for _, a := range vanished {
		a.fail(errVanished)
	}
}

// acceptOnce runs the statement, and once more with the same ids if it was left
// unanswered: the record then tells whose job it names.
func (p *postgres) acceptOnce(ctx context.Context, wave []*answer) (map[job.ID]acceptRow, error) {
	args := acceptArgs(wave)
	var rows []acceptRow
	once := func(ctx context.Context) (unknown bool, err error) {
		err = again(ctx, p, func(ctx context.Context) (err error) {
			ctx, sent := withDelivery(ctx)
			rows, err = collect[acceptRow](ctx, p.accepts, acceptSQL, args...)
			unknown = unknown || sent.lost || err != nil && sent.open
			return err
		})
		return unknown, err
	}
	unknown, err := once(ctx)
	if unknown {
		for _, a := range wave {
			a.sent = true
		}
		if err != nil && p.classify(err) == unavailable {
			_, err = once(ctx)
		}
	}
	mine := make(map[job.ID]acceptRow, len(rows))
	for _, row := range rows {
		mine[job.ID(row.Mine)] = row
	}
	return mine, err
}

// take answers one submission from its row, and reports false if whatever stood
// in its way has vanished since.
func (a *answer) take(ctx context.Context, r *Repository, row acceptRow) bool {
	if row.Bound != "" && row.Bound == row.Mine {
		a.fresh()
		return true
	}
	receipt, purged, err := r.standing(ctx, a.s.Request)
	switch {
	case err == nil && purged:
		return false
	case err == nil:
		a.found(receipt)
		if row.Bound != "" && row.Bound == row.Holder {
			a.receipt.Record.Fresh = true
		}
	case !errors.Is(err, job.ErrNotFound):
		a.fail(err)
	case row.Holder != "" && a.s.OnConflict == job.ConflictReject:
		// Only now: the record comes before the business key, or the holder's own
		// repetition would meet itself.
		a.err = &job.BusinessKeyError{Holder: idempotency.Key(row.HolderKey)}
	default:
		return false
	}
	return true
}

// acceptFailed decides what follows an error of the statement, which has
// written nothing unless it was left unanswered. One submission that cannot be
// accepted must not fail its neighbours, so the wave is split until it is alone.
func (p *postgres) acceptFailed(ctx context.Context, r *Repository, wave []*answer, tries int, err error) {
	kind := p.classify(err)
	switch {
	case len(wave) > 1 && kind != unavailable && kind != conflict:
		size := (len(wave) + 1) / 2
		if kind == busy {
			size = 1 // halves would wait for the lock again and again
		}
		for part := range slices.Chunk(wave, size) {
			p.acceptWave(ctx, r, part, tries)
		}
	case kind == unique && tries > 1:
		p.acceptWave(ctx, r, wave, tries-1)
	case kind == busy:
		wave[0].fail(&idempotency.InProgressError{})
	default:
		for _, a := range wave {
			a.fail(err)
		}
	}
}

// acceptArgs turns rows into columns. A nil among bytes would arrive as empty,
// not NULL, which is why the statement decides what is NULL.
func acceptArgs(wave []*answer) []any {
	n := len(wave)
	var (
		slots, jobSlots, statuses, priorities = make([]int64, n), make([]int64, n), make([]int64, n), make([]int64, n)
		timeouts, attempts                    = make([]int64, n), make([]int64, n)
		tenants, keys, ids, types, states     = make([]string, n), make([]string, n), make([]string, n), make([]string, n), make([]string, n)
		businessKeys, created, runAt, turn    = make([]string, n), make([]string, n), make([]string, n), make([]string, n)
		prints, headers, bodies, payloads     = make([][]byte, n), make([][]byte, n), make([][]byte, n), make([][]byte, n)
		operationKeys, deadlines              = make([]string, n), make([]string, n)
		rejects, queues                       = make([]bool, n), make([]bool, n)
	)
	for i, a := range wave {
		req, j, response := a.s.Request, a.s.Job, a.s.Response
		slots[i], tenants[i], keys[i], prints[i] = int64(job.KeySlot(req.Tenant, req.Key)), string(req.Tenant), string(req.Key), req.Fingerprint.Bytes()
		jobSlots[i], ids[i], types[i], states[i] = int64(j.Slot()), string(j.ID), string(j.Type), string(j.Status)
		statuses[i], headers[i], bodies[i] = int64(response.Status), encodeHeader(response.Header), response.Body
		payloads[i], businessKeys[i], operationKeys[i] = j.Payload, j.BusinessKey, j.OperationKey
		rejects[i], queues[i] = a.s.OnConflict == job.ConflictReject, a.s.OnConflict == job.ConflictQueue
		created[i], runAt[i], turn[i], deadlines[i] = stamp(j.CreatedAt), stamp(j.RunAt), stamp(claimAt(j)), stampOrNone(j.Deadline)
		priorities[i], timeouts[i], attempts[i] = int64(j.Priority), j.Timeout.Milliseconds(), int64(j.MaxAttempts)
	}
	return []any{
		slots, tenants, keys, prints, jobSlots, ids, statuses, headers, bodies, created,
		types, states, payloads, businessKeys, rejects, queues, operationKeys, deadlines,
		priorities, runAt, turn, timeouts, attempts,
	}
}
