//go:build !unix

package gateway

// openFiles cannot be told here.
func openFiles() uint64 { return 0 }
