package main

import (
	"context"
	"fmt"
	"io"
	"net/http"

	"github.com/sekali/sekali/client"
)

type resolveCommand struct {
	clientFlags
	keyFlag
	Key    string `arg:"" help:"The key of the job."`
	Status string `required:"" enum:"succeeded,failed" help:"How the job has ended: succeeded or failed."`
	Result string `placeholder:"JSON|@FILE|-" help:"What it gave, with --status succeeded: JSON, @FILE, or - for standard input."`
}

// Help explains the command.
func (resolveCommand) Help() string {
	return `Settles a job that failed with the outcome outcome_unknown: nobody knows whether its last attempt did its work. Find out with whoever received it, and say here how it ended.

Examples:
  sekali resolve order-42 --status succeeded --result '{"capture": "c_1"}'
  sekali resolve order-42 --status failed`
}

// Run settles the job.
func (c resolveCommand) Run(ctx context.Context, t terminal) error {
	body, err := c.body(ctx, t.in)
	if err != nil {
		return err
	}
	got, err := c.send(ctx, client.Request{Method: http.MethodPost, Path: jobPath(c.Key, "/resolve"), Key: c.callKey(t), Body: body})
	if err != nil {
		return err
	}
	noteReplay(t, got)
	_, err = c.showJob(t, got)
	return err
}

// body is the resolution, with the result's bytes as they are.
func (c resolveCommand) body(ctx context.Context, in io.Reader) ([]byte, error) {
	if c.Result == "" {
		return fmt.Appendf(nil, `{"status":%q}`, c.Status), nil
	}
	if c.Status == "failed" {
		return nil, &usageError{"--result is for --status succeeded: a failed job has no result"}
	}
	result, err := readJSON(ctx, "--result", c.Result, in)
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(nil, `{"status":%q,"result":%s}`, c.Status, result), nil
}
