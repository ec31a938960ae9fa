package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"time"

	"github.com/sekali/sekali/client/wire"
)

// Get returns the job as it is now.
func (c *Client) Get(ctx context.Context, key string) (Job, error) {
	if err := checkSegment(key); err != nil {
		return Job{}, err
	}
	return decoded[Job](c.wire.GetJob(ctx, key, &wire.GetJobParams{}))
}

// Attempts lists the runs of the job, oldest first.
func (c *Client) Attempts(ctx context.Context, key string) ([]Attempt, error) {
	if err := checkSegment(key); err != nil {
		return nil, err
	}
	list, err := decoded[attemptList](c.wire.ListAttempts(ctx, key))
	return list.Attempts, err
}

type attemptList struct {
	Attempts []Attempt `json:"attempts"`
}

// Events returns the timeline of the job, oldest first.
func (c *Client) Events(ctx context.Context, key string) ([]Event, error) {
	if err := checkSegment(key); err != nil {
		return nil, err
	}
	list, err := decoded[eventList](c.wire.ListEvents(ctx, key))
	return list.Events, err
}

type eventList struct {
	Events []Event `json:"events"`
}

// Cancel cancels the job. One that does not run is cancelled at once. One that
// runs is asked to stop, and may still succeed: then the job that comes back is
// not finished, and Wait tells how it ended.
func (c *Client) Cancel(ctx context.Context, key string) (Job, error) {
	if err := checkSegment(key); err != nil {
		return Job{}, err
	}
	return decoded[Job](c.wire.CancelJob(ctx, key))
}

// Filter says which jobs are meant: those that all of its members fit. The zero
// value means all.
type Filter struct {
	Status        string
	Type          string
	BusinessKey   string
	KeyPrefix     string
	CreatedAfter  time.Time // both exclusive
	CreatedBefore time.Time
	PageSize      int // jobs of one request, 1 to 200; 0 means 200
}

// largestPage is the most that a gateway gives at once.
const largestPage = 200

func (f Filter) params() *wire.ListJobsParams {
	limit := f.PageSize
	if limit == 0 {
		limit = largestPage
	}
	return &wire.ListJobsParams{
		Status: given(f.Status), Type: given(f.Type), BusinessKey: given(f.BusinessKey), KeyPrefix: given(f.KeyPrefix),
		CreatedAfter: given(f.CreatedAfter.UTC()), CreatedBefore: given(f.CreatedBefore.UTC()), Limit: &limit,
	}
}

func given[T comparable](value T) *T {
	var zero T
	if value == zero {
		return nil
	}
	return &value
}

// Jobs yields the jobs of the filter, newest first and without payloads and
// results, page by page: none is skipped or repeated while others arrive. It ends
// with the first error.
func (c *Client) Jobs(ctx context.Context, f Filter) iter.Seq2[Job, error] {
	return func(yield func(Job, error) bool) {
		params := f.params()
		for {
			page, err := decoded[jobList](c.wire.ListJobs(ctx, params))
			if err != nil {
				yield(Job{}, err)
				return
			}
			for _, job := range page.Jobs {
				if !yield(job, nil) {
					return
				}
			}
			if page.NextCursor == "" {
				return
			}
			params.Cursor = &page.NextCursor
		}
	}
}

type jobList struct {
	Jobs       []Job  `json:"jobs"`
	NextCursor string `json:"next_cursor"`
}

// decoded reads the answer of the generated client as a document.
func decoded[T any](w *http.Response, err error) (T, error) {
	var document T
	if err != nil {
		return document, err
	}
	answer, err := read(w)
	if err != nil {
		return document, err
	}
	return document, answer.Decode(&document)
}

var errSegment = errors.New("client: no path can name it")

// checkSegment refuses what no path can name: it would ask for something else.
func checkSegment(name string) error {
	if name == "" || name == "." || name == ".." {
		return fmt.Errorf("%w: %q", errSegment, name)
	}
	return nil
}

func wrongResult(err error) error { return fmt.Errorf("client: result: %w", err) }

// Result is what an executor returned.
type Result struct {
	Body      []byte // as it came; nil if the job succeeded without a result
	MediaType string // with its parameters; "" without a result
}

// Decode reads a result that is JSON. No result is read like null.
func (r Result) Decode(v any) error {
	body := r.Body
	if body == nil {
		body = []byte("null")
	}
	if err := json.Unmarshal(body, v); err != nil {
		return wrongResult(err)
	}
	return nil
}
