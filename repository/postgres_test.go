package repository_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/internal/testenv"
	"github.com/sekali/sekali/job"
	"github.com/sekali/sekali/repository"
)

func submission(r *repository.Repository, key string) job.Submission {
	now := r.Clock().Now()
	k := idempotency.Key(key)
	return job.Submission{
		Request: idempotency.Request{Tenant: "acme", Key: k, Fingerprint: idempotency.NewFingerprint("POST", "/jobs", nil, "", nil)},
		Job: job.Job{
			ID: job.NewID(now, job.KeySlot("acme", k)), Tenant: "acme", Key: k, Type: "t", Status: job.Pending,
			Payload: []byte("{}"), RunAt: now, CreatedAt: now, MaxAttempts: 3, Timeout: time.Minute,
		},
		OnConflict: job.ConflictReturn,
	}
}

func accept(t *testing.T, r *repository.Repository, key string) job.Receipt {
	t.Helper()
	receipt, err := r.Accept(t.Context(), submission(r, key))
	if err != nil || !receipt.Record.Fresh {
		t.Fatalf("accept %s: %+v, %v", key, receipt.Record, err)
	}
	return receipt
}

func claimOne(t *testing.T, r *repository.Repository) job.Claimed {
	t.Helper()
	claimed, err := r.Claim(t.Context(), job.Claiming{Type: "t", Max: 1, Worker: "w", Lease: time.Minute})
	if err != nil || len(claimed) != 1 {
		t.Fatalf("claim: %v, %v", claimed, err)
	}
	return claimed[0]
}

func succeeded(l job.Lease) job.Ending {
	return job.Ending{Lease: l, Status: job.Succeeded, Attempt: job.AttemptSucceeded, Keep: time.Hour}
}

