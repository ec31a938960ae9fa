package repository

import (
	"context"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

var reviveStatements = []string{leaveFinishedSQL, holdersSQL, reviveSQL, dropFinishedSQL}

// Revive implements job.Operator.
func (r *Repository) Revive(ctx context.Context, v job.Revival) (job.Receipt, error) {
	return r.operate(ctx, act{
		doing: "revive", request: v.Request, response: v.Response, from: v.From, becomes: v.Job, statements: reviveStatements,
		apply: func(ctx context.Context, t transaction) error { return r.revive(ctx, t, v) },
	})
}

const (
	// leaveFinishedSQL takes the row's lock, so that of two operators, or of an
	// operator and the reaper, one has the job; the other finds no row of this
	// version.
	leaveFinishedSQL = `
update finished_jobs
set version = $4
where slot = $1 and id = $2 and version = $3 and state in ('failed', 'cancelled') and expires_at > now()`

	// reviveSQL may be refused by the unique index jobs_business, if another job
	// took the business key since it was looked for.
	reviveSQL = `
insert into jobs (slot, id, tenant, key, key_slot, type, state, blocked, payload, business_key, operation_key, callback_url,
  priority, run_at, claim_at, timeout_ms, max_attempts, attempt, earlier_attempts, generation, version,
  token, unknown_asks, worker_id, last_error, created_at, started_at, claimed_at)
select slot, id, tenant, key, key_slot, type, 'pending', $7, payload, business_key, operation_key, callback_url,
  priority, $5, $6, timeout_ms, max_attempts, attempt, $4, $3, version,
  token, $8, worker_id, last_error, created_at, started_at, claimed_at
from finished_jobs
where slot = $1 and id = $2`

	dropFinishedSQL = `
delete from finished_jobs
where slot = $1 and id = $2`

	// holdersSQL finds who has the business key, or who waits for it. The two
	// halves are two indexes.
	holdersSQL = `
select key, blocked from jobs
where slot = $1 and tenant = $2 and type = $3 and business_key = $4 and not blocked
union all
select key, blocked from jobs
where slot = $1 and tenant = $2 and type = $3 and business_key = $4 and blocked
order by blocked
limit 1`
)

func (r *Repository) revive(ctx context.Context, t transaction, v job.Revival) error {
	j := v.Job
	slot, id := int64(j.Slot()), string(j.ID)
	n, err := t.change(ctx, leaveFinishedSQL, slot, id, v.From.Version, j.Version)
	if err != nil {
		return err
	}
	if n == 0 {
		return job.ErrMoved
	}
	queues := v.OnConflict == job.ConflictQueue
	holder, waits, err := businessHolder(ctx, t, j)
	switch {
	case err != nil:
		return err
	case holder != "" && !queues:
		return &job.BusinessKeyError{Holder: holder}
	}
	blocked := queues && (holder != "" || waits)
	if _, err := t.change(ctx, reviveSQL, slot, id, j.Generation, j.EarlierAttempts, stamp(j.RunAt), stamp(claimAt(j)), blocked, j.UnknownAsks); err != nil {
		return err
	}
	if _, err := t.change(ctx, dropFinishedSQL, slot, id); err != nil {
		return err
	}
	return r.note(ctx, t, j, job.EventRetried, map[string]any{"key": string(v.Request.Key), "generation": j.Generation})
}

type businessRow struct {
	Key     text `db:"key"`
	Blocked bool `db:"blocked"`
}

// businessHolder tells who holds the job's business key, and whether, although
// nobody does, other jobs wait for it: who comes now must not overtake them.
func businessHolder(ctx context.Context, t transaction, j job.Job) (holder idempotency.Key, waits bool, err error) {
	if j.BusinessKey == "" {
		return "", false, nil
	}
	rows, err := rowsOf[businessRow](ctx, t, holdersSQL, int64(j.Slot()), string(j.Tenant), string(j.Type), j.BusinessKey)
	if err != nil || len(rows) == 0 {
		return "", false, err
	}
	if rows[0].Blocked {
		return "", true, nil
	}
	return idempotency.Key(rows[0].Key), false, nil
}
