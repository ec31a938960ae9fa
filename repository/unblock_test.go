package repository_test

import (
	"database/sql"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/testenv"
	"github.com/sekali/sekali/job"
	"github.com/sekali/sekali/repository"
)

// contested opens a repository with n jobs of different business keys that wait
// for nobody, and begins a transaction that takes the key of the first one.
func contested(t *testing.T, n int) (*repository.Repository, *sql.DB, *sql.Tx) {
	t.Helper()
	url := testenv.Postgres(t)
	r := migrated(t, url, repository.Options{})
	db := beside(t, "postgres", url)
	for i := range n {
		s := submission(r, string(rune('a'+i)))
		s.Job.BusinessKey = string(s.Job.Key)
		if _, err := r.Accept(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := db.ExecContext(t.Context(), `update jobs set blocked = true`); err != nil {
		t.Fatal(err)
	}
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback() })
	_, err = tx.ExecContext(t.Context(), `
		insert into jobs (slot, id, tenant, key, key_slot, type, state, payload, business_key, run_at, claim_at, timeout_ms, max_attempts, created_at)
		select slot, cast(overlay(cast(id as text) placing '01234567' from 1) as uuid), tenant, 'newcomer', key_slot, type, state, payload,
		  business_key, run_at, claim_at, timeout_ms, max_attempts, created_at
		from jobs where business_key = 'a'`)
	if err != nil {
		t.Fatal(err)
	}
	return r, db, tx
}

// goes counts the jobs that were let go.
const goes = `select count(*) from jobs where not blocked and key <> 'newcomer'`

// TestFailure_Q5_PoisonedKey: a business key that an open transaction holds keeps
// none of the others.
func TestFailure_Q5_PoisonedKey(t *testing.T) {
	t.Parallel()
	r, db, tx := contested(t, 5)
	types, err := r.Unblock(t.Context(), 10)
	if err != nil || len(types) != 1 || count(t, db, goes) != 4 {
		t.Errorf("types %v, %v: %d go", types, err, count(t, db, goes))
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if types, err = r.Unblock(t.Context(), 10); err != nil || len(types) != 1 || count(t, db, goes) != 5 {
		t.Errorf("afterwards: types %v, %v: %d go", types, err, count(t, db, goes))
	}
}

// TestFailure_BR49_LostRace: a newcomer takes a business key while its next job is
// let go, and the unique index refuses the whole statement.
func TestFailure_BR49_LostRace(t *testing.T) {
	t.Parallel()
	r, db, tx := contested(t, 3)
	ended := make(chan error, 1)
	go func() {
		_, err := r.Unblock(t.Context(), 10)
		ended <- err
	}()
	testenv.Eventually(t, 0, "the statement waits for the key", func() bool {
		return count(t, db, `select count(*) from pg_stat_activity
			where datname = current_database() and application_name = 'sekali' and wait_event_type = 'Lock'`) > 0
	})
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if n := count(t, db, goes); n != 2 {
		t.Errorf("%d go, want those whose key nobody took", n)
	}
	claimed, err := r.Claim(t.Context(), job.Claiming{Type: "t", Max: 10, Worker: "w", Lease: time.Minute})
	if err != nil || len(claimed) != 3 {
		t.Fatalf("%d claimed, %v", len(claimed), err)
	}
	for _, c := range claimed {
		if applied, err := r.Finish(t.Context(), []job.Ending{succeeded(c.Lease)}); err != nil || applied[0] != job.Applied {
			t.Errorf("finish: %v, %v", applied, err)
		}
	}
	if types, err := r.Unblock(t.Context(), 10); err != nil || len(types) != 1 {
		t.Errorf("the one that lost does not go afterwards: %v, %v", types, err)
	}
}
