//go:build !linux && !darwin && !freebsd

package repository

// freeBytes cannot be told here.
func freeBytes(string) int64 { return -1 }
