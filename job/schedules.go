package job

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/sekali/sekali/idempotency"
)

// ErrFiringKeyTaken reports a firing whose key a client has used for a request of
// its own: the firing cannot be made.
var ErrFiringKeyTaken = errors.New("job: the key of the firing was used for another request")

// ScheduleState is how far a schedule has come, for all processes of a database.
type ScheduleState struct {
	Name string
	// Definition is what LastTime was found with.
	Definition string
	// LastTime: every firing up to it is settled, made or left out for good.
	LastTime time.Time
	// FiredTime is that of the last firing that was made; zero: none was.
	FiredTime time.Time
	// LastError is why the last firing could not be made, or not yet; "": it was.
	LastError string
}

// ScheduleStates keeps the states. Everything may be done by any number of
// processes at once, and repeated.
type ScheduleStates interface {
	// ScheduleStates returns all of them, also those of schedules that this process
	// does not know.
	ScheduleStates(ctx context.Context) ([]ScheduleState, error)
	// BeginSchedule sets LastTime for a new schedule, and for one whose definition
	// has changed.
	BeginSchedule(ctx context.Context, name, definition string, lastTime time.Time) error
	// SettleFiring moves LastTime on, never back: the firing at that time is made.
	// It does nothing once the schedule has another definition.
	SettleFiring(ctx context.Context, name, definition string, at time.Time) error
	// SkipFirings likewise, where the firings up to at are left out, for the reason;
	// "" leaves LastError as it is.
	SkipFirings(ctx context.Context, name, definition string, at time.Time, reason string) error
	// FailFiring notes why the firing at that time is not made yet, unless another
	// process has settled it.
	FailFiring(ctx context.Context, name, definition string, at time.Time, reason string) error
}

// Schedules are the schedules that this process knows.
type Schedules struct {
	List   []Schedule // by name
	Jobs   *Jobs
	States ScheduleStates
}

// FiringKey is the key under which the firing of a schedule is submitted, by
// whichever process: that is what makes it happen once.
func FiringKey(name string, at time.Time) idempotency.Key {
	return idempotency.Key("schedule:" + name + ":" + at.UTC().Format(time.RFC3339))
}

// Fire submits the schedule's job of the given time. fresh tells whether this
// call accepted it: another process, or an earlier life of this one, may have done
// so. Errors: ErrFiringKeyTaken, which no repetition mends, and those of
// Jobs.Submit.
func (s *Schedules) Fire(ctx context.Context, schedule Schedule, at time.Time) (fresh bool, err error) {
	// Processes that meet at a firing are no near miss of a client.
	jobs := *s.Jobs
	jobs.Repeats = nil
	receipt, err := jobs.Submit(ctx, firing(schedule, at), Draft{
		Type: schedule.Type, Payload: schedule.Payload, BusinessKey: schedule.BusinessKey, Priority: schedule.Priority,
	})
	var mismatch *idempotency.MismatchError
	var retired *idempotency.RetiredError
	switch {
	case errors.As(err, &mismatch):
		return false, fmt.Errorf("%w: %w", ErrFiringKeyTaken, err)
	case errors.As(err, &retired):
		return false, nil // made so long ago that its job is forgotten
	}
	return receipt.Record.Fresh, err
}

// firing is the request. Its fingerprint says what fires and not how: while
// replicas with two versions of a schedule run, either may make the firing.
func firing(s Schedule, at time.Time) idempotency.Request {
	return idempotency.Request{
		Tenant: s.Tenant, Key: FiringKey(s.Name, at),
		Fingerprint: idempotency.NewFingerprint(http.MethodPost, "/schedules/"+s.Name, nil, "", nil),
	}
}

// ScheduleStatus is how a schedule stands.
type ScheduleStatus struct {
	Schedule Schedule
	// LastTime is that of the last firing that was made; zero: none was yet.
	LastTime time.Time
	NextTime time.Time // zero: there is none
	// LastKey and LastStatus are the job's that the last firing made; "" if none
	// was made, or it is forgotten.
	LastKey    idempotency.Key
	LastStatus Status
	LastError  string // why the last firing could not be made, or not yet
}

// Status tells how the schedules of a tenant stand, those of all tenants for "".
func (s *Schedules) Status(ctx context.Context, tenant idempotency.Tenant) ([]ScheduleStatus, error) {
	states, err := s.States.ScheduleStates(ctx)
	if err != nil {
		return nil, err
	}
	byName := make(map[string]ScheduleState, len(states))
	for _, state := range states {
		byName[state.Name] = state
	}
	now, list := s.Jobs.Clock.Now(), []ScheduleStatus{}
	for _, schedule := range s.List {
		if tenant != "" && schedule.Tenant != tenant {
			continue
		}
		state := byName[schedule.Name]
		status := ScheduleStatus{
			Schedule: schedule, LastTime: state.FiredTime, NextTime: schedule.Times.Next(now), LastError: state.LastError,
		}
		if err := s.lastJob(ctx, &status); err != nil {
			return nil, err
		}
		list = append(list, status)
	}
	return list, nil
}

// lastJob looks for the job of the last firing.
func (s *Schedules) lastJob(ctx context.Context, status *ScheduleStatus) error {
	if status.LastTime.IsZero() {
		return nil
	}
	receipt, err := s.Jobs.Get(ctx, status.Schedule.Tenant, FiringKey(status.Schedule.Name, status.LastTime))
	if errors.Is(err, ErrNotFound) || errors.Is(err, ErrExpired) {
		return nil
	}
	if err != nil {
		return err
	}
	status.LastKey, status.LastStatus = receipt.Job.Key, receipt.Job.Status
	return nil
}
