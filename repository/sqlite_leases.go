package repository

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/sekali/sekali/job"
)

const extendOneSQL = `
update jobs set locked_until = later($4)
where slot = $1 and id = $2 and token = $3 and state = 'processing'
returning id, token, true as extended, cancel_requested_at is not null as cancel_requested`

const heldOneSQL = `
select id, token, substr(worker_id, 1, 7) <> 'remote:' as extended, cancel_requested_at is not null as cancel_requested from jobs
where slot = $1 and id = $2 and token = $3 and state = 'processing'`

// extend prolongs the leases. If an attempt's transaction holds the write lock,
// it only looks: nobody can take a lease while this process lives, so that what
// is still held is as good as prolonged, and a long transaction must not cost the
// others theirs. The lease of a worker outside of the gateway is not prolonged then.
func (s *sqlite) extend(ctx context.Context, held []job.Lease, lease time.Duration) (map[job.ID]job.Kept, error) {
	var kept map[job.ID]job.Kept
	patient, cancel := context.WithTimeout(ctx, extendPatience)
	defer cancel()
	err := s.inTx(patient, []string{extendOneSQL}, func(ctx context.Context, tx *sql.Tx) (err error) {
		kept, err = keep(held, func(l job.Lease) ([]keptRow, error) {
			return rowsIn[keptRow](ctx, s, tx, extendOneSQL, int64(l.ID.Slot()), string(l.ID), l.Token, lease.Milliseconds())
		})
		return err
	})
	if s.classify(err) != busy && !errors.Is(err, context.DeadlineExceeded) {
		return kept, err
	}
	return keep(held, func(l job.Lease) ([]keptRow, error) {
		return collect[keptRow](ctx, s.reader, heldOneSQL, int64(l.ID.Slot()), string(l.ID), l.Token)
	})
}

// keep collects the leases for which rows were found.
func keep(held []job.Lease, rows func(job.Lease) ([]keptRow, error)) (map[job.ID]job.Kept, error) {
	kept := make(map[job.ID]job.Kept, len(held))
	for _, l := range held {
		found, err := rows(l)
		if err != nil {
			return nil, err
		}
		for _, row := range found {
			kept[l.ID] = row.kept()
		}
	}
	return kept, nil
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

// othersSQL lists whose holders are not coming back: those of other processes, and
// those of workers outside of the gateway a second after the end of their leases.
const othersSQL = `
select id, tenant, key, type, state, business_key, operation_key, callback_url, priority, run_at, deadline, timeout_ms,
  max_attempts, earlier_attempts, attempt, generation, version, token, worker_id,
  locked_until, cancel_requested_at, unknown_asks, last_error, created_at, started_at, claimed_at
from jobs
where state = 'processing' and worker_id <> $1 and (substr(worker_id, 1, 7) <> 'remote:' or locked_until < later(-1000))
  and (slot, id) > ($2, $3)
order by slot, id
limit $4`

func (s *sqlite) expired(ctx context.Context, worker string, limit int) ([]jobRow, error) {
	slot, id := s.page.begin()
	rows, err := collect[jobRow](ctx, s.reader, othersSQL, worker, slot, id, limit)
	s.page.end(rows, limit)
	return rows, err
}
