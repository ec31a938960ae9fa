//go:build unix

package repository

import (
	"errors"
	"net"
	"os"
	"syscall"
)

// hungUp looks, without waiting and without taking anything, whether the other
// side has closed an idle connection. Postgres says why ('E') before it does;
// whatever else it may say to an idle client leaves the connection usable.
func hungUp(c net.Conn) bool {
	socket, ok := c.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return true
	}
	var (
		first [1]byte
		n     int
		peek  error
	)
	// Control, not Read: the deadline of the last statement is over by now.
	err = raw.Control(func(fd uintptr) {
		n, _, peek = syscall.Recvfrom(int(fd), first[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	})
	if err != nil {
		return true
	}
	if errors.Is(peek, syscall.EAGAIN) || errors.Is(peek, syscall.EINTR) {
		return false
	}
	return peek != nil || n == 0 || first[0] == 'E'
}

// lockFile takes the lock of an open file, which ends with the process at the
// latest, and returns errLocked if another process has it.
func lockFile(f *os.File) error {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return errLocked
	}
	return err
}
