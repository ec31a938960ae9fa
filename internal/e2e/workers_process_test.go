package e2e_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/testenv"
)

// exampleWorkers are the commands of the workers under examples.
var exampleWorkers = map[string][]string{
	"python": {"python3", "examples/worker-python/worker.py"},
	"node":   {"node", "examples/worker-node/worker.mjs"},
}

// workerProcess is one process of an example worker.
type workerProcess struct {
	t      testing.TB
	name   string // under which it claims
	cmd    *exec.Cmd
	exited chan struct{}
	log    string
}

// startWorker starts an example worker that calls url, with settings such as
// "SLOTS=2", and returns once it works.
func startWorker(t testing.TB, kind, url string, settings ...string) *workerProcess {
	t.Helper()
	command := exampleWorkers[kind]
	interpreter, err := exec.LookPath(command[0])
	if err != nil {
		t.Fatalf("%v: scripts/test-deps.sh installs it", err)
	}
	script, err := filepath.Abs(filepath.Join("../..", command[1]))
	if err != nil {
		t.Fatal(err)
	}
	w := &workerProcess{t: t, exited: make(chan struct{}), log: filepath.Join(t.TempDir(), "log")}
	log, err := os.Create(w.log)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	w.cmd = exec.Command(interpreter, script)
	w.cmd.Dir, w.cmd.Stdout, w.cmd.Stderr = t.TempDir(), log, log
	w.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "SEKALI_URL=" + url}, settings...)
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = w.cmd.Wait() // its status is asked for where it matters
		close(w.exited)
	}()
	t.Cleanup(func() {
		w.kill()
		if t.Failed() {
			t.Logf("log of the %s worker %s:\n%s", kind, w.name, w.logged())
		}
	})
	testenv.Eventually(t, 0, "the "+kind+" worker says its name", func() bool {
		name, _, said := strings.Cut(w.logged(), " works for ")
		w.name = name
		return said
	})
	return w
}

func (w *workerProcess) logged() string {
	text, err := os.ReadFile(w.log)
	if err != nil {
		w.t.Errorf("read the log of a worker: %v", err)
	}
	return string(text)
}

// kill is kill -9, and waits for the end.
func (w *workerProcess) kill() {
	_ = w.cmd.Process.Kill()
	<-w.exited
}

func (w *workerProcess) signal(s syscall.Signal) {
	if err := w.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		w.t.Error(err)
	}
}

// end is an operator's stop; it fails unless the worker exits with 0 in time.
func (w *workerProcess) end(within time.Duration) {
	w.t.Helper()
	w.signal(syscall.SIGTERM)
	select {
	case <-w.exited:
		if code := w.cmd.ProcessState.ExitCode(); code != 0 {
			w.t.Errorf("the worker ended with %d", code)
		}
	case <-time.After(within):
		w.t.Errorf("the worker has not ended within %v", within)
		w.kill()
	}
}
