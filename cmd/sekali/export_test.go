package main

import (
	"context"
	"io"
	"log/slog"
	"strings"
)

// Run is the program with what it reads and writes.
func Run(in io.Reader, out, notes io.Writer, args ...string) int {
	return run(args, terminal{in: in, out: out, notes: notes})
}

// RetryMany is sekali retry --type, whose ctx can be ended.
func RetryMany(ctx context.Context, notes io.Writer, url, jobType string) error {
	c := retryCommand{clientFlags: clientFlags{URL: url}, filterFlags: filterFlags{Type: jobType}}
	return c.Run(ctx, terminal{in: strings.NewReader(""), out: io.Discard, notes: notes})
}

// ReadJSON is the reading of --data -.
func ReadJSON(ctx context.Context, in io.Reader) error {
	_, err := readJSON(ctx, "--data", "-", in)
	return err
}

// LimitMemory is what serve does before it opens anything.
func LimitMemory(ctx context.Context, log *slog.Logger, contained func() (uint64, error)) {
	limitMemory(ctx, log, contained)
}

// Unpackaged is the text of an error for people.
var Unpackaged = unpackaged
