package repository_test

import (
	"database/sql"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/internal/testenv"
	"github.com/sekali/sekali/job"
	"github.com/sekali/sekali/repository"
)

const week = 7 * 24 * time.Hour

// partitioned opens a repository on Postgres whose partitions are those of a
// time some weeks from now, for the partition of everything before is in use
// until then. That of everything is empty by then, and gone.
func partitioned(t *testing.T) (*repository.Repository, *sql.DB, time.Time) {
	t.Helper()
	url := testenv.Postgres(t)
	r := migrated(t, url, options(repository.Options{Slots: 8, MaxConns: 12}))
	now := r.Clock().Now().Add(5 * week)
	partitionAt(t, r, now)
	return r, beside(t, "postgres", url), now
}

// partitionAt has the partitions as they have to be at a time, however slow the
// machine is: the repository gives up what takes longer than a moment.
func partitionAt(t *testing.T, r *repository.Repository, now time.Time) {
	t.Helper()
	testenv.Eventually(t, 0, "nothing was put off", func() bool {
		putOff, err := repository.PartitionAt(t.Context(), r, now)
		if err != nil {
			t.Fatal(err)
		}
		return !putOff
	})
}

// partitions lists the partitions of a table without its name before them.
func partitions(t *testing.T, db *sql.DB, table string) string {
	t.Helper()
	var list string
	if err := db.QueryRowContext(t.Context(), `select coalesce(string_agg(substr(cast(inhrelid as regclass) :: text, length($1) + 2), ' ' order by cast(inhrelid as regclass) :: text), '')
		from pg_inherits where inhparent = cast($1 as regclass)`, table).Scan(&list); err != nil {
		t.Fatal(err)
	}
	return list
}

// endAt accepts a job as if it were another time, and ends it.
func endAt(t *testing.T, r *repository.Repository, at time.Time, key string, keep time.Duration) job.Job {
	t.Helper()
	s := submission(r, key)
	s.Job.ID = job.NewID(at, job.KeySlot(s.Job.Tenant, s.Job.Key))
	if receipt, err := r.Accept(t.Context(), s); err != nil || !receipt.Record.Fresh {
		t.Fatalf("accept: %+v, %v", receipt, err)
	}
	e := succeeded(claimOne(t, r).Lease)
	e.Keep = keep
	if applied, err := r.Finish(t.Context(), []job.Ending{e}); err != nil || applied[0] != job.Applied {
		t.Fatalf("finish: %v, %v", applied, err)
	}
	return s.Job
}

// TestPartitions_MadeAhead: the reaper makes the weeks that begin soon, for all
// three tables, however many processes do so at once.
func TestPartitions_MadeAhead(t *testing.T) {
	t.Parallel()
	url := testenv.Postgres(t)
	var reapers sync.WaitGroup
	for range 4 {
		r := migrated(t, url, repository.Options{MaxConns: 4})
		reapers.Go(func() {
			if _, err := r.Reap(t.Context(), 10); err != nil {
				t.Error(err)
			}
		})
	}
	reapers.Wait()
	r, db := open(t, url, repository.Options{MaxConns: 4}), beside(t, "postgres", url)
	partitionAt(t, r, r.Clock().Now()) // what a lock that was not free at once left undone
	for _, table := range []string{"finished_jobs", "job_attempts", "job_events"} {
		// "before" reaches a day to eight days from now: it covers one or two of three weeks.
		if list := partitions(t, db, table); !regexp.MustCompile(`^(20\d{6} ){1,2}before rest$`).MatchString(list) {
			t.Errorf("%s: %s", table, list)
		}
		if n := count(t, db, `select count(*) from pg_class where relkind = 'r' and relname like '`+table+`_20%'
			and array_to_string(reloptions, ' ') like '%insert_threshold=-1%'`); n == 0 {
			t.Errorf("%s: the partitions lack their settings", table)
		}
	}
}

