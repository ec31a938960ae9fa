package repository

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sekali/sekali/job"
)

var _ job.EventLog = (*Repository)(nil)

// historyRead bounds what is read of one job: a job that was put off for weeks
// has more attempts than anybody reads. The last ones are shown.
const historyRead = 10_000

const attemptsSQL = `
select token, number, outcome, worker_id, error, started_at, finished_at
from (
  select token, number, outcome, worker_id, error, started_at, finished_at
  from job_attempts
  where slot = $1 and job_id = $2
  order by token desc
  limit $3) as last
order by token`

type attemptRow struct {
	Token      int64  `db:"token"`
	Number     int    `db:"number"`
	Outcome    text   `db:"outcome"`
	WorkerID   text   `db:"worker_id"`
	Error      []byte `db:"error"`
	StartedAt  moment `db:"started_at"`
	FinishedAt moment `db:"finished_at"`
}

func (r *attemptRow) attempt() (job.Attempt, error) {
	a := job.Attempt{
		Number: r.Number, Token: r.Token, Outcome: job.Outcome(r.Outcome),
		StartedAt: r.StartedAt.Time, FinishedAt: r.FinishedAt.Time,
	}
	a.WorkerID, _ = workerOf(r.WorkerID)
	if len(r.Error) > 0 {
		a.Failure = new(job.Failure)
		if err := json.Unmarshal(r.Error, a.Failure); err != nil {
			return job.Attempt{}, fmt.Errorf("error of the attempt with token %d: %w", r.Token, err)
		}
	}
	return a, nil
}

// Attempts implements job.Reader, for the last 10,000 attempts of a job.
func (r *Repository) Attempts(ctx context.Context, id job.ID) ([]job.Attempt, error) {
	rows, err := collect[attemptRow](ctx, r.engine.reads(), attemptsSQL, int64(id.Slot()), string(id), historyRead)
	if err != nil {
		return nil, r.fail("read attempts", err)
	}
	attempts, err := each(rows, (*attemptRow).attempt)
	return attempts, r.fail("read attempts", err)
}

// eventsSQL: events that were stored together have one time, and ids that rise.
const eventsSQL = `
select id, job_id, event, attempt, data, created_at
from (
  select id, job_id, event, coalesce(attempt, 0) as attempt, data, created_at
  from job_events
  where slot = $1 and job_id = $2
  order by created_at desc, id desc
  limit $3) as last
order by created_at, id`

type eventRow struct {
	ID        text   `db:"id"`
	JobID     text   `db:"job_id"`
	Event     text   `db:"event"`
	Attempt   int    `db:"attempt"`
	Data      []byte `db:"data"`
	CreatedAt moment `db:"created_at"`
}

func (r *eventRow) event() (job.Event, error) {
	e := job.Event{
		ID: string(r.ID), JobID: job.ID(r.JobID), Time: r.CreatedAt.Time, Name: job.EventName(r.Event), Attempt: r.Attempt,
	}
	if len(r.Data) > 0 {
		if err := json.Unmarshal(r.Data, &e.Data); err != nil {
			return job.Event{}, fmt.Errorf("data of the event %s: %w", r.ID, err)
		}
	}
	return e, nil
}

// Events implements job.Reader, for the last 10,000 events of a job.
func (r *Repository) Events(ctx context.Context, id job.ID) ([]job.Event, error) {
	rows, err := collect[eventRow](ctx, r.engine.reads(), eventsSQL, int64(id.Slot()), string(id), historyRead)
	if err != nil {
		return nil, r.fail("read events", err)
	}
	events, err := each(rows, (*eventRow).event)
	return events, r.fail("read events", err)
}

// recordMost bounds one statement, or on SQLite one transaction, of events. That a
// key came again is such an event: many of them share a transaction id.
const recordMost = 2000

// Record implements job.EventLog. Events of jobs that are not there are dropped:
// nothing would ever take them away.
func (r *Repository) Record(ctx context.Context, events []job.Event) error {
	rows, err := r.eventRows(events)
	for part := range slices.Chunk(rows, recordMost) {
		err = errors.Join(err, r.write(ctx, "record events", func(ctx context.Context) error {
			return r.engine.record(ctx, part)
		}))
	}
	return err
}

// eventRows gives the events ids in the order in which they came, a millisecond
// apart. Repeated with the same ids, a write whose answer was lost stores nothing
// twice.
func (r *Repository) eventRows(events []job.Event) (rows []eventRow, err error) {
	now := r.clock.Now()
	for i, e := range events {
		if _, bad := job.ParseID(string(e.JobID)); bad != nil {
			continue // no job can have it
		}
		var data []byte
		if len(e.Data) > 0 {
			encoded, bad := json.Marshal(e.Data)
			if bad != nil {
				err = errors.Join(err, fmt.Errorf("repository: record event %s: %w", e.Name, bad))
				continue
			}
			data = encoded
		}
		id := job.NewID(now.Add(time.Duration(i)*time.Millisecond), e.JobID.Slot())
		row := eventRow{ID: text(id), JobID: text(e.JobID), Event: text(e.Name), Attempt: e.Attempt, Data: data, CreatedAt: moment{e.Time}}
		if e.Time.IsZero() {
			row.CreatedAt.Time = now
		}
		rows = append(rows, row)
	}
	return rows, err
}
