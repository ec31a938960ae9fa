package repository

import (
	"context"

	"github.com/sekali/sekali/idempotency"
)

// unfinishedSQL counts by walking the index (tenant, id) of unfinished jobs, no
// further than the limit.
const unfinishedSQL = `
select count(*) as jobs from (select id from jobs where tenant = $1 limit $2) as unfinished`

// Unfinished counts the tenant's unfinished jobs, at most atMost of them.
func (r *Repository) Unfinished(ctx context.Context, tenant idempotency.Tenant, atMost int) (int, error) {
	if !storable(string(tenant)) {
		return 0, nil
	}
	rows, err := collect[struct {
		Jobs int `db:"jobs"`
	}](ctx, r.engine.reads(), unfinishedSQL, string(tenant), atMost)
	if err != nil {
		return 0, r.fail("count unfinished jobs", err)
	}
	return rows[0].Jobs, nil
}
