package main

import (
	"context"
	"fmt"
	"net/http"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/client"
)

type retryCommand struct {
	clientFlags
	keyFlag
	filterFlags `set:"statuses=failed, cancelled"`
	bulkFlags

	Key string `arg:"" optional:"" help:"The key of the job; or say with flags which jobs."`
}

// Help explains the command.
func (retryCommand) Help() string {
	return `Brings a failed or cancelled job back, with as many new attempts as it had at first.

With flags it brings back all jobs that have them, the failed ones if --status names no others. The key of such a run is printed: with --key the same run goes on where it was interrupted, and brings no job back twice, not even one that has failed again. --dry-run lists the jobs first.

Examples:
  sekali retry order-42
  sekali retry --status failed --type payment_capture --created-after 2h --dry-run
  sekali retry --status failed --type payment_capture --key after-the-outage`
}

// Run brings the job back, or those that the filters mean.
func (c retryCommand) Run(ctx context.Context, t terminal) error {
	if err := c.check(c.Key, c.filterFlags); err != nil {
		return err
	}
	if c.Key == "" {
		return c.many(ctx, t)
	}
	got, err := c.send(ctx, client.Request{Method: http.MethodPost, Path: jobPath(c.Key, "/retry"), Key: c.callKey(t)})
	if err != nil {
		return err
	}
	noteReplay(t, got)
	_, err = c.showJob(t, got)
	return err
}

// longestRun leaves room in a key for what names the job: a colon and its id.
const longestRun = 200

func (c retryCommand) many(ctx context.Context, t terminal) error {
	if len(c.CallKey) > longestRun {
		return &usageError{fmt.Sprintf("--key of a run over many jobs has at most %d characters", longestRun)}
	}
	if c.filterFlags.Status == "" {
		c.filterFlags.Status = "failed"
	}
	key := c.CallKey
	if key == "" {
		key = newCallKey()
	}
	b := &bulk{
		clientFlags: c.clientFlags, bulkFlags: c.bulkFlags, t: t, command: "retry", key: key, filter: c.filterFlags,
		words: words{accepted: "brought back", replayed: "brought back before by this run", skipped: "changed meanwhile"},
		wants: func(api.Job) bool { return true },
		call: func(j api.Job) client.Request {
			return client.Request{Method: http.MethodPost, Path: jobPath(j.Key, "/retry"), Key: key + ":" + j.ID}
		},
	}
	if c.CallKey == "" && !c.DryRun {
		t.note("The key of this run is %s. %s", key, b.again(counts{}))
	}
	return b.run(ctx)
}

// noteReplay says that nothing was changed by this call.
func noteReplay(t terminal, got client.Answer) {
	if got.Header.Get("Idempotent-Replayed") == "true" {
		t.note("this call had been made before, and has changed nothing now; this is its first answer. The job is %s by now.", got.Header.Get("Job-Status"))
	}
}
