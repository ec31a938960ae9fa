package e2e_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/testenv"
)

// sekali runs the program in a folder of its own until it ends. Arguments of
// the form NAME=value before the command go to its environment.
func sekali(t testing.TB, database string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	env := []string{"PATH=" + os.Getenv("PATH"), "GORACE=exitcode=66 halt_on_error=1 atexit_sleep_ms=0"}
	if database != "" {
		env = append(env, "DATABASE_URL="+database)
	}
	for len(args) > 0 && strings.Contains(args[0], "=") {
		env, args = append(env, args[0]), args[1:]
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = t.TempDir()
	cmd.Env = append(env, "HOME="+cmd.Dir)
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	err := cmd.Run()
	exit := (*exec.ExitError)(nil)
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if ctx.Err() != nil {
		t.Errorf("sekali %q did not end: %s%s", args, out.String(), problems.String())
	}
	return out.String(), problems.String(), cmd.ProcessState.ExitCode()
}

// written writes a file and returns its name.
func written(t testing.TB, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// broken has one problem in each line that names a path below.
const broken = `
listen: 0.0.0.0:0
database_url: mysql://user:canary-1@host/db
database_max_conns: 1
redis_url: http://:canary-2@host
idempotency: {required: maybe, max_key_length: 256, key_pattern: "(", retention: 0s, lease: 1ms, after_expiry: forget}
limits: {body: 1XB, batch: 1, result: 65GiB, wait: forever, rate: often, pending: -1, waiters: -1}
cors: {allowed_origins: [app.example]}
log: {level: loud, format: xml}
auth: {mode: magic}
dispatcher: {slots: -1, poll_interval: 1ns, grace: 1s}
defaults: {lease: 1ms, heartbeat: 1h, timeout: 1, max_attempts: 0, backoff: {base: 2h, cap: 1h}, priority: 101}
unknown_key: 1
schedules: {daily: {type: nobody, cron: "61 * * * *"}}
proxy:
  - {match: POST /v1/a, upstream: "ftp://user:canary-8@host", timeout: 1ns, on_5xx: hope, on_interrupted: hope, key: maybe}
  - {match: POST /jobs/x, upstream: "http://host"}
  - {match: POST /v1/a, upstream: "http://host"}
job_types:
  "bad name": {executor: echo}
  nothing: {}
  twice: {executor: http, sql: {statement: "select 1"}}
  ftp: {executor: http, http: {url: "ftp://user:canary-3@host/"}}
  unparsed: {executor: http, http: {url: "http://user:canary-4@host:port/"}}
  stolen: {executor: http, http: {url: "http://host/", headers: {Idempotency-Key: canary-5}}}
  unsigned: {executor: http, http: {url: "http://host/", secret: "whsec_canary-6!"}}
  empty: {executor: command, command: {argv: []}}
  env: {executor: command, command: {argv: ["true"], env: {SEKALI_KEY: canary-7}}}
  pasted: {executor: sql, sql: {statement: "insert into t values ('{{ .payload.x }}')"}}
  ends: {executor: sql, sql: {statement: "commit"}}
  writes: {executor: sql, sql: {statement: "select 1", existing: "delete from t"}}
  later: {executor: echo, concurrency: -3}
  func: {executor: func}
  shape: [1, 2]
`

var brokenPaths = []string{
	"listen", "database_url", "database_max_conns", "redis_url", "idempotency.required", "idempotency.max_key_length", "idempotency.key_pattern", "idempotency.retention",
	"idempotency.lease", "limits.body", "limits.result", "limits.wait", "log.level", "log.format", "auth.mode", "dispatcher.slots", "dispatcher.poll_interval", "dispatcher.grace",
	"defaults.lease", "defaults.heartbeat", "defaults.timeout", "defaults.max_attempts", "defaults.backoff.base", "defaults.priority", "unknown_key", "schedules.daily.type", "schedules.daily.cron",
	"idempotency.after_expiry", "limits.batch", "limits.rate", "limits.pending", "limits.waiters", "cors.allowed_origins[0]",
	"proxy[0].upstream", "proxy[0].timeout", "proxy[0].on_5xx", "proxy[0].on_interrupted", "proxy[0].key", "proxy[1].match", "proxy[2].match",
	"job_types.bad name", "job_types.nothing.executor", "job_types.twice.sql", "job_types.twice.http", "job_types.ftp.http.url", "job_types.unparsed.http.url", "job_types.stolen",
	"job_types.unsigned", "job_types.empty.command.argv", "job_types.env", "job_types.pasted", "job_types.ends", "job_types.writes", "job_types.later.concurrency",
	"job_types.func.executor", "job_types.shape", "SEKALI_LGO_LEVEL", "SEKALI_MIGRATE",
}

func TestCLI_BrokenConfigurationIsReportedWholeBeforeAnythingStarts(t *testing.T) {
	t.Parallel()
	file := written(t, broken)
	for _, command := range [][]string{{"serve"}, {"config", "check"}, {"config", "print"}, {"migrate", "up"}, {"migrate", "status"}, {"health"}} {
		args := append(append([]string{"SEKALI_LGO_LEVEL=info", "SEKALI_MIGRATE=yes"}, command...), "--config", file)
		out, problems, code := sekali(t, "", args...)
		if code != 2 || out != "" {
			t.Errorf("%q: exit code %d, output %q", command, code, out)
		}
		for _, path := range brokenPaths {
			if !strings.Contains(problems, "\n  "+path+": ") {
				t.Errorf("%q: nothing about %s in\n%s", command, path, problems)
			}
		}
		if strings.Contains(problems, "canary") {
			t.Errorf("%q shows a secret:\n%s", command, problems)
		}
		if strings.Contains(problems, `"level"`) || strings.Contains(problems, "serves") {
			t.Errorf("%q: something started:\n%s", command, problems)
		}
	}
}

func TestCLI_FilesThatAreNoConfiguration(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"no YAML": "listen: [", "a list": "- a\n- b", "a scalar": "hello", "a key twice": "dispatcher: {slots: 1}\nlisten: 127.0.0.1:0\ndispatcher: {slots: 2}",
		"a type twice": "job_types:\n  a: {executor: echo}\n  a: {executor: echo}", "two documents": "listen: 127.0.0.1:0\n---\nlisten: 127.0.0.1:1\n",
	} {
		if _, problems, code := sekali(t, "", "serve", "--config", written(t, text)); code != 2 || !strings.Contains(problems, "configuration") {
			t.Errorf("%s: exit code %d: %s", name, code, problems)
		}
	}
	if _, problems, code := sekali(t, "", "serve", "--config", "/no/such/file.yaml"); code != 2 || !strings.Contains(problems, "/no/such/file.yaml") {
		t.Errorf("no file: exit code %d: %s", code, problems)
	}
	for _, args := range [][]string{{"bogus"}, {"serve", "bogus"}, {"serve", "--bogus"}, {"config"}, {"migrate", "down"}} {
		if _, problems, code := sekali(t, "", args...); code != 2 || problems == "" {
			t.Errorf("%q: exit code %d: %s", args, code, problems)
		}
	}
}

const secretive = `
database_url: postgres://user:canary-1@db.internal:5432/app?sslmode=disable&sslpassword=canary-2
redis_url: rediss://user:canary-3@cache.internal/0
job_types:
  pay:
    executor: http
    error_body: true
    http: {url: "https://user:canary-4@pay.internal/x?a=1", secret: whsec_Y2FuYXJ5LTU=, headers: {Authorization: "Bearer canary-6", X-Source: sekali}}
  run: {executor: command, command: {argv: [./run, "--fast"], env: {PASSWORD: canary-7}}}
  row: {executor: sql, lease: 1m, priority: -5, sql: {statement: "select {{ .payload.x }} as x"}}
`

func TestCLI_ConfigPrintHidesSecretsAndCheckReadsItBack(t *testing.T) {
	t.Parallel()
	password := written(t, "redis://:canary-9@other.internal/1\n")
	out, problems, code := sekali(t, "", "SEKALI_DISPATCHER_SLOTS=7", "SEKALI_DEFAULTS_LEASE=45s", "SEKALI_REDIS_URL_FILE="+password, "SEKALI_JOB_TYPES_ROW_TIMEOUT=9s",
		"config", "print", "--config", written(t, secretive), "--log-level", "warn")
	if code != 0 || problems != "" {
		t.Fatalf("exit code %d: %s", code, problems)
	}
	if strings.Contains(out, "canary") || strings.Contains(out, "Y2FuYXJ5") {
		t.Errorf("a secret is shown:\n%s", out)
	}
	for _, want := range []string{"slots: 7", "lease: 45s", "level: warn", "db.internal:5432/app", "other.internal", "timeout: 9s", "lease: 1m0s", "priority: -5", "error_body: true", "X-Source:", "PASSWORD:", "body: 1MiB", "- --fast", "pay.internal/x?a=1"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
	// What is printed can be read: only the secrets have to be filled in.
	again := written(t, strings.ReplaceAll(out, "(hidden)", "c2VjcmV0"))
	if out, problems, code := sekali(t, "", "config", "check", "--config", again); code != 0 || !strings.Contains(out, "fine") {
		t.Errorf("config check of what was printed: %d %s%s", code, out, problems)
	}
	// Flag over environment over file over default.
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"config", "print"}, "listen: 127.0.0.1:8080"},
		{[]string{"config", "print", "--config", written(t, "listen: 127.0.0.1:1")}, "listen: 127.0.0.1:1\n"},
		{[]string{"SEKALI_LISTEN=127.0.0.1:2", "config", "print", "--config", written(t, "listen: 127.0.0.1:1")}, "listen: 127.0.0.1:2\n"},
		{[]string{"SEKALI_LISTEN=127.0.0.1:2", "config", "print", "--listen", "127.0.0.1:3"}, "listen: 127.0.0.1:3\n"},
		{[]string{"DATABASE_URL=sqlite:a.db", "SEKALI_DATABASE_URL=sqlite:b.db", "config", "print"}, "database_url: sqlite:b.db\n"},
		{[]string{"SEKALI_CONFIG=" + written(t, "listen: 127.0.0.1:4"), "config", "print"}, "listen: 127.0.0.1:4\n"},
		{[]string{"SEKALI_PORT_8080_TCP=tcp://10.0.0.1", "SEKALI_SERVICE_HOST=x", "SEKALI_URL=x", "config", "check"}, "fine"},
	} {
		if out, problems, code := sekali(t, "", c.args...); code != 0 || !strings.Contains(out, c.want) {
			t.Errorf("%q: %d, no %q in %s%s", c.args, code, c.want, out, problems)
		}
	}
}

