package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/client"
)

// bulkFlags are the flags of commands that take one job or many.
type bulkFlags struct {
	Limit  *int `placeholder:"N" help:"At most so many of the jobs that the flags mean, counted anew each time the command is given. Default: all."`
	DryRun bool `usage:"[--dry-run]" help:"List the jobs that the flags mean, and change nothing."`
}

// rest is the limit of a command that goes on where this one was, as it is typed.
// It is false where no job is left.
func (f bulkFlags) rest(done int) (string, bool) {
	if f.Limit == nil {
		return "", true
	}
	return " --limit=" + strconv.Itoa(*f.Limit-done), done < *f.Limit
}

// check refuses what may mean too few jobs or too many.
func (f bulkFlags) check(key string, filter filterFlags) error {
	switch {
	case key == "" && !filter.given():
		return &usageError{"missing KEY, or a flag that says which jobs"}
	case key != "" && (filter.given() || f != bulkFlags{}):
		return &usageError{"KEY and flags that say which jobs exclude each other"}
	case f.Limit != nil && *f.Limit < 1:
		return &usageError{"--limit must be at least 1; without it, all jobs are meant"}
	}
	return nil
}

// callsInFlight keep the gateway busy while answers travel, and leave it time for
// others.
const callsInFlight = 4

// bulk makes one call for each job that a filter means.
type bulk struct {
	clientFlags
	bulkFlags
	t       terminal
	command string // its name
	key     string // of the run; "": it needs none
	filter  filterFlags
	words   words
	wants   func(api.Job) bool
	call    func(api.Job) client.Request

	gateway  patient
	progress *progress
}

func (b *bulk) run(ctx context.Context) error {
	gateway, err := b.connect(bulkRetries, bulkPause)
	if err != nil {
		return err
	}
	if b.DryRun {
		b.gateway = patient{gateway, func(wait time.Duration) { b.t.note(pauseNote, wait) }}
		return b.show(ctx)
	}
	b.progress = newProgress(b.t, -1, b.words)
	b.gateway = patient{gateway, b.progress.pauses}
	err = b.walk(ctx)
	done := b.progress.end()
	switch {
	case ctx.Err() != nil:
		return &interruptedError{advice: b.again(done)}
	case err != nil:
		b.t.note("stopped. %s", b.again(done))
		return b.explained(ctx, err)
	case done.refused > 0:
		return &someRefusedError{done.refused, "call"}
	}
	return nil
}

// again is how to go on after that much: with an address that was typed, since
// another gateway may have such jobs too, and never with a secret.
func (b *bulk) again(done counts) string {
	limit, left := b.rest(done.all())
	if !left {
		return "Nothing is left to do."
	}
	text := "To go on: sekali " + b.command + b.filter.words() + limit
	if b.key != "" {
		text += " --key=" + shellWord(b.key)
	}
	return text + b.urlWord()
}

// show lists the jobs.
func (b *bulk) show(ctx context.Context) error {
	list := jobList{t: b.t, json: b.json()}
	for jobs, err := range b.jobs(ctx) {
		if err != nil {
			return err
		}
		if err := list.add(jobs); err != nil {
			return err
		}
	}
	b.t.note("%s; nothing was changed.", plural(list.count, "job", "jobs"))
	return list.end()
}

// jobs lists those that are meant and wanted, page by page.
func (b *bulk) jobs(ctx context.Context) func(yield func([]listed, error) bool) {
	return func(yield func([]listed, error) bool) {
		left := math.MaxInt
		if b.Limit != nil {
			left = *b.Limit
		}
		for p, err := range b.pages(ctx, b.gateway, b.filter.query(), 0) {
			jobs := slices.DeleteFunc(p.jobs, func(j listed) bool { return !b.wants(j.Job) })
			jobs = jobs[:min(left, len(jobs))]
			left -= len(jobs)
			if !yield(jobs, err) || left == 0 {
				return
			}
		}
	}
}

// walk makes the calls. What is on its way when ctx ends is waited for.
func (b *bulk) walk(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	jobs := make(chan listed)
	var callers sync.WaitGroup
	for range callsInFlight {
		callers.Go(func() {
			for j := range jobs {
				if err := b.one(ctx, j); err != nil {
					stop(err)
				}
			}
		})
	}
	err := b.hand(ctx, jobs)
	close(jobs)
	callers.Wait()
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// hand gives the jobs to the callers.
func (b *bulk) hand(ctx context.Context, to chan<- listed) error {
	for jobs, err := range b.jobs(ctx) {
		if err != nil {
			return err
		}
		for _, j := range jobs {
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case to <- j:
			}
		}
		b.progress.add(0, counts{}) // where all were left out
	}
	return nil
}

// one makes the call for one job. The error ends all calls.
func (b *bulk) one(ctx context.Context, j listed) error {
	if ctx.Err() != nil {
		return nil
	}
	got, err := b.gateway.Do(ctx, b.call(j.Job))
	var refused *client.Problem
	switch {
	case err == nil && got.Header.Get("Idempotent-Replayed") == "true":
		b.progress.add(0, counts{replayed: 1})
	case err == nil:
		b.progress.add(0, counts{accepted: 1})
	case !errors.As(err, &refused), endsAll(refused):
		return err
	case changed(refused):
		b.progress.add(0, counts{skipped: 1})
	default:
		b.progress.note("key %s: %s: %s", j.Key, refused.Code, refused.Detail)
		b.progress.add(0, counts{refused: 1})
	}
	return b.tell(j, got, refused)
}

// endsAll reports whether each other call would be refused likewise.
func endsAll(p *client.Problem) bool {
	switch p.Status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusServiceUnavailable:
		return true
	}
	return p.Code == client.CodeRouteNotFound
}

// changed reports whether the job is not any more what the list told of it.
func changed(p *client.Problem) bool {
	return slices.Contains([]string{client.CodeJobNotRetryable, client.CodeJobAlreadyFinished, client.CodeJobNotFound, client.CodeJobExpired}, p.Code)
}

// tell prints the result of one call for programs.
func (b *bulk) tell(j listed, got client.Answer, refused *client.Problem) error {
	if !b.json() {
		return nil
	}
	result := map[string]any{"key": j.Key, "id": j.ID, "status": got.Status, "replayed": got.Header.Get("Idempotent-Replayed") == "true"}
	if refused != nil {
		result["status"], result["problem"] = refused.Status, refused
	} else {
		result["job"] = json.RawMessage(got.Body)
	}
	line, err := json.Marshal(result)
	if err != nil {
		return b.noGateway(fmt.Errorf("the answer about %s: %w", j.Key, err))
	}
	return b.progress.write(append(line, '\n'))
}
