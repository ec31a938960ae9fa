package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/sekali/sekali/internal/telemetry"
	"github.com/sekali/sekali/job"
)

const (
	// schedulesEvery is how often schedules are looked at where nothing is due: a
	// clock that was put forward is noticed so soon.
	schedulesEvery = 10 * time.Second
	// firingsPerRound bounds how many firings of one schedule are made before what
	// else is due has its turn.
	firingsPerRound = 100
	// firingsAtOnce is how many schedules fire side by side: at midnight many are
	// due, and one that waits for the database must not hold up the others.
	firingsAtOnce = 16
	// A firing that fails is tried again from firingAgain on, doubled each time, up
	// to firingMost.
	firingAgain = 500 * time.Millisecond
	firingMost  = 30 * time.Second
)

// fireSchedules makes the firings that are due. Every process does so for itself:
// the keys make each firing happen once, and the states tell a process only what
// nobody was there for.
func (d *Dispatcher) fireSchedules(ctx context.Context) (time.Duration, error) {
	read, err := d.Schedules.States.ScheduleStates(ctx)
	if err != nil {
		return 0, wrap("read schedules", err)
	}
	states := make(map[string]job.ScheduleState, len(read))
	for _, state := range read {
		states[state.Name] = state
	}
	var all sync.WaitGroup
	room := make(chan struct{}, firingsAtOnce)
	for _, r := range d.recurring {
		room <- struct{}{}
		all.Go(func() {
			defer func() { <-room }()
			state, begun := states[r.Name]
			d.recurSafely(ctx, r, state, begun)
		})
	}
	all.Wait()
	next := schedulesEvery
	for _, r := range d.recurring {
		next = min(next, r.wait(d.Clock.Now()))
	}
	return max(next, time.Millisecond), nil
}

// recurring is a schedule as this process works on it.
type recurring struct {
	job.Schedule
	met      bool      // the state that the database has is of this definition
	last     time.Time // everything up to it is settled
	failures int       // since the last firing that was made
	again    time.Time // after a failure: not before
}

func recurringOf(schedules *job.Schedules) []*recurring {
	if schedules == nil {
		return nil
	}
	list := make([]*recurring, len(schedules.List))
	for i, s := range schedules.List {
		list[i] = &recurring{Schedule: s}
	}
	return list
}

// wait is how long nothing has to be done about the schedule.
func (r *recurring) wait(now time.Time) time.Duration {
	if rest := r.again.Sub(now); rest > 0 {
		return rest
	}
	if !r.met {
		return 0
	}
	next := r.Times.Next(r.last)
	if next.IsZero() {
		return schedulesEvery
	}
	return next.Sub(now)
}

// recurSafely keeps a panic from ending more than the turn of one schedule.
func (d *Dispatcher) recurSafely(ctx context.Context, r *recurring, state job.ScheduleState, begun bool) {
	defer func() {
		if p := recover(); p != nil {
			d.firingFailed(ctx, r, fmt.Errorf("panic: %v\n%s", p, debug.Stack()))
		}
	}()
	d.recur(ctx, r, state, begun)
}

// recur makes what is due of one schedule.
func (d *Dispatcher) recur(ctx context.Context, r *recurring, state job.ScheduleState, begun bool) {
	now := d.Clock.Now()
	if now.Before(r.again) {
		return
	}
	if !d.meet(ctx, r, state, begun, now) {
		return
	}
	due := r.Due(r.last, now)
	if !due.SkippedLast.IsZero() && !d.skip(ctx, r, due) {
		return
	}
	for i, at := range due.Fire {
		if i == firingsPerRound || ctx.Err() != nil || !d.fire(ctx, r, at) {
			return
		}
	}
	r.mended()
}

// mended forgets failures: whoever made the firing that failed here, nothing is due.
func (r *recurring) mended() { r.failures, r.again = 0, time.Time{} }

// meet finds how far the schedule has come. One that the database does not know
// begins now. After that its definition here is what counts: while replicas with
// two versions of it run, each follows its own.
func (d *Dispatcher) meet(ctx context.Context, r *recurring, state job.ScheduleState, begun bool, now time.Time) bool {
	if begun && state.Definition == r.Definition() {
		r.met = true
		if state.LastTime.After(r.last) {
			r.last = state.LastTime
		}
		d.Metrics.ScheduleLastFired.WithLabelValues(r.Name).Set(unix(state.FiredTime))
		return true
	}
	if begun && r.met {
		return true
	}
	if !r.met {
		r.last = now
	}
	err := d.Schedules.States.BeginSchedule(ctx, r.Name, r.Definition(), r.last)
	if err != nil {
		d.firingFailed(ctx, r, wrap("begin the schedule", err))
		return false
	}
	r.mended()
	return r.met
}

// unix is the time as metrics have it; 0 for none.
func unix(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.Unix())
}

