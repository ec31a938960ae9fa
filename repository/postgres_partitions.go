package repository

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/lib/pq"

	"github.com/sekali/sekali/job"
)

// The tables of jobs that have ended are partitioned by the job's id, and so by
// the time of acceptance, into weeks of UTC counted from 1970 (docs/adr/0015).
// A partition is dropped once its week is over and it is empty: that is all that
// has to be true, and the lock under which it is looked at makes it true. Rows
// leave one by one, in the transaction that makes their keys tombstones.
//
// Nothing depends on partitions being there: the default one takes what has none.
var partitionedTables = []string{"finished_jobs", "job_attempts", "job_events"}

const (
	partitionWeek = 7 * 24 * time.Hour
	// partitionsAhead: so many weeks all gateways may be away, or their role may
	// be without the right, before rows go to the default partition. Each
	// partition costs every look for a job a little.
	partitionsAhead = 2
	// partitionGrace is after the end of a week: ids are made by clocks that may
	// be a little behind.
	partitionGrace = time.Hour

	// partitionsEvery is how often a process looks; partitionsAgain, when somebody
	// had a table locked.
	partitionsEvery = time.Hour
	partitionsAgain = 10 * time.Minute

	// To make or drop a partition is to lock its table against everybody, and who
	// comes meanwhile waits behind the one who waits: together well below the
	// second after which statements give up.
	partitionLimits = `set local lock_timeout = '100ms'; set local statement_timeout = '400ms'; set local idle_in_transaction_session_timeout = '400ms'`
	// defaultPartitionMost is what can be read in that time: the default partition is
	// read through when another one is made.
	defaultPartitionMost = 128 << 20

	// partitionSettings: see migrations/postgres/0005_partitions.sql.
	partitionSettings = `autovacuum_vacuum_insert_threshold = -1, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_scale_factor = 0.5`
)

// partition is one partition of a table. upper is where its ids end, empty for
// the default partition; size is given for that one alone.
type partition struct {
	Parent text   `db:"parent"`
	Name   text   `db:"name"`
	Upper  text   `db:"upper"`
	Size   int64  `db:"size"`
	Now    moment `db:"now"`
}

const partitionsSQL = `
select p.relname as parent, c.relname as name, now() as now,
  coalesce(substring(pg_get_expr(c.relpartbound, c.oid) from 'TO \(''([0-9a-f-]{36})''\)'), '') as upper,
  case when pg_get_expr(c.relpartbound, c.oid) = 'DEFAULT' then pg_relation_size(c.oid) else 0 end as size
from pg_inherits i join pg_class c on c.oid = i.inhrelid join pg_class p on p.oid = i.inhparent
where p.relnamespace = cast(current_schema() as regnamespace) and p.relname in ('finished_jobs', 'job_attempts', 'job_events')
order by p.relname, c.relname`

// upkeep is when a process looks at the partitions again, in milliseconds of its
// clock; the zero value: now.
type upkeep struct{ next atomic.Int64 }

// due reports whether the time has come, to one caller.
func (u *upkeep) due() bool {
	now, next := processTime().UnixMilli(), u.next.Load()
	return now >= next && u.next.CompareAndSwap(next, now+partitionsEvery.Milliseconds())
}

func (u *upkeep) again() { u.next.Store(processTime().Add(partitionsAgain).UnixMilli()) }

// keepPartitions makes the partitions of the weeks to come and drops the empty
// ones of weeks that are over, if it is time to look. Any number of processes may
// do so at once.
func (p *postgres) keepPartitions(ctx context.Context) error {
	if !p.upkeep.due() {
		return nil
	}
	list, err := collect[partition](ctx, p.leases, partitionsSQL)
	if err != nil || len(list) == 0 { // no partitions at all: somebody else's schema
		return err
	}
	return p.partitionAt(ctx, list, list[0].Now.Time)
}

// partitionAt does it as of a time.
func (p *postgres) partitionAt(ctx context.Context, list []partition, now time.Time) error {
	var failures error
	for _, table := range partitionedTables {
		of := slices.DeleteFunc(slices.Clone(list), func(l partition) bool { return string(l.Parent) != table })
		failures = errors.Join(failures, p.makePartitions(ctx, table, of, now), p.dropPartitions(ctx, of, now))
	}
	return failures
}

