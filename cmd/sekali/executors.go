package main

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/sekali/sekali/api"
)

type executorsCommand struct{ clientFlags }

// Run shows how the executors stand.
func (c executorsCommand) Run(ctx context.Context, t terminal) error {
	got, err := c.send(ctx, call{method: http.MethodGet, path: "/executors"})
	if err != nil {
		return err
	}
	if c.json() {
		return t.document(got.body)
	}
	var list api.ExecutorList
	if err := got.decode(&list); err != nil {
		return err
	}
	if list.Capped {
		t.note("there are more unfinished jobs than were counted: the numbers are lower bounds.")
	}
	return showExecutors(t, list.Executors)
}

var executorHead = []string{
	"NAME", "EXECUTOR", "STATE", "BUSY", "FREE", "WAITING", "SUCCEEDED", "FAILED", "LOST", "MEAN", "P95", "HEARTBEAT", "WHY",
}

// showExecutors prints a table of the executors, and one of what they run.
func showExecutors(t terminal, executors []api.Executor) error {
	var rows, running [][]string
	for _, e := range executors {
		rows = append(rows, executorRow(e))
		for _, r := range e.Running {
			running = append(running, []string{
				e.Name, r.Key, strconv.Itoa(r.Attempt), r.WorkerID, r.StartedAt.Format(time.RFC3339), r.LeaseExpiresAt.Format(time.RFC3339),
			})
		}
	}
	if err := t.table(executorHead, rows); err != nil || len(running) == 0 {
		return err
	}
	fmt.Fprintln(t.out)
	return t.table([]string{"RUNNING", "KEY", "ATTEMPT", "WORKER", "SINCE", "LEASE UNTIL"}, running)
}

func executorRow(e api.Executor) []string {
	state := "active"
	switch {
	case e.PausedAt != nil:
		state = "paused"
	case !e.Configured:
		state = "not configured"
	}
	waits := e.Waiting.Pending + e.Waiting.Scheduled + e.Waiting.Retrying + e.Waiting.Blocked
	return []string{
		e.Name, orNone(e.Executor), state, strconv.Itoa(e.Busy), fmt.Sprintf("%d of %d", e.Free, e.Slots), strconv.Itoa(waits),
		strconv.Itoa(e.Succeeded), strconv.Itoa(e.Failed), strconv.Itoa(e.Lost), milliseconds(e.MeanMS), milliseconds(e.P95MS),
		orDash(e.LastHeartbeatAt), orNone(e.Waiting.Why),
	}
}
