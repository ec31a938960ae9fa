//go:build unix && !linux

package executor

import (
	"os/exec"
	"syscall"
)

// supported reports why this system cannot run commands.
func supported() error { return nil }

// ownGroup makes the program the leader of a new process group. It does not
// die with the gateway: that needs Linux.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
}

// await waits for the program's end and kills what is left of its group. The
// leader has been reaped by then: were nobody left in the group, its number
// could in theory belong to another one already. Linux does without that gap.
func await(cmd *exec.Cmd) error {
	err := cmd.Wait()
	// It fails if nobody is left, which is what it is for.
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	return err
}
