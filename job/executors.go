package job

import (
	"context"
	"time"

	"github.com/sekali/sekali/idempotency"
)

// Overview is what runs, waits and has ended, over all processes.
type Overview struct {
	Types   map[Type]*TypeOverview // also types that no process knows any more
	Workers []Worker               // processes that were heard of lately
	// Capped: there are more unfinished jobs than were counted.
	Capped bool
}

// TypeOverview is the overview of one type.
type TypeOverview struct {
	PausedAt time.Time // zero: not paused
	NextAt   time.Time // when the type's rate lets the next job start; zero: it has let none so far
	Waiting  Waiting
	Running  []Running // at most RunningListed
	Busy     int       // how many run
	Ended    Ended     // of the last hour
}

// RunningListed bounds how many running jobs of a type are listed.
const RunningListed = 100

// Waiting counts unfinished jobs that do not run, by what they wait for.
type Waiting struct {
	Pending   int // a free slot, or the end of a pause
	Scheduled int // their time
	Retrying  int // their next attempt
	Blocked   int // the holder of their business key
}

// Running is one job that runs.
type Running struct {
	ID          ID
	Tenant      idempotency.Tenant
	Key         idempotency.Key
	Type        Type
	Attempt     int
	WorkerID    string
	Remote      bool // as in Job
	StartedAt   time.Time
	LeaseEndsAt time.Time
}

// Ended counts attempts by outcome, with the times that they took.
type Ended struct {
	Succeeded, Failed, Lost, Released, Cancelled int
	Mean, P95                                    time.Duration // of all but released ones; P95 to the width of a bucket
}

// Worker is one process that runs jobs.
type Worker struct {
	ID     string
	Slots  int
	Types  []Type
	SeenAt time.Time
}

// Tally counts attempts of one type that ended in one way after about one time.
type Tally struct {
	Type    Type
	Outcome Outcome
	Bucket  int // index into TallyBuckets; len(TallyBuckets) for longer ones
	Count   int
	Total   time.Duration
}

// TallyBuckets are the upper bounds of durations that are told apart.
var TallyBuckets = []time.Duration{
	time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2500 * time.Millisecond, 5 * time.Second,
	10 * time.Second, 30 * time.Second, time.Minute, 5 * time.Minute, 15 * time.Minute, time.Hour,
}

// Executors is what is known of the executors over all processes.
type Executors interface {
	// Overview reads how everything stands. It scans no finished jobs.
	Overview(ctx context.Context) (Overview, error)
	// Report tells that the worker is alive, and adds what it did since its last
	// report.
	Report(ctx context.Context, w Worker, done []Tally) error
	// Leave tells that the worker ends.
	Leave(ctx context.Context, workerID string) error
	// Pause keeps jobs of the type from being claimed, by any process, until
	// Resume. Both may be repeated.
	Pause(ctx context.Context, t Type) error
	Resume(ctx context.Context, t Type) error
}
