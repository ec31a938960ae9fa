package testenv_test

import (
	"context"
	"database/sql"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	_ "github.com/lib/pq"

	"github.com/sekali/sekali/internal/testenv"
)

func TestPostgres(t *testing.T) {
	t.Parallel()
	t.Run("each call gives an empty database in UTC", func(t *testing.T) {
		t.Parallel()
		one, two := open(t, testenv.Postgres(t)), open(t, testenv.Postgres(t))
		exec1(t, one, "create table invoices (id int)")
		exec1(t, two, "create table invoices (id int)")
		if zone := query(t, one, "show timezone"); zone != "UTC" {
			t.Errorf("time zone %s, want UTC", zone)
		}
	})
	t.Run("the database goes with the test, also while it is in use", func(t *testing.T) {
		t.Parallel()
		server := open(t, testenv.Postgres(t))
		var name string
		t.Run("inner", func(t *testing.T) {
			address := testenv.Postgres(t)
			conn, err := open(t, address).Conn(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := conn.PingContext(t.Context()); err != nil {
				t.Fatal(err)
			}
			name = filepath.Base(path(t, address))
		})
		if n := query(t, server, "select count(*) from pg_database where datname = '"+name+"'"); n != "0" {
			t.Errorf("database %s is still there", name)
		}
	})
}

func TestStartPostgres(t *testing.T) {
	t.Parallel()
	server, err := testenv.StartPostgres(testenv.WithSetting("log_statement", "all"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, server.Stop) })
	address := server.Database(t)
	exec1(t, open(t, address), "create table invoices (id int)")

	for name, end := range map[string]func() error{"kill": server.Kill, "shut down": server.Shutdown} {
		if err := end(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := open(t, address).PingContext(t.Context()); err == nil {
			t.Fatalf("%s: the server still answers", name)
		}
		if err := server.Restart(); err != nil {
			t.Fatalf("restart after %s: %v", name, err)
		}
		exec1(t, open(t, address), "insert into invoices (id) values (1)")
	}
	if n := query(t, open(t, address), "select count(*) from invoices"); n != "2" {
		t.Errorf("%s rows, want 2", n)
	}
	text, err := server.Log()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(text, "create table invoices") {
		t.Errorf("the log lacks the statement:\n%s", text)
	}
}

func TestStartRedis(t *testing.T) {
	t.Parallel()
	server, err := testenv.StartRedis()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, server.Stop) })
	if !listens(t, server.URL()) {
		t.Fatal("the server does not listen")
	}
	succeed(t, server.Freeze)
	if answers(t, server.URL(), 500*time.Millisecond) { // which is long for a PING
		t.Error("the frozen server answers")
	}
	succeed(t, server.Thaw)
	if !answers(t, server.URL(), 30*time.Second) {
		t.Error("the thawed server does not answer")
	}
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	if listens(t, server.URL()) {
		t.Fatal("the killed server listens")
	}
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	if !listens(t, server.URL()) {
		t.Fatal("the restarted server does not listen")
	}
}

// Not parallel: it changes the PATH of the whole program.
func TestStartRedis_missing(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := testenv.StartRedis()
	if err == nil {
		t.Fatal("a Redis was found on an empty PATH")
	}
	for _, want := range []string{"postgresql-15", "redis-server", testenv.PostgresVariable, testenv.RedisVariable} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the message does not name %s: %v", want, err)
		}
	}
}

// childVariable makes this test program a child that starts servers, says where
// they are, and waits to be killed.
const childVariable = "SEKALI_TESTENV_CHILD"

func TestServersEndWithAKilledProgram(t *testing.T) {
	t.Parallel()
	if os.Getenv(childVariable) != "" {
		startAndWait(t)
		return
	}
	temp := t.TempDir()
	if err := os.Chmod(filepath.Dir(temp), 0o755); err != nil { // the user of Postgres must get in
		t.Fatal(err)
	}
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
	child.Env = append(os.Environ(), childVariable+"=1", "TMPDIR="+temp)
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	addresses := readAddresses(t, out)
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait() // killed: an error by design
	for _, address := range addresses {
		testenv.Eventually(t, 0, "no server at "+address, func() bool { return !listens(t, address) })
	}
	testenv.Eventually(t, 0, "no files left", func() bool {
		left, err := os.ReadDir(temp)
		return err == nil && len(left) == 0
	})
}

func startAndWait(t *testing.T) {
	postgres, err := testenv.StartPostgres()
	if err != nil {
		t.Fatal(err)
	}
	redis, err := testenv.StartRedis()
	if err != nil {
		t.Fatal(err)
	}
	os.Stdout.WriteString(postgres.URL() + "\n" + redis.URL() + "\n")
	<-t.Context().Done()
}

// readAddresses reads the two lines that startAndWait writes.
func readAddresses(t *testing.T, out interface{ Read([]byte) (int, error) }) []string {
	t.Helper()
	var text strings.Builder
	buffer := make([]byte, 512)
	for strings.Count(text.String(), "\n") < 2 {
		n, err := out.Read(buffer)
		text.Write(buffer[:n])
		if err != nil {
			t.Fatalf("the child said only %q: %v", text.String(), err)
		}
	}
	return strings.Fields(text.String())
}

// answers reports whether a PING is answered in the time.
func answers(t *testing.T, address string, within time.Duration) bool {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", u.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(within))
	_, err = conn.Read(make([]byte, 16))
	return err == nil
}

func listens(t *testing.T, address string) bool {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	dialer := net.Dialer{Timeout: time.Second}
	conn, err := dialer.DialContext(t.Context(), "tcp", u.Host)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

func path(t *testing.T, address string) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	return u.Path
}

func open(t *testing.T, address string) *sql.DB {
	t.Helper()
	db, err := sql.Open("postgres", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func exec1(t *testing.T, db *sql.DB, statement string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := db.ExecContext(ctx, statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

func query(t *testing.T, db *sql.DB, statement string) string {
	t.Helper()
	var value string
	if err := db.QueryRowContext(t.Context(), statement).Scan(&value); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
	return value
}

func succeed(t *testing.T, do func() error) {
	t.Helper()
	if err := do(); err != nil {
		t.Fatal(err)
	}
}

func stop(t *testing.T, end func() error) {
	t.Helper()
	if err := end(); err != nil {
		t.Error(err)
	}
}

// In transaction mode two clients meet in one session of the server, in session
// mode never: the mode that was asked for is in force.
func TestPgBouncer(t *testing.T) {
	t.Parallel()
	database := testenv.Postgres(t)
	for mode, shared := range map[string]bool{"transaction": true, "session": false} {
		address := testenv.PgBouncer(t, database, map[string]string{"pool_mode": mode})
		one, two := open(t, address), open(t, address)
		const session = "select pg_backend_pid()"
		if got := query(t, one, session) == query(t, two, session); got != shared {
			t.Errorf("%s: two clients in one session: %v, want %v", mode, got, shared)
		}
	}
}
