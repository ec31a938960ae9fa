package testenv

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// pgBouncer is a private PgBouncer before one Postgres.
type pgBouncer struct {
	program  string
	folder   *folder
	server   *url.URL // the Postgres behind it
	settings map[string]string
	port     int
	process  *process
}

// PgBouncer starts a PgBouncer of this test alone before the database, with
// these settings (pool_mode and others), and returns the database's URL through
// it. It ends with the test.
func PgBouncer(t testing.TB, database string, settings map[string]string) string {
	t.Helper()
	b, err := startPgBouncer(database, settings)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.stop(); err != nil {
			t.Error(err)
		}
	})
	address := *b.server
	address.Host = b.address()
	query := address.Query()
	query.Set("sslmode", "disable")
	address.RawQuery = query.Encode()
	return address.String()
}

func startPgBouncer(database string, settings map[string]string) (*pgBouncer, error) {
	program, err := pgBouncerProgram()
	if err != nil {
		return nil, err
	}
	server, err := url.Parse(database)
	if err != nil {
		return nil, errors.New("testenv: the database's URL cannot be read") // the error would show a password
	}
	folder, err := newFolder("pgbouncer")
	if err != nil {
		return nil, err
	}
	b := &pgBouncer{program: program, folder: folder, server: server, settings: settings}
	if err := errors.Join(folder.lend(), b.writeUsers()); err != nil {
		return nil, errors.Join(fmt.Errorf("testenv: prepare PgBouncer: %w", err), folder.remove())
	}
	if err := onFreePort(b.run); err != nil {
		return nil, errors.Join(fmt.Errorf("testenv: start PgBouncer: %w", err), folder.remove())
	}
	return b, nil
}

func (b *pgBouncer) stop() error {
	return errors.Join(b.process.end(syscall.SIGTERM), b.folder.remove())
}

func (b *pgBouncer) address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(b.port)) }

// writeUsers writes the file that clients are compared with, and that PgBouncer
// takes the password for the server from.
func (b *pgBouncer) writeUsers() error {
	password, _ := b.server.User.Password()
	quoted := func(text string) string { return `"` + strings.ReplaceAll(text, `"`, `""`) + `"` }
	return b.folder.write(filepath.Join(b.folder.path, "users.txt"), quoted(b.server.User.Username())+" "+quoted(password)+"\n")
}

func (b *pgBouncer) run(port int) error {
	b.port = port
	host, serverPort, err := net.SplitHostPort(b.server.Host)
	if err != nil {
		return err
	}
	lines := []string{
		"[databases]", "* = host=" + host + " port=" + serverPort,
		"[pgbouncer]", "listen_addr = 127.0.0.1", "listen_port = " + strconv.Itoa(port), "unix_socket_dir =",
		"auth_type = plain", "auth_file = users.txt", "logfile = pgbouncer.log",
	}
	for name, value := range b.settings {
		lines = append(lines, name+" = "+value)
	}
	file := filepath.Join(b.folder.path, "pgbouncer.ini")
	if err := b.folder.write(file, strings.Join(lines, "\n")+"\n"); err != nil {
		return err
	}
	cmd := exec.Command(b.program, "--quiet", file)
	cmd.Dir = b.folder.path
	cmd.SysProcAttr = attributes(syscall.SIGKILL)
	cmd.SysProcAttr.Credential = b.folder.owner
	if b.process, err = start(cmd); err != nil {
		return err
	}
	if err := b.process.awaitReady(func() bool { return takesConnections(b.address()) }); err != nil {
		text, _ := os.ReadFile(filepath.Join(b.folder.path, "pgbouncer.log"))
		return fmt.Errorf("%w; its log:\n%s", err, text)
	}
	return nil
}

func takesConnections(address string) bool {
	conn, err := net.DialTimeout("tcp", address, time.Second)
	if err != nil {
		return false
	}
	return conn.Close() == nil
}

// pgBouncerProgram also looks where Debian keeps it, which is not on the PATH of
// every user.
func pgBouncerProgram() (string, error) {
	for _, name := range []string{"pgbouncer", "/usr/sbin/pgbouncer"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errors.New("testenv: PgBouncer was not found: install the package pgbouncer (scripts/test-deps.sh does so)")
}
