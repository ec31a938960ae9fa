package main

import (
	"context"
	"net/http"
	"time"

	"github.com/sekali/sekali/client"
)

type resultCommand struct {
	clientFlags
	Key  string        `arg:"" help:"The key of the job."`
	Wait time.Duration `placeholder:"30s" usage:"[--wait 30s]" help:"Wait so long for the job to finish."`
}

// Help explains the command.
func (resultCommand) Help() string {
	return `Prints the result of a job, byte for byte; with -o json the whole job. The exit code is 1 if the job failed or was cancelled, and 5 if it has not finished.

Examples:
  sekali result order-42
  sekali result order-42 --wait 10m > invoice.json`
}

// Run prints the result.
func (c resultCommand) Run(ctx context.Context, t terminal) error {
	r := client.Request{Method: http.MethodGet, Path: jobPath(c.Key, "")}
	if c.Wait > 0 {
		r = waiting(r, c.Wait)
	}
	deadline := time.Now().Add(c.Wait)
	got, err := c.send(ctx, r)
	if err != nil {
		return err
	}
	return c.outcome(ctx, t, c.Key, got, deadline)
}
