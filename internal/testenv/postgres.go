package testenv

import (
	"crypto/rand"
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
	"time"
)

// maxConnections is for many packages at once that each open a few pools.
const maxConnections = 200

// settings of every server. The log carries the database's name in each line, so
// that a test finds its own.
//
// Without fsync a commit is as visible, as atomic and as safe from a kill of the
// gateway, or of Postgres, as with it: the kernel keeps what was written. Only a
// crash of the machine could tell the difference, and no test causes one.
var settings = map[string]string{
	"fsync":                   "off",
	"full_page_writes":        "off",
	"listen_addresses":        "127.0.0.1",
	"unix_socket_directories": "",
	"max_connections":         strconv.Itoa(maxConnections),
	"timezone":                "UTC",
	"log_timezone":            "UTC",
	"log_line_prefix":         "%m [%p] db=%d ",
	"log_min_messages":        "warning",
	"log_min_error_statement": "error",
	"log_lock_waits":          "on",
	"autovacuum_naptime":      "10s",
}

// PostgresOption changes how a private Postgres is started.
type PostgresOption func(s *PostgresServer)

// WithSetting sets one of the server's settings, for example log_statement.
func WithSetting(name, value string) PostgresOption {
	return func(s *PostgresServer) { s.settings[name] = value }
}

// WithClock lets the server's clock differ from everybody else's by the offset.
// It needs libfaketime.
func WithClock(offset time.Duration) PostgresOption {
	return func(s *PostgresServer) { s.clock = offset }
}

// WithFsync makes every commit wait for the disk, as in production. It is slow,
// and needed only where the time of a commit itself is looked at.
func WithFsync() PostgresOption {
	return func(s *PostgresServer) {
		s.settings["fsync"], s.settings["full_page_writes"] = "on", "on"
	}
}

// PostgresServer is a private Postgres.
type PostgresServer struct {
	bin      string
	folder   *folder
	settings map[string]string
	clock    time.Duration // what the server's clock is ahead
	password string
	port     int
	process  *process
}

// StartPostgres starts a Postgres with an empty data folder and returns when it
// takes connections. It ends with this program; Stop ends it earlier. Tests that
// stop, kill or read the log of a server start their own.
func StartPostgres(options ...PostgresOption) (*PostgresServer, error) {
	bin, err := postgresBin()
	if err != nil {
		return nil, err
	}
	s := &PostgresServer{bin: bin, password: rand.Text(), settings: map[string]string{}}
	for name, value := range settings {
		s.settings[name] = value
	}
	for _, option := range options {
		option(s)
	}
	if s.folder, err = newFolder("postgres"); err != nil {
		return nil, err
	}
	if err := s.create(); err != nil {
		return nil, errors.Join(fmt.Errorf("testenv: start Postgres: %w", err), s.folder.remove())
	}
	return s, nil
}

// URL returns the address of the database "postgres", for its superuser.
func (s *PostgresServer) URL() string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword("postgres", s.password),
		Host:     net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)),
		Path:     "/postgres",
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

// Log returns what the server has logged since it was first started.
func (s *PostgresServer) Log() (string, error) {
	text, err := os.ReadFile(s.logFile())
	if err != nil {
		return "", fmt.Errorf("testenv: read the server's log: %w", err)
	}
	return string(text), nil
}

// Kill ends the server at once, as a crash does: its next start recovers from
// the write-ahead log.
func (s *PostgresServer) Kill() error { return s.process.end(syscall.SIGQUIT) }

// Shutdown ends the server in good order, breaking all connections, and keeps
// its files. Restart starts it again.
func (s *PostgresServer) Shutdown() error { return s.process.end(syscall.SIGINT) }

// Restart starts the server again at the same address with the same data, after
// shutting it down if it still runs.
func (s *PostgresServer) Restart() error {
	if err := s.Shutdown(); err != nil {
		return err
	}
	if err := s.run(s.port); err != nil {
		return fmt.Errorf("testenv: restart Postgres: %w", err)
	}
	return nil
}

// Stop ends the server for good and removes its files.
func (s *PostgresServer) Stop() error {
	return errors.Join(s.process.end(syscall.SIGQUIT), s.folder.remove())
}

func (s *PostgresServer) dataFolder() string { return filepath.Join(s.folder.path, "data") }
func (s *PostgresServer) logFile() string    { return filepath.Join(s.folder.path, "server.log") }

// create makes the data folder, its configuration and the first run.
func (s *PostgresServer) create() error {
	if err := s.folder.lend(); err != nil {
		return err
	}
	passwordFile := filepath.Join(s.folder.path, "password")
	if err := s.folder.write(passwordFile, s.password); err != nil {
		return err
	}
	// A password, since other users of the machine reach the port too; in the
	// clear, since the connection does not leave it.
	initdb := s.command("initdb", "--pgdata", s.dataFolder(), "--username", "postgres",
		"--auth", "password", "--pwfile", passwordFile, "--encoding", "UTF8", "--no-locale", "--no-sync")
	if out, err := initdb.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, out)
	}
	var lines strings.Builder
	for name, value := range s.settings {
		fmt.Fprintf(&lines, "%s = '%s'\n", name, strings.ReplaceAll(value, "'", "''"))
	}
	if err := s.folder.write(filepath.Join(s.dataFolder(), "postgresql.auto.conf"), lines.String()); err != nil {
		return err
	}
	return onFreePort(s.run)
}

func (s *PostgresServer) command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.bin, program), args...)
	cmd.Dir = s.folder.path
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "TZ=UTC"}
	// Quit makes Postgres end its children too, and leave no shared memory.
	cmd.SysProcAttr = attributes(syscall.SIGQUIT)
	cmd.SysProcAttr.Credential = s.folder.owner
	return cmd
}

func (s *PostgresServer) run(port int) error {
	s.port = port
	log, err := os.OpenFile(s.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := s.command("postgres", "-D", s.dataFolder(), "-p", strconv.Itoa(port))
	if s.clock != 0 {
		faked, err := fakeClock(s.clock)
		if err != nil {
			return err
		}
		cmd.Env = append(cmd.Env, faked...)
	}
	cmd.Stdout, cmd.Stderr = log, log
	if s.process, err = start(cmd); err != nil {
		return err
	}
	if err := s.process.awaitReady(s.ready); err != nil {
		text, _ := s.Log()
		return fmt.Errorf("%w; its log:\n%s", err, text)
	}
	return nil
}

// ready looks where pg_ctl looks: the eighth line of the lock file tells.
func (s *PostgresServer) ready() bool {
	text, err := os.ReadFile(filepath.Join(s.dataFolder(), "postmaster.pid"))
	if err != nil {
		return false
	}
	lines := strings.Split(string(text), "\n")
	ours := lines[0] == strconv.Itoa(s.process.cmd.Process.Pid)
	return ours && len(lines) >= 8 && strings.TrimSpace(lines[7]) == "ready"
}
