package repository

import (
	"context"
	"time"
)

const (
	// serverSQL: what current_setting tells is what holds for our sessions, also
	// where a role or the database has settings of its own.
	serverSQL = `
select current_setting('server_version') as version, now() as server_time,
  (select count(*) from pg_stat_activity where backend_type = 'client backend') as connections,
  cast(current_setting('max_connections') as int) - cast(current_setting('superuser_reserved_connections') as int)
    - cast(coalesce(current_setting('reserved_connections', true), '0') as int) as most_connections`

	settingsSQL = `
select name, current_setting(name) as value from pg_settings
where name in ('fsync', 'full_page_writes', 'synchronous_commit', 'autovacuum', 'track_counts')`

	// invalidSQL finds what a failed "create index concurrently" or "reindex
	// concurrently" left behind (failures/queues.md 13): it is written to, and never
	// read.
	invalidSQL = `
select i.relname || ' of ' || t.relname as name
from pg_index x join pg_class i on i.oid = x.indexrelid join pg_class t on t.oid = x.indrelid
where not x.indisvalid and t.relnamespace = cast(current_schema() as regnamespace)
order by 1
limit $1`

	// transactionsSQL: of other users' sessions only those with pg_read_all_stats see
	// since when; the others are left out. Prepared transactions belong to no session.
	transactionsSQL = `
select coalesce(nullif(application_name, ''), usename, 'a session') || ' (pid ' || pid || ')' as of, coalesce(state, '') as state,
  cast(extract(epoch from now() - xact_start) * 1000 as bigint) as open_ms
from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'
  and xact_start < now() - cast($1 as bigint) * interval '1 millisecond'
union all
select 'the prepared transaction ' || gid, 'prepared', cast(extract(epoch from now() - prepared) * 1000 as bigint)
from pg_prepared_xacts
where database = current_database() and prepared < now() - cast($1 as bigint) * interval '1 millisecond'
order by open_ms desc
limit $2`

	// unvacuumedSQL also names partitions, which is where the rows are.
	unvacuumedSQL = `
select c.relname as name
from pg_class c, unnest(c.reloptions) as option
where c.relnamespace = cast(current_schema() as regnamespace) and c.relkind in ('r', 'p')
  and option in ('autovacuum_enabled=false', 'autovacuum_enabled=off', 'autovacuum_enabled=0', 'autovacuum_enabled=no')
order by 1
limit $1`

	deadRowsSQL = `
select coalesce(sum(n_dead_tup), 0) as jobs from pg_stat_user_tables
where relname = 'jobs' and schemaname = current_schema()`
)

func (p *postgres) readServer(ctx context.Context) (ServerReading, error) {
	before := processTime()
	rows, err := collect[struct {
		Version         text   `db:"version"`
		ServerTime      moment `db:"server_time"`
		Connections     int    `db:"connections"`
		MostConnections int    `db:"most_connections"`
	}](ctx, p.accepts, serverSQL)
	if err != nil {
		return ServerReading{}, err
	}
	after := processTime()
	row := rows[0]
	// The server looked at its clock at some moment between the two: what lies
	// within that is no difference.
	ahead := time.Duration(0)
	switch {
	case row.ServerTime.Before(before):
		ahead = row.ServerTime.Sub(before)
	case row.ServerTime.After(after):
		ahead = row.ServerTime.Sub(after)
	}
	settings, err := collect[metaRow](ctx, p.accepts, settingsSQL)
	if err != nil {
		return ServerReading{}, err
	}
	reading := ServerReading{
		Version: "Postgres " + string(row.Version), Ahead: ahead, Settings: map[string]string{}, Pooled: p.pooled.Load(),
		Connections: row.Connections, MostConnections: row.MostConnections,
	}
	for _, one := range settings {
		reading.Settings[one.Name] = one.Value
	}
	return reading, nil
}

type nameRow struct {
	Name text `db:"name"`
}

func namesOf(rows []nameRow) []string {
	var names []string
	for _, row := range rows {
		names = append(names, string(row.Name))
	}
	return names
}

func (p *postgres) readUpkeep(ctx context.Context) (UpkeepReading, error) {
	invalid, err := collect[nameRow](ctx, p.accepts, invalidSQL, doctorListed)
	if err != nil {
		return UpkeepReading{}, err
	}
	unvacuumed, err := collect[nameRow](ctx, p.accepts, unvacuumedSQL, doctorListed)
	if err != nil {
		return UpkeepReading{}, err
	}
	reading := UpkeepReading{InvalidIndexes: namesOf(invalid), Unvacuumed: namesOf(unvacuumed)}
	dead, err := collect[struct {
		Jobs int `db:"jobs"`
	}](ctx, p.accepts, deadRowsSQL)
	if err != nil {
		return UpkeepReading{}, err
	}
	reading.DeadRows = dead[0].Jobs
	reading.Transactions, err = p.readTransactions(ctx, LongTransaction)
	return reading, err
}

// readTransactions finds transactions that have been open for so long.
func (p *postgres) readTransactions(ctx context.Context, least time.Duration) ([]OpenTransaction, error) {
	rows, err := collect[struct {
		Of     text  `db:"of"`
		State  text  `db:"state"`
		OpenMS int64 `db:"open_ms"`
	}](ctx, p.accepts, transactionsSQL, least.Milliseconds(), doctorListed)
	var found []OpenTransaction
	for _, row := range rows {
		found = append(found, OpenTransaction{string(row.Of), string(row.State), time.Duration(row.OpenMS) * time.Millisecond})
	}
	return found, err
}
