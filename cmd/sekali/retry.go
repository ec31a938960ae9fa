package main

import (
	"context"
	"net/http"
)

type retryCommand struct {
	clientFlags
	keyFlag
	Key string `arg:"" help:"The key of the job."`
}

// Run brings the job back.
func (c retryCommand) Run(ctx context.Context, t terminal) error {
	got, err := c.send(ctx, call{method: http.MethodPost, path: jobPath(c.Key, "/retry"), key: c.get(t)})
	if err != nil {
		return err
	}
	noteReplay(t, got)
	_, err = c.showJob(t, got)
	return err
}

// noteReplay says that nothing was changed by this call.
func noteReplay(t terminal, got answer) {
	if got.header.Get("Idempotent-Replayed") == "true" {
		t.note("this call had been made before, and has changed nothing now; this is its first answer. The job is %s by now.", got.header.Get("Job-Status"))
	}
}