func TestCLI_MigrateAndVersion(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		states := func(args ...string) []string {
			out, problems, code := sekali(t, database, args...)
			if code != 0 || problems != "" || out == "" {
				t.Fatalf("%q: %d %s", args, code, problems)
			}
			var states []string
			for line := range strings.Lines(out) {
				if state := strings.Fields(line)[0]; state != "STATE" {
					states = append(states, state)
				}
			}
			return slices.Compact(slices.Sorted(slices.Values(states)))
		}
		for _, step := range []struct {
			args []string
			want string
		}{{[]string{"migrate", "status"}, "pending"}, {[]string{"migrate"}, "applied"}, {[]string{"migrate", "up"}, "applied"}, {[]string{"migrate", "status"}, "applied"}} {
			if got := states(step.args...); !slices.Equal(got, []string{step.want}) {
				t.Errorf("%q: %q, want all %s", step.args, got, step.want)
			}
		}
		g := start(t, database, "migrate: false")
		if got := states("migrate", "up"); !slices.Equal(got, []string{"applied"}) { // beside a gateway that runs
			t.Errorf("migrate beside a gateway: %q", got)
		}
		g.submit("k", `{"type":"echo"}`).want(t, http.StatusAccepted)
		if out, _, code := sekali(t, database, "version"); code != 0 || out != "dev\n" {
			t.Errorf("version: %d %q", code, out)
		}
	})
}