func count(t *testing.T, db *sql.DB, query string) int {
	t.Helper()
	var n int
	if err := db.QueryRowContext(t.Context(), query).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestFailure_BR80_DeferredConstraint: the commit itself may be refused.
func TestFailure_BR80_DeferredConstraint(t *testing.T) {
	t.Parallel()
	_, r, db := proxied(t)
	if _, err := db.ExecContext(t.Context(), `create table once (n int unique deferrable initially deferred)`); err != nil {
		t.Fatal(err)
	}
	accept(t, r, "k")
	c := claimOne(t, r)
	err := r.FinishTx(t.Context(), c, func(ctx context.Context, tx *sql.Tx) (job.Ending, error) {
		_, err := tx.ExecContext(ctx, `insert into once (n) values (1), (1)`)
		return succeeded(job.Lease{}), err
	})
	if !r.IsUniqueViolation(err) || !r.Permanent(err) {
		t.Errorf("error: %v", err)
	}
	if applied, err := r.Finish(t.Context(), []job.Ending{succeeded(c.Lease)}); err != nil || applied[0] != job.Applied {
		t.Errorf("the lease is not held any more: %v, %v", applied, err)
	}
}

// TestFailure_Q29_NoDeadlocks: batches with the same keys in opposite orders wait
// for each other in one direction. That a deadlock would be run again does not
// make it cheap: Postgres takes a second to find it.
func TestFailure_Q29_NoDeadlocks(t *testing.T) {
	t.Parallel()
	url := testenv.Postgres(t)
	first := migrated(t, url, repository.Options{MaxConns: 8})
	db := beside(t, "postgres", url)
	for round := range 3 {
		var batches [4][]job.Submission
		for g := range batches {
			for i := range 500 {
				batches[g] = append(batches[g], submission(first, fmt.Sprint(round, "-", i)))
			}
			if g%2 == 0 {
				slices.Reverse(batches[g])
			}
		}
		var writers sync.WaitGroup
		for _, batch := range batches {
			writers.Go(func() {
				_, errs := first.AcceptAll(t.Context(), batch)
				if err := errors.Join(errs...); err != nil {
					t.Error(err)
				}
			})
		}
		writers.Wait()
	}
	if err := first.Close(); err != nil { // backends report what they counted when they end
		t.Fatal(err)
	}
	testenv.Eventually(t, 0, "the repository's connections end", func() bool {
		return count(t, db, `select count(*) from pg_stat_activity where datname = current_database() and application_name = 'sekali'`) == 0
	})
	if n := count(t, db, `select deadlocks from pg_stat_database where datname = current_database()`); n != 0 {
		t.Errorf("%d deadlocks", n)
	}
}

// TestFailure_BR46_Serializable: a role or a database may have another default.
func TestFailure_BR46_Serializable(t *testing.T) {
	t.Parallel()
	url := testenv.Postgres(t)
	db := beside(t, "postgres", url)
	var name string
	if err := db.QueryRowContext(t.Context(), `select current_database()`).Scan(&name); err != nil {
		t.Fatal(err)
	}
	if _, err := db.ExecContext(t.Context(), `alter database `+name+` set default_transaction_isolation = 'serializable'`); err != nil {
		t.Fatal(err)
	}
	r := migrated(t, url, repository.Options{Slots: 2})
	accept(t, r, "k")
	var level string
	err := r.FinishTx(t.Context(), claimOne(t, r), func(ctx context.Context, tx *sql.Tx) (job.Ending, error) {
		return succeeded(job.Lease{}), tx.QueryRowContext(ctx, `show transaction_isolation`).Scan(&level)
	})
	if err != nil || level != "read committed" {
		t.Errorf("isolation %q, %v", level, err)
	}
}

// TestFailure_BR06_TableLocked: a lock on the table holds up for its timeout.
func TestFailure_BR06_TableLocked(t *testing.T) {
	t.Parallel()
	_, r, db := proxied(t)
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.ExecContext(t.Context(), `lock table idempotency_keys in access exclusive mode`); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Accept(t.Context(), submission(r, "k")); !errors.As(err, new(*idempotency.InProgressError)) {
		t.Errorf("accept: %v", err)
	}
	if _, err := r.Find(t.Context(), "acme", "warm"); !errors.Is(err, job.ErrUnavailable) {
		t.Errorf("find: %v", err)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	accept(t, r, "k")
}

// TestFailure_BR76_PoolTooSmall: refused with a clear message.
func TestFailure_BR76_PoolTooSmall(t *testing.T) {
	t.Parallel()
	for n := 1; n <= 3; n++ {
		_, err := repository.Open(t.Context(), "postgres://u@127.0.0.1/db", repository.Options{MaxConns: n})
		if err == nil || !strings.Contains(err.Error(), "at least 4") {
			t.Errorf("%d connections: %v", n, err)
		}
	}
}

func TestOpen_BadURL(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"", "mysql://u:secret@h/db", "postgres://u:secret@h:no/db", "sqlite:", "sqlite::memory:", "postgres://u:secret@h/db?sslmode=odd"} {
		r, err := repository.Open(t.Context(), url, repository.Options{})
		if err == nil {
			_ = r.Close()
			t.Errorf("%q was opened", url)
			continue
		}
		if strings.Contains(err.Error(), "secret") {
			t.Errorf("the password is in the error: %v", err)
		}
	}
}

func TestOpen_SSLMode(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"postgres://u@127.0.0.1/db":                       "prefer",
		"postgres://u@localhost:5433/db":                  "prefer",
		"postgres://u@[::1]/db":                           "prefer",
		"postgres:///db?host=/run/postgresql":             "disable",
		"postgres://u@db.example.com/db":                  "require",
		"postgres://u@localhost,db.example.com/db":        "require",
		"postgres://u@10.0.0.1/db":                        "require",
		"postgres://u@db.example.com/db?sslmode=disable":  "disable",
		"postgresql://u@localhost/db?sslmode=verify-full": "verify-full",
	} {
		if got, err := repository.SSLMode(url); err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", url, got, err, want)
		}
	}
}

