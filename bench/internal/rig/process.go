// Package rig starts what is measured, each in a process of its own on the
// loopback address, and reads what it costs: processor time, memory, write-ahead
// log. It reads /proc and so runs on Linux only.
package rig

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// ticksPerSecond is the unit of processor times in /proc: USER_HZ, which is 100
// on every architecture that Go and Postgres run on.
const ticksPerSecond = 100

// startTimeout is for a server on a machine under load; a start takes a tenth of
// a second.
const startTimeout = 30 * time.Second

// Process is one running server.
type Process struct {
	Name    string
	Address string // host:port that it serves at

	cmd    *exec.Cmd
	output string // file that it writes to
	exited chan struct{}
}

// launch starts cmd, which writes to a file in the folder, and waits until find
// finds its address there.
func launch(name, folder string, cmd *exec.Cmd, find func(output string) string) (*Process, error) {
	file, err := os.CreateTemp(folder, name+"-*.log")
	if err != nil {
		return nil, fmt.Errorf("rig: %s: %w", name, err)
	}
	defer file.Close()
	cmd.Stdout, cmd.Stderr = file, file
	p := &Process{Name: name, cmd: cmd, output: file.Name(), exited: make(chan struct{})}
	if err := p.start(); err != nil {
		return nil, fmt.Errorf("rig: start %s: %w", name, err)
	}
	if p.Address, err = p.await(find); err != nil {
		return nil, errors.Join(err, p.Kill())
	}
	return p, nil
}

// start starts the process, which dies with this one: the kernel sees to it when
// the thread ends that started it, so that thread waits for the process.
func (p *Process) start() error {
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			_ = p.cmd.Wait() // killed, mostly
			close(p.exited)
		}
	}()
	return <-started
}

func (p *Process) await(find func(output string) string) (string, error) {
	deadline := time.NewTimer(startTimeout)
	defer deadline.Stop()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for {
		text, err := os.ReadFile(p.output)
		if err != nil {
			return "", fmt.Errorf("rig: read the output of %s: %w", p.Name, err)
		}
		if address := find(string(text)); address != "" {
			return address, nil
		}
		select {
		case <-p.exited:
			return "", fmt.Errorf("rig: %s ended at once: %s", p.Name, text)
		case <-deadline.C:
			return "", fmt.Errorf("rig: %s does not serve: %s", p.Name, text)
		case <-ticker.C:
		}
	}
}

// Kill ends the process at once, and returns when it has ended.
func (p *Process) Kill() error { return p.end(syscall.SIGKILL) }

// Stop asks the process to end in good order, and returns when it has ended.
func (p *Process) Stop() error { return p.end(syscall.SIGTERM) }

func (p *Process) end(s syscall.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("rig: end %s: %w", p.Name, err)
	}
	<-p.exited
	return nil
}

// PID returns the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Log returns what the process has written so far.
func (p *Process) Log() string {
	text, err := os.ReadFile(p.output)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// CPU returns the processor time that the process has used.
func (p *Process) CPU() (time.Duration, error) {
	s, err := readStat(p.PID())
	return s.own, err
}

// RSS returns the memory that the process has in use, and the most it ever had,
// in bytes.
func (p *Process) RSS() (now, peak int64, err error) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p.PID()), "status"))
	if err != nil {
		return 0, 0, fmt.Errorf("rig: memory of %s: %w", p.Name, err)
	}
	for line := range bytes.Lines(text) {
		fields := strings.Fields(string(line))
		if len(fields) < 2 {
			continue
		}
		kilobytes, _ := strconv.ParseInt(fields[1], 10, 64) // 0 for the lines that are no numbers
		switch fields[0] {
		case "VmRSS:":
			now = kilobytes << 10
		case "VmHWM:":
			peak = kilobytes << 10
		}
	}
	return now, peak, nil
}

// stat is what /proc tells about a process.
type stat struct {
	parent int
	own    time.Duration // processor time, user and system
}

func readStat(pid int) (stat, error) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return stat{}, fmt.Errorf("rig: processor time: %w", err)
	}
	return parseStat(string(text))
}

// parseStat reads the line of /proc/PID/stat; the program's name, in brackets,
// may hold anything.
func parseStat(line string) (stat, error) {
	fields := strings.Fields(line[strings.LastIndexByte(line, ')')+1:])
	if len(fields) < 13 {
		return stat{}, fmt.Errorf("rig: unknown form of /proc/PID/stat: %q", line)
	}
	var numbers [3]int64
	for i, field := range []string{fields[1], fields[11], fields[12]} {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return stat{}, fmt.Errorf("rig: /proc/PID/stat: %w", err)
		}
		numbers[i] = n
	}
	tick := time.Second / ticksPerSecond
	return stat{
		parent: int(numbers[0]),
		own:    time.Duration(numbers[1]+numbers[2]) * tick,
	}, nil
}
