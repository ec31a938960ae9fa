package main

import (
	"context"
	"net/http"

	"github.com/sekali/sekali/api"
)

type pauseCommand struct {
	clientFlags
	Type string `arg:"" help:"The job type."`
}

// Run pauses the type.
func (c pauseCommand) Run(ctx context.Context, t terminal) error {
	return c.switchType(ctx, t, c.Type, "/pause", "no process starts jobs of the type now; what runs already runs on")
}

type resumeCommand struct {
	clientFlags
	Type string `arg:"" help:"The job type."`
}

// Run resumes the type.
func (c resumeCommand) Run(ctx context.Context, t terminal) error {
	return c.switchType(ctx, t, c.Type, "/resume", "jobs of the type start again")
}

// switchType pauses or resumes, says so, and shows how the type stands.
func (f clientFlags) switchType(ctx context.Context, t terminal, name, act, done string) error {
	got, err := f.send(ctx, call{method: http.MethodPost, path: executorPath(name, act)})
	if err != nil {
		return err
	}
	if f.json() {
		return t.document(got.body)
	}
	var e api.Executor
	if err := got.decode(&e); err != nil {
		return err
	}
	t.note("%s", done)
	return showExecutors(t, []api.Executor{e})
}
