package repository

import (
	"context"
	"database/sql"

	"github.com/sekali/sekali/job"
)

const recordOneFileSQL = `
insert into job_events (slot, job_id, id, event, attempt, data, created_at)
select $1, $2, $3, $4, nullif($5, 0), $6, $7
where exists (select 1 from jobs where slot = $1 and id = $2) or exists (select 1 from finished_jobs where slot = $1 and id = $2)
on conflict (slot, job_id, id) do nothing`

func (s *sqlite) record(ctx context.Context, events []eventRow) error {
	return s.inTx(ctx, []string{recordOneFileSQL}, func(ctx context.Context, tx *sql.Tx) error {
		for _, e := range events {
			_, err := s.change(ctx, tx, recordOneFileSQL, int64(job.ID(e.JobID).Slot()), string(e.JobID), string(e.ID),
				string(e.Event), e.Attempt, e.Data, stamp(e.CreatedAt.Time))
			if err != nil {
				return err
			}
		}
		return nil
	})
}
