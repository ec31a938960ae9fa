package executor_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/lib/pq"
	"modernc.org/sqlite"

	"github.com/sekali/sekali/executor"
	"github.com/sekali/sekali/internal/testenv"
	"github.com/sekali/sekali/job"
)

// engine is a database with its dialect.
type engine struct {
	*sql.DB
	name        string
	placeholder func(int) string
}

// onEachEngine runs the test on a fresh database of both kinds.
func onEachEngine(t *testing.T, schema string, test func(t *testing.T, db engine)) {
	t.Helper()
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		test(t, openSQLite(t, schema))
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		test(t, openPostgres(t, schema))
	})
}

func openSQLite(t *testing.T, schema string) engine {
	t.Helper()
	file := strings.TrimPrefix(testenv.SQLite(t), "sqlite:")
	return engine{open(t, "sqlite", "file:"+file+"?_txlock=immediate&_pragma=busy_timeout(20000)", schema), "sqlite", question}
}

func openPostgres(t *testing.T, schema string) engine {
	t.Helper()
	return engine{open(t, "postgres", testenv.Postgres(t), schema), "postgres", dollar}
}

func open(t *testing.T, driver, dsn, schema string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	if _, err := db.ExecContext(t.Context(), schema); err != nil {
		t.Fatalf("schema: %v", err)
	}
	return db
}

func isUnique(err error) bool {
	if postgres := (*pq.Error)(nil); errors.As(err, &postgres) {
		return postgres.Code == "23505"
	}
	const constraintPrimaryKey, constraintUnique = 1555, 2067
	lite := (*sqlite.Error)(nil)
	return errors.As(err, &lite) && (lite.Code() == constraintPrimaryKey || lite.Code() == constraintUnique)
}

func isPermanent(err error) bool {
	if postgres := (*pq.Error)(nil); errors.As(err, &postgres) {
		class := postgres.Code.Class()
		return class == "22" || class == "23" || class == "42"
	}
	lite := (*sqlite.Error)(nil)
	return errors.As(err, &lite) && lite.Code()&0xff != 5 // anything but busy
}

func (e engine) executor(t *testing.T, cfg executor.SQLConfig) *executor.SQL {
	t.Helper()
	cfg.Placeholder, cfg.IsUniqueViolation, cfg.IsPermanent = e.placeholder, isUnique, isPermanent
	s, err := executor.NewSQL(cfg)
	if err != nil {
		t.Fatalf("NewSQL: %v", err)
	}
	return s
}

// run does what the dispatcher does: one transaction, committed on success.
func (e engine) run(ctx context.Context, x executor.TxExecutor, c job.Claimed) (executor.Done, error) {
	tx, err := e.BeginTx(ctx, nil)
	if err != nil {
		return executor.Done{}, err
	}
	defer func() { _ = tx.Rollback() }()
	done, err := x.ExecuteTx(ctx, tx, c)
	if err != nil {
		return executor.Done{}, err
	}
	return done, tx.Commit()
}

// count runs a query that returns one number.
func (e engine) count(t *testing.T, query string) int {
	t.Helper()
	var n int
	if err := e.QueryRowContext(t.Context(), query).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

const invoices = `create table invoices (id integer primary key, order_id text not null unique, total numeric)`

func TestContract_SectionI_SQLResult(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ statement, want string }{
		"the first returned row, columns in order": {
			"insert into invoices (order_id, id) values ({{ .payload.order_id }}, 7), ('other', 8) returning order_id, id as a, id as a, null as z",
			`{"order_id":"42","a":7,"z":null}`,
		},
		"rows affected":          {"insert into invoices (id, order_id) values (7, {{ .payload.order_id }}), (8, 'x')", `{"rows_affected":2}`},
		"none affected":          {"delete from invoices", `{"rows_affected":0}`},
		"none returned":          {"update invoices set total = 1 returning id", `{"rows_affected":0}`},
		"returning is a word":    {"insert into invoices (id, order_id) values (7, 'returning') -- returning", `{"rows_affected":1}`},
		"a select":               {"select {{ .key }} as k, {{ .tenant }} as t, {{ .id }} as i", `{"k":"order-42","t":"acme","i":"` + jobID + `"}`},
		"values":                 {"with x(n) as (values (1), (2)) select sum(n) as \"<n>\" from x;", `{"<n>":3}`},
		"a common table, change": {"with x(n) as (select 7) insert into invoices (id, order_id) select n, 'a' from x", `{"rows_affected":1}`},
		"a common table, returned": {
			"with x(n) as (select 7) insert into invoices (id, order_id) select n, 'a' from x returning id", `{"id":7}`,
		},
	}
	onEachEngine(t, invoices, func(t *testing.T, db engine) {
		for name, test := range tests {
			t.Run(name, func(t *testing.T) {
				if _, err := db.ExecContext(t.Context(), "delete from invoices"); err != nil {
					t.Fatal(err)
				}
				done, err := db.run(t.Context(), db.executor(t, executor.SQLConfig{Statement: test.statement}), claimed(`{"order_id":"42"}`))
				wantResult(t, done.Result, err, test.want, "application/json")
				if done.Outcome != "" {
					t.Errorf("outcome = %q, want none", done.Outcome)
				}
			})
		}
	})
}

