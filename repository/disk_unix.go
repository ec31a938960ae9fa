//go:build linux || darwin || freebsd

package repository

import "golang.org/x/sys/unix"

// freeBytes is what an ordinary user may still write in the folder; -1: not known.
func freeBytes(folder string) int64 {
	var disk unix.Statfs_t
	if err := unix.Statfs(folder, &disk); err != nil {
		return -1
	}
	return int64(disk.Bavail) * int64(disk.Bsize)
}
