package testenv

import "syscall"

// attributes puts a process into a group of its own and has the kernel send it
// the signal when the thread that started it ends.
func attributes(atParentsEnd syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: atParentsEnd}
}
