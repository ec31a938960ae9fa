package repository

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"slices"
	"time"

	"github.com/sekali/sekali/job"
)

const claimOneFileSQL = `
update jobs
set state = 'processing', attempt = attempt + 1, token = token + 1, version = version + 1, worker_id = $3,
  locked_until = later($4), claimed_at = now(), started_at = coalesce(started_at, now())
where (slot, id) in (
  select slot, id from jobs
  where state = 'pending' and not blocked and type = $1
  order by claim_at, id
  limit $2)
returning id, tenant, key, type, state, payload, business_key, priority, run_at, claim_at, timeout_ms,
  max_attempts, attempt, generation, version, token, worker_id, locked_until, last_error, created_at, started_at`

func (s *sqlite) claim(ctx context.Context, t job.Type, n int, worker string, lease time.Duration) (rows []jobRow, err error) {
	s.worker.Store(&worker)
	err = s.inTx(ctx, []string{claimOneFileSQL}, func(ctx context.Context, tx *sql.Tx) error {
		rows, err = rowsIn[jobRow](ctx, s, tx, claimOneFileSQL, string(t), n, worker, lease.Milliseconds())
		return err
	})
	// SQLite returns changed rows in any order.
	slices.SortFunc(rows, func(a, b jobRow) int {
		return cmp.Or(a.ClaimAt.Compare(b.ClaimAt.Time), cmp.Compare(a.ID, b.ID))
	})
	return rows, err
}

const extendOneSQL = `
update jobs set locked_until = later($4)
where slot = $1 and id = $2 and token = $3 and state = 'processing'`

const heldOneSQL = `
select id, token from jobs
where slot = $1 and id = $2 and token = $3 and state = 'processing'`

// extend prolongs the leases. If an attempt's transaction holds the write lock,
// it only looks: nobody can take a lease while this process lives, so there is
// nothing to lose, and a long transaction must not cost the others theirs.
func (s *sqlite) extend(ctx context.Context, held []job.Lease, lease time.Duration) (map[job.ID]bool, error) {
	var kept map[job.ID]bool
	patient, cancel := context.WithTimeout(ctx, extendPatience)
	defer cancel()
	err := s.inTx(patient, []string{extendOneSQL}, func(ctx context.Context, tx *sql.Tx) (err error) {
		kept, err = keep(held, func(l job.Lease) (int64, error) {
			return s.change(ctx, tx, extendOneSQL, int64(l.ID.Slot()), string(l.ID), l.Token, lease.Milliseconds())
		})
		return err
	})
	if s.classify(err) != busy && !errors.Is(err, context.DeadlineExceeded) {
		return kept, err
	}
	return keep(held, func(l job.Lease) (int64, error) {
		rows, err := collect[leaseRow](ctx, s.reader, heldOneSQL, int64(l.ID.Slot()), string(l.ID), l.Token)
		return int64(len(rows)), err
	})
}

// keep collects the leases for which rows were found.
func keep(held []job.Lease, rows func(job.Lease) (int64, error)) (map[job.ID]bool, error) {
	kept := make(map[job.ID]bool, len(held))
	for _, l := range held {
		n, err := rows(l)
		if err != nil {
			return nil, err
		}
		if n > 0 {
			kept[l.ID] = true
		}
	}
	return kept, nil
}

// The statements of an ending. $4 is the worker whose leases have not run out;
// "" where that does not matter. The clock is read once: "materialized" keeps
// now() from being called again where its result is used.
const (
	finishOneSQL = `
with clock as materialized (select now() as instant)
insert into finished_jobs (slot, id, tenant, key, key_slot, type, state, payload, business_key, operation_key,
  callback_url, priority, run_at, deadline, timeout_ms, max_attempts, attempt, generation, version,
  token, worker_id, last_error, created_at, started_at, claimed_at,
  outcome, duplicate_of, result, result_type, result_hash, result_expires_at, finished_at, expires_at)
select slot, id, tenant, key, key_slot, type, $5, payload, business_key, operation_key,
  callback_url, priority, run_at, deadline, timeout_ms, max_attempts, attempt, generation, version + 1,
  token, worker_id, case when $5 <> 'succeeded' then coalesce($6, last_error) end, created_at, started_at, claimed_at,
  nullif($7, ''), nullif($8, ''), $9, $10, $11, case when $12 > 0 then after(clock.instant, $12) end,
  clock.instant, after(clock.instant, $13)
from jobs, clock
where slot = $1 and id = $2 and token = $3 and state = 'processing' and worker_id <> $4`

	attemptOneSQL = `
insert into job_attempts (slot, job_id, token, number, outcome, worker_id, error, started_at, finished_at)
select slot, id, token, attempt, $4, worker_id, $5, claimed_at, now()
from jobs
where slot = $1 and id = $2 and token = $3 and state = 'processing'`

	deleteOneSQL = `
delete from jobs
where slot = $1 and id = $2 and token = $3 and state = 'processing'`

	endedOneSQL = `
select job_id as id, token from job_attempts
where slot = $1 and job_id = $2 and token = $3 and outcome = $4`
)

var finishStatements = []string{finishOneSQL, attemptOneSQL, deleteOneSQL, endedOneSQL}

