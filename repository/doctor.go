package repository

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"github.com/sekali/sekali/job"
)

// What `sekali doctor` reads. All of it only reads, every statement is bounded,
// and each reading stands for itself: a database that does not have one may have
// the others. What the numbers mean is not judged here.

// ServerReading is how the database answers.
type ServerReading struct {
	Version   string
	RoundTrip time.Duration // of the smallest statement, on an open connection
	// Ahead is by how much the database's clock is before this process's; on
	// SQLite they are one clock.
	Ahead time.Duration
	// Settings are those on which promises depend, by name; none on SQLite.
	Settings map[string]string
	// Pooled: connections go through a pooler, which keeps sessions together.
	Pooled bool
	// Connections are those that the server has now, and MostConnections how many
	// it lets ordinary users have; 0 on SQLite.
	Connections, MostConnections int
}

// UpkeepReading is what keeps Postgres from staying fast. It is empty on SQLite.
type UpkeepReading struct {
	InvalidIndexes []string // "index of table"
	// Transactions are open for longer than LongTransaction; dead rows younger
	// than the oldest one stay.
	Transactions []OpenTransaction
	Unvacuumed   []string // tables for which autovacuum is switched off
	DeadRows     int      // of unfinished jobs, as far as the server knows
}

// OpenTransaction is one that has been open for long.
type OpenTransaction struct {
	Of    string // the program, or the name of a prepared transaction
	State string
	Open  time.Duration
}

// FileReading is how the file of SQLite stands. It is empty on Postgres.
type FileReading struct {
	Path    string
	Mode    fs.FileMode
	Journal string // wal, once a gateway has run on it
	Size    int64
	Free    int64 // bytes left on its file system; -1: not known
	// Damage is what is wrong with its structure. Checked tells that the look for
	// it came to its end in the time that it had.
	Damage  []string
	Checked bool
}

// JobsReading is what the jobs in the database tell of trouble.
type JobsReading struct {
	Now      time.Time       // the database's time
	Overdue  []OverdueLease  // jobs that run by their row, and whose lease ended long ago
	Waiting  []OldestWaiting // of each type with jobs that may start
	NotMoved int             // jobs whose time has come long ago, and that nobody made pending; at most doctorCounted
	Silent   []job.Worker    // processes that ended without saying so, or hang
	Unknown  []string        // keys of the latest finished jobs that wait for somebody to resolve them
	Reapable int             // finished jobs whose time was over long ago; at most doctorCounted
	Overview job.Overview
}

// OverdueLease is a job whose lease is over.
type OverdueLease struct {
	Type     job.Type
	Key      string
	WorkerID string
	Ended    time.Time
}

// OldestWaiting is the job of a type that should have started first.
type OldestWaiting struct {
	Type job.Type
	Due  time.Time
}

const (
	// LongTransaction is far above what a statement or an attempt's transaction of
	// ours takes, and what a backup of a small database does.
	LongTransaction = 5 * time.Minute
	// overdueFor is longer than a healthy rescuer, promoter or process lets
	// anything lie.
	overdueFor = time.Minute
	// reapableFor is longer than the reaper leaves expired jobs.
	reapableFor = time.Hour
	// doctorListed bounds what is named, and doctorCounted what is counted: the
	// question is whether there is trouble, not how much of it to the last job.
	doctorListed  = 20
	doctorCounted = 10_000
	// unknownLooked is how many of the latest finished jobs are looked at; no
	// index knows their outcomes.
	unknownLooked = 2_000
)

const roundTripSQL = `select 1 as one`

// ReadServer reads how the database answers.
func (r *Repository) ReadServer(ctx context.Context) (ServerReading, error) {
	reading, err := r.readServer(ctx)
	return reading, r.fail("read the server", err)
}

