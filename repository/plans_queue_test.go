package repository_test

import (
	"database/sql"
	"fmt"
	"strings"
	"testing"

	"github.com/sekali/sekali/internal/testenv"
	"github.com/sekali/sekali/repository"
)

// planned is a statement with the indexes that its plan must name.
type planned struct {
	head, statement, args string
	indexes               []string
}

// TestPlans_Queue: what waits is found through its indexes, however much there is
// of it, also by statements that are planned without their parameters.
func TestPlans_Queue(t *testing.T) {
	t.Parallel()
	url := testenv.Postgres(t)
	r := migrated(t, url, repository.Options{})
	db := beside(t, "postgres", url)
	for _, statement := range []string{
		// Two hundred business keys with a holder and a hundred jobs that wait each.
		`insert into jobs (slot, id, tenant, key, key_slot, type, state, blocked, business_key, payload,
		   run_at, claim_at, deadline, timeout_ms, max_attempts, created_at)
		 select n % 200 % 256, cast(left(cast(gen_random_uuid() as text), 34) || lpad(to_hex(n % 200), 2, '0') as uuid), 'acme', n, n % 256, 't',
		   'pending', n > 200, 'order ' || n % 200, '{}', now(), now(), case when n % 10 = 0 then now() + interval '1 day' end, 1, 1, now()
		 from generate_series(1, 20200) n`,
		`analyze jobs`,
	} {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatalf("%.60s: %v", statement, err)
		}
	}
	// The parameters of statements that take columns, without rows.
	acceptNothing, finishNothing := "("+strings.Repeat("'{}', ", 19)+"'', "+strings.Repeat("'{}', ", 5)+"'{}')", "("+strings.Repeat("'{}', ", 17)+"'{}')"
	for _, p := range []planned{
		{
			"claim (text, int, text, bigint, text, text)", repository.ClaimNextSQL, "('t', 10, 'w', 1000, '', 'acme')",
			[]string{"Index Cond: ((type = $1) AND (tenant = CASE", "jobs_turns", "type_state_pkey"},
		},
		{
			"claim_in_turn (text, int, text, bigint, text)", repository.ClaimInTurnSQL, "('t', 10, 'w', 1000, 'acme')",
			[]string{"Index Scan using jobs_turns on jobs j", "Index Cond: ((type = $1) AND (tenant = turns.tenant))", "type_state_pkey"},
		},
		{"room (text, text, int)", repository.RoomSQL, "('t', '', 5)", []string{"jobs_turns", "jobs_running", "type_state_pkey"}},
		{
			"queues (smallint, text, text, text, int)", repository.QueuesSQL, "(-1, '', '', '', 1000)",
			[]string{"Index Only Scan using jobs_queue on jobs j", "jobs_business"},
		},
		{"unblock (smallint[], uuid[])", repository.UnblockSQL, "('{}', '{}')", []string{"jobs_business", "jobs_pkey"}},
		{"overdue (int)", repository.OverdueSQL, "(500)", []string{"jobs_deadline"}},
		{
			"cancel (smallint, uuid, bigint)", repository.RequestCancelSQL, "(1, '00000000-0000-0000-0000-000000000000', 1)",
			[]string{"Index Scan using jobs_"},
		},
		{"finish", repository.FinishSQL, finishNothing, []string{"jobs_pkey", "processed_operations_pkey"}},
		{"accept", repository.AcceptSQL, acceptNothing, []string{"jobs_business", "jobs_queue"}},
	} {
		pool := repository.Leases(r)
		if p.head == "accept" {
			pool = repository.Reads(r)
		}
		plan := explain(t, pool, p.head, p.statement, p.args)
		for _, index := range p.indexes {
			if !strings.Contains(plan, index) {
				t.Errorf("%s does not use %s:\n%s", p.head, index, plan)
			}
		}
		if strings.Contains(plan, "Seq Scan") || strings.Contains(plan, "Sort Key: j.slot") && strings.HasPrefix(p.head, "queues") {
			t.Errorf("%s:\n%s", p.head, plan)
		}
	}
}

