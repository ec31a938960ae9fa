package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/client"
)

type submitCommand struct {
	clientFlags
	Type string `arg:"" optional:"" help:"The job type."`
	Key  string `placeholder:"KEY" usage:"--key KEY" help:"The idempotency key: what names this operation. The same key again makes no second job."`
	Data string `placeholder:"JSON|@FILE|-" usage:"[--data JSON|@FILE|-]" help:"The payload: JSON, @FILE, or - for standard input. Its bytes are sent as they are."`

	Wait time.Duration `placeholder:"30s" usage:"[--wait 30s]" help:"Wait so long for the job to finish, and print its result."`
	envelopeFlags
	File string `placeholder:"FILE|-" form:"--file FILE|-" help:"Submit many: a file with one JSON object a line, each with a key and a type; - for standard input."`
}

// envelopeFlags are the members of a submission beside type and payload.
type envelopeFlags struct {
	BusinessKey *string        `placeholder:"KEY" help:"What the job is about, such as an order: of each type, one unfinished job has it."`
	RunAt       *time.Time     `placeholder:"TIME" help:"Not before this time (RFC 3339)." xor:"start"`
	Delay       *time.Duration `placeholder:"10m" help:"Not before so much time has passed." xor:"start"`
	ExpiresIn   *time.Duration `placeholder:"1h" help:"Fail the job if it has not started by then."`
	Priority    *int64         `placeholder:"N" help:"-100 to 100; smaller is earlier. Write --priority=-5."`
	MaxAttempts *int64         `placeholder:"N" help:"At most so many attempts."`
	Timeout     *time.Duration `placeholder:"5m" help:"At most so long for one attempt."`
	CallbackURL *string        `placeholder:"URL" help:"Where the job's end is told; the gateway's configuration (callbacks.allow) must list it."`
}

// Help explains the command.
func (submitCommand) Help() string {
	return `Submits a job under a key. However often the same command is given, there is one job: repeat it when you do not know whether it arrived.

With --wait the result is printed as it is, and nothing else; the exit code is 1 if the job failed, and 5 if it has not finished by then: the job goes on.

With --file each line is a job: {"key": "order-42", "type": "invoice_generate", "payload": {…}}, with the members of POST /jobs. Lines that were accepted before are replayed, so the command can be interrupted and given again.

Examples:
  sekali submit invoice_generate --key order-42 --data '{"order_id": "42", "total": 4200}'
  sekali submit invoice_generate --key order-42 --data @invoice.json --wait 30s
  sekali submit --file jobs.ndjson`
}

// Run submits one job, or a file of them.
func (c submitCommand) Run(ctx context.Context, t terminal) error {
	if c.File != "" {
		return c.many(ctx, t)
	}
	switch {
	case c.Type == "":
		return &usageError{"missing TYPE, or --file FILE"}
	case c.Key == "":
		return &usageError{"missing --key, which makes it safe to repeat the command"}
	}
	return c.one(ctx, t)
}

func (c submitCommand) one(ctx context.Context, t terminal) error {
	body, err := c.body(ctx, t)
	if err != nil {
		return err
	}
	r := client.Request{Method: http.MethodPost, Path: "/jobs", Key: c.Key, Body: body, ContentType: "application/json"}
	deadline := time.Now().Add(c.Wait)
	if c.Wait > 0 {
		r = waiting(r, c.Wait)
	}
	got, err := c.send(ctx, r)
	var lost *unreachableError
	if errors.As(err, &lost) { // an answer may be what was lost
		lost.advice += " If the job was accepted, the same command makes no second one: give it again."
	}
	if err != nil {
		return err
	}
	if err := c.noteRepetition(t, got); err != nil {
		return err
	}
	if c.Wait > 0 {
		return c.outcome(ctx, t, c.Key, got, deadline)
	}
	_, err = c.showJob(t, got)
	return err
}

// noteRepetition says so if this submission has made no job.
func (c submitCommand) noteRepetition(t terminal, got client.Answer) error {
	if got.Header.Get("Idempotency-Status") == "duplicate_ignored" {
		var holder api.Job
		if err := c.decoded(got, &holder); err != nil {
			return err
		}
		t.note("duplicate_ignored: the job %s has this business key. The key %s stands for that job from now on; it is %s.", holder.Key, c.Key, holder.Status)
		return nil
	}
	if got.Header.Get("Idempotent-Replayed") == "true" {
		t.note("replayed: this was submitted before, and has made no second job. The job is %s by now.", got.Header.Get("Job-Status"))
	}
	return nil
}

// body is the submission, with the payload's bytes as they are.
func (c submitCommand) body(ctx context.Context, t terminal) ([]byte, error) {
	s, err := c.submission(c.Type)
	if err != nil {
		return nil, err
	}
	body, err := json.Marshal(s)
	if err != nil || c.Data == "" {
		return body, err
	}
	payload, err := readJSON(ctx, "--data", c.Data, t.in)
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(body[:len(body)-1], `,"payload":%s}`, payload), nil
}

func (f envelopeFlags) submission(jobType string) (api.Submission, error) {
	s := api.Submission{
		Type: &jobType, BusinessKey: f.BusinessKey, RunAt: f.RunAt, Priority: f.Priority, MaxAttempts: f.MaxAttempts, CallbackURL: f.CallbackURL,
	}
	for _, span := range []struct {
		flag string
		from *time.Duration
		to   **int64
	}{{"--delay", f.Delay, &s.DelaySeconds}, {"--expires-in", f.ExpiresIn, &s.ExpiresInSeconds}, {"--timeout", f.Timeout, &s.TimeoutSeconds}} {
		if span.from == nil {
			continue
		}
		if *span.from%time.Second != 0 {
			return s, &usageError{fmt.Sprintf("%s %s must be whole seconds", span.flag, *span.from)}
		}
		seconds := int64(*span.from / time.Second)
		*span.to = &seconds
	}
	return s, nil
}

// alone reports whether nothing but --file says what to submit.
func (c submitCommand) alone() bool {
	return c.Type == "" && c.Key == "" && c.Data == "" && c.Wait == 0 && c.envelopeFlags == envelopeFlags{}
}
