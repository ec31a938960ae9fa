package e2e_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/sekali/sekali/internal/testenv"
)

// GOMEMLIMIT holds, whatever the container says, and the start tells of it.
func TestMemoryLimit_OfTheEnvironment(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "log")
	log, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(program, "serve", "--listen", "127.0.0.1:0")
	cmd.Dir, cmd.Stderr = t.TempDir(), log
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "DATABASE_URL=" + testenv.SQLite(t), "GOMEMLIMIT=700MiB"}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	g := &gateway{t: t, log: file}
	testenv.Eventually(t, 0, "the limit in the log", func() bool {
		lines := g.logLines("memory is limited")
		return len(lines) == 1 && lines[0]["memory_limit_bytes"] == float64(700<<20) && lines[0]["set_by"] == "GOMEMLIMIT"
	})
}