func TestCLI_Health(t *testing.T) {
	onGateway(t, "", func(t *testing.T, g *gateway) {
		address := strings.TrimPrefix(g.url, "http://")
		if _, problems, code := sekali(t, g.database, "health", "--listen", address); code != 0 || problems != "" {
			t.Errorf("of a gateway that serves: %d %s", code, problems)
		}
		if _, problems, code := sekali(t, g.database, "SEKALI_AUTH_ALLOW_PUBLIC=true", "SEKALI_LISTEN=:"+address[strings.LastIndexByte(address, ':')+1:], "health"); code != 0 {
			t.Errorf("of a gateway on every address: %d %s", code, problems)
		}
		g.kill()
		if _, problems, code := sekali(t, g.database, "health", "--listen", address); code != 4 || !strings.Contains(problems, "cannot be reached") {
			t.Errorf("of a gateway that is gone: %d %s", code, problems)
		}
	})
}

func TestFailure_BR78_CLI_SecondGatewayOnOneSQLiteFileIsRefused(t *testing.T) {
	t.Parallel()
	database := testenv.SQLite(t)
	first := start(t, database, "")
	link := filepath.Join(t.TempDir(), "link.db")
	if err := os.Symlink(strings.TrimPrefix(database, "sqlite:"), link); err != nil {
		t.Fatal(err)
	}
	for _, same := range []string{database, "sqlite:" + filepath.Dir(strings.TrimPrefix(database, "sqlite:")) + "/../" + filepath.Base(filepath.Dir(database)) + "/sekali.db", "sqlite:" + link} {
		second := launch(t, same, "")
		if code := second.wait(60 * time.Second); code == 0 || !strings.Contains(second.logged(), "another gateway is running on it") ||
			!strings.Contains(second.logged(), "What to do: stop it first") || len(second.logLines("sekali serves")) > 0 {
			t.Errorf("%s: exit code %d: %s", same, code, second.logged())
		}
	}
	first.submit("k", `{"type":"echo"}`).want(t, http.StatusAccepted)
	first.kill()
	third := start(t, database, "") // the lock ends with its holder, also by kill -9
	if j := third.finished("k"); j["status"] != "succeeded" {
		t.Errorf("job %v", j)
	}
}