// TestPartitions_DroppedWhenOverAndEmpty: not before its rows have left one by
// one, and what ends later has its place.
func TestPartitions_DroppedWhenOverAndEmpty(t *testing.T) {
	t.Parallel()
	r, db, now := partitioned(t)
	if list := partitions(t, db, "finished_jobs"); strings.Contains(list, "before") || strings.Count(list, "20") < 3 {
		t.Fatalf("partitions %s", list)
	}
	endAt(t, r, now, "over", -time.Minute)
	kept := endAt(t, r, now, "kept", time.Hour)
	late := submission(r, "late")
	late.Job.ID = job.NewID(now, job.KeySlot(late.Job.Tenant, late.Job.Key))
	if _, err := r.Accept(t.Context(), late); err != nil {
		t.Fatal(err)
	}
	first := strings.Fields(partitions(t, db, "finished_jobs"))[0]
	then := now.Add(4 * week)
	for rows := 2; rows > 0; rows-- {
		partitionAt(t, r, then)
		if n := count(t, db, `select count(*) from finished_jobs_`+first); n != rows {
			t.Errorf("%d rows, want %d", n, rows)
		}
		if n, err := r.Reap(t.Context(), 100); err != nil || n.Jobs != rows-1 { // the one that is over, once
			t.Fatalf("%+v, %v", n, err)
		}
	}
	receipt, err := r.Find(t.Context(), "acme", "kept")
	if err != nil || receipt.Job.ID != kept.ID || receipt.Record.State != idempotency.Completed {
		t.Errorf("kept: %+v, %v", receipt, err)
	}
	if _, err := db.ExecContext(t.Context(), `update finished_jobs set expires_at = now() - interval '1 minute'`); err != nil {
		t.Fatal(err)
	}
	if n, err := r.Reap(t.Context(), 100); err != nil || n.Jobs != 1 {
		t.Fatalf("%+v, %v", n, err)
	}
	partitionAt(t, r, then)
	for _, table := range []string{"finished_jobs", "job_attempts", "job_events"} {
		if list := partitions(t, db, table); strings.Contains(list, first) || strings.Count(list, "20") < 3 {
			t.Errorf("%s: %s; %s was to be dropped", table, list, first)
		}
	}
	for _, key := range []idempotency.Key{"over", "kept"} {
		if receipt, err := r.Find(t.Context(), "acme", key); err != nil || receipt.Record.State != idempotency.Retired || receipt.Job.Status != job.Succeeded {
			t.Errorf("%s: %+v, %v", key, receipt, err)
		}
	}

	e := succeeded(claimOne(t, r).Lease)
	if applied, err := r.Finish(t.Context(), []job.Ending{e}); err != nil || applied[0] != job.Applied {
		t.Fatalf("finish: %v, %v", applied, err)
	}
	if receipt, err := r.Find(t.Context(), "acme", "late"); err != nil || receipt.Job.Status != job.Succeeded {
		t.Errorf("late: %+v, %v", receipt, err)
	}
	if n := count(t, db, `select count(*) from finished_jobs_rest`) + count(t, db, `select count(*) from job_attempts_rest`); n != 2 {
		t.Errorf("%d rows in the default partitions", n)
	}
	// Its week cannot be made any more: that is nobody's error, and others are made.
	partitionAt(t, r, now)
	partitionAt(t, r, then.Add(week))
	if list := partitions(t, db, "finished_jobs"); strings.Contains(list, first) || strings.Count(list, "20") < 4 {
		t.Errorf("partitions %s", list)
	}
}

// TestFailure_BR77_PartitionsGiveWay: somebody who reads holds up neither the
// reaper nor, through the reaper, those who write.
func TestFailure_BR77_PartitionsGiveWay(t *testing.T) {
	t.Parallel()
	r, db, now := partitioned(t)
	before := partitions(t, db, "finished_jobs")
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.ExecContext(t.Context(), `lock table finished_jobs in access share mode`); err != nil { // as pg_dump does
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := repository.PartitionAt(t.Context(), r, now.Add(2*week))
		done <- err
	}()
	for n := 0; ; n++ {
		endAt(t, r, now, fmt.Sprint("k", n), time.Hour)
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		default:
			continue
		}
		break
	}
	if list := partitions(t, db, "finished_jobs"); list != before {
		t.Errorf("%s became %s under a lock", before, list)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	partitionAt(t, r, now.Add(2*week))
	if list := partitions(t, db, "finished_jobs"); list == before {
		t.Errorf("partitions %s", list)
	}
}

// TestPartitions_WithoutTheRight: a gateway whose role may not define tables goes
// on with the default partition.
func TestPartitions_WithoutTheRight(t *testing.T) {
	t.Parallel()
	url := testenv.Postgres(t)
	owner := migrated(t, url, repository.Options{MaxConns: 4})
	db := beside(t, "postgres", url)
	role := fmt.Sprintf("poor_%d", time.Now().UnixNano())
	for _, statement := range []string{
		`create role ` + role + ` login password 'poor'`, `grant usage on schema public to ` + role,
		`grant select, insert, update, delete on all tables in schema public to ` + role,
	} {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		later := beside(t, "postgres", url)
		for _, statement := range []string{`drop owned by ` + role, `drop role ` + role} {
			if _, err := later.Exec(statement); err != nil {
				t.Error(err)
			}
		}
	})
	poor := open(t, regexp.MustCompile(`//[^@/]*@`).ReplaceAllString(url, "//"+role+":poor@"), repository.Options{Slots: 1, MaxConns: 4})
	now := owner.Clock().Now().Add(5 * week)
	partitionAt(t, poor, now)
	endAt(t, poor, now, "k", time.Hour)
	if n := count(t, db, `select count(*) from finished_jobs_rest`); n != 1 {
		t.Errorf("%d rows in the default partition", n)
	}
}