func (r *Repository) readServer(ctx context.Context) (ServerReading, error) {
	type one struct {
		One int `db:"one"`
	}
	// Twice: the first one opens the connection and prepares the statement.
	if _, err := collect[one](ctx, r.engine.reads(), roundTripSQL); err != nil {
		return ServerReading{}, err
	}
	before := processTime()
	if _, err := collect[one](ctx, r.engine.reads(), roundTripSQL); err != nil {
		return ServerReading{}, err
	}
	took := processTime().Sub(before)
	var reading ServerReading
	var err error
	switch e := r.engine.(type) {
	case *postgres:
		reading, err = e.readServer(ctx)
	case *sqlite:
		reading, err = e.readServer(ctx)
	}
	reading.RoundTrip = took
	return reading, err
}

// ReadUpkeep reads what keeps Postgres from staying fast.
func (r *Repository) ReadUpkeep(ctx context.Context) (UpkeepReading, error) {
	p, ok := r.engine.(*postgres)
	if !ok {
		return UpkeepReading{}, nil
	}
	reading, err := p.readUpkeep(ctx)
	return reading, r.fail("read the upkeep", err)
}

// ReadFile reads how the file of SQLite stands, and looks for damage for no
// longer than that.
func (r *Repository) ReadFile(ctx context.Context, patience time.Duration) (FileReading, error) {
	s, ok := r.engine.(*sqlite)
	if !ok {
		return FileReading{}, nil
	}
	reading, err := s.readFile(ctx, patience)
	return reading, r.fail("read the file", err)
}

// errUndone ends the transaction of TryWrite.
var errUndone = errors.New("nothing is to be kept")

// TryWrite finds out whether the database takes writes, in a transaction that is
// rolled back: it is what a full disk, a standby or a missing right refuses. The
// schema must be there.
func (r *Repository) TryWrite(ctx context.Context) error {
	statements := []string{reportSQL, touchJobsSQL, touchFinishedSQL}
	err := r.engine.clientTx(ctx, statements, func(ctx context.Context, t transaction) error {
		if _, err := t.change(ctx, reportSQL, "doctor-"+r.process, 0, "[]"); err != nil {
			return err
		}
		for _, query := range statements[1:] {
			if _, err := t.change(ctx, query); err != nil {
				return err
			}
		}
		return errUndone
	})
	if errors.Is(err, errUndone) {
		return nil
	}
	return r.fail("try to write", err)
}

// Statements that change no row, and need the right to change any.
const (
	touchJobsSQL     = `update jobs set version = version where slot < 0`
	touchFinishedSQL = `delete from finished_jobs where slot < 0`
)

const (
	// overdueLeasesSQL reads the index jobs_running, which is as long as the slots of
	// all processes.
	overdueLeasesSQL = `
select type, key, worker_id, locked_until from jobs
where state = 'processing' and locked_until < $1
order by slot, id
limit $2`

	// oldestWaitingSQL jumps from tenant to tenant, and on to the next type, in the
	// index jobs_turns: a probe for the next one and one for its first job, however many
	// jobs there are. A row without a tenant is the beginning of a type.
	oldestWaitingSQL = `
with recursive turns (type, tenant, place) as (
  select min(type), '', 0 from jobs where state = 'pending' and not blocked
  union all
  select
    case when exists (
      select 1 from jobs j where j.state = 'pending' and not j.blocked and j.type = t.type and j.tenant > t.tenant)
    then t.type
    else (select min(j.type) from jobs j where j.state = 'pending' and not j.blocked and j.type > t.type) end,
    coalesce((select min(j.tenant) from jobs j where j.state = 'pending' and not j.blocked and j.type = t.type and j.tenant > t.tenant), ''),
    t.place + 1
  from turns t
  where t.type is not null and t.place < 10000)
select t.type, min((
  select j.run_at from jobs j
  where j.state = 'pending' and not j.blocked and j.type = t.type and j.tenant = t.tenant
  order by j.claim_at, j.id
  limit 1)) as due
from turns t
where t.type is not null and t.tenant <> ''
group by t.type
limit $1`

	// notMovedSQL reads the beginning of the index jobs_due.
	notMovedSQL = `
select count(*) as jobs from (
  select 1 from jobs
  where state in ('scheduled', 'retrying') and run_at < $1 and not blocked
  limit $2) as due`

	// unknownSQL reads the end of the index finished_jobs_expiry: jobs of one
	// retention expire in the order in which they have ended.
	unknownSQL = `
select key from (
  select key, state, outcome from finished_jobs
  order by expires_at desc
  limit $1) as latest
where state = 'failed' and outcome = 'outcome_unknown'
limit $2`

	// reapableSQL reads the beginning of the same index.
	reapableSQL = `
select count(*) as jobs from (
  select 1 from finished_jobs
  where expires_at < $1
  limit $2) as expired`

	silentSQL = `
select id, slots, types, seen_at from workers
where seen_at <= $1
order by seen_at desc
limit $2`
)