const insertInvoice = "insert into invoices (id, order_id, total) values ({{ .payload.id }}, {{ .payload.order_id }}, {{ .payload.total }}) returning id"

func TestContract_SectionI_SQLUniqueViolation(t *testing.T) {
	t.Parallel()
	const existing = "select id, total from invoices where order_id = {{ .payload.order_id }} and {{ .key }} = 'order-42'"
	onEachEngine(t, invoices, func(t *testing.T, db engine) {
		first := db.executor(t, executor.SQLConfig{Statement: insertInvoice, Existing: existing})
		done, err := db.run(t.Context(), first, claimed(`{"id":1,"order_id":"42","total":10.50}`))
		wantResult(t, done.Result, err, `{"id":1}`, "application/json")

		t.Run("with what exists it is a duplicate", func(t *testing.T) {
			done, err := db.run(t.Context(), first, claimed(`{"id":2,"order_id":"42","total":99}`))
			total := "10.50"
			if db.name == "sqlite" {
				total = "10.5"
			}
			wantResult(t, done.Result, err, `{"id":1,"total":`+total+`}`, "application/json")
			if done.Outcome != job.DuplicateIgnored {
				t.Errorf("outcome = %q", done.Outcome)
			}
		})
		t.Run("where nothing is found it fails for good", func(t *testing.T) {
			c := claimed(`{"id":1,"order_id":"43"}`) // the id is taken, the order is not there
			_, err := db.run(t.Context(), first, c)
			wantFailure(t, err, executor.CodeUniqueViolation, true)
		})
		t.Run("without existing it fails for good", func(t *testing.T) {
			_, err := db.run(t.Context(), db.executor(t, executor.SQLConfig{Statement: insertInvoice}), claimed(`{"id":2,"order_id":"42"}`))
			e := wantFailure(t, err, executor.CodeUniqueViolation, true)
			if strings.Contains(e.Detail, "invoices") || e.Err == nil {
				t.Errorf("detail = %q, want no internal name, and the full error for the log", e.Detail)
			}
		})
		t.Run("rows before the violation are undone", func(t *testing.T) {
			s := db.executor(t, executor.SQLConfig{
				Statement: "insert into invoices (id, order_id) values (50, 'fresh'), (51, {{ .payload.order_id }}) returning id",
				Existing:  existing,
			})
			done, err := db.run(t.Context(), s, claimed(`{"order_id":"42"}`))
			if err != nil || done.Outcome != job.DuplicateIgnored {
				t.Errorf("Execute = %v, %v", done.Outcome, err)
			}
		})
		if n := db.count(t, "select count(*) from invoices"); n != 1 {
			t.Errorf("%d invoices, want 1", n)
		}
	})
}

func TestContract_SectionI_SQLParallelAttemptsWriteOnce(t *testing.T) {
	t.Parallel()
	onEachEngine(t, invoices, func(t *testing.T, db engine) {
		s := db.executor(t, executor.SQLConfig{
			Statement: "insert into invoices (order_id, id) values ({{ .payload.order_id }}, 7) returning id",
			Existing:  "select id from invoices where order_id = {{ .payload.order_id }}",
		})
		const parallel = 20
		outcomes := make(chan string, parallel)
		for range parallel {
			go func() {
				done, err := db.run(t.Context(), s, claimed(`{"order_id":"42"}`))
				if err != nil {
					outcomes <- err.Error()
					return
				}
				outcomes <- done.Outcome + string(done.Result.Body)
			}()
		}
		counts := map[string]int{}
		for range parallel {
			counts[receive(t, outcomes, "an attempt's end")]++
		}
		if counts[`{"id":7}`] != 1 || counts[job.DuplicateIgnored+`{"id":7}`] != parallel-1 {
			t.Errorf("outcomes = %v, want one that did it and %d duplicates", counts, parallel-1)
		}
		if n := db.count(t, "select count(*) from invoices"); n != 1 {
			t.Errorf("%d invoices, want 1", n)
		}
	})
}