// TestPlans_Partitions: who looks for a job reads one partition, and a page is put
// together from the indexes of all, also with plans that are made without
// parameters.
func TestPlans_Partitions(t *testing.T) {
	t.Parallel()
	r, db, now := partitioned(t)
	for n := range 3 {
		at := now.Add(time.Duration(n) * week)
		for _, statement := range []string{
			`insert into finished_jobs (slot, id, tenant, key, key_slot, type, state, payload, priority, run_at, timeout_ms, max_attempts,
			   attempt, generation, version, token, created_at, finished_at, expires_at)
			 select n % 256, cast($1 || lpad(to_hex(n), 12, '0') as uuid), 'acme', $2 || n, n % 256, 't', 'succeeded', '{}', 0, now(), 1, 1, 1, 1, 1, 1, now(), now(), now()
			 from generate_series(1, 5000) n where $2 <> ''`,
			`insert into job_attempts (slot, job_id, token, number, outcome, worker_id, started_at, finished_at)
			 select n % 256, cast($1 || lpad(to_hex(n), 12, '0') as uuid), 1, 1, 'failed', 'w', now(), now() from generate_series(1, 5000) n where $2 <> ''`,
		} {
			if _, err := db.ExecContext(t.Context(), statement, string(job.NewID(at, 0))[:24], fmt.Sprint("k", n)); err != nil {
				t.Fatalf("%.60s: %v", statement, err)
			}
		}
	}
	if _, err := db.ExecContext(t.Context(), `analyze`); err != nil {
		t.Fatal(err)
	}
	id := endAt(t, r, now.Add(week), "mine", time.Hour).ID
	for name, p := range map[string]struct{ head, statement, args string }{
		"finished_jobs": {"find (smallint, text, text)", repository.FindSQL, fmt.Sprintf(`(%d, 'acme', 'mine')`, id.Slot())},
		"finished jobs": {"versions (smallint[], uuid[])", repository.VersionsSQL, fmt.Sprintf(`('{%d}', '{%s}')`, id.Slot(), id)},
		"job_attempts":  {"attempts (smallint, uuid, int)", repository.AttemptsSQL, fmt.Sprintf(`(%d, '%s', 10)`, id.Slot(), id)},
	} {
		plan := executed(t, repository.Reads(r), p.head, p.statement, p.args)
		table := strings.ReplaceAll(name, " ", "_")
		if n := scansOf(plan, table); n != 1 || strings.Contains(plan, "Seq Scan") {
			t.Errorf("%s reads %d partitions of %s:\n%s", p.head, n, table, plan)
		}
	}
	plan := executed(t, repository.Reads(r), "list (text, text, text, text, text, timestamptz, timestamptz, uuid, uuid, int)", repository.ListSQL,
		`('acme', '', '', '', '', '0001-01-01', '9999-12-31', '00000000-0000-0000-0000-000000000000', 'ffffffff-ffff-ffff-ffff-ffffffffffff', 50)`)
	if !strings.Contains(plan, "Merge Append") || strings.Contains(plan, "Seq Scan") || scansOf(plan, "finished_jobs") < 3 {
		t.Errorf("list:\n%s", plan)
	}
	for _, rows := range regexp.MustCompile(`rows=(\d+)`).FindAllStringSubmatch(plan, -1) {
		if len(rows[1]) > 2 { // a page of 50 reads 50 rows and the first of each partition
			t.Errorf("list reads %s rows in one step:\n%s", rows[1], plan)
		}
	}
}

// scansOf counts the scans of a table's partitions that were executed.
func scansOf(plan, table string) (n int) {
	for line := range strings.Lines(plan) {
		if strings.Contains(line, "Scan") && strings.Contains(line, " on "+table+"_") && !strings.Contains(line, "never executed") {
			n++
		}
	}
	return n
}

// executed shows what a plan that was made without its parameters did.
func executed(t *testing.T, pool *sql.DB, head, statement, args string) string {
	t.Helper()
	return explained(t, pool, "explain (analyze, timing off, costs off)", head, statement, args)
}
