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
//
// What was inserted is asked for as a set, and not joined: with hash joins off
// (probing in postgres.go) a join of two lists reads one of them anew for each row of
// the other, which for sixty rows was half of the statement.
//
// What is bytes comes as one value for all rows, $20, of which each row says where
// its part begins and how long the four in it are: an array of bytes would be sent
// as text of twice the length, and read letter by letter.
const acceptSQL = `
with input as (
  select i.slot, i.tenant, i.key, i.job_slot, i.job_id, i.status, i.created_at,
    substring(cast($20 as bytea) from i.start for i.fingerprint) as fingerprint,
    substring(cast($20 as bytea) from i.start + i.fingerprint for i.headers) as headers,
    substring(cast($20 as bytea) from i.start + i.fingerprint + i.headers for i.body) as body,
    substring(cast($20 as bytea) from i.start + i.fingerprint + i.headers + i.body for i.payload) as payload,
    i.type, i.state, nullif(i.business_key, '') as business_key, i.rejects,
    nullif(i.operation_key, '') as operation_key, nullif(i.callback_url, '') as callback_url, cast(nullif(i.deadline, '') as timestamptz) as deadline,
    i.priority, i.run_at, i.claim_at, i.timeout_ms, i.max_attempts,
    a.id is not null as blocked, case when not i.queues then a.id end as holder, case when not i.queues then a.key end as holder_key
  from unnest(cast($1 as smallint[]), cast($2 as text[]), cast($3 as text[]),
    cast($4 as smallint[]), cast($5 as uuid[]), cast($6 as smallint[]), cast($7 as timestamptz[]),
    cast($8 as int[]), cast($9 as int[]), cast($10 as int[]), cast($11 as int[]), cast($12 as int[]),
    cast($13 as text[]), cast($14 as text[]), cast($15 as text[]), cast($16 as text[]),
    cast($17 as smallint[]), cast($18 as timestamptz[]), cast($19 as timestamptz[]), cast($21 as bigint[]), cast($22 as int[]), cast($23 as text[]),
    cast($24 as text[]), cast($25 as boolean[]), cast($26 as boolean[]))
    as i(slot, tenant, key, job_slot, job_id, status, created_at, start, fingerprint, headers, body, payload,
      type, state, operation_key, deadline, priority, run_at, claim_at, timeout_ms, max_attempts, callback_url,
      business_key, rejects, queues)
  left join lateral (
    select u.id, u.key
    from (
      (select j.id, j.key, j.blocked from jobs j
      where j.slot = i.job_slot and j.tenant = i.tenant and j.type = i.type and j.business_key = nullif(i.business_key, '') and not j.blocked
      limit 1)
      union all
      (select j.id, j.key, j.blocked from jobs j
      where j.slot = i.job_slot and j.tenant = i.tenant and j.type = i.type and j.business_key = nullif(i.business_key, '') and j.blocked
      order by j.queued_at, j.id
      limit 1)) u
    order by u.blocked
    limit 1) a on true),
record as (
  insert into idempotency_keys (slot, tenant, key, fingerprint, state, job_slot, job_id, alias,
    response_status, response_headers, response_body, created_at)
  select i.slot, i.tenant, i.key, i.fingerprint, 'completed', i.job_slot, coalesce(i.holder, i.job_id), i.holder is not null,
    case when i.holder is null then i.status end, case when i.holder is null then i.headers end,
    case when i.holder is null then i.body end, i.created_at
  from input i
  where i.holder is null or not i.rejects
  order by i.slot, i.tenant, i.key
  on conflict (slot, tenant, key) do nothing
  returning slot, tenant, key, job_id),
accepted as (
  insert into jobs (slot, id, tenant, key, key_slot, type, state, blocked, payload, business_key, operation_key, callback_url,
    priority, run_at, claim_at, deadline, timeout_ms, max_attempts, created_at)
  select i.job_slot, i.job_id, i.tenant, i.key, i.slot, i.type, i.state, i.blocked, i.payload, i.business_key, i.operation_key, i.callback_url,
    i.priority, i.run_at, i.claim_at, i.deadline, i.timeout_ms, i.max_attempts, i.created_at
  from input i
  where i.job_id = any(array(select job_id from record))
  order by i.job_slot, i.tenant, i.type, i.business_key, i.job_id)
select i.job_id as mine, i.holder, i.holder_key,
  case when (i.slot, i.tenant, i.key, coalesce(i.holder, i.job_id)) in (select slot, tenant, key, job_id from record)
    then coalesce(i.holder, i.job_id) end as bound
from input i`

