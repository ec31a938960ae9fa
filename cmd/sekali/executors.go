package main

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sekali/sekali/api"
)

type executorsCommand struct{ clientFlags }

// Help explains the command.
func (executorsCommand) Help() string {
	return `Shows each job type over all processes: what runs it, what waits and why, and how the attempts of the last hour ended.

Examples:
  sekali executors
  sekali executors -o json`
}

// Run shows how the executors stand.
func (c executorsCommand) Run(ctx context.Context, t terminal) error {
	var list api.ExecutorList
	got, err := c.get(ctx, "/executors", &list)
	if err != nil {
		return err
	}
	if c.json() {
		return t.document(got.Body)
	}
	if list.Capped {
		t.note("there are more unfinished jobs than were counted: the numbers are lower bounds.")
	}
	return showExecutors(t, list.Executors)
}

var executorHead = []string{
	"NAME", "EXECUTOR", "STATE", "BUSY", "FREE", "LIMITS", "WAITING", "SUCCEEDED", "FAILED", "LOST", "MEAN", "P95", "HEARTBEAT", "WHY",
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
		e.Name, orNone(e.Executor), state, strconv.Itoa(e.Busy), fmt.Sprintf("%d of %d", e.Free, e.Slots), limitsOf(e.Limits), strconv.Itoa(waits),
		strconv.Itoa(e.Succeeded), strconv.Itoa(e.Failed), strconv.Itoa(e.Lost), milliseconds(e.MeanMS), milliseconds(e.P95MS),
		orDash(e.LastHeartbeatAt), orNone(e.Waiting.Why),
	}
}

// limitsOf tells the limits of a type in one cell.
func limitsOf(l *api.Limits) string {
	var parts []string
	if l != nil && l.Concurrency != nil {
		parts = append(parts, fmt.Sprintf("%d at once", *l.Concurrency))
	}
	if l != nil && l.Rate != nil {
		parts = append(parts, *l.Rate)
	}
	return cmp.Or(strings.Join(parts, ", "), "-")
}