func TestSQL_Failures(t *testing.T) {
	t.Parallel()
	onEachEngine(t, invoices, func(t *testing.T, db engine) {
		tests := map[string]struct {
			statement string
			code      string
		}{
			"syntax":                      {"selec {{ .key }}", executor.CodeSQL},
			"unknown table":               {"insert into nowhere values ({{ .key }})", executor.CodeSQL},
			"not null":                    {"insert into invoices (id, order_id) values (9, {{ .payload.x }})", executor.CodeSQL},
			"result too large":            {"insert into invoices (id, order_id) values (9, {{ .payload.long }}) returning order_id", executor.CodeResultTooLarge},
			"a violation after some rows": {"insert into invoices (id, order_id) values (7, 'a'), (8, 'b'), (7, 'c') returning id", executor.CodeUniqueViolation},
		}
		for name, test := range tests {
			t.Run(name, func(t *testing.T) {
				s := db.executor(t, executor.SQLConfig{Statement: test.statement, ResultLimit: 100})
				_, err := db.run(t.Context(), s, claimed(`{"long":"`+strings.Repeat("x", 100)+`"}`))
				e := wantFailure(t, err, test.code, true)
				if strings.Contains(e.Detail, "invoices") || strings.Contains(e.Detail, "nowhere") {
					t.Errorf("detail = %q shows an internal name", e.Detail)
				}
			})
		}
		if n := db.count(t, "select count(*) from invoices"); n != 0 {
			t.Errorf("%d rows of failed attempts were kept", n)
		}
	})
}

func TestSQL_AnErrorAfterTheFirstRowCounts(t *testing.T) {
	t.Parallel()
	db := openPostgres(t, "create table x (i int)")
	s := db.executor(t, executor.SQLConfig{Statement: "select 1 / (2000 - n) as v from generate_series(1, 2000) n"})
	_, err := db.run(t.Context(), s, claimed("{}"))
	e := wantFailure(t, err, executor.CodeSQL, true)
	if !strings.HasSuffix(e.Detail, "(SQLSTATE 22012)") {
		t.Errorf("detail = %q, want the class of the error", e.Detail)
	}
}

func TestFailure_BR29_ANULThatTheDatabaseCannotHold(t *testing.T) {
	t.Parallel()
	db := openPostgres(t, "create table x (s text)")
	s := db.executor(t, executor.SQLConfig{Statement: "insert into x (s) values ({{ .payload.s }})"})
	_, err := db.run(t.Context(), s, claimed(`{"s":"a\u0000b"}`))
	wantFailure(t, err, executor.CodeSQL, true)

	// BR-31: the text backslash-u0000 is none and arrives unchanged.
	if _, err := db.run(t.Context(), s, claimed(`{"s":"\\u0000"}`)); err != nil {
		t.Errorf("a literal text: %v", err)
	}
	if n := db.count(t, `select count(*) from x where s = '\u0000'`); n != 1 {
		t.Errorf("%d rows hold the text, want 1", n)
	}
}

// BR-80: an attempt that outlives its time ends, and its error says why, not
// what the cancelled transaction made of it.
func TestFailure_BR80_AnEndedAttemptSaysWhy(t *testing.T) {
	t.Parallel()
	endless := map[string]string{
		"postgres": "select pg_sleep(300)",
		"sqlite":   "with recursive x(n) as (select 1 union all select n + 1 from x) select count(*) from x",
	}
	onEachEngine(t, "create table x (i int)", func(t *testing.T, db engine) {
		for _, test := range causes {
			t.Run(fmt.Sprint(test.cause), func(t *testing.T) {
				t.Parallel()
				ctx, cancel := context.WithCancelCause(t.Context())
				tx, err := db.BeginTx(t.Context(), nil)
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = tx.Rollback() }()
				s := db.executor(t, executor.SQLConfig{Statement: endless[db.name]})
				done := make(chan error, 1)
				go func() {
					_, err := s.ExecuteTx(ctx, tx, claimed("{}"))
					done <- err
				}()
				cancel(test.cause)
				wantFailure(t, receive(t, done, "the end of the attempt"), test.code, false)
			})
		}
	})
}
