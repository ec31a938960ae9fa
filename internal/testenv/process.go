package testenv

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// Times given to a server. Both are far beyond what an idle machine needs (a
// second, a tenth of one): they only end a hang, and tests share few cores.
const (
	startTimeout = 60 * time.Second
	stopTimeout  = 30 * time.Second
)

// errEndedEarly is a server that ended before it was ready: mostly because
// another process took the port between our look and its start.
var errEndedEarly = errors.New("ended before it was ready")

// process is one running server.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	err  error         // how it ended; read it after done
}

// start runs cmd in a process group of its own, so that Ctrl-C in a terminal
// reaches the tests and not the servers below them.
//
// On Linux the kernel ends the process with the operating system thread that
// started it. That thread therefore stays locked to one goroutine until the
// process has ended, and dies with this program only.
func start(cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		p.err = cmd.Wait()
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("testenv: start %s: %w", cmd.Path, err)
	}
	return p, nil
}

// awaitReady returns nil when ready holds, and errEndedEarly if the process ends
// before that.
func (p *process) awaitReady(ready func() bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	err := poll(ctx, func() bool { return p.ended() || ready() })
	if p.ended() {
		return errEndedEarly
	}
	if err != nil {
		return errors.Join(fmt.Errorf("not ready in %s", startTimeout), p.end(syscall.SIGKILL))
	}
	return nil
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// end sends the signal and waits until the process has ended, killing it when it
// takes too long. A process that has ended already is no error.
func (p *process) end(signal os.Signal) error {
	if p.ended() {
		return nil
	}
	if err := p.send(signal); err != nil {
		return err
	}
	timeout := time.NewTimer(stopTimeout)
	defer timeout.Stop()
	select {
	case <-p.done:
		return nil
	case <-timeout.C:
		err := p.cmd.Process.Kill()
		<-p.done
		return errors.Join(fmt.Errorf("testenv: %s did not end in %s", p.cmd.Path, stopTimeout), err)
	}
}

// send sends the signal. A process that has ended already is no error.
func (p *process) send(signal os.Signal) error {
	if err := p.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("testenv: signal %s: %w", p.cmd.Path, err)
	}
	return nil
}

// Ports of servers are from below those that the system gives to whoever asks for
// any (ip_local_port_range, 32768 and up on Linux as it comes): a server that is
// stopped for a while must find its own again.
const (
	lowestPort  = 11_000 // above 10080, which browsers refuse
	highestPort = 32_000
	portTries   = 100
)

// FreePort returns a port of the loopback address that nobody listens on, and that
// nobody is given who does not name it. It stays the caller's, unless another program
// names it too.
func FreePort() (int, error) {
	failure := errors.New("all are taken")
	for range portTries {
		port := lowestPort + rand.IntN(highestPort-lowestPort)
		if _, taken := ownPorts.LoadOrStore(port, true); taken {
			continue
		}
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			return port, l.Close()
		}
		failure = err
	}
	return 0, fmt.Errorf("testenv: find a free port: %w", failure)
}

// ownPorts are those that FreePort has tried in this program.
var ownPorts sync.Map

// onFreePort calls run with a free port, and with another one if the server
// ended early: somebody may have taken the port between our look and its start.
func onFreePort(run func(port int) error) error {
	var failure error
	for range 3 {
		port, err := FreePort()
		if err != nil {
			return err
		}
		if failure = run(port); !errors.Is(failure, errEndedEarly) {
			return failure
		}
	}
	return failure
}
