package e2e_test

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sekali/sekali/docs/openapi"
	"github.com/sekali/sekali/internal/testenv"
)

// examined is what doctor printed for programs.
type examined struct {
	t                  testing.TB
	text               string
	Checks             []struct{ Check, State, Seen, Do string }
	Problems, Warnings int
}

// doctor runs the command with the configuration, wants the exit code that goes
// with what it found, and reads that.
func doctor(t testing.TB, database, config string, args ...string) examined {
	t.Helper()
	if config != "" {
		args = append(args, "doctor", "--config", written(t, config))
	} else {
		args = append(args, "doctor")
	}
	out, notes, code := sekali(t, database, append(args, "-o", "json")...)
	e := examined{t: t, text: out}
	if err := json.Unmarshal([]byte(out), &e); err != nil {
		t.Fatalf("doctor: %v in %s%s", err, out, notes)
	}
	want := 0
	if e.Problems > 0 {
		want = 1
	}
	if code != want || (code == 0) != (notes == "") {
		t.Errorf("doctor: exit code %d with %d problems: %s", code, e.Problems, notes)
	}
	return e
}

// finds fails unless the check is in the state, told with all the words.
func (e examined) finds(check, state string, words ...string) {
	e.t.Helper()
	for _, c := range e.Checks {
		if c.Check == check && c.State == state {
			tells(e.t, c.Seen+" "+c.Do, words...)
			return
		}
	}
	e.t.Errorf("%s is not %s in %s", check, state, e.text)
}

// sound fails if anything but the named checks is not all right.
func (e examined) sound(but ...string) {
	e.t.Helper()
	for _, c := range e.Checks {
		if c.State != "ok" && !slices.Contains(but, c.Check) {
			e.t.Errorf("%+v", c)
		}
	}
}

// durable is a Postgres that keeps what it has answered, as doctor wants it.
func durable(t testing.TB, options ...testenv.PostgresOption) string {
	t.Helper()
	server, err := testenv.StartPostgres(append(options, testenv.WithFsync())...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Stop() })
	return server.Database(t)
}

func TestDoctor_NothingToTellOfAHealthyInstallation(t *testing.T) {
	t.Parallel()
	for name, database := range map[string]func(testing.TB) string{
		"SQLite": testenv.SQLite, "Postgres": func(t testing.TB) string { return durable(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redis := newOwnRedis(t)
			g := start(t, database(t), redis.config())
			g.ended(t, "k", `{"type":"echo"}`)
			config := redis.config()
			e := doctor(t, g.database, config)
			// Limits of this machine, and how busy it is, are not the installation's.
			e.sound("limits.waiters", "database.space", "database", "redis")
			e.finds("jobs.processes", "ok", "1 run jobs, with 16 slots")
			e.finds("database.write", "ok")
			if e.Problems > 0 {
				t.Errorf("%s", e.text)
			}
			g.kill() // it needs no gateway
			doctor(t, g.database, config).finds("jobs.leases", "ok")
			out, notes, code := sekali(t, g.database, "doctor", "--config", written(t, config))
			if code != 0 || notes != "" || strings.Contains(out, "\x1b") {
				t.Errorf("exit code %d: %s", code, notes)
			}
			tells(t, out, "STATE", "CHECK", "SEEN", "database.schema")
		})
	}
}

func TestDoctor_ChangesNothing(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		e := doctor(t, database, "")
		if onSQLite(database) {
			e.finds("database", "warning", "no file yet", "first start makes it")
			if _, err := os.Stat(strings.TrimPrefix(database, "sqlite:")); err == nil {
				t.Error("it has made the file")
			}
			return
		}
		e.finds("database.schema", "problem", "tables are missing", "sekali migrate")
		var tables int
		db := beside(t, database)
		if err := db.QueryRowContext(t.Context(), `select count(*) from pg_class where relnamespace = cast('public' as regnamespace)`).Scan(&tables); err != nil || tables > 0 {
			t.Errorf("%d tables, %v", tables, err)
		}
	})
}

