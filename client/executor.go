package client

import (
	"context"
	"time"
)

// ExecutorList tells how all job types stand.
type ExecutorList struct {
	Executors []Executor `json:"executors"`
	// Capped: there are more unfinished jobs than were counted, so that what waits
	// and what runs are lower bounds.
	Capped bool `json:"capped"`
}

// Executor tells how the jobs of one type stand over all processes: what runs
// where, what waits and why, and how attempts of the last hour ended.
type Executor struct {
	Name       string    `json:"name"`
	Executor   string    `json:"executor,omitempty"` // its kind; "" where the type is not configured
	Types      []string  `json:"types"`
	Configured bool      `json:"configured"` // in the gateway that answered
	PausedAt   time.Time `json:"paused_at,omitzero"`

	Slots           int       `json:"slots"`            // of the processes that run the type; other types may use them too
	Free            int       `json:"free"`             // of these, held by no job
	Busy            int       `json:"busy"`             // jobs of the type that run
	Limits          *Limits   `json:"limits,omitempty"` // over all processes; nil where the type has none
	Running         []Running `json:"running"`
	Waiting         Waiting   `json:"waiting"`
	Workers         []Worker  `json:"workers"`
	LastHeartbeatAt time.Time `json:"last_heartbeat_at,omitzero"` // of the process that was heard of last

	WindowSeconds int    `json:"window_seconds"` // what follows is about so long
	Succeeded     int    `json:"succeeded"`
	Failed        int    `json:"failed"`
	Lost          int    `json:"lost"`
	Released      int    `json:"released"`
	Cancelled     int    `json:"cancelled"`
	MeanMS        *int64 `json:"mean_ms"` // nil where no attempt has ended
	P95MS         *int64 `json:"p95_ms"`
}

// Limits are those of a type over all processes.
type Limits struct {
	Concurrency int       `json:"concurrency,omitempty"` // jobs at once; 0: any number
	Rate        string    `json:"rate,omitempty"`        // attempts that start, e.g. 50/s; "": any number
	WaitsFor    string    `json:"waits_for,omitempty"`   // "concurrency" or "rate", if jobs wait for that
	NextAt      time.Time `json:"next_at,omitzero"`      // when the rate lets the next attempt start
}

// Running is a job that runs. Jobs of other tenants are counted, not listed.
type Running struct {
	ID             string    `json:"id"`
	Key            string    `json:"key"`
	Attempt        int       `json:"attempt"`
	WorkerID       string    `json:"worker_id"`
	StartedAt      time.Time `json:"started_at"`
	LeaseExpiresAt time.Time `json:"lease_expires_at"`
}

// Waiting counts unfinished jobs that do not run. Why says in words what they wait
// for; "" where none waits.
type Waiting struct {
	Pending   int    `json:"pending"`
	Scheduled int    `json:"scheduled"`
	Retrying  int    `json:"retrying"`
	Blocked   int    `json:"blocked"`
	Why       string `json:"why,omitempty"`
}

// Worker is a process that runs jobs of the type.
type Worker struct {
	WorkerID        string    `json:"worker_id"`
	Slots           int       `json:"slots"`
	LastHeartbeatAt time.Time `json:"last_heartbeat_at"`
}

// Executors tells how all job types stand.
func (c *Client) Executors(ctx context.Context) (ExecutorList, error) {
	return decoded[ExecutorList](c.wire.ListExecutors(ctx))
}

// Executor tells how a job type stands.
func (c *Client) Executor(ctx context.Context, jobType string) (Executor, error) {
	if err := checkSegment(jobType); err != nil {
		return Executor{}, err
	}
	return decoded[Executor](c.wire.GetExecutor(ctx, jobType))
}

// Pause keeps jobs of the type from starting: accepted ones wait, and what runs
// runs on. It holds for all replicas, within a second, until Resume.
func (c *Client) Pause(ctx context.Context, jobType string) (Executor, error) {
	if err := checkSegment(jobType); err != nil {
		return Executor{}, err
	}
	return decoded[Executor](c.wire.PauseExecutor(ctx, jobType))
}

// Resume lets jobs of a paused type start again.
func (c *Client) Resume(ctx context.Context, jobType string) (Executor, error) {
	if err := checkSegment(jobType); err != nil {
		return Executor{}, err
	}
	return decoded[Executor](c.wire.ResumeExecutor(ctx, jobType))
}
