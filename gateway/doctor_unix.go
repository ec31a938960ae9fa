//go:build unix

package gateway

import "syscall"

// openFiles is how many files a process may have open that is started from here:
// what Go programs raise their limit to.
func openFiles() uint64 {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0
	}
	return uint64(limit.Max) //nolint:unconvert // an int64 on FreeBSD
}
