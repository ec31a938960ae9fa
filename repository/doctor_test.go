package repository_test

import (
	"context"
	"crypto/rand"
	"errors"
	"io/fs"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/testenv"
	"github.com/sekali/sekali/repository"
)

// An index that a failed "create index concurrently" left behind is named (Q13),
// and so is a table that nobody cleans.
func TestReadUpkeep_Q13_InvalidIndexesAndTablesWithoutAutovacuum(t *testing.T) {
	t.Parallel()
	url := testenv.Postgres(t)
	r := migrated(t, url, repository.Options{})
	db := beside(t, "postgres", url)
	for _, statement := range []string{
		`update pg_index set indisvalid = false where indexrelid = cast('jobs_due' as regclass)`,
		`alter table jobs set (autovacuum_enabled = off)`,
	} {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	got, err := r.ReadUpkeep(t.Context())
	if err != nil || strings.Join(got.InvalidIndexes, ",") != "jobs_due of jobs" || strings.Join(got.Unvacuumed, ",") != "jobs" {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestReadUpkeep_OpenTransactions(t *testing.T) {
	t.Parallel()
	url := testenv.Postgres(t)
	r := migrated(t, url, repository.Options{})
	tx, err := beside(t, "postgres", url+"&application_name=forgetful").BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.ExecContext(t.Context(), `select count(*) from jobs`); err != nil {
		t.Fatal(err)
	}
	found, err := repository.OpenTransactions(t.Context(), r, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range found {
		if strings.HasPrefix(one.Of, "forgetful (pid ") && one.State == "idle in transaction" && one.Open >= 0 {
			return
		}
	}
	t.Errorf("%+v", found)
}

func TestReadServer_TellsTheSettingsOfOurSessions(t *testing.T) {
	t.Parallel()
	url := testenv.Postgres(t)
	got, err := open(t, url+"&synchronous_commit=off", repository.Options{}).ReadServer(t.Context())
	if err != nil || got.Settings["synchronous_commit"] != "off" || got.Settings["fsync"] == "" || got.MostConnections < 10 || got.Connections < 1 ||
		!strings.HasPrefix(got.Version, "Postgres 1") {
		t.Errorf("%+v, %v", got, err)
	}
}

// A clock that is wrong is measured from both sides.
func TestReadServer_AheadAndBehind(t *testing.T) {
	t.Parallel()
	for _, offset := range []time.Duration{-time.Hour, time.Hour} {
		server, err := testenv.StartPostgres(testenv.WithClock(offset))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = server.Stop() })
		got, err := open(t, server.URL(), repository.Options{}).ReadServer(t.Context())
		if err != nil || (got.Ahead-offset).Abs() > 5*time.Second {
			t.Errorf("ahead %s, want %s: %v", got.Ahead, offset, err)
		}
	}
}

func TestTryWrite_RefusedWithoutTheRight(t *testing.T) {
	t.Parallel()
	address := testenv.Postgres(t)
	migrated(t, address, repository.Options{})
	db := beside(t, "postgres", address)
	role := "sekali_test_" + strings.ToLower(rand.Text())
	for _, statement := range []string{
		`create role ` + role + ` login password 'reader'`,
		`grant select on all tables in schema public to ` + role,
	} {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	defer func() {
		for _, statement := range []string{`drop owned by ` + role, `drop role ` + role} {
			if _, err := db.ExecContext(context.WithoutCancel(t.Context()), statement); err != nil {
				t.Error(err)
			}
		}
	}()
	reader, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	reader.User = url.UserPassword(role, "reader")
	r := open(t, reader.String(), repository.Options{})
	if err := r.TryWrite(t.Context()); err == nil || !strings.Contains(err.Error(), "permission denied") {
		t.Errorf("error %v", err)
	}
	if _, err := r.ReadJobs(t.Context()); err != nil {
		t.Errorf("the jobs can be read: %v", err)
	}
	if _, err := r.ReadUpkeep(t.Context()); err != nil {
		t.Errorf("the upkeep can be read: %v", err)
	}
}

func TestAsIs_NeitherCreatesNorChangesAFile(t *testing.T) {
	t.Parallel()
	url := testenv.SQLite(t)
	name := strings.TrimPrefix(url, "sqlite:")
	if _, err := repository.Open(t.Context(), url, repository.Options{AsIs: true}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if _, err := os.Stat(name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file is there: %v", err)
	}
	db := beside(t, "sqlite", "file:"+name)
	if _, err := db.ExecContext(t.Context(), `create table t (a text)`); err != nil {
		t.Fatal(err)
	}
	got, err := open(t, url, repository.Options{AsIs: true}).ReadFile(t.Context(), time.Minute)
	if err != nil || got.Journal != "delete" || got.Size == 0 || got.Free < 1 || !got.Checked || len(got.Damage) > 0 || got.Path != name {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestReadFile_DamageAndHaste(t *testing.T) {
	t.Parallel()
	url := testenv.SQLite(t)
	r := migrated(t, url, repository.Options{})
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	name := strings.TrimPrefix(url, "sqlite:")
	file, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	info, err := file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteAt(make([]byte, 8192), info.Size()-3*4096); err != nil { // the last pages but one
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	damaged := open(t, url, repository.Options{AsIs: true})
	if got, err := damaged.ReadFile(t.Context(), time.Minute); err != nil || len(got.Damage) == 0 || !got.Checked || got.Journal != "wal" {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := damaged.ReadFile(t.Context(), 0); err != nil || got.Checked || len(got.Damage) > 0 {
		t.Errorf("in no time: %+v, %v", got, err)
	}
}

// What doctor reads is found through indexes, however much there is.
func TestPlans_Doctor(t *testing.T) {
	t.Parallel()
	url := testenv.Postgres(t)
	r := migrated(t, url, repository.Options{})
	db := beside(t, "postgres", url)
	for _, statement := range []string{
		`insert into jobs (slot, id, tenant, key, key_slot, type, state, payload, run_at, claim_at, locked_until, timeout_ms, max_attempts, created_at)
		 select n % 256, gen_random_uuid(), 'acme', n, n % 256, 't' || n % 3,
		   case n % 10 when 0 then 'processing' when 1 then 'retrying' else 'pending' end, '{}', now(), now(),
		   case when n % 10 = 0 then now() end, 1, 1, now()
		 from generate_series(1, 20000) n`,
		`insert into finished_jobs (slot, id, tenant, key, key_slot, type, state, payload, priority, run_at, timeout_ms, max_attempts, attempt,
		   generation, version, token, created_at, finished_at, expires_at)
		 select n % 256, gen_random_uuid(), 'acme', n, n % 256, 't', 'succeeded', '{}', 0, now(), 1, 1, 1, 1, 1, 1, now(), now(), now() + n * interval '1 minute'
		 from generate_series(1, 20000) n`,
		`analyze`,
	} {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatalf("%.60s: %v", statement, err)
		}
	}
	file := repository.Reads(migrated(t, testenv.SQLite(t), repository.Options{}))
	for name, c := range repository.DoctorStatements {
		plan := explain(t, repository.Reads(r), name+" "+c.Head, c.SQL, c.Args)
		if !strings.Contains(plan, c.Index) || strings.Contains(plan, "Seq Scan") {
			t.Errorf("%s does not use %s alone:\n%s", name, c.Index, plan)
		}
		plan = queryPlan(t, file, c.SQL, c.FileArgs...)
		if !strings.Contains(plan, c.Index) {
			t.Errorf("%s does not use %s on SQLite:\n%s", name, c.Index, plan)
		}
	}
}
