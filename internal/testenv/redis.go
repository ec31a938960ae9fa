package testenv

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// RedisServer is a private Redis that keeps nothing on disk.
type RedisServer struct {
	program string
	folder  *folder
	port    int
	process *process
}

// StartRedis starts a Redis and returns when it answers. It ends with this
// program; Stop ends it earlier.
func StartRedis() (*RedisServer, error) {
	program, err := redisProgram()
	if err != nil {
		return nil, err
	}
	folder, err := newFolder("redis")
	if err != nil {
		return nil, err
	}
	s := &RedisServer{program: program, folder: folder}
	if err := onFreePort(s.run); err != nil {
		return nil, errors.Join(fmt.Errorf("testenv: start Redis: %w", err), folder.remove())
	}
	return s, nil
}

// URL returns the address in the form that redis_url takes.
func (s *RedisServer) URL() string { return fmt.Sprintf("redis://%s/0", s.address()) }

// Kill ends the server at once, as a crash does. All keys are lost.
func (s *RedisServer) Kill() error { return s.process.end(syscall.SIGKILL) }

// Restart starts the server again at the same address, empty, after ending it if
// it still runs.
func (s *RedisServer) Restart() error {
	if err := s.Kill(); err != nil {
		return err
	}
	if err := s.run(s.port); err != nil {
		return fmt.Errorf("testenv: restart Redis: %w", err)
	}
	return nil
}

// Freeze stops the server's process: connections stand and are taken, and nothing
// is answered. Thaw lets it go on.
func (s *RedisServer) Freeze() error { return s.process.send(syscall.SIGSTOP) }

// Thaw takes a Freeze back, and does nothing to a server that runs.
func (s *RedisServer) Thaw() error { return s.process.send(syscall.SIGCONT) }

// Stop ends the server for good and removes its files.
func (s *RedisServer) Stop() error {
	return errors.Join(s.Thaw(), s.process.end(syscall.SIGTERM), s.folder.remove())
}

func (s *RedisServer) address() string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port))
}

func (s *RedisServer) run(port int) error {
	s.port = port
	cmd := exec.Command(s.program, "--port", strconv.Itoa(port), "--bind", "127.0.0.1",
		"--save", "", "--appendonly", "no", "--dir", s.folder.path,
		"--logfile", filepath.Join(s.folder.path, "server.log"))
	cmd.SysProcAttr = attributes(syscall.SIGKILL)
	p, err := start(cmd)
	if err != nil {
		return err
	}
	s.process = p
	return p.awaitReady(func() bool { return answersPing(s.address()) })
}

// answersPing speaks the few bytes of the protocol that are needed, so that this
// package depends on no client.
func answersPing(address string) bool {
	conn, err := net.DialTimeout("tcp", address, time.Second)
	if err != nil {
		return false
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return false
	}
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return false
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	return err == nil && strings.HasPrefix(line, "+PONG")
}
