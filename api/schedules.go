package api

import (
	"time"

	"github.com/sekali/sekali/job"
)

// ScheduleList is the document of GET /schedules: by name.
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
	// LastTime is when it fired last: the time that it was due at. Null where it has
	// not fired yet.
	LastTime *time.Time `json:"last_time"`
	// NextTime is when it is due next; null where that is never.
	NextTime *time.Time `json:"next_time"`
	// LastJob is the job of the last firing; null where there is none any more.
	LastJob *ScheduleJob `json:"last_job"`
	// LastError is why the last firing could not be made, or not yet.
	LastError *string `json:"last_error"`
}

// ScheduleJob is the job that a firing made.
type ScheduleJob struct {
	Key    string `json:"key"`
	Status string `json:"status"`
}

// FromSchedules renders how schedules stand.
func FromSchedules(list []job.ScheduleStatus) ScheduleList {
	document := ScheduleList{Schedules: make([]Schedule, len(list))}
	for i, s := range list {
		document.Schedules[i] = Schedule{
			Name: s.Schedule.Name, Type: string(s.Schedule.Type), Cron: s.Schedule.Cron, Timezone: s.Schedule.Timezone,
			Missed: string(s.Schedule.Missed), LastTime: optionalTime(s.LastTime), NextTime: optionalTime(s.NextTime),
			LastError: optional(s.LastError),
		}
		if s.LastKey != "" {
			document.Schedules[i].LastJob = &ScheduleJob{Key: string(s.LastKey), Status: string(s.LastStatus)}
		}
	}
	return document
}
