package repository

import (
	"context"

	"github.com/sekali/sekali/job"
)

const recordSQL = `
insert into job_events (slot, job_id, id, event, attempt, data, created_at)
select i.slot, i.job_id, i.id, i.event, nullif(i.attempt, 0), nullif(i.data, ''), i.created_at
from unnest(cast($1 as smallint[]), cast($2 as uuid[]), cast($3 as uuid[]), cast($4 as text[]), cast($5 as int[]), cast($6 as bytea[]),
  cast($7 as timestamptz[]))
  as i(slot, job_id, id, event, attempt, data, created_at)
where exists (select j.id from jobs j where j.slot = i.slot and j.id = i.job_id)
  or exists (select f.id from finished_jobs f where f.slot = i.slot and f.id = i.job_id)
on conflict (slot, job_id, id) do nothing`

func (p *postgres) record(ctx context.Context, events []eventRow) error {
	n := len(events)
	var (
		slots, attempts  = make([]int64, n), make([]int64, n)
		jobs, ids, names = make([]string, n), make([]string, n), make([]string, n)
		data             = make([][]byte, n)
		times            = make([]string, n)
	)
	for i, e := range events {
		slots[i], jobs[i], ids[i] = int64(job.ID(e.JobID).Slot()), string(e.JobID), string(e.ID)
		names[i], attempts[i], data[i] = string(e.Event), int64(e.Attempt), e.Data
		times[i] = stamp(e.CreatedAt.Time)
	}
	_, err := p.exec(ctx, recordSQL, slots, jobs, ids, names, attempts, data, times)
	return err
}
