package repository

import (
	"context"
	"time"
)

// OpenTransactions finds transactions that have been open for so long.
func OpenTransactions(ctx context.Context, r *Repository, least time.Duration) ([]OpenTransaction, error) {
	return r.engine.(*postgres).readTransactions(ctx, least)
}

// DoctorStatements are those that must not walk tables, with the index of each.
var DoctorStatements = map[string]struct {
	SQL, Head, Args string
	FileArgs        []any
	Index           string
}{
	"overdue":  {overdueLeasesSQL, "(timestamptz, int)", `(now(), 20)`, []any{"", 20}, "jobs_running"},
	"oldest":   {oldestWaitingSQL, "(int)", `(100)`, []any{100}, "jobs_turns"},
	"notmoved": {notMovedSQL, "(timestamptz, int)", `(now(), 100)`, []any{"", 100}, "jobs_due"},
	"unknown":  {unknownSQL, "(int, int)", `(100, 20)`, []any{100, 20}, "expir"},
	"reapable": {reapableSQL, "(timestamptz, int)", `(now(), 100)`, []any{"", 100}, "expir"},
}
