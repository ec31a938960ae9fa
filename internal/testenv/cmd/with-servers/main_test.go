package main_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/testenv"
)

func TestWithServers(t *testing.T) {
	t.Parallel()
	program := build(t)

	t.Run("the command gets both servers and its exit code comes back", func(t *testing.T) {
		t.Parallel()
		cmd, temp := withServers(t, program, `echo "$SEKALI_TEST_POSTGRES_URL"; echo "$SEKALI_TEST_REDIS_URL"; exit 7`)
		out, err := cmd.Output()
		if code := exitCode(t, err); code != 7 {
			t.Errorf("exit code %d, want 7", code)
		}
		addresses := strings.Fields(string(out))
		if len(addresses) != 2 {
			t.Fatalf("the command printed %q, want two addresses", out)
		}
		assertGone(t, temp, addresses)
	})
	t.Run("a signal goes to the command and the servers still end", func(t *testing.T) {
		t.Parallel()
		cmd, temp := withServers(t, program,
			`trap 'echo told; exit 9' TERM; echo "$SEKALI_TEST_POSTGRES_URL"; echo "$SEKALI_TEST_REDIS_URL"; while :; do sleep 0.1; done`)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		addresses := []string{scan(t, lines), scan(t, lines)}
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if told := scan(t, lines); told != "told" {
			t.Errorf("the command printed %q, want told", told)
		}
		if _, err := io.Copy(io.Discard, out); err != nil {
			t.Fatal(err)
		}
		if code := exitCode(t, cmd.Wait()); code != 9 {
			t.Errorf("exit code %d, want 9", code)
		}
		assertGone(t, temp, addresses)
	})
	t.Run("servers that are named already are used", func(t *testing.T) {
		t.Parallel()
		cmd, _ := withServers(t, program, `echo "$SEKALI_TEST_POSTGRES_URL $SEKALI_TEST_REDIS_URL"`)
		cmd.Env = append(cmd.Env, testenv.PostgresVariable+"=one", testenv.RedisVariable+"=two")
		out, err := cmd.Output()
		if err != nil || string(out) != "one two\n" {
			t.Errorf("printed %q, %v, want one two", out, err)
		}
	})
	t.Run("a command that cannot be started is told from one that failed", func(t *testing.T) {
		t.Parallel()
		cmd, _ := withServers(t, program, "")
		cmd.Args = []string{program, "/no/such/program"}
		if code := exitCode(t, cmd.Run()); code != 125 {
			t.Errorf("exit code %d, want 125", code)
		}
	})
}

func build(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "with-servers")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("build: %v: %s", err, out)
	}
	return program
}

// withServers returns the command, and the folder where its servers have theirs.
func withServers(t *testing.T, program, script string) (*exec.Cmd, string) {
	t.Helper()
	temp := t.TempDir()
	if err := os.Chmod(filepath.Dir(temp), 0o755); err != nil { // the user of Postgres must get in
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, "/bin/sh", "-c", script)
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "SEKALI_TEST_") {
			cmd.Env = append(cmd.Env, variable)
		}
	}
	cmd.Env = append(cmd.Env, "TMPDIR="+temp)
	return cmd, temp
}

func exitCode(t *testing.T, err error) int {
	t.Helper()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if exit == nil {
		return 0
	}
	return exit.ExitCode()
}

func scan(t *testing.T, lines *bufio.Scanner) string {
	t.Helper()
	if !lines.Scan() {
		t.Fatalf("the command's output ended: %v", lines.Err())
	}
	return lines.Text()
}

func assertGone(t *testing.T, temp string, addresses []string) {
	t.Helper()
	for _, address := range addresses {
		u, err := url.Parse(address)
		if err != nil {
			t.Fatal(err)
		}
		dialer := net.Dialer{Timeout: time.Second}
		if conn, err := dialer.DialContext(t.Context(), "tcp", u.Host); err == nil {
			conn.Close()
			t.Errorf("a server still listens at %s", address)
		}
	}
	left, err := os.ReadDir(temp)
	if err != nil || len(left) > 0 {
		t.Errorf("files left: %v, %v", left, err)
	}
}
