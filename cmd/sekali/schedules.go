package main

import (
	"context"

	"github.com/sekali/sekali/api"
)

type schedulesCommand struct{ clientFlags }

// Help explains the command.
func (schedulesCommand) Help() string {
	return `Shows recurring work: when each schedule fired last and fires next, how its last job stands, and what keeps
it from firing.

Examples:
  sekali schedules
  sekali schedules -o json`
}

// Run shows how the schedules stand.
func (c schedulesCommand) Run(ctx context.Context, t terminal) error {
	var list api.ScheduleList
	got, err := c.get(ctx, "/schedules", &list)
	if err != nil {
		return err
	}
	if c.json() {
		return t.document(got.Body)
	}
	if len(list.Schedules) == 0 {
		t.note("there are no schedules; the configuration has them under schedules:.")
		return nil
	}
	rows := make([][]string, 0, len(list.Schedules))
	for _, s := range list.Schedules {
		status, key := "-", "-"
		if s.LastJob != nil {
			status, key = s.LastJob.Status, s.LastJob.Key
		}
		rows = append(rows, []string{
			s.Name, s.Type, s.Cron, s.Timezone, orDash(s.LastTime), status, orDash(s.NextTime), key, orNone(s.LastError),
		})
	}
	return t.table([]string{"NAME", "TYPE", "CRON", "TIMEZONE", "LAST", "STATUS", "NEXT", "JOB", "ERROR"}, rows)
}