// skip leaves missed firings out, as the schedule's policy says, and says so.
func (d *Dispatcher) skip(ctx context.Context, r *recurring, due job.Due) bool {
	err := d.Schedules.States.SkipFirings(ctx, r.Name, r.Definition(), due.SkippedLast, "")
	if err != nil {
		d.firingFailed(ctx, r, wrap("leave missed firings out", err))
		return false
	}
	r.last = due.SkippedLast
	d.Metrics.ScheduleFirings.WithLabelValues(r.Name, telemetry.FiringSkipped).Add(float64(due.Skipped))
	d.Log.LogAttrs(ctx, slog.LevelWarn, "missed firings are left out", slog.String(telemetry.Schedule, r.Name),
		slog.Int("firings", due.Skipped), slog.Bool("and_more", due.SkippedMore), slog.String("missed", string(r.Missed)),
		slog.Time("last_time", due.SkippedLast))
	return true
}

// fire makes one firing and reports whether it is settled.
func (d *Dispatcher) fire(ctx context.Context, r *recurring, at time.Time) bool {
	fresh, err := d.Schedules.Fire(ctx, r.Schedule, at)
	taken := errors.Is(err, job.ErrFiringKeyTaken)
	switch {
	case taken:
		d.Log.LogAttrs(ctx, slog.LevelError, "a firing cannot be made: its key was used for another request",
			slog.String(telemetry.Schedule, r.Name), d.Keys.Attr(string(job.FiringKey(r.Name, at))))
		d.Metrics.ScheduleFirings.WithLabelValues(r.Name, telemetry.FiringFailed).Inc()
		err = d.Schedules.States.SkipFirings(ctx, r.Name, r.Definition(), at, reasonOf(err))
	case err == nil:
		err = d.Schedules.States.SettleFiring(ctx, r.Name, r.Definition(), at)
	}
	if err != nil {
		d.noteFailure(ctx, r, at, err)
		return false
	}
	r.last = at
	r.mended()
	if taken {
		return true
	}
	result := telemetry.FiringKnown
	if fresh {
		result = telemetry.FiringMade
	}
	d.Metrics.ScheduleFirings.WithLabelValues(r.Name, result).Inc()
	d.Metrics.ScheduleLastFired.WithLabelValues(r.Name).Set(unix(at))
	d.Log.LogAttrs(ctx, slog.LevelDebug, "schedule fired", slog.String(telemetry.Schedule, r.Name),
		slog.Time("time", at), slog.Bool("first", fresh))
	return true
}

// noteFailure keeps the firing for later, and shows in all processes why it is
// late.
func (d *Dispatcher) noteFailure(ctx context.Context, r *recurring, at time.Time, err error) {
	d.firingFailed(ctx, r, err)
	if err := d.Schedules.States.FailFiring(ctx, r.Name, r.Definition(), at, reasonOf(err)); err != nil {
		d.Log.LogAttrs(ctx, slog.LevelDebug, "the failure of a firing was not stored", slog.Any(telemetry.Error, err))
	}
}

// firingFailed puts the schedule off and says why.
func (d *Dispatcher) firingFailed(ctx context.Context, r *recurring, err error) {
	if ctx.Err() != nil {
		return // the process ends; the firing belongs to the next one
	}
	pause := min(firingAgain<<min(r.failures, 10), firingMost)
	r.failures++
	r.again = d.Clock.Now().Add(pause)
	d.Metrics.ScheduleFirings.WithLabelValues(r.Name, telemetry.FiringFailed).Inc()
	d.Log.LogAttrs(ctx, slog.LevelWarn, "a firing could not be made; it is tried again", slog.String(telemetry.Schedule, r.Name),
		telemetry.MillisecondsAttr("retry_in_ms", pause), slog.Any(telemetry.Error, err))
}

// reasonOf says to clients why a firing is late. Errors that are not listed may
// tell what is nobody's business: they stand in the log.
func reasonOf(err error) string {
	var payload *job.PayloadError
	var part *job.KeyPartError
	var held *job.BusinessKeyError
	switch {
	case errors.Is(err, job.ErrFiringKeyTaken):
		return "the key of the firing was used for another request"
	case errors.Is(err, job.ErrQuota):
		return "the tenant has as many unfinished jobs as limits.pending allows"
	case errors.Is(err, job.ErrUnknownType):
		return "the job type is not configured"
	case errors.As(err, &payload):
		return "the payload does not fit the schema of the type"
	case errors.As(err, &part):
		return "the payload lacks what the type makes the " + part.Key + " of: " + part.Path
	case errors.As(err, &held):
		return "another unfinished job holds the business key"
	case errors.Is(err, job.ErrUnavailable), errors.Is(err, job.ErrOutcomeUnknown), errors.Is(err, job.ErrQueueFull):
		return "the database does not answer, or not in time"
	}
	return "an error that the log tells more of"
}
