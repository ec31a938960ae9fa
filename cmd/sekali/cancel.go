package main

import (
	"context"
	"net/http"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/client"
)

type cancelCommand struct {
	clientFlags
	filterFlags `set:"statuses=scheduled, pending, processing, retrying"`
	bulkFlags

	Key string `arg:"" optional:"" help:"The key of the job; or say with flags which jobs."`
}

// Help explains the command.
func (cancelCommand) Help() string {
	return `Cancels a job: one that waits at once; whoever runs it is asked to stop, and if its work is done by then, it still succeeds. It may be repeated.

With flags it cancels all jobs that have them and have not finished. --dry-run lists them first.

Examples:
  sekali cancel order-42
  sekali cancel --type thumbnail --status pending --dry-run
  sekali cancel --type thumbnail --status pending`
}

// Run cancels the job, or those that the filters mean.
func (c cancelCommand) Run(ctx context.Context, t terminal) error {
	if err := c.check(c.Key, c.filterFlags); err != nil {
		return err
	}
	if c.Key == "" {
		return c.many(ctx, t)
	}
	got, err := c.send(ctx, client.Request{Method: http.MethodPost, Path: jobPath(c.Key, "/cancel")})
	if err != nil {
		return err
	}
	if got.Status == http.StatusAccepted {
		t.note("the job is running: whoever runs it learns of this within a heartbeat. If its work is done by then, it still succeeds.")
	}
	_, err = c.showJob(t, got)
	return err
}

// many cancels jobs by filter. All pages are walked, finished jobs left out: a job
// whose status changes meanwhile would be missed by a list of one status.
func (c cancelCommand) many(ctx context.Context, t terminal) error {
	b := &bulk{
		clientFlags: c.clientFlags, bulkFlags: c.bulkFlags, t: t, command: "cancel", filter: c.filterFlags,
		words: words{accepted: "cancelled or asked to stop", skipped: "finished meanwhile"},
		wants: func(j api.Job) bool { return !finished(j) },
		call: func(j api.Job) client.Request {
			return client.Request{Method: http.MethodPost, Path: jobPath(j.Key, "/cancel")}
		},
	}
	return b.run(ctx)
}
