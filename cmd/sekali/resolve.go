package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
)

type resolveCommand struct {
	clientFlags
	keyFlag
	Key    string `arg:"" help:"The key of the job."`
	Status string `required:"" enum:"succeeded,failed" help:"How the job has ended: succeeded or failed."`
	Result string `placeholder:"JSON|@FILE|-" help:"What it gave, with --status succeeded: JSON, @FILE, or - for standard input."`
}

// Run settles the job.
func (c resolveCommand) Run(ctx context.Context, t terminal) error {
	body, err := c.body(t.in)
	if err != nil {
		return err
	}
	got, err := c.send(ctx, call{method: http.MethodPost, path: jobPath(c.Key, "/resolve"), key: c.get(t), body: body})
	if err != nil {
		return err
	}
	noteReplay(t, got)
	_, err = c.showJob(t, got)
	return err
}

// body is the resolution, with the result's bytes as they are.
func (c resolveCommand) body(in io.Reader) ([]byte, error) {
	if c.Result == "" {
		return fmt.Appendf(nil, `{"status":%q}`, c.Status), nil
	}
	if c.Status == "failed" {
		return nil, &usageError{"--result is for --status succeeded: a failed job has no result"}
	}
	result, err := readData(c.Result, in)
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(nil, `{"status":%q,"result":%s}`, c.Status, result), nil
}

// readData reads JSON from an argument: the text itself, @FILE, or - for standard
// input.
func readData(argument string, in io.Reader) ([]byte, error) {
	data, err := []byte(argument), error(nil)
	file, isFile := strings.CutPrefix(argument, "@")
	switch {
	case argument == "-":
		data, err = io.ReadAll(in)
	case isFile:
		data, err = os.ReadFile(file)
	}
	if err != nil {
		return nil, &usageError{err.Error()}
	}
	if data = bytes.TrimSpace(data); !json.Valid(data) {
		return nil, &usageError{"the result is no JSON; a text is written in quotes: '\"text\"'"}
	}
	return data, nil
}
