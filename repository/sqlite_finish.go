package repository

import (
	"context"
	"database/sql"

	"github.com/sekali/sekali/job"
)

// The statements of an ending. $4 is the process whose leases have not run out, ""
// where that does not matter; where it does, neither have those of workers outside
// of the gateway before a second after their end. The clock is read once: "materialized" keeps
// now() from being called again where its result is used.
const (
	finishOneSQL = `
with clock as materialized (select now() as instant)
insert into finished_jobs (slot, id, tenant, key, key_slot, type, state, payload, business_key, operation_key,
  callback_url, priority, run_at, deadline, timeout_ms, max_attempts, earlier_attempts, attempt, generation, version,
  token, worker_id, last_error, created_at, started_at, claimed_at,
  outcome, duplicate_of, result, result_type, result_hash, result_expires_at, finished_at, expires_at)
select slot, id, tenant, key, key_slot, type, $5, payload, business_key, operation_key,
  callback_url, priority, run_at, deadline, timeout_ms, max_attempts, earlier_attempts, attempt, generation, version + 1,
  token, worker_id, case when $5 <> 'succeeded' then coalesce($6, last_error) end, created_at, started_at, claimed_at,
  nullif($7, ''), nullif($8, ''), $9, $10, $11, case when $12 > 0 then after(clock.instant, $12) end,
  clock.instant, after(clock.instant, $13)
from jobs, clock
where slot = $1 and id = $2 and token = $3 and case
    when $14 then state <> 'processing'
    else state = 'processing' and worker_id <> $4
      and ($4 = '' or substr(worker_id, 1, 7) <> 'remote:' or locked_until < later(-1000))
      and ($5 <> 'failed' or cancel_requested_at is null)
  end`

	attemptOneSQL = `
insert into job_attempts (slot, job_id, token, number, outcome, worker_id, error, started_at, finished_at)
select slot, id, token, attempt, $4, worker_id, $5, claimed_at, now()
from jobs
where slot = $1 and id = $2 and token = $3 and state = 'processing'`

	operateOneSQL = `
update processed_operations
set state = 'done', token = $7, result = $8, result_type = $9, result_hash = $10
where slot = $1 and tenant = $2 and operation_type = $3 and operation_key = $4
  and job_slot = $5 and job_id = $6 and state = 'processing'`

	// deleteOneSQL needs no condition on the state: finishOneSQL has just found the
	// job as it must be.
	deleteOneSQL = `
delete from jobs
where slot = $1 and id = $2 and token = $3`

	settledOneSQL = `
select $2 as id, $3 as token,
  case when $5 then exists (select 1 from finished_jobs f where f.slot = $1 and f.id = $2 and f.token = $3 and $6 = f.state)
    else exists (select 1 from job_attempts a where a.slot = $1 and a.job_id = $2 and a.token = $3 and a.outcome = $4)
  end as applied,
  $7 and exists (
    select 1 from jobs j
    where j.slot = $1 and j.id = $2 and j.token = $3 and j.state = 'processing' and j.cancel_requested_at is not null
      and j.worker_id <> $8
      and ($8 = '' or substr(j.worker_id, 1, 7) <> 'remote:' or j.locked_until < later(-1000))) as cancel_pending`
)

var finishStatements = []string{finishOneSQL, attemptOneSQL, operateOneSQL, noteOneSQL, deleteOneSQL, settledOneSQL}

func (s *sqlite) finish(ctx context.Context, endings []ending, _ bool) ([]job.Application, error) {
	return applyAll(ctx, s, finishStatements, endings, s.finishOne)
}