// TestPlans_ClaimInTurn: the walk over tenants reads one entry of each, and of their
// jobs no more than are claimed. The plan shows the walk only when it is run.
func TestPlans_ClaimInTurn(t *testing.T) {
	t.Parallel()
	url := testenv.Postgres(t)
	r := migrated(t, url, repository.Options{})
	db := beside(t, "postgres", url)
	for _, statement := range []string{
		`insert into jobs (slot, id, tenant, key, key_slot, type, state, payload, run_at, claim_at, timeout_ms, max_attempts, created_at)
		 select n % 256, cast(left(cast(gen_random_uuid() as text), 34) || lpad(to_hex(n % 256), 2, '0') as uuid),
		   case when n % 100 < 3 then 'tenant ' || n % 100 else 'large' end, n, n % 256, 't', 'pending', '{}', now(), now(), 1, 1, now()
		 from generate_series(1, 20000) n`,
		`vacuum analyze jobs`,
	} {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatalf("%.60s: %v", statement, err)
		}
	}
	plan := explained(t, repository.Leases(r), "explain (analyze, timing off, costs off, summary off)",
		"claim (text, int, text, bigint, text)", repository.ClaimInTurnSQL, "('t', 10, 'w', 1000, 'large')")
	for _, want := range []string{
		"Index Only Scan Backward using jobs_turns on jobs j (actual rows=1 loops=",
		"Index Scan using jobs_turns on jobs j_2 (actual rows=2 loops=4)",
	} {
		if !strings.Contains(plan, want) || strings.Contains(plan, "Seq Scan") {
			t.Errorf("not in the plan: %s\n%s", want, plan)
		}
	}
}

// TestPlans_SQLite: the same on a file.
func TestPlans_SQLite(t *testing.T) {
	t.Parallel()
	db := repository.Reads(migrated(t, testenv.SQLite(t), repository.Options{}))
	for name, c := range map[string]struct {
		statement string
		args      []any
		indexes   []string
	}{
		"claim":  {repository.ClaimOneFileSQL, []any{"t", 10, "w", 1000, ""}, []string{"INDEX jobs_turns (type=? AND tenant=?)"}},
		"last":   {repository.LastTenantSQL, []any{"t", ""}, []string{"INDEX jobs_turns (type=? AND tenant>?)"}},
		"before": {repository.TenantBeforeSQL, []any{"t", "", "u"}, []string{"INDEX jobs_turns (type=? AND tenant>? AND tenant<?)"}},
		"room":   {repository.RoomFileSQL, []any{"t", "", 5}, []string{"INDEX jobs_turns (type=?)"}},
		"accept": {repository.HolderSQL, []any{1, "a", "b", "c"}, []string{"INDEX jobs_business (slot=?", "INDEX jobs_queue (slot=?"}},
		"queues": {
			repository.QueuesFileSQL,
			[]any{-1, "", "", "", 1000},
			[]string{"SEARCH jobs USING INDEX jobs_queue ((slot,tenant,type,business_key)>", "SEARCH n USING INDEX jobs_queue ((slot,tenant,type,business_key)>"},
		},
		"unblock": {repository.UnblockOneSQL, []any{1, "x"}, []string{"INDEX jobs_business (slot=?"}},
		"overdue": {repository.OverdueFileSQL, []any{10}, []string{"INDEX jobs_deadline"}},
	} {
		plan := queryPlan(t, db, c.statement, c.args...)
		for _, index := range c.indexes {
			if !strings.Contains(plan, index) {
				t.Errorf("%s does not use %s:\n%s", name, index, plan)
			}
		}
		if strings.Contains(strings.ReplaceAll(plan, "SCAN jobs USING INDEX jobs_running", ""), "SCAN jobs") {
			t.Errorf("%s:\n%s", name, plan)
		}
	}
}

func queryPlan(t *testing.T, db *sql.DB, statement string, args ...any) string {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), "explain query plan "+statement, args...)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var plan strings.Builder
	for rows.Next() {
		var id, parent, unused int
		var line string
		if err := rows.Scan(&id, &parent, &unused, &line); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(&plan, line)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return plan.String()
}
