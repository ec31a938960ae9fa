// Command with-servers runs another command with one private Postgres and one
// private Redis, and removes both when it ends:
//
//	with-servers go test ./...
//
// The command finds their addresses in SEKALI_TEST_POSTGRES_URL and
// SEKALI_TEST_REDIS_URL; a server that is named there already is used as it is.
// Signals go to the command, whose exit code becomes this one's.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/sekali/sekali/internal/testenv"
)

// exitUsage and exitServers tell our own failures from those of the command.
const (
	exitUsage   = 2
	exitServers = 125
)

func main() { os.Exit(run(os.Args[1:])) }

func run(argv []string) int {
	if len(argv) == 0 {
		fmt.Fprintln(os.Stderr, "usage: with-servers COMMAND [ARGUMENT...]")
		return exitUsage
	}
	// From here on no signal ends this program before its servers are gone.
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)

	servers, err := startServers()
	if err != nil {
		fmt.Fprintln(os.Stderr, "with-servers:", errors.Join(err, servers.stop()))
		return exitServers
	}
	code, err := runCommand(argv, servers.environment, signals)
	if err = errors.Join(err, servers.stop()); err != nil {
		fmt.Fprintln(os.Stderr, "with-servers:", err)
		return max(code, 1)
	}
	return code
}

// servers is what was started and must be stopped.
type servers struct {
	environment []string
	stops       []func() error
}

func startServers() (*servers, error) {
	s := &servers{environment: os.Environ()}
	if os.Getenv(testenv.PostgresVariable) == "" {
		postgres, err := testenv.StartPostgres()
		if err != nil {
			return s, err
		}
		s.add(testenv.PostgresVariable, postgres.URL(), postgres.Stop)
	}
	if os.Getenv(testenv.RedisVariable) == "" {
		redis, err := testenv.StartRedis()
		if err != nil {
			return s, err
		}
		s.add(testenv.RedisVariable, redis.URL(), redis.Stop)
	}
	return s, nil
}

func (s *servers) add(variable, url string, stop func() error) {
	s.environment = append(s.environment, variable+"="+url)
	s.stops = append(s.stops, stop)
}

func (s *servers) stop() error {
	var failures []error
	for _, stop := range s.stops {
		failures = append(failures, stop())
	}
	return errors.Join(failures...)
}

// runCommand runs the command in a process group of its own and passes every
// signal to the whole group: go test, for one, does not pass on SIGTERM to the
// test programs below it.
func runCommand(argv, environment []string, signals <-chan os.Signal) (int, error) {
	cmd := exec.CommandContext(context.Background(), argv[0], argv[1:]...)
	cmd.Env = environment
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return exitServers, fmt.Errorf("start %s: %w", argv[0], err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case s := <-signals:
			// An error means that the group has just ended: Wait tells.
			_ = syscall.Kill(-cmd.Process.Pid, s.(syscall.Signal))
		case err := <-ended:
			return exitCode(cmd, err)
		}
	}
}

func exitCode(cmd *exec.Cmd, err error) (int, error) {
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return exitServers, fmt.Errorf("wait for %s: %w", cmd.Path, err)
	}
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal()), nil // as a shell reports it
	}
	return cmd.ProcessState.ExitCode(), nil
}