// ReadJobs reads what the jobs tell of trouble. The schema must be there.
func (r *Repository) ReadJobs(ctx context.Context) (JobsReading, error) {
	if err := r.clock.Sync(ctx); err != nil {
		return JobsReading{}, err
	}
	reading := JobsReading{Now: r.clock.Now()}
	for _, read := range []func(context.Context, *JobsReading) error{
		r.readOverdue, r.readOldest, r.readCounts, r.readSilent, r.readUnknown,
	} {
		if err := read(ctx, &reading); err != nil {
			return JobsReading{}, r.fail("read the jobs", err)
		}
	}
	var err error
	reading.Overview, err = r.Overview(ctx)
	return reading, err
}

func (r *Repository) readOverdue(ctx context.Context, into *JobsReading) error {
	rows, err := collect[runningRow](ctx, r.engine.reads(), overdueLeasesSQL, stamp(into.Now.Add(-overdueFor)), doctorListed)
	for _, row := range rows {
		name, _ := workerOf(row.WorkerID)
		into.Overdue = append(into.Overdue, OverdueLease{
			Type: job.Type(row.Type), Key: string(row.Key), WorkerID: name, Ended: row.LockedUntil.Time,
		})
	}
	return err
}

func (r *Repository) readOldest(ctx context.Context, into *JobsReading) error {
	rows, err := collect[struct {
		Type text   `db:"type"`
		Due  moment `db:"due"`
	}](ctx, r.engine.reads(), oldestWaitingSQL, doctorCounted)
	for _, row := range rows {
		into.Waiting = append(into.Waiting, OldestWaiting{Type: job.Type(row.Type), Due: row.Due.Time})
	}
	return err
}

func (r *Repository) readCounts(ctx context.Context, into *JobsReading) error {
	for query, count := range map[string]struct {
		before time.Time
		into   *int
	}{
		notMovedSQL: {into.Now.Add(-overdueFor), &into.NotMoved},
		reapableSQL: {into.Now.Add(-reapableFor), &into.Reapable},
	} {
		rows, err := collect[struct {
			Jobs int `db:"jobs"`
		}](ctx, r.engine.reads(), query, stamp(count.before), doctorCounted)
		if err != nil {
			return err
		}
		*count.into = rows[0].Jobs
	}
	return nil
}

func (r *Repository) readSilent(ctx context.Context, into *JobsReading) error {
	rows, err := collect[workerRow](ctx, r.engine.reads(), silentSQL, stamp(into.Now.Add(-workersSeen)), doctorListed)
	if err != nil {
		return err
	}
	into.Silent, err = each(rows, (*workerRow).worker)
	return err
}

func (r *Repository) readUnknown(ctx context.Context, into *JobsReading) error {
	rows, err := collect[struct {
		Key text `db:"key"`
	}](ctx, r.engine.reads(), unknownSQL, unknownLooked, doctorListed)
	for _, row := range rows {
		into.Unknown = append(into.Unknown, string(row.Key))
	}
	return err
}
