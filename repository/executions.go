package repository

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"strings"

	"github.com/sekali/sekali/job"
)

var _ job.Executions = (*Repository)(nil)

// remoteMark begins the stored names of workers outside of the gateway. No process
// of a gateway has such a name, so that nobody can pass for one of them; and on
// SQLite it tells the leases that end by time from those that end with the process.
const remoteMark = "remote:"

// storedWorker is the worker's name in the form in which it is stored.
func storedWorker(c job.Claiming) string {
	if c.Remote {
		return remoteMark + c.Worker
	}
	return c.Worker
}

// workerOf is storedWorker backwards.
func workerOf(stored text) (name string, remote bool) {
	return strings.CutPrefix(string(stored), remoteMark)
}

// executionSQL reads the job in whichever table it is, with the end of the attempt
// under the token, in one snapshot: read one after the other, the job could move
// between the two tables and be seen in neither. A job whose retention is over is
// none any more.
const executionSQL = `
select e.id, e.tenant, e.key, e.type, e.state, e.payload, e.business_key, e.operation_key, e.callback_url, e.priority, e.run_at, e.deadline,
  e.timeout_ms, e.max_attempts, e.earlier_attempts, e.attempt, e.generation, e.version, e.token, e.worker_id, e.locked_until,
  e.cancel_requested_at, e.unknown_asks, e.last_error, e.created_at, e.started_at, e.claimed_at,
  e.outcome, e.duplicate_of, e.result, e.result_type, e.result_hash, e.result_expires_at, e.result_past, e.finished_at, e.expires_at,
  coalesce(a.number, 0) as ended_number, a.outcome as ended_outcome, a.worker_id as ended_worker
from (
  select slot, id, tenant, key, type, state, payload, business_key, operation_key, callback_url, priority, run_at, deadline,
    timeout_ms, max_attempts, earlier_attempts, attempt, generation, version, token, worker_id, locked_until,
    cancel_requested_at, unknown_asks, last_error, created_at, started_at, claimed_at,
    null as outcome, null as duplicate_of, null as result, null as result_type, null as result_hash,
    null as result_expires_at, false as result_past, null as finished_at, null as expires_at
  from jobs
  where slot = $1 and id = $2
  union all
  select slot, id, tenant, key, type, state, payload, business_key, operation_key, callback_url, priority, run_at, deadline,
    timeout_ms, max_attempts, earlier_attempts, attempt, generation, version, token, worker_id, null as locked_until,
    null as cancel_requested_at, 0 as unknown_asks, last_error, created_at, started_at, claimed_at,
    outcome, duplicate_of, result, result_type, result_hash,
    result_expires_at, coalesce(result_expires_at <= now(), false) as result_past, finished_at, expires_at
  from finished_jobs
  where slot = $1 and id = $2 and expires_at > now()) as e
left join job_attempts a on a.slot = e.slot and a.job_id = e.id and a.token = $3`

type executionRow struct {
	jobRow
	EndedNumber  int  `db:"ended_number"`
	EndedOutcome text `db:"ended_outcome"`
	EndedWorker  text `db:"ended_worker"`
}

func (r *executionRow) execution(l job.Lease) (job.Execution, error) {
	j, err := r.job()
	e := job.Execution{Job: j, ResultHash: r.ResultHash}
	if r.EndedOutcome != "" {
		e.Ended = &job.Attempt{Number: r.EndedNumber, Token: l.Token, Outcome: job.Outcome(r.EndedOutcome)}
		e.Ended.WorkerID, _ = workerOf(r.EndedWorker)
	}
	return e, err
}

// Execution implements job.Executions.
func (r *Repository) Execution(ctx context.Context, l job.Lease) (job.Execution, error) {
	rows, err := collect[executionRow](ctx, r.engine.reads(), executionSQL, int64(l.ID.Slot()), string(l.ID), l.Token)
	if err == nil && len(rows) == 0 {
		err = job.ErrNotFound
	}
	if err != nil {
		return job.Execution{}, r.fail("read an execution", err)
	}
	e, err := rows[0].execution(l)
	return e, r.fail("read an execution", err)
}

const (
	// keepSecretSQL relies on the primary key of meta: of any number of processes that
	// make the secret at once, one does.
	keepSecretSQL = `
insert into meta (name, value) values ($1, $2)
on conflict (name) do nothing`

	secretSQL = `
select name, value from meta
where name = $1`
)

// secretSize is that of the hash which secrets are used with.
const secretSize = 32

// Secret implements job.Executions.
func (r *Repository) Secret(ctx context.Context, name string) ([]byte, error) {
	name = "secret_" + name
	secret, err := r.secret(ctx, name)
	if err != nil || secret != nil {
		return secret, err
	}
	made := make([]byte, secretSize)
	rand.Read(made) // never fails: crypto/rand ends the program instead
	if _, _, err := r.execute(ctx, "keep a secret", keepSecretSQL, name, base64.StdEncoding.EncodeToString(made)); err != nil {
		return nil, err
	}
	return r.secret(ctx, name)
}

// secret is nil if there is none yet.
func (r *Repository) secret(ctx context.Context, name string) ([]byte, error) {
	rows, err := collect[metaRow](ctx, r.engine.reads(), secretSQL, name)
	if err != nil || len(rows) == 0 {
		return nil, r.fail("read a secret", err)
	}
	secret, err := base64.StdEncoding.DecodeString(rows[0].Value)
	return secret, r.fail("read a secret", err)
}