func TestFailure_Q13_DoctorNamesInvalidIndexes(t *testing.T) {
	t.Parallel()
	database := testenv.Postgres(t)
	if _, notes, code := sekali(t, database, "migrate"); code != 0 {
		t.Fatal(notes)
	}
	db := beside(t, database)
	for _, statement := range []string{
		`update pg_index set indisvalid = false where indexrelid = cast('jobs_turns' as regclass)`,
		`alter table jobs set (autovacuum_enabled = false)`,
	} {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	e := doctor(t, database, "")
	e.finds("database.indexes", "problem", "jobs_turns of jobs is invalid", "reindex")
	e.finds("database.autovacuum", "warning", "off for jobs")
	// The servers of the tests are fast, and not safe.
	e.finds("database.durability", "problem", "fsync is off")
}

func TestDoctor_NamesTroubleWithJobs(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		held := newHeldReceiver(t)
		g := start(t, database, both(t, held.config(), "job_types: {gone: {executor: echo}}"))
		g.switchType("gone", "pause").want(t, http.StatusOK)
		g.submit("waits", `{"type":"gone"}`).want(t, http.StatusAccepted)
		g.submit("stuck", `{"type":"call"}`).want(t, http.StatusAccepted)
		next(t, held.begun, 1, "begun")
		g.switchType("echo", "pause").want(t, http.StatusOK)
		g.kill()
		db := beside(t, database)
		longAgo := time.Now().UTC().Add(-time.Hour).Format("2006-01-02T15:04:05.000Z")
		for _, statement := range []string{
			`update jobs set locked_until = $1 where state = 'processing'`, `update workers set seen_at = $1`,
			`update type_state set paused_at = null where type = 'gone' and $1 <> ''`,
		} {
			if _, err := db.ExecContext(context.WithoutCancel(t.Context()), statement, longAgo); err != nil {
				t.Fatal(err)
			}
		}
		e := doctor(t, database, both(t, testDefaults, held.config()))
		e.finds("jobs.leases", "problem", "stuck (call, of "+g.workerID(), "start a gateway")
		e.finds("jobs.types", "problem", "jobs of the type gone are unfinished")
		e.finds("jobs.types", "warning", "echo has been paused")
		e.finds("jobs.processes", "warning", g.workerID()+" was last heard of 1h")
	})
}

func TestDoctor_RedisIsDown(t *testing.T) {
	t.Parallel()
	redis := newOwnRedis(t)
	redis.command("config", "set", "maxmemory", "100mb")
	redis.command("config", "set", "maxmemory-policy", "allkeys-lru")
	doctor(t, testenv.SQLite(t), redis.config()).finds("redis.memory", "warning", "allkeys-lru")
	if err := redis.server.Kill(); err != nil {
		t.Fatal(err)
	}
	doctor(t, testenv.SQLite(t), redis.config()).finds("redis", "problem", redis.server.URL(), "does not answer")
}

func TestDoctor_TheDatabasesClockIsWrong(t *testing.T) {
	t.Parallel()
	database := durable(t, testenv.WithClock(90*time.Second))
	e := doctor(t, database, "")
	e.finds("database.clock", "warning", "ahead of this machine's", "time server")
	e.finds("database.durability", "ok")
}

func TestDoctor_FileOfSQLite(t *testing.T) {
	t.Parallel()
	database := testenv.SQLite(t)
	if _, notes, code := sekali(t, database, "migrate"); code != 0 {
		t.Fatal(notes)
	}
	name := strings.TrimPrefix(database, "sqlite:")
	if err := os.Chmod(name, 0o666); err != nil {
		t.Fatal(err)
	}
	doctor(t, database, "").finds("database.permissions", "warning", "other users")
	if err := os.WriteFile(name, []byte(strings.Repeat("no database ", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	e := doctor(t, database, "")
	e.finds("database", "problem")
	if e.Problems == 0 {
		t.Error(e.text)
	}
}

func TestDoctor_WhatItCannotBeginWith(t *testing.T) {
	t.Parallel()
	e := doctor(t, "postgres://user:canary-1@127.0.0.1:1/x", "")
	e.finds("database", "problem", "cannot be used")
	e = doctor(t, "", "listen: x\nlog: {level: loud}\ndatabase_url: postgres://u:canary-2@h/x")
	e.finds("configuration", "problem", "listen")
	if e.Problems != 2 || strings.Contains(e.text, "canary") {
		t.Errorf("%s", e.text)
	}
}

// Wrong use is told in one line that says what to type, by the program itself.
func TestCLI_WrongUseIsOneLine(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"serv":                  "did you mean serve?",
		"submit invoice":        "missing --key",
		"token create":          "type: sekali token create --tenant TENANT",
		"cancel":                "type: sekali cancel",
		"serve --confg x":       "did you mean --config?",
		"executors -o text":     `--output must be table or json, and is "text"`,
		"doctor --bogus":        "sekali doctor --help has examples",
		"executors --url bogus": "such as http://127.0.0.1:8080",
	} {
		out, notes, code := sekali(t, "", strings.Fields(line)...)
		if code != 2 || out != "" || strings.Count(notes, "\n") != 1 || !strings.HasPrefix(notes, "sekali: ") {
			t.Errorf("%s: exit code %d: %q %q", line, code, out, notes)
		}
		tells(t, notes, want, "type: sekali ")
	}
}

func TestCLI_WhatNeedsNothing(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ args, want string }{
		{"openapi", string(openapi.YAML())},
		{"openapi -o json", string(openapi.JSON())},
		{"version", "dev\n"},
	} {
		if out, notes, code := sekali(t, "", strings.Fields(tt.args)...); code != 0 || notes != "" || out != tt.want {
			t.Errorf("%s: exit code %d: %s", tt.args, code, notes)
		}
	}
	out, notes, code := sekali(t, "", "--help")
	if code != 0 || notes != "" {
		t.Errorf("--help: exit code %d: %s", code, notes)
	}
	tells(t, out, "Serve:", "Jobs:", "Operate:")
	if out, _, code := sekali(t, "", "config", "check", "-o", "json", "--config", written(t, "listen: x")); code != 2 || !strings.Contains(out, `"path": "listen"`) {
		t.Errorf("config check: exit code %d: %s", code, out)
	}
}
