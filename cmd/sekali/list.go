package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/sekali/sekali/api"
)

type listCommand struct {
	clientFlags
	filterFlags `set:"statuses=scheduled, pending, processing, retrying, succeeded, failed, cancelled"`

	Limit int  `default:"50" placeholder:"N" help:"At most so many jobs."`
	All   bool `help:"All jobs, however many there are."`
}

// Help explains the command.
func (listCommand) Help() string {
	return `Lists jobs, the newest first.

Examples:
  sekali list --status failed --created-after 24h
  sekali list --type invoice_generate --all -o json`
}

// Run lists jobs.
func (c listCommand) Run(ctx context.Context, t terminal) error {
	most := c.Limit
	if c.All {
		most = 0
	} else if most < 1 {
		return &usageError{"--limit must be at least 1; --all lists all jobs"}
	}
	list := jobList{t: t, json: c.json()}
	more, err := c.list(ctx, most, &list)
	if err != nil {
		return err
	}
	if more {
		t.note("there are more jobs: --limit N or --all shows them.")
	}
	return list.end()
}

// list prints page by page, and reports whether there are more jobs than that.
func (c listCommand) list(ctx context.Context, most int, list *jobList) (more bool, err error) {
	gateway, err := c.connect(callRetries, callPause)
	if err != nil {
		return false, err
	}
	for p, err := range c.pages(ctx, gateway, c.query(), most) {
		if err != nil {
			return false, err
		}
		if err := list.add(p.jobs); err != nil {
			return false, err
		}
		more = p.more
	}
	return more, nil
}

// jobList prints jobs while they come: a table for each page, or one document.
type jobList struct {
	t     terminal
	json  bool
	count int
}

var listHead = []string{"KEY", "TYPE", "STATUS", "ATTEMPTS", "BUSINESS KEY", "CREATED", "OUTCOME", "ERROR"}

func (l *jobList) add(jobs []listed) error {
	if !l.json {
		if l.count > 0 && len(jobs) == 0 {
			return nil
		}
		l.count += len(jobs)
		return l.t.table(listHead, listRows(jobs))
	}
	for _, j := range jobs {
		before := ",\n    "
		if l.count == 0 {
			before = "{\n  \"jobs\": [\n    "
		}
		var b bytes.Buffer
		b.WriteString(before)
		if err := json.Indent(&b, j.raw, "    ", "  "); err != nil {
			return fmt.Errorf("print a job: %w", err)
		}
		l.count++
		if _, err := l.t.out.Write(b.Bytes()); err != nil {
			return err
		}
	}
	return nil
}

// end closes the document.
func (l *jobList) end() error {
	if !l.json {
		return nil
	}
	text := "\n  ]\n}\n"
	if l.count == 0 {
		text = "{\n  \"jobs\": []\n}\n"
	}
	_, err := io.WriteString(l.t.out, text)
	return err
}

func listRows(jobs []listed) [][]string {
	rows := make([][]string, len(jobs))
	for i, j := range jobs {
		row := jobRow(j.Job)
		rows[i] = []string{row[0], row[1], row[2], row[3], orNone(j.BusinessKey), j.CreatedAt.Format(time.RFC3339), row[4], row[5]}
	}
	return rows
}

// listed is a job as a list tells it, and the bytes of that.
type listed struct {
	api.Job

	raw json.RawMessage
}
