package testenv

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"syscall"
)

// removeAtEnd waits for the end of its input and removes the folder. It tries
// again while a dying server still writes there.
const removeAtEnd = `while read -r line; do :; done
for try in 1 2 3 4 5; do rm -rf -- "$1" && exit; sleep 1; done`

// folder is a temporary folder that goes with this program, however that ends: a
// shell waits at a pipe that only we hold, which the kernel closes for us.
type folder struct {
	path    string
	owner   *syscall.Credential // nil: as we are
	remover *exec.Cmd
	held    io.Closer
}

func newFolder(name string) (*folder, error) {
	path, err := os.MkdirTemp("", "sekali-test-"+name+"-")
	if err != nil {
		return nil, fmt.Errorf("testenv: create a folder: %w", err)
	}
	cmd := exec.Command("/bin/sh", "-c", removeAtEnd, "remove-at-end", path)
	cmd.Dir = "/"
	// Apart from us: neither Ctrl-C nor a kill of our group reaches it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	held, err := cmd.StdinPipe()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("testenv: pipe: %w", err), os.RemoveAll(path))
	}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("testenv: start a shell: %w", err), os.RemoveAll(path))
	}
	return &folder{path: path, remover: cmd, held: held}, nil
}

// remove removes the folder now, and returns when it is gone.
func (f *folder) remove() error {
	if err := f.held.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("testenv: close pipe: %w", err)
	}
	if f.remover.ProcessState != nil {
		return nil
	}
	if err := f.remover.Wait(); err != nil {
		return fmt.Errorf("testenv: remove %s: %w", f.path, err)
	}
	return nil
}

// lend gives the folder to another user where we are root, as whom Postgres and
// PgBouncer refuse to run.
func (f *folder) lend() error {
	if os.Geteuid() != 0 {
		return nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		if u, err = user.Lookup("nobody"); err != nil {
			return fmt.Errorf("find a user to run as instead of root: %w", err)
		}
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return fmt.Errorf("user id %q: %w", u.Uid, err)
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return fmt.Errorf("group id %q: %w", u.Gid, err)
	}
	f.owner = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return os.Chown(f.path, int(uid), int(gid))
}

// write writes a file that the folder's user owns.
func (f *folder) write(path, text string) error {
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return err
	}
	if f.owner == nil {
		return nil
	}
	return os.Chown(path, int(f.owner.Uid), int(f.owner.Gid))
}
