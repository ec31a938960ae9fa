package main

import (
	"context"
	"net/http"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/client"
)

type pauseCommand struct {
	clientFlags
	Type string `arg:"" help:"The job type."`
}

// Help explains the command.
func (pauseCommand) Help() string {
	return `Keeps jobs of a type from being started, by any process and over restarts. What runs goes on, and jobs are accepted as before: they wait. sekali resume lets them start.

Examples:
  sekali pause payment_capture`
}

// Run pauses the type.
func (c pauseCommand) Run(ctx context.Context, t terminal) error {
	return c.switchType(ctx, t, c.Type, "/pause", "no process starts jobs of the type now; what runs already runs on")
}

type resumeCommand struct {
	clientFlags
	Type string `arg:"" help:"The job type."`
}

// Help explains the command.
func (resumeCommand) Help() string {
	return `Lets jobs of a paused type start again.

Examples:
  sekali resume payment_capture`
}

// Run resumes the type.
func (c resumeCommand) Run(ctx context.Context, t terminal) error {
	return c.switchType(ctx, t, c.Type, "/resume", "jobs of the type start again")
}

// switchType pauses or resumes, says so, and shows how the type stands.
func (f clientFlags) switchType(ctx context.Context, t terminal, name, act, done string) error {
	got, err := f.send(ctx, client.Request{Method: http.MethodPost, Path: executorPath(name, act)})
	if err != nil {
		return err
	}
	var e api.Executor
	if err := f.decoded(got, &e); err != nil {
		return err
	}
	if f.json() {
		return t.document(got.Body)
	}
	t.note("%s", done)
	return showExecutors(t, []api.Executor{e})
}