func (s *sqlite) finish(ctx context.Context, endings []ending) ([]bool, error) {
	applied := make([]bool, len(endings))
	err := s.inTx(ctx, finishStatements, func(ctx context.Context, tx *sql.Tx) (err error) {
		for i, e := range endings {
			if applied[i], err = s.finishOne(ctx, tx, e); err == nil && !applied[i] {
				applied[i], err = s.endedBefore(ctx, tx, e.Lease, e.Attempt)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	return applied, err
}

// finishOne moves the job if the lease is still the job's.
func (s *sqlite) finishOne(ctx context.Context, tx *sql.Tx, e ending) (bool, error) {
	slot, id, token := int64(e.Lease.ID.Slot()), string(e.Lease.ID), e.Lease.Token
	var body, mediaType, hash, keepResult any
	if e.hasResult {
		body, mediaType, hash, keepResult = notNil(e.body), e.mediaType, e.hash, e.keepResult.Milliseconds()
	}
	n, err := s.change(ctx, tx, finishOneSQL, slot, id, token, s.spared(e.IfExpired),
		string(e.Status), e.failure, e.Outcome, string(e.DuplicateOf), body, mediaType, hash, keepResult, e.Keep.Milliseconds())
	if err != nil || n == 0 {
		return false, err
	}
	if _, err = s.change(ctx, tx, attemptOneSQL, slot, id, token, string(e.Attempt), e.failure); err != nil {
		return false, err
	}
	_, err = s.change(ctx, tx, deleteOneSQL, slot, id, token)
	return err == nil, err
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
	if worker := s.worker.Load(); ifExpired && worker != nil {
		return *worker
	}
	return ""
}

// endedBefore reports whether the attempt had ended in this way already.
func (s *sqlite) endedBefore(ctx context.Context, tx *sql.Tx, l job.Lease, outcome job.Outcome) (bool, error) {
	rows, err := rowsIn[leaseRow](ctx, s, tx, endedOneSQL, int64(l.ID.Slot()), string(l.ID), l.Token, string(outcome))
	return len(rows) > 0, err
}

// requeueOneSQL writes the attempt first in requeueOne, which reads the number
// and the start from the row before it changes.
const requeueOneSQL = `
update jobs
set state = case when $5 then 'retrying' else 'pending' end,
  attempt = attempt - $7, version = version + 1, locked_until = null, last_error = coalesce($8, last_error),
  run_at = case when $5 then later($6) else run_at end,
  claim_at = case when $5 then later($6 + priority * 10000) else claim_at end
where slot = $1 and id = $2 and token = $3 and state = 'processing' and worker_id <> $4`

const spareOneSQL = `
select id, token from jobs
where slot = $1 and id = $2 and token = $3 and state = 'processing' and worker_id <> $4`

func (s *sqlite) requeue(ctx context.Context, requeues []requeue) ([]bool, error) {
	applied := make([]bool, len(requeues))
	statements := []string{spareOneSQL, attemptOneSQL, requeueOneSQL, endedOneSQL}
	err := s.inTx(ctx, statements, func(ctx context.Context, tx *sql.Tx) (err error) {
		for i, q := range requeues {
			if applied[i], err = s.requeueOne(ctx, tx, q); err == nil && !applied[i] {
				applied[i], err = s.endedBefore(ctx, tx, q.Lease, q.Attempt)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	return applied, err
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
		q.Status == job.Retrying, q.In.Milliseconds(), uncounted, q.failure)
	return n > 0, err
}

const promoteFileSQL = `
update jobs
set state = 'pending', version = version + 1
where (slot, id) in (
  select slot, id from jobs
  where state in ('scheduled', 'retrying') and run_at <= now()
  order by run_at, id
  limit $1)
returning type`

const nextDueFileSQL = `
select min(run_at) as at from jobs
where state in ('scheduled', 'retrying')`

func (s *sqlite) promote(ctx context.Context, limit int) (types []job.Type, next time.Duration, err error) {
	err = s.inTx(ctx, []string{promoteFileSQL, nextDueFileSQL}, func(ctx context.Context, tx *sql.Tx) error {
		promoted, err := rowsIn[typeRow](ctx, s, tx, promoteFileSQL, limit)
		if err != nil {
			return err
		}
		due, err := rowsIn[struct {
			At moment `db:"at"`
		}](ctx, s, tx, nextDueFileSQL)
		if err != nil {
			return err
		}
		types = typesOf(promoted)
		if at := due[0].At; !at.IsZero() {
			next = max(at.Sub(processTime()), time.Millisecond)
		}
		return nil
	})
	return types, next, err
}

const othersSQL = `
select id, tenant, key, type, state, business_key, priority, run_at, timeout_ms, max_attempts, attempt, generation, version,
  token, worker_id, locked_until, last_error, created_at, started_at
from jobs
where state = 'processing' and worker_id <> $1 and (slot, id) > ($2, $3)
order by slot, id
limit $4`

func (s *sqlite) expired(ctx context.Context, worker string, limit int) ([]jobRow, error) {
	slot, id := s.page.begin()
	rows, err := collect[jobRow](ctx, s.reader, othersSQL, worker, slot, id, limit)
	s.page.end(rows, limit)
	return rows, err
}

func (s *sqlite) begin(ctx context.Context) (*sql.Tx, error) {
	if err := s.writer.prepare(ctx, finishStatements...); err != nil {
		return nil, err
	}
	tx, err := s.writer.db.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	if _, err := tx.ExecContext(ctx, `savepoint attempt`); err != nil {
		return nil, errors.Join(err, tx.Rollback())
	}
	return tx, nil
}

// finishTx ends the job in the attempt's transaction.
func (s *sqlite) finishTx(ctx context.Context, tx *sql.Tx, e ending) (bool, error) {
	if err := s.intact(ctx, tx); err != nil {
		return false, err
	}
	return s.finishOne(ctx, tx, e)
}

// outcome is not needed here: a commit is always answered.
func (s *sqlite) outcome(ctx context.Context, e ending) (bool, error) {
	rows, err := collect[leaseRow](ctx, s.reader, endedOneSQL,
		int64(e.Lease.ID.Slot()), string(e.Lease.ID), e.Lease.Token, string(e.Attempt))
	return len(rows) > 0, err
}
