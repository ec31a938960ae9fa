package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sekali/sekali/api"
)

type inspectCommand struct {
	clientFlags
	Key string `arg:"" help:"The key of the job."`
}

// findings is what there is to know about one job.
type findings struct {
	asked    string // the key that was asked for, which may be an alias
	job      api.Job
	attempts []api.Attempt
	events   []api.Event
	executor *api.Executor // nil: not known
	ahead    []api.Job     // unfinished jobs that have its business key too
}

// Help explains the command.
func (inspectCommand) Help() string {
	return `Shows a job with its timeline, and says what it means: what each attempt did, what the job waits for, who repeated it, whether a lock or a lease ended too early, whether retries come too fast, which constraint refused, and what to do.

Examples:
  sekali inspect order-42
  sekali inspect order-42 -o json`
}

// Run shows the job, its timeline and what it means.
func (c inspectCommand) Run(ctx context.Context, t terminal) error {
	f := findings{asked: c.Key}
	var attempts api.AttemptList
	var events api.EventList
	var raw [3]json.RawMessage
	for i, part := range []struct {
		below    string
		document any
	}{{"", &f.job}, {"/attempts", &attempts}, {"/events", &events}} {
		got, err := c.get(ctx, jobPath(c.Key, part.below), part.document)
		if err != nil {
			return err
		}
		raw[i] = got.Body
	}
	f.attempts, f.events = attempts.Attempts, events.Events
	c.surroundings(ctx, &f)
	if c.json() {
		return c.print(t, raw, diagnose(f))
	}
	return f.show(t)
}

// surroundings looks at what the job may wait for. Without it there is less to
// say, and no reason to fail.
func (c inspectCommand) surroundings(ctx context.Context, f *findings) {
	if finished(f.job) {
		return
	}
	var e api.Executor
	if _, err := c.get(ctx, executorPath(f.job.Type, ""), &e); err == nil {
		f.executor = &e
	}
	if f.job.BusinessKey == nil || f.job.Status == "processing" {
		return
	}
	query := url.Values{"type": {f.job.Type}, "business_key": {*f.job.BusinessKey}, "limit": {"200"}}
	var list api.JobList
	if _, err := c.get(ctx, "/jobs?"+query.Encode(), &list); err == nil {
		f.ahead = slices.DeleteFunc(list.Jobs, func(j api.Job) bool { return !isAhead(j, f.job) })
	}
}

// isAhead reports whether a job that waits starts after the other one, which has its
// business key too: they run in the order of their arrival, and a job that was
// brought back arrives anew.
func isAhead(other, waiting api.Job) bool {
	if finished(other) || other.ID == waiting.ID {
		return false
	}
	return other.Status == "processing" || waiting.Generation > 1 || other.CreatedAt.Before(waiting.CreatedAt)
}

func (c inspectCommand) print(t terminal, raw [3]json.RawMessage, sentences []string) error {
	var attempts struct{ Attempts json.RawMessage }
	var events struct{ Events json.RawMessage }
	if err := cmp.Or(json.Unmarshal(raw[1], &attempts), json.Unmarshal(raw[2], &events)); err != nil {
		return err
	}
	said, err := json.Marshal(sentences)
	if err != nil {
		return err
	}
	return t.document(fmt.Appendf(nil, `{"job":%s,"attempts":%s,"events":%s,"diagnosis":%s}`, raw[0], attempts.Attempts, events.Events, said))
}

// show prints everything for people.
func (f findings) show(t terminal) error {
	if err := t.table(jobHead, [][]string{jobRow(f.job)}); err != nil {
		return err
	}
	var rows [][]string
	for _, e := range f.events {
		attempt := "-"
		if e.Attempt != nil {
			attempt = strconv.Itoa(*e.Attempt)
		}
		rows = append(rows, []string{e.Time.Format(time.RFC3339Nano), e.Event, attempt, dataText(e.Data)})
	}
	fmt.Fprintln(t.out)
	if err := t.table([]string{"TIME", "EVENT", "ATTEMPT", "DATA"}, rows); err != nil {
		return err
	}
	fmt.Fprintln(t.out)
	for _, sentence := range diagnose(f) {
		fmt.Fprintln(t.out, "-", plain(sentence))
	}
	return nil
}

func dataText(data map[string]any) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(data)) {
		value, isText := data[name].(string)
		if !isText {
			encoded, _ := json.Marshal(data[name]) // it came as JSON
			value = string(encoded)
		}
		parts = append(parts, name+"="+value)
	}
	return cmp.Or(strings.Join(parts, " "), "-")
}
