package main

import (
	"context"
	"net/http"
)

type cancelCommand struct {
	clientFlags
	Key string `arg:"" help:"The key of the job."`
}

// Run cancels the job, and says whether it has ended or was asked to.
func (c cancelCommand) Run(ctx context.Context, t terminal) error {
	got, err := c.send(ctx, call{method: http.MethodPost, path: jobPath(c.Key, "/cancel")})
	if err != nil {
		return err
	}
	if got.status == http.StatusAccepted {
		t.note("the job is running: whoever runs it learns of this within a heartbeat. If its work is done by then, it still succeeds.")
	}
	_, err = c.showJob(t, got)
	return err
}
