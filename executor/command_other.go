//go:build !unix

package executor

import (
	"errors"
	"os/exec"
)

// supported reports why this system cannot run commands: without process
// groups, what a program leaves behind could not be ended.
func supported() error {
	return errors.New("executor: command needs a Unix system (process groups); use http instead")
}

func ownGroup(*exec.Cmd) {}

func await(cmd *exec.Cmd) error { return cmd.Wait() }