type acceptRow struct {
	Mine      text `db:"mine"`
	Bound     text `db:"bound"` // the job that its new record names; none if the key had one
	Holder    text `db:"holder"`
	HolderKey text `db:"holder_key"`
}

func (p *postgres) acceptAll(ctx context.Context, r *Repository, answers []answer) {
	for _, wave := range waves(answers) {
		p.acceptWave(ctx, r, p.batches, wave, acceptTries)
	}
}

func (p *postgres) acceptAlone(ctx context.Context, r *Repository, a *answer) {
	a.locked = false
	p.acceptWave(ctx, r, p.accepts, []*answer{a}, acceptTries)
}

// acceptWave runs the statement and answers each submission of the wave.
func (p *postgres) acceptWave(ctx context.Context, r *Repository, on *pool, wave []*answer, tries int) {
	if len(wave) == 0 {
		return
	}
	rows, err := p.acceptOnce(ctx, on, wave)
	if err != nil {
		p.acceptFailed(ctx, r, on, wave, tries, err)
		return
	}
	p.answerAll(ctx, r, on, wave, rows, tries)
}

// answerAll answers the submissions of a wave that was accepted.
func (p *postgres) answerAll(ctx context.Context, r *Repository, on *pool, wave []*answer, rows map[job.ID]acceptRow, tries int) {
	vanished := p.take(ctx, r, wave, rows)
	if tries > 1 {
		p.acceptWave(ctx, r, on, vanished, tries-1)
		return
	}
	for _, a := range vanished {
		a.fail(errVanished)
	}
}

