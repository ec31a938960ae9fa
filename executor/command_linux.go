package executor

import (
	"errors"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// supported reports why this system cannot run commands.
func supported() error { return nil }

// ownGroup makes the program the leader of a new process group, which dies
// with the gateway.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// await waits for the program's end and kills what is left of its group. The
// end is observed without reaping: as long as the leader is a zombie nobody
// else can get its number, so the kill reaches this group alone.
func await(cmd *exec.Cmd) error {
	for {
		err := unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	// It fails if nobody is left, which is what it is for.
	_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
	return cmd.Wait()
}
