package section

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sekali/sekali/bench/internal/contestant"
	"github.com/sekali/sekali/bench/internal/rig"
)

// singleRowSQL inserts one row of the naive handler's table: what Postgres does
// by itself when nobody merges inserts. The random number makes the key unique.
const singleRowSQL = `\set n random(1, 9000000000000000000)
insert into jobs (key, fingerprint, payload, response) values ('pgbench-' || cast(:client_id as text) || '-' || cast(:n as text), decode(md5(cast(:n as text)) || md5('x'), 'hex'), cast(repeat('x', 300) as bytea), cast(repeat('y', 50) as bytea));
`

// pgbench prepares single-row inserts with a database of their own.
func (b *Bench) pgbench(ctx context.Context, e *ending) (rig.SingleRow, error) {
	database, err := b.Rig.Postgres.Database(ctx, "pgbench")
	if err != nil {
		return rig.SingleRow{}, err
	}
	e.add(func() error { return b.Rig.Postgres.Drop(context.WithoutCancel(ctx), database) })
	if err := database.Exec(ctx, contestant.NaiveSchema); err != nil {
		return rig.SingleRow{}, err
	}
	return b.Rig.SingleRow(database, singleRowSQL)
}

func (b *Bench) singleRowWindow(ctx context.Context, single rig.SingleRow, connections int) (sample, error) {
	if err := single.Database.Exec(ctx, `truncate jobs`); err != nil {
		return sample{}, err
	}
	before, err := b.Rig.Postgres.Usage(ctx)
	if err != nil {
		return sample{}, err
	}
	done, took, err := single.Run(ctx, connections, b.Window)
	if err != nil {
		return sample{}, err
	}
	after, err := b.Rig.Postgres.Usage(ctx)
	if err != nil {
		return sample{}, err
	}
	var s sample
	s.Answered, s.Sent, s.Took = done, done, took
	// Of its processor time nothing is told: its backends have ended with it.
	s.usage.WALBytes = after.Since(before).WALBytes
	got, err := single.Database.Number(ctx, `select count(*) from jobs`)
	if err == nil && int(got) != done {
		err = fmt.Errorf("pgbench: %d transactions and %.0f rows", done, got)
	}
	return s, err
}

// databaseName makes a side's name one of a database.
func databaseName(name string) string { return strings.ReplaceAll(name, "-", "_") }

// rates tells the last rate and cost of each side, for the progress.
func rates(at map[string][]sample) string {
	var told []string
	for _, name := range slices.Sorted(maps.Keys(at)) {
		last := at[name][len(at[name])-1]
		told = append(told, fmt.Sprintf("%s %.0f/s (%.0f µs)", name, last.Rate(), cpu(last)))
	}
	return strings.Join(told, ", ")
}
