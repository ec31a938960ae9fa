package repository

import (
	"context"
	"time"

	"github.com/sekali/sekali/job"
)

var _ job.ScheduleStates = (*Repository)(nil)

// All changes are single statements that any process may run again: they name the
// definition that they are about, and move last_time forward only.
const (
	scheduleStatesSQL = `
select name, definition, last_time, fired_time, last_error
from schedules
order by name`

	beginScheduleSQL = `
insert into schedules (name, definition, last_time)
values ($1, $2, $3)
on conflict (name) do update set definition = excluded.definition, last_time = excluded.last_time, last_error = ''
where schedules.definition <> excluded.definition`

	settleFiringSQL = `
update schedules
set last_time = $3, fired_time = $3, last_error = ''
where name = $1 and definition = $2 and last_time < $3`

	skipFiringsSQL = `
update schedules
set last_time = $3, last_error = case when $4 = '' then last_error else $4 end
where name = $1 and definition = $2 and last_time < $3`

	failFiringSQL = `
update schedules
set last_error = $4
where name = $1 and definition = $2 and last_time < $3`
)

type scheduleRow struct {
	Name       text   `db:"name"`
	Definition text   `db:"definition"`
	LastTime   moment `db:"last_time"`
	FiredTime  moment `db:"fired_time"`
	LastError  text   `db:"last_error"`
}

// ScheduleStates implements job.ScheduleStates.
func (r *Repository) ScheduleStates(ctx context.Context) ([]job.ScheduleState, error) {
	rows, err := collect[scheduleRow](ctx, r.engine.reads(), scheduleStatesSQL)
	if err != nil {
		return nil, r.fail("read schedules", err)
	}
	states := make([]job.ScheduleState, len(rows))
	for i, row := range rows {
		states[i] = job.ScheduleState{
			Name: string(row.Name), Definition: string(row.Definition),
			LastTime: row.LastTime.Time, FiredTime: row.FiredTime.Time, LastError: string(row.LastError),
		}
	}
	return states, nil
}

// BeginSchedule implements job.ScheduleStates.
func (r *Repository) BeginSchedule(ctx context.Context, name, definition string, lastTime time.Time) error {
	_, _, err := r.execute(ctx, "begin a schedule", beginScheduleSQL, name, definition, stamp(lastTime))
	return err
}

// SettleFiring implements job.ScheduleStates.
func (r *Repository) SettleFiring(ctx context.Context, name, definition string, at time.Time) error {
	_, _, err := r.execute(ctx, "settle a firing", settleFiringSQL, name, definition, stamp(at))
	return err
}

// SkipFirings implements job.ScheduleStates.
func (r *Repository) SkipFirings(ctx context.Context, name, definition string, at time.Time, reason string) error {
	_, _, err := r.execute(ctx, "skip firings", skipFiringsSQL, name, definition, stamp(at), reason)
	return err
}

// FailFiring implements job.ScheduleStates.
func (r *Repository) FailFiring(ctx context.Context, name, definition string, at time.Time, reason string) error {
	_, _, err := r.execute(ctx, "note a firing that failed", failFiringSQL, name, definition, stamp(at), reason)
	return err
}
