package repository_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sekali/sekali/internal/testenv"
	"github.com/sekali/sekali/repository"
)

// TestPlans_Operate: what operators and overviews ask reads indexes of unfinished
// jobs, or the rows of one job, however many there are, also with plans that are
// made without parameters.
func TestPlans_Operate(t *testing.T) {
	t.Parallel()
	url := testenv.Postgres(t)
	r := migrated(t, url, repository.Options{})
	db := beside(t, "postgres", url)
	for _, statement := range []string{
		`insert into jobs (slot, id, tenant, key, key_slot, type, state, blocked, business_key, payload, run_at, claim_at, locked_until, timeout_ms, max_attempts, created_at)
		 select n % 256, gen_random_uuid(), 'acme', n, n % 256, 't',
		   case n % 10 when 0 then 'processing' when 1 then 'retrying' else 'pending' end, n % 10 = 2, 'order ' || n, '{}', now(), now(),
		   case when n % 10 = 0 then now() end, 1, 1, now()
		 from generate_series(1, 20000) n`,
		`insert into job_attempts (slot, job_id, token, number, outcome, worker_id, started_at, finished_at)
		 select n % 256, gen_random_uuid(), 1, 1, 'failed', 'w', now(), now() from generate_series(1, 20000) n`,
		`insert into job_events (slot, job_id, id, event)
		 select n % 256, gen_random_uuid(), gen_random_uuid(), 'replayed' from generate_series(1, 20000) n`,
		`insert into processed_operations (slot, tenant, operation_type, operation_key, state, job_slot, job_id, token)
		 select n % 256, 'acme', 't', n, 'done', 1, gen_random_uuid(), 1 from generate_series(1, 20000) n`,
		`analyze`,
		`vacuum jobs`,
	} {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatalf("%.60s: %v", statement, err)
		}
	}
	const job = `(1, '00000000-0000-0000-0000-000000000000', 10)`
	for name, c := range map[string]struct {
		head, statement, args string
		indexes               []string
	}{
		"running": {"(int)", repository.RunningSQL, `(100)`, []string{"jobs_running"}},
		"waiting": {"(int)", repository.WaitingSQL, `(1000)`, []string{"jobs_turns", "jobs_due", "jobs_queue"}},
		"holders": {"(smallint, text, text, text)", repository.HoldersSQL, `(1, 'acme', 't', 'order 1')`, []string{"jobs_business", "jobs_queue"}},

		"attempts":  {"(smallint, uuid, int)", repository.AttemptsSQL, job, []string{"job_attempts_before_pkey"}},
		"events":    {"(smallint, uuid, int)", repository.EventsSQL, job, []string{"job_events_before_pkey"}},
		"operation": {"(smallint, text, text, text)", repository.OperationSQL, `(1, 'acme', 't', '1')`, []string{"processed_operations_pkey", "jobs_pkey"}},
	} {
		plan := explain(t, repository.Reads(r), name+" "+c.head, c.statement, c.args)
		for _, index := range c.indexes {
			if !strings.Contains(plan, index) || strings.Contains(plan, "Seq Scan") {
				t.Errorf("%s does not use %s alone:\n%s", name, index, plan)
			}
		}
	}
}

// TestContract_Row114_CountsAreCapped: an overview of millions of jobs does not
// read them all, and says so.
func TestContract_Row114_CountsAreCapped(t *testing.T) {
	t.Parallel()
	for name, url := range map[string]string{"postgres": testenv.Postgres(t), "sqlite": testenv.SQLite(t)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := migrated(t, url, repository.Options{})
			for i := range 10 {
				accept(t, r, fmt.Sprint("k", i))
			}
			for most, capped := range map[int]bool{9: true, 10: false, 11: false} {
				o, err := repository.OverviewOf(t.Context(), r, most)
				if err != nil || o.Capped != capped || o.Types["t"] == nil || o.Types["t"].Waiting.Pending < min(most, 10) {
					t.Errorf("of %d: %+v, %v", most, o, err)
				}
			}
		})
	}
}

// TestPlans_NoListMeetsItself: a statement for many rows does not compare each of
// them with each. A nested loop that probes no index has a filter for what it joins.
func TestPlans_NoListMeetsItself(t *testing.T) {
	t.Parallel()
	r := migrated(t, testenv.Postgres(t), repository.Options{})
	for name, c := range map[string]struct {
		statement string
		lists     int
		more      string
	}{
		"accept":       {repository.AcceptSQL, 26, ""},
		"accept_plain": {repository.AcceptPlainSQL, 23, ""},
		"follow":       {repository.FollowManySQL, 20, ""},
		"extend":       {repository.ExtendSQL, 3, ", 1"},
		"finish":       {repository.FinishSQL, 18, ""},
		"requeue":      {repository.RequeueSQL, 11, ""},
	} {
		lists := strings.TrimSuffix(strings.Repeat("'{}', ", c.lists), ", ")
		plan := explain(t, repository.Leases(r), name, c.statement, "("+lists+c.more+")")
		if strings.Contains(plan, "Join Filter") {
			t.Errorf("%s:\n%s", name, plan)
		}
	}
}
