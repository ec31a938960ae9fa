package main

import "io"

// Run is the program with what it reads and writes.
func Run(in io.Reader, out, notes io.Writer, args ...string) int {
	return run(args, terminal{in: in, out: out, notes: notes})
}
