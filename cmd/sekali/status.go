package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/client"
)

type statusCommand struct {
	clientFlags
	Key   string `arg:"" help:"The key of the job."`
	Watch bool   `usage:"[--watch]" help:"Go on until the job has finished, and print a line for each change."`
}

// Help explains the command.
func (statusCommand) Help() string {
	return `Shows how a job stands. With --watch it prints a line now and one for each change, ends with the job, and exits 1 if that failed or was cancelled; with -o json each line is the job.

Examples:
  sekali status order-42
  sekali status order-42 --watch`
}

// Run shows how the job stands.
func (c statusCommand) Run(ctx context.Context, t terminal) error {
	got, err := c.send(ctx, client.Request{Method: http.MethodGet, Path: jobPath(c.Key, "")})
	if err != nil {
		return err
	}
	if c.Watch {
		return c.watch(ctx, t, got)
	}
	_, err = c.showJob(t, got)
	return err
}

// watch tells each version of the job that it gets to see.
func (c statusCommand) watch(ctx context.Context, t terminal, got client.Answer) error {
	w := watcher{clientFlags: c.clientFlags, t: t}
	for {
		if got.Status != http.StatusNotModified {
			j, err := c.tellChange(t, got)
			if err != nil || finished(j) {
				return err
			}
		}
		r := client.Request{Method: http.MethodGet, Path: jobPath(c.Key, ""), Header: http.Header{"If-None-Match": {got.Header.Get("ETag")}}}
		var err error
		if got, err = w.ask(ctx, r); err != nil {
			return err
		}
		if err := c.pause(ctx, got, longestWait); err != nil {
			return err
		}
	}
}

// tellChange prints one line about the job. The error of one that has ended without
// success is *jobFailedError.
func (c statusCommand) tellChange(t terminal, got client.Answer) (api.Job, error) {
	var j api.Job
	if err := c.decoded(got, &j); err != nil {
		return j, err
	}
	if err := c.printLine(t, got.Body, j); err != nil {
		return j, err
	}
	if finished(j) && j.Status != "succeeded" {
		return j, &jobFailedError{c.Key, j}
	}
	return j, nil
}

func (c statusCommand) printLine(t terminal, body []byte, j api.Job) error {
	if c.json() {
		var line bytes.Buffer
		if err := json.Compact(&line, body); err != nil {
			return c.noGateway(err)
		}
		line.WriteByte('\n')
		_, err := t.out.Write(line.Bytes())
		return err
	}
	words := []string{time.Now().Format(time.TimeOnly), t.paint(fmt.Sprintf("%-10s", plain(j.Status))), fmt.Sprintf("%d of %d attempts", j.Attempts, j.MaxAttempts)}
	if j.NextAttemptAt != nil && j.Status == "retrying" {
		words = append(words, "next at "+j.NextAttemptAt.Format(time.RFC3339))
	}
	if j.Error != nil {
		words = append(words, plain(j.Error.Code)+": "+plain(j.Error.Detail))
	}
	_, err := fmt.Fprintln(t.out, strings.Join(words, "  "))
	return err
}