// TestMigrate_ManyAtOnce: replicas that start together.
func TestMigrate_ManyAtOnce(t *testing.T) {
	t.Parallel()
	for name, url := range map[string]string{"postgres": testenv.Postgres(t), "sqlite": testenv.SQLite(t)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			done := make(chan error, 4)
			for range cap(done) {
				r := open(t, url, repository.Options{})
				go func() {
					done <- errors.Join(r.Migrate(t.Context()), patiently(func() error { return r.CheckSchema(t.Context()) }),
						r.Setup(t.Context(), `create table if not exists a (n int); create table if not exists b (n int)`))
				}()
			}
			for range cap(done) {
				if err := <-done; err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestPlans: the claim walks its index and heartbeats stay in place, also for
// statements that are planned without their parameters.
func TestPlans(t *testing.T) {
	t.Parallel()
	url := testenv.Postgres(t)
	r := migrated(t, url, repository.Options{})
	db := beside(t, "postgres", url)
	for _, statement := range []string{
		`insert into jobs (slot, id, tenant, key, key_slot, type, state, payload, run_at, claim_at, timeout_ms, max_attempts, created_at)
		 select n % 256, cast(left(cast(gen_random_uuid() as text), 34) || lpad(to_hex(n % 256), 2, '0') as uuid), 'acme', n, n % 256, 't',
		   case when n % 2 = 0 then 'pending' else 'scheduled' end, '{}', now(), now() + n * interval '1 ms', 1, 1, now()
		 from generate_series(1, 20000) n`,
		`analyze jobs`,
	} {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatalf("%.60s: %v", statement, err)
		}
	}
	plan := explain(t, repository.Leases(r), "claim (text, int, text, bigint, text, text)", repository.ClaimNextSQL, "('t', 10, 'w', 1000, '', '')")
	if !strings.Contains(plan, "jobs_turns") || strings.Contains(plan, "Seq Scan") || strings.Contains(plan, "Sort Key: jobs.claim_at") {
		t.Errorf("claim:\n%s", plan)
	}
	plan = explain(t, repository.Leases(r), "extend (smallint[], uuid[], bigint[], bigint)", repository.ExtendSQL, "('{}', '{}', '{}', 1)")
	if !strings.Contains(plan, "Index Scan using jobs_") || strings.Contains(plan, "Seq Scan") {
		t.Errorf("extend:\n%s", plan)
	}
	plan = explain(t, repository.Reads(r), "list (text, text, text, text, text, timestamptz, timestamptz, uuid, uuid, int)", repository.ListSQL,
		`('acme', 'pending', '', '', '', '0001-01-01', '9999-12-31', '00000000-0000-0000-0000-000000000000', 'ffffffff-ffff-ffff-ffff-ffffffffffff', 50)`)
	if !strings.Contains(plan, "jobs_list") || !strings.Contains(plan, "finished_jobs_rest_tenant_id_idx") || !strings.Contains(plan, "One-Time Filter") {
		t.Errorf("list:\n%s", plan)
	}

	claimed, err := r.Claim(t.Context(), job.Claiming{Type: "t", Max: 50, Worker: "w", Lease: time.Minute})
	if err != nil || len(claimed) != 50 {
		t.Fatalf("%d claimed, %v", len(claimed), err)
	}
	leases := make([]job.Lease, len(claimed))
	for i, c := range claimed {
		leases[i] = c.Lease
	}
	if kept, err := r.Extend(t.Context(), leases, time.Minute); err != nil || len(kept) != 50 {
		t.Fatalf("%d kept, %v", len(kept), err)
	}
	if n := count(t, db, `select count(*) from pg_indexes where tablename = 'jobs' and indexdef like '%locked_until%'`); n != 0 {
		t.Errorf("locked_until is in %d indexes", n)
	}
	if _, err := db.ExecContext(t.Context(), `vacuum jobs`); err != nil { // as autovacuum does
		t.Fatal(err)
	}
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	hot := `select n_tup_upd, n_tup_hot_upd from pg_stat_xact_user_tables where relname = 'jobs'`
	if _, err := tx.ExecContext(t.Context(), `update jobs set locked_until = locked_until + interval '1 s' where state = 'processing'`); err != nil {
		t.Fatal(err)
	}
	var updated, inPlace int // how many exactly depends on the room in their pages; with an index it would be none
	if err := tx.QueryRowContext(t.Context(), hot).Scan(&updated, &inPlace); err != nil || updated != 50 || inPlace < 25 {
		t.Errorf("%d of %d heartbeats in place, %v", inPlace, updated, err)
	}
}

// explain shows the plan of a statement that is made without its parameters, on
// a connection of the pool that will run it.
func explain(t *testing.T, pool *sql.DB, head, statement, args string) string {
	t.Helper()
	return explained(t, pool, "explain", head, statement, args)
}

func explained(t *testing.T, pool *sql.DB, how, head, statement, args string) string {
	t.Helper()
	conn, err := pool.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	name, _, _ := strings.Cut(head, " ")
	for _, statement := range []string{`set plan_cache_mode = force_generic_plan`, `prepare ` + head + ` as ` + statement} {
		if _, err := conn.ExecContext(t.Context(), statement); err != nil {
			t.Fatalf("%.60s: %v", statement, err)
		}
	}
	defer func() { _, _ = conn.ExecContext(context.WithoutCancel(t.Context()), `deallocate `+name) }()
	rows, err := conn.QueryContext(t.Context(), how+` execute `+name+` `+args)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var plan strings.Builder
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(&plan, line)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return plan.String()
}

// An answer that was long on its way says little about the database's time.
func TestClock_KeepsTheQuickestReading(t *testing.T) {
	t.Parallel()
	p, r, db := proxied(t)
	clock := r.Clock()
	var slow sync.Once
	p.rule(nil, func(kind byte, _ string) verdict {
		if kind == 'D' { // a row
			slow.Do(func() { <-time.After(600 * time.Millisecond) })
		}
		return pass
	})
	if err := clock.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := clock.Now()
	var now time.Time
	if err := db.QueryRowContext(t.Context(), `select clock_timestamp()`).Scan(&now); err != nil {
		t.Fatal(err)
	}
	const slack = 200 * time.Millisecond // the slow reading is wrong by 300
	if after := clock.Now(); now.Before(before.Add(-slack)) || now.After(after.Add(slack)) {
		t.Errorf("the database's clock says %v, and this one %v to %v", now, before, after)
	}
}
