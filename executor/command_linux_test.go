package executor_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/sekali/sekali/executor"
	"github.com/sekali/sekali/internal/testenv"
	"github.com/sekali/sekali/job"
)

// gatewayVariable makes the test program a gateway that runs a command.
const gatewayVariable = "SEKALI_TEST_GATEWAY_COMMAND"

func TestMain(m *testing.M) {
	if script := os.Getenv(gatewayVariable); script != "" {
		c, err := executor.NewCommand(executor.CommandConfig{Argv: []string{"sh", "-c", script}})
		if err == nil {
			_, err = c.Execute(context.Background(), claimed("{}"))
		}
		if err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	forget, err := trustReceivers()
	if err != nil {
		panic(err)
	}
	code := m.Run()
	forget()
	os.Exit(code)
}

func TestContract_SectionI_OnLinuxTheProgramDiesWithItsGateway(t *testing.T) {
	t.Parallel()
	held, gone := pipe(t)
	begun := filepath.Join(t.TempDir(), "begun")
	gateway := exec.CommandContext(t.Context(), os.Args[0])
	gateway.Env = append(os.Environ(), gatewayVariable+"=exec 9>"+held+"; touch "+begun+"; exec sleep 300")
	if err := gateway.Start(); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, hangs, "the program began", func() bool { _, err := os.Stat(begun); return err == nil })
	if err := gateway.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = gateway.Wait()
	receive(t, gone, "the end of the program")
}

// A process that leaves the group cannot be found and killed, but it does not
// hold the attempt by the pipes that it took along.
func TestFailure_BR74_AProcessThatLeftTheGroupDoesNotHoldTheAttempt(t *testing.T) {
	t.Parallel()
	left := filepath.Join(t.TempDir(), "left")
	if err := syscall.Mkfifo(left, 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan *job.Result, 1)
	c := shell(t, "setsid sh -c 'echo $$ >"+left+"; exec sleep 300' & read pid <"+left+"; echo $pid")
	go func() {
		result, err := c.Execute(context.Background(), claimed("{}"))
		if err != nil {
			t.Errorf("Execute: %v", err)
		}
		done <- result
	}()
	result := receive(t, done, "the end of the attempt")
	if result == nil {
		t.Fatal("no result, want what the program printed")
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(result.Body)))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Errorf("end what has left the group: %v", err)
	}
}

// The signal of golang/go#27505: a thread that starts a program and then ends
// takes the program with it, although the gateway lives.
func TestCommand_TheEndOfAThreadDoesNotEndThePrograms(t *testing.T) {
	t.Parallel()
	release := filepath.Join(t.TempDir(), "release")
	if err := syscall.Mkfifo(release, 0o600); err != nil {
		t.Fatal(err)
	}
	const programs = 8
	errs := make(chan error, programs)
	for range programs {
		c := shell(t, "read line <"+release)
		go func() {
			_, err := c.Execute(context.Background(), claimed("{}"))
			errs <- err
		}()
	}
	var threads sync.WaitGroup
	for range 200 {
		threads.Go(func() { runtime.LockOSThread() }) // a locked goroutine's end is its thread's
	}
	threads.Wait()

	w, err := os.OpenFile(release, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for range programs {
		if _, err := w.WriteString("\n"); err != nil {
			t.Fatal(err)
		}
	}
	for range programs {
		if err := receive(t, errs, "the end of a program"); err != nil {
			t.Errorf("Execute: %v", err)
		}
	}
}
