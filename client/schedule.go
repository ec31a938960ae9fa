package client

import (
	"context"
	"time"
)

// ScheduleList tells how all schedules of the tenant stand, by name.
type ScheduleList struct {
	Schedules []Schedule `json:"schedules"`
}

// Schedule tells how recurring work stands: what is submitted when, and whether it
// was.
type Schedule struct {
	Name     string `json:"name"`
	Type     string `json:"type"` // of its jobs
	Cron     string `json:"cron"`
	Timezone string `json:"timezone"`
	Missed   string `json:"missed"` // run_last, skip or run_all
	// LastTime is when it fired last: the time that it was due at. Zero if it has not
	// fired yet.
	LastTime time.Time `json:"last_time,omitzero"`
	NextTime time.Time `json:"next_time,omitzero"`
	// LastJob is the job of the last firing; nil if there is none any more.
	LastJob   *ScheduleJob `json:"last_job"`
	LastError string       `json:"last_error,omitempty"` // why the last firing could not be made, or not yet
}

// ScheduleJob is the job that a firing made.
type ScheduleJob struct {
	Key    string `json:"key"`
	Status string `json:"status"`
}

// Schedules tells how the schedules of the tenant stand.
func (c *Client) Schedules(ctx context.Context) (ScheduleList, error) {
	return decoded[ScheduleList](c.wire.ListSchedules(ctx))
}