// A server that answers is not said to be away.
func TestCLI_AServerWithoutTheDatabase(t *testing.T) {
	t.Parallel()
	address, err := url.Parse(testenv.Postgres(t))
	if err != nil {
		t.Fatal(err)
	}
	address.Path = "/not_there"
	_, problems, code := sekali(t, address.String(), "migrate")
	if code != 1 || !strings.Contains(problems, `database "not_there" does not exist`) || !strings.Contains(problems, "names the server, the database, the user") || strings.Contains(problems, "pq:") {
		t.Errorf("exit code %d: %s", code, problems)
	}
}

func TestCLI_PortInUse(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	g := launch(t, testenv.SQLite(t), fmt.Sprintf("listen: %s", listener.Addr()))
	if code := g.wait(60 * time.Second); code != 1 || !strings.Contains(g.logged(), listener.Addr().String()) {
		t.Errorf("exit code %d: %s", code, g.logged())
	}
}

// Whatever the start asks the database, its connection breaks several times.
func TestFailure_BR79_CLI_StartOutlastsADatabaseThatGoesAwayMeanwhile(t *testing.T) {
	t.Parallel()
	questions := []string{"goose_lock", "goose_db_version", "name in ('slots', 'slot_hash')", "select now() as now", "name = 'installation'", "create table if not exists invoices"}
	var mu sync.Mutex
	broken := make([]int, len(questions))
	w := newWire(t, testenv.Postgres(t))
	w.rule(func(sent []byte) fate {
		mu.Lock()
		defer mu.Unlock()
		for i, question := range questions {
			if broken[i] < 4 && bytes.Contains(sent, []byte(question)) {
				broken[i]++
				return cut
			}
		}
		return pass
	})
	g := start(t, w.url, invoices)
	mu.Lock()
	if slices.Contains(broken, 0) {
		t.Errorf("the start does not ask each of %q: %v", questions, broken)
	}
	mu.Unlock()
	if n := len(g.logLines("the database cannot be reached yet; trying again")); n < len(questions)-1 { // database/sql asks again by itself, a few times
		t.Errorf("it has waited %d times", n)
	}
	g.submit("k", `{"type":"invoice_generate","payload":{"order_id":"k","total":1}}`).want(t, http.StatusAccepted)
	if j := g.finished("k"); j["status"] != "succeeded" {
		t.Errorf("job %v", j)
	}
}

func TestCLI_StartSaysThatItWaitsForAnotherOneThatMigrates(t *testing.T) {
	t.Parallel()
	database := testenv.Postgres(t)
	if _, problems, code := sekali(t, database, "migrate"); code != 0 {
		t.Fatal(problems)
	}
	db := beside(t, database)
	for _, statement := range []string{
		`delete from goose_db_version where version_id = (select max(version_id) from goose_db_version)`,
		`update goose_lock set locked = true, locked_at = now(), locked_by = 'another one', lease_expires_at = now() + interval '1 hour'`,
	} {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	g := launch(t, database, "")
	testenv.Eventually(t, 0, "it says that it waits", func() bool {
		return len(g.logLines("still bringing the schema up, or waiting for another process that does")) > 1
	})
	g.signal(syscall.SIGTERM)
	if code := g.wait(60 * time.Second); code != 0 || len(g.logLines("stopped before it served")) != 1 {
		t.Errorf("exit code %d: %s", code, g.logged())
	}
}

func TestFailure_BR79_CLI_StartWaitsForTheDatabase(t *testing.T) {
	t.Parallel()
	server, err := testenv.StartPostgres()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Stop() })
	if err := server.Shutdown(); err != nil {
		t.Fatal(err)
	}
	g, idle := launch(t, server.URL(), ""), launch(t, server.URL(), "")
	for _, one := range []*gateway{g, idle} {
		testenv.Eventually(t, 0, "it says that it waits", func() bool { return len(one.logLines("the database cannot be reached yet; trying again")) > 1 })
	}
	idle.signal(syscall.SIGTERM) // one that waits can be stopped too
	if code := idle.wait(60 * time.Second); code != 0 || len(idle.logLines("stopped before it served")) != 1 || len(idle.logLines("sekali serves")) > 0 {
		t.Errorf("stopped while waiting: exit code %d: %s", code, idle.logged())
	}
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-g.serving():
	case <-g.exited:
		t.Fatalf("it has ended: %s", g.logged())
	case <-time.After(60 * time.Second):
		t.Fatal("it does not serve")
	}
	if j := g.ended(t, "k", `{"type":"echo"}`); j["status"] != "succeeded" {
		t.Errorf("job %v", j)
	}
	address, err := url.Parse(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	if password, _ := address.User.Password(); password == "" || strings.Contains(g.logged(), password) {
		t.Error("the log shows the database's password")
	}
	if errors := errorLines(g); len(errors) > 0 {
		t.Errorf("errors in the log: %q", errors)
	}
}
