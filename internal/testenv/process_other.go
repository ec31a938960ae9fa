//go:build unix && !linux

package testenv

import "syscall"

// attributes puts a process into a group of its own. Only Linux can end it with
// its parent: elsewhere a killed test program leaves its servers running.
func attributes(syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