// applyAll applies decisions, endings or requeues, in one transaction.
func applyAll[D interface{ settlement() settlement }](
	ctx context.Context, s *sqlite, statements []string, decisions []D, one func(context.Context, *sql.Tx, D) (bool, error),
) ([]job.Application, error) {
	applications := make([]job.Application, len(decisions))
	err := s.inTx(ctx, statements, func(ctx context.Context, tx *sql.Tx) error {
		for i, d := range decisions {
			applied, err := one(ctx, tx, d)
			if err == nil {
				applications[i], err = s.application(ctx, tx, applied, d.settlement())
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err // all of it was rolled back
	}
	return applications, nil
}

// finishOne moves the job if the lease is still the job's.
func (s *sqlite) finishOne(ctx context.Context, tx *sql.Tx, e ending) (bool, error) {
	slot, id, token := int64(e.Lease.ID.Slot()), string(e.Lease.ID), e.Lease.Token
	var body, mediaType, hash, keepResult any
	if e.hasResult {
		body, mediaType, hash, keepResult = notNil(e.body), e.mediaType, e.hash, e.keepResult.Milliseconds()
	}
	n, err := s.change(ctx, tx, finishOneSQL, slot, id, token, s.spared(e.IfExpired),
		string(e.Status), e.failure, e.Outcome, string(e.DuplicateOf), body, mediaType, hash, keepResult, e.Keep.Milliseconds(), e.Waiting)
	if err != nil || n == 0 {
		return false, err
	}
	if !e.Waiting {
		if _, err = s.change(ctx, tx, attemptOneSQL, slot, id, token, string(e.Attempt), e.failure); err != nil {
			return false, err
		}
	}
	if err := s.succeeded(ctx, tx, e, body, mediaType, hash); err != nil {
		return false, err
	}
	_, err = s.change(ctx, tx, deleteOneSQL, slot, id, token)
	return err == nil, err
}

// succeeded writes down what a success did: the job's operation is done, and a
// cancellation came too late.
func (s *sqlite) succeeded(ctx context.Context, tx *sql.Tx, e ending, result ...any) error {
	if e.Status != job.Succeeded {
		return nil
	}
	if o := e.Operation; o != nil {
		args := []any{int64(o.Slot()), string(o.Tenant), string(o.Type), o.Key, int64(e.Lease.ID.Slot()), string(e.Lease.ID), e.Lease.Token}
		if _, err := s.change(ctx, tx, operateOneSQL, append(args, result...)...); err != nil {
			return err
		}
	}
	return s.note(ctx, tx, e.Lease, job.EventCancelTooLate)
}

// notNil keeps an empty body apart from none.
func notNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// spared is the worker whose leases are not to be ended.
func (s *sqlite) spared(ifExpired bool) string {
	if !ifExpired {
		return ""
	}
	if worker := s.worker.Load(); worker != nil {
		return *worker
	}
	return nobody
}

// nobody is the name of no worker.
const nobody = "-"

// application tells what became of a decision in the transaction that was to
// apply it.
func (s *sqlite) application(ctx context.Context, tx *sql.Tx, applied bool, w settlement) (job.Application, error) {
	if applied {
		return job.Applied, nil
	}
	rows, err := rowsIn[settledRow](ctx, s, tx, settledOneSQL, s.settledArgs(w)...)
	if err != nil {
		return job.Refused, err
	}
	return rows[0].application(), nil
}

func (s *sqlite) settledArgs(w settlement) []any {
	return []any{
		int64(w.lease.ID.Slot()), string(w.lease.ID), w.lease.Token, string(w.attempt),
		w.waiting, string(w.status), w.yields, s.spared(w.ifExpired),
	}
}

func (s *sqlite) settled(ctx context.Context, wanted []settlement) ([]job.Application, error) {
	applications := make([]job.Application, len(wanted))
	for i, w := range wanted {
		rows, err := collect[settledRow](ctx, s.reader, settledOneSQL, s.settledArgs(w)...)
		if err != nil {
			return nil, err
		}
		applications[i] = rows[0].application()
	}
	return applications, nil
}

// requeueOneSQL writes the attempt first in requeueOne, which reads the number
// and the start from the row before it changes.
const requeueOneSQL = `
update jobs
set state = case when $5 then 'retrying' else 'pending' end,
  attempt = attempt - $7, version = version + 1, locked_until = null, last_error = coalesce($8, last_error), unknown_asks = $9,
  started_at = case when not $10 or attempt > $7 then started_at end,
  run_at = case when $5 then later($6) else run_at end,
  claim_at = case when $5 then later($6 + priority * 10000) else claim_at end
where slot = $1 and id = $2 and token = $3 and state = 'processing' and worker_id <> $4 and cancel_requested_at is null
  and ($4 = '' or substr(worker_id, 1, 7) <> 'remote:' or locked_until < later(-1000))`

const spareOneSQL = `
select id, token from jobs
where slot = $1 and id = $2 and token = $3 and state = 'processing' and worker_id <> $4 and cancel_requested_at is null
  and ($4 = '' or substr(worker_id, 1, 7) <> 'remote:' or locked_until < later(-1000))`

var requeueStatements = []string{spareOneSQL, attemptOneSQL, requeueOneSQL, settledOneSQL}

func (s *sqlite) requeue(ctx context.Context, requeues []requeue, _ bool) ([]job.Application, error) {
	return applyAll(ctx, s, requeueStatements, requeues, s.requeueOne)
}

func (s *sqlite) requeueOne(ctx context.Context, tx *sql.Tx, q requeue) (bool, error) {
	slot, id, token, spared := int64(q.Lease.ID.Slot()), string(q.Lease.ID), q.Lease.Token, s.spared(q.IfExpired)
	held, err := rowsIn[leaseRow](ctx, s, tx, spareOneSQL, slot, id, token, spared)
	if err != nil || len(held) == 0 {
		return false, err
	}
	if _, err := s.change(ctx, tx, attemptOneSQL, slot, id, token, string(q.Attempt), q.failure); err != nil {
		return false, err
	}
	uncounted := 0
	if q.Uncounted {
		uncounted = 1
	}
	n, err := s.change(ctx, tx, requeueOneSQL, slot, id, token, spared,
		q.Status == job.Retrying, q.In.Milliseconds(), uncounted, q.failure, q.UnknownAsks, q.Unstarted)
	return n > 0, err
}