// acceptOnce runs the statement, and once more with the same ids if it was left
// unanswered: the record then tells whose job it names.
func (p *postgres) acceptOnce(ctx context.Context, on *pool, wave []*answer) (map[job.ID]acceptRow, error) {
	query, args := acceptStatement(wave)
	var rows []acceptRow
	once := func(ctx context.Context) (unknown bool, err error) {
		err = again(ctx, p, func(ctx context.Context) (err error) {
			ctx, sent := withDelivery(ctx)
			rows, err = collect[acceptRow](ctx, on, query, args...)
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

// take answers the submissions from their rows, and returns those of which whatever
// stood in their way has vanished since. What the keys of all others stand for is
// read at once.
func (p *postgres) take(ctx context.Context, r *Repository, wave []*answer, rows map[job.ID]acceptRow) (vanished []*answer) {
	var others []*answer
	var keys []recordKey
	for _, a := range wave {
		if row := rows[a.s.Job.ID]; row.Bound != "" && row.Bound == row.Mine {
			a.fresh()
			continue
		}
		others, keys = append(others, a), append(keys, keyOf(a.s.Request))
	}
	if len(others) == 0 {
		return nil
	}
	records, err := p.findAll(ctx, keys)
	for i, a := range others {
		if err != nil {
			a.fail(err)
			continue
		}
		if !a.takeRecord(ctx, r, rows[a.s.Job.ID], records[i]) {
			vanished = append(vanished, a)
		}
	}
	return vanished
}

// takeRecord answers one submission from the record of its key, nil if there is
// none, and reports false if whatever stood in its way has vanished since.
func (a *answer) takeRecord(ctx context.Context, r *Repository, row acceptRow, record *recordRow) bool {
	if record == nil {
		if row.Holder == "" || a.s.OnConflict != job.ConflictReject {
			return false
		}
		// Only now: the record comes before the business key, or the holder's own
		// repetition would meet itself.
		a.err = &job.BusinessKeyError{Holder: idempotency.Key(row.HolderKey)}
		return true
	}
	receipt, purged, err := r.standingOf(ctx, a.s.Request, record)
	switch {
	case err != nil:
		a.fail(err)
	case purged:
		return false
	default:
		a.found(receipt)
		if row.Bound != "" && row.Bound == row.Holder {
			a.receipt.Record.Fresh = true
		}
	}
	return true
}

// acceptFailed decides what follows an error of the statement, which has
// written nothing unless it was left unanswered. One submission that cannot be
// accepted must not fail its neighbours, so the wave is split until it is alone.
func (p *postgres) acceptFailed(ctx context.Context, r *Repository, on *pool, wave []*answer, tries int, err error) {
	kind := p.classify(err)
	switch {
	case len(wave) > 1 && kind == busy:
		p.acceptApart(ctx, r, on, wave, tries)
	case len(wave) > 1 && kind != unavailable && kind != conflict:
		for half := range slices.Chunk(wave, (len(wave)+1)/2) {
			p.acceptWave(ctx, r, on, half, tries)
		}
	case kind == unique && tries > 1:
		p.acceptWave(ctx, r, on, wave, tries-1)
	case kind == busy && on != p.accepts:
		wave[0].locked = true
	case kind == busy:
		wave[0].fail(&idempotency.InProgressError{})
	default:
		for _, a := range wave {
			a.fail(err)
		}
	}
}

// acceptApart accepts submissions one by one, because somebody holds a lock that one
// of them needs. Halves would wait for it again and again. After some that are locked
// it looks at the other end of the wave: if that is locked too, it is the table, and
// those that are left wait together, as long as a lock may take, and fail if that is
// not enough.
func (p *postgres) acceptApart(ctx context.Context, r *Repository, on *pool, wave []*answer, tries int) {
	isLocked := func(one []*answer) bool {
		p.acceptWave(ctx, r, on, one, tries)
		return one[0].locked || errors.As(one[0].err, new(*idempotency.InProgressError))
	}
	locked := 0
	for len(wave) > 0 {
		if locked < lockedMost {
			if locked++; !isLocked(wave[:1]) {
				locked = 0
			}
			wave = wave[1:]
			continue
		}
		last := len(wave) - 1
		if isLocked(wave[last:]) {
			p.acceptPatiently(ctx, r, wave[:last], tries)
			return
		}
		wave, locked = wave[:last], 0
	}
}

func (p *postgres) acceptPatiently(ctx context.Context, r *Repository, wave []*answer, tries int) {
	if len(wave) == 0 {
		return
	}
	rows, err := p.acceptOnce(ctx, p.accepts, wave)
	if err == nil {
		p.answerAll(ctx, r, p.accepts, wave, rows, tries)
		return
	}
	if kind := p.classify(err); kind != busy && kind != unavailable && kind != conflict {
		p.acceptFailed(ctx, r, p.accepts, wave, tries, err)
		return
	}
	for _, a := range wave {
		a.fail(err)
	}
}

// findAllSQL reads the records of many keys; see findSQL.
const findAllSQL = `
with input as (
  select i.slot, i.tenant, i.key, i.place
  from unnest(cast($1 as smallint[]), cast($2 as text[]), cast($3 as text[])) with ordinality as i(slot, tenant, key, place))
select i.place,` + foundSQL + `
from input i
join idempotency_keys k on k.slot = i.slot and k.tenant = i.tenant and k.key = i.key
left join jobs j on j.slot = k.job_slot and j.id = k.job_id
left join finished_jobs f on f.slot = k.job_slot and f.id = k.job_id`

func (p *postgres) findAll(ctx context.Context, keys []recordKey) ([]*recordRow, error) {
	records := make([]*recordRow, 0, len(keys))
	for part := range slices.Chunk(keys, readSize) {
		rows, err := p.findSome(ctx, part)
		if err != nil {
			return nil, err
		}
		records = append(records, rows...)
	}
	return records, nil
}

func (p *postgres) findSome(ctx context.Context, keys []recordKey) ([]*recordRow, error) {
	slots, tenants, texts := make([]int64, len(keys)), make([]string, len(keys)), make([]string, len(keys))
	for i, k := range keys {
		slots[i], tenants[i], texts[i] = int64(job.KeySlot(k.tenant, k.key)), string(k.tenant), string(k.key)
	}
	rows, err := collect[recordRow](ctx, p.accepts, findAllSQL, slots, tenants, texts)
	if err != nil {
		return nil, err
	}
	records := make([]*recordRow, len(keys))
	for i := range rows {
		records[rows[i].Place-1] = &rows[i]
	}
	return records, nil
}
