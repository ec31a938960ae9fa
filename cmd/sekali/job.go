package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/client"
)

// longestWait is the most that a gateway holds an answer, as delivered. One that
// is configured to hold it for less answers sooner, and is asked again.
const longestWait = 60 * time.Second

// jobHead is the head of a table of one job.
var jobHead = []string{"KEY", "TYPE", "STATUS", "ATTEMPTS", "OUTCOME", "ERROR"}

// showJob prints the job that a gateway answered with.
func (f clientFlags) showJob(t terminal, got client.Answer) (api.Job, error) {
	var j api.Job
	if err := f.decoded(got, &j); err != nil {
		return j, err
	}
	if f.json() {
		return j, t.document(got.Body)
	}
	return j, t.table(jobHead, [][]string{jobRow(j)})
}

func jobRow(j api.Job) []string {
	trouble := "-"
	if j.Error != nil {
		trouble = j.Error.Code
	}
	return []string{j.Key, j.Type, j.Status, fmt.Sprintf("%d of %d", j.Attempts, j.MaxAttempts), orNone(j.Outcome), trouble}
}

// finished reports that the job does not run again unless an operator brings it
// back, also where its status is a word of a later gateway.
func finished(j api.Job) bool {
	return j.FinishedAt != nil || j.Status == "succeeded" || j.Status == "failed" || j.Status == "cancelled"
}

// outcome waits until the job has finished or the deadline is over, and prints what
// it gave. got is how the gateway has answered about it. Errors:
// *unfinishedError, *jobFailedError and those of send.
func (f clientFlags) outcome(ctx context.Context, t terminal, key string, got client.Answer, deadline time.Time) error {
	got, j, err := f.awaited(ctx, t, key, got, deadline)
	if err != nil {
		return err
	}
	if f.json() {
		if err := t.document(got.Body); err != nil {
			return err
		}
	}
	switch {
	case !finished(j):
		// What was accepted may be a stored answer; the header tells of now.
		return &unfinishedError{key, cmp.Or(got.Header.Get("Job-Status"), j.Status)}
	case j.Status != "succeeded":
		return &jobFailedError{key, j}
	case f.json():
		return nil
	}
	return f.printResult(ctx, t, key, j)
}

// awaited asks for the job again and again.
func (f clientFlags) awaited(ctx context.Context, t terminal, key string, got client.Answer, deadline time.Time) (client.Answer, api.Job, error) {
	w := watcher{clientFlags: f, t: t, deadline: deadline}
	stored := got.Header.Get("Job-Status") != "" // the job as it was accepted, however it stands now
	for {
		var j api.Job
		if err := f.decoded(got, &j); err != nil {
			return got, j, err
		}
		left := w.left()
		if finished(j) || left <= 0 && !stored {
			return got, j, nil
		}
		if err := f.pause(ctx, got, left); err != nil {
			return got, j, err
		}
		var err error
		if got, err = w.ask(ctx, client.Request{Method: http.MethodGet, Path: jobPath(key, "")}); err != nil {
			return got, j, err
		}
		stored = false
	}
}

// pause waits before the next question after a gateway that would not hold its
// answer: it has too many who wait.
func (f clientFlags) pause(ctx context.Context, got client.Answer, most time.Duration) error {
	if strings.Contains(got.Header.Get("Preference-Applied"), "wait=") {
		return nil
	}
	seconds, err := strconv.Atoi(got.Header.Get("Retry-After"))
	if err != nil || seconds < 1 {
		seconds = 1
	}
	return f.explained(ctx, sleep(ctx, min(time.Duration(seconds)*time.Second, most)))
}

// sleep waits, or returns why ctx has ended.
func sleep(ctx context.Context, wait time.Duration) error {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// printResult prints the result of a job that succeeded, byte for byte. A job
// document holds it unless it is no JSON.
func (f clientFlags) printResult(ctx context.Context, t terminal, key string, j api.Job) error {
	if len(j.Result) > 0 && string(j.Result) != "null" {
		return t.result(j.Result)
	}
	got, err := f.send(ctx, client.Request{Method: http.MethodGet, Path: jobPath(key, "/result")})
	if refused := (*refusedError)(nil); errors.As(err, &refused) && refused.Code == "job-has-no-result" {
		t.note("the job succeeded, and left no result.")
		return nil
	}
	if err != nil {
		return err
	}
	return t.result(got.Body)
}

// result prints bytes of a job as they are. A terminal gets a line, and nothing
// that could steer it.
func (t terminal) result(body []byte) error {
	if isTerminal(t.out) {
		body = append(bytes.TrimSuffix(bytes.Map(printable, body), []byte("\n")), '\n')
	}
	_, err := t.out.Write(body)
	return err
}

func printable(r rune) rune {
	if !unicode.IsPrint(r) && r != '\n' && r != '\t' {
		return ' '
	}
	return r
}
