package main

import (
	"io"
	"strings"

	"github.com/alecthomas/kong"
)

// Model is the whole command line.
func Model() *kong.Node {
	return newParser(terminal{in: nil, out: io.Discard, notes: io.Discard}).kong.Model.Node
}

// FlagsOf are the flags of a command, for the reference.
var FlagsOf = flagsOf

// Synopsis has the ways to type a command, one a line.
func Synopsis(command *kong.Node) string { return strings.Join(forms(command), "\n") }

// Painted is a table as a terminal with colours shows it.
func Painted(out io.Writer, head []string, rows [][]string) error {
	return terminal{out: out, colours: true}.table(head, rows)
}