// makePartitions makes what is missing from this week on.
func (p *postgres) makePartitions(ctx context.Context, table string, list []partition, now time.Time) error {
	for n := range partitionsAhead + 1 {
		week := now.Add(time.Duration(n)*partitionWeek).UnixMilli() / partitionWeek.Milliseconds()
		begin := time.UnixMilli(week * partitionWeek.Milliseconds()).UTC()
		name := table + begin.Format("_20060102")
		if slices.ContainsFunc(list, func(l partition) bool { return l.covers(name, begin) }) {
			continue
		}
		if i := slices.IndexFunc(list, func(l partition) bool { return l.Size > defaultPartitionMost }); i >= 0 {
			return fmt.Errorf("%s holds %d MB of rows that have no partition: while it is so big none is made beside it", list[i].Name, list[i].Size>>20)
		}
		err := p.definePartition(ctx, table, fmt.Sprintf(`create table if not exists %s partition of %s for values from ('%s') to ('%s') with (%s)`,
			name, table, timeBound(begin), timeBound(begin.Add(partitionWeek)), partitionSettings), "")
		if err != nil {
			return fmt.Errorf("make partition %s: %w", name, err)
		}
	}
	return nil
}

// covers reports whether a week has its partition: one of its own, or that of
// everything before the first own one.
func (l partition) covers(name string, begin time.Time) bool {
	return string(l.Name) == name || strings.HasSuffix(string(l.Name), "_before") && job.ID(l.Upper) > timeBound(begin)
}

// dropPartitions drops what is over and empty.
func (p *postgres) dropPartitions(ctx context.Context, list []partition, now time.Time) error {
	for _, l := range list {
		if l.Upper == "" || job.ID(l.Upper) > timeBound(now.Add(-partitionGrace)) {
			continue
		}
		// First without the lock: this may have to walk over many dead rows, and marks
		// them, so that the look under the lock is short.
		query := fmt.Sprintf(`select exists (select 1 from %s)`, l.Name)
		found, err := p.occupied(ctx, p.leases.db, query)
		if found || passing(err) {
			continue
		}
		if err == nil {
			err = p.definePartition(ctx, string(l.Parent), `drop table `+string(l.Name), query)
		}
		if err != nil && !moot(err) {
			return fmt.Errorf("drop partition %s: %w", l.Name, err)
		}
	}
	return nil
}

// timeBound is the id with which a time begins: all later ones are larger.
func timeBound(t time.Time) job.ID {
	digits := job.ID(fmt.Sprintf("%012x", t.UnixMilli()))
	return digits[:8] + "-" + digits[8:] + lowestID[13:]
}

type queryer interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

func (p *postgres) occupied(ctx context.Context, q queryer, query string) (found bool, err error) {
	ctx, cancel := p.leases.within(ctx)
	defer cancel()
	return found, q.QueryRowContext(ctx, query).Scan(&found)
}

// definePartition runs a definition under the lock of its table, unless the query
// finds that the partition is occupied. The lock comes first and is the table's
// alone: everybody takes the locks of partitions after it, so that nobody can
// be waited for who waits, and of processes that want the same the second one
// sees what the first one did.
func (p *postgres) definePartition(ctx context.Context, table, definition, unlessOccupied string) error {
	err := p.define(ctx, table, definition, unlessOccupied)
	if passing(err) {
		p.upkeep.again()
		return nil
	}
	if moot(err) {
		return nil
	}
	return err
}

func (p *postgres) define(ctx context.Context, table, definition, unlessOccupied string) error {
	ctx, cancel := p.leases.within(ctx)
	defer cancel()
	tx, err := p.leases.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	for _, statement := range []string{partitionLimits, `lock table only ` + table + ` in access exclusive mode`} {
		if _, err := tx.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	if unlessOccupied != "" {
		if found, err := p.occupied(ctx, tx, unlessOccupied); found || err != nil {
			return err
		}
	}
	if _, err := tx.ExecContext(ctx, definition); err != nil {
		return err
	}
	return tx.Commit()
}

// passing reports what another try may overcome: a lock that was not free, or too
// much to read in the time.
func passing(err error) bool { return hasState(err, "55P03", "57014", "25P03") }

// moot reports a definition that has become needless or impossible: another
// process dropped the partition, rows of the week are in the default partition
// already, or our role may not define tables here.
func moot(err error) bool { return hasState(err, "42P01", "23514", "42501") }

func hasState(err error, states ...string) bool {
	var e *pq.Error
	return errors.As(err, &e) && slices.Contains(states, string(e.Code))
}
