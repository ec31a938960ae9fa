package dispatcher_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/internal/cron"
	"github.com/sekali/sekali/internal/telemetry"
	"github.com/sekali/sekali/job"
)

// shared is the database of several dispatchers: what was accepted, and the states
// of schedules.
type shared struct {
	job.Acceptor
	job.Reader

	mu       sync.Mutex
	accepted map[idempotency.Key]idempotency.Request
	order    []idempotency.Key
	submits  int
	reads    int
	states   map[string]job.ScheduleState
	fail     func(idempotency.Key) error
}

func newShared() *shared {
	return &shared{accepted: map[idempotency.Key]idempotency.Request{}, states: map[string]job.ScheduleState{}}
}

func (s *shared) Accept(_ context.Context, sub job.Submission) (job.Receipt, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.submits++
	if s.fail != nil {
		if err := s.fail(sub.Request.Key); err != nil {
			return job.Receipt{}, err
		}
	}
	record := idempotency.Record{Request: sub.Request, State: idempotency.Completed}
	if before, known := s.accepted[sub.Request.Key]; known {
		record.Request = before
		return job.Receipt{Record: record, Job: sub.Job}, nil
	}
	s.accepted[sub.Request.Key] = sub.Request
	s.order = append(s.order, sub.Request.Key)
	record.Fresh = true
	return job.Receipt{Record: record, Job: sub.Job}, nil
}

// looks is how often the states were read.
func (s *shared) looks() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reads
}

// asked is how often something was submitted.
func (s *shared) asked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.submits
}

func (s *shared) ScheduleStates(context.Context) ([]job.ScheduleState, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads++
	var list []job.ScheduleState
	for _, state := range s.states {
		list = append(list, state)
	}
	return list, nil
}

func (s *shared) BeginSchedule(_ context.Context, name, definition string, last time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.states[name].Definition != definition {
		s.states[name] = job.ScheduleState{Name: name, Definition: definition, LastTime: last, FiredTime: s.states[name].FiredTime}
	}
	return nil
}

func (s *shared) SettleFiring(_ context.Context, name, definition string, at time.Time) error {
	s.alter(name, definition, at, func(state *job.ScheduleState) { state.LastTime, state.FiredTime, state.LastError = at, at, "" })
	return nil
}

func (s *shared) SkipFirings(_ context.Context, name, definition string, at time.Time, reason string) error {
	s.alter(name, definition, at, func(state *job.ScheduleState) {
		state.LastTime = at
		if reason != "" {
			state.LastError = reason
		}
	})
	return nil
}

func (s *shared) FailFiring(_ context.Context, name, definition string, at time.Time, reason string) error {
	s.alter(name, definition, at, func(state *job.ScheduleState) { state.LastError = reason })
	return nil
}

func (s *shared) alter(name, definition string, at time.Time, change func(*job.ScheduleState)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if state, known := s.states[name]; known && state.Definition == definition && state.LastTime.Before(at) {
		change(&state)
		s.states[name] = state
	}
}

func (s *shared) keys() []idempotency.Key {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.order)
}

func (s *shared) state(name string) job.ScheduleState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.states[name]
}

// set changes something while dispatchers run.
func (s *shared) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// machine is the clock of one process, which may be set.
type machine struct {
	mu     sync.Mutex
	offset time.Duration
}

func (m *machine) Now() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return time.Now().Add(m.offset).UTC().Truncate(time.Millisecond)
}

func (m *machine) put(offset time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.offset = offset
}

func recurs(t *testing.T, name, expression, zone string, missed job.MissedPolicy) job.Schedule {
	t.Helper()
	location, err := cron.Location(zone)
	if err != nil {
		t.Fatal(err)
	}
	times, err := cron.Parse(expression, location)
	if err != nil {
		t.Fatal(err)
	}
	return job.Schedule{Name: name, Type: "t", Tenant: "acme", Cron: expression, Timezone: zone, Missed: missed, Times: times}
}

// scheduling starts a dispatcher with the schedules; it only accepts.
func scheduling(t *testing.T, db *shared, clock *machine, list ...job.Schedule) *world {
	t.Helper()
	return schedulingBy(t, db, db, clock, list...)
}

// schedulingBy is scheduling with a way of its own to submit.
func schedulingBy(t *testing.T, db *shared, by job.Acceptor, clock *machine, list ...job.Schedule) *world {
	t.Helper()
	return setup(t, plain(succeeds), func(w *world) {
		w.cfg.Slots, w.cfg.Clock = 0, clock
		w.cfg.Schedules = &job.Schedules{List: list, States: db, Jobs: &job.Jobs{
			Types: job.Types{"t": settings()}, Acceptor: by, Reader: db, Clock: clock,
			Render: func(job.Job) idempotency.Response { return idempotency.Response{Status: 202} }, Wake: func(job.Type) {},
		}}
	})
}

// seconds fails unless the keys are those of each second of real time, once.
func seconds(t *testing.T, keys []idempotency.Key, from time.Time, n int) {
	t.Helper()
	want := make([]idempotency.Key, n)
	for i := range want {
		want[i] = job.FiringKey("s", from.Add(time.Duration(i+1)*time.Second))
	}
	got := slices.Clone(keys)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("%d firings, want %d: %v", len(got), len(want), got)
	}
}

// The issue's own measure, in simulated time: three replicas, one per second, over
// the hour in which the clocks of the zone change, with restarts.
func TestDoneWhen_Q22_EachSecondOnceWhileClocksChange(t *testing.T) {
	t.Parallel()
	for _, change := range []string{"2026-03-29T01:00:00Z", "2026-10-25T01:00:00Z"} {
		synctest.Test(t, func(t *testing.T) {
			boundary, err := time.Parse(time.RFC3339, change)
			if err != nil {
				t.Fatal(err)
			}
			clock := &machine{}
			from := boundary.Add(-5 * time.Minute)
			clock.put(time.Until(from))
			db, s := newShared(), recurs(t, "s", "* * * * * *", "Europe/Berlin", job.MissedRunAll)
			replicas := []*world{scheduling(t, db, clock, s), scheduling(t, db, clock, s), scheduling(t, db, clock, s)}
			for i := range 10 {
				elapse(time.Minute)
				replicas[i%3].end()
				if i == 4 { // at the boundary nobody is there for a while
					replicas[1].end()
					replicas[2].end()
					elapse(20 * time.Second)
					replicas[1], replicas[2] = scheduling(t, db, clock, s), scheduling(t, db, clock, s)
				}
				replicas[i%3] = scheduling(t, db, clock, s)
			}
			seconds(t, db.keys(), from, 620)
			for _, w := range replicas {
				w.end()
			}
		})
	}
}

func TestSchedules_ANewOneBeginsNowAndAChangedOneToo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, clock := newShared(), &machine{}
		w := scheduling(t, db, clock, recurs(t, "s", "0 * * * *", "", job.MissedRunAll))
		if n := len(db.keys()); n != 0 {
			t.Fatalf("%d firings at first sight", n)
		}
		elapse(2*time.Hour + time.Minute)
		w.end()
		if n := len(db.keys()); n != 2 {
			t.Fatalf("%d firings in two hours", n)
		}
		elapse(3 * time.Hour)
		w = scheduling(t, db, clock, recurs(t, "s", "*/10 * * * *", "", job.MissedRunAll))
		if n := len(db.keys()); n != 2 {
			t.Errorf("%d firings: a changed schedule must begin now", n)
		}
		elapse(30 * time.Minute)
		if n := len(db.keys()); n != 5 {
			t.Errorf("%d firings after half an hour", n)
		}
		w.end()
	})
}

func TestSchedules_MissedFirings(t *testing.T) {
	t.Parallel()
	for missed, want := range map[job.MissedPolicy]int{job.MissedRunAll: 4, job.MissedRunLast: 2, job.MissedSkip: 1} {
		synctest.Test(t, func(t *testing.T) {
			db, clock, s := newShared(), &machine{}, recurs(t, "s", "0 * * * *", "", missed)
			w := scheduling(t, db, clock, s)
			elapse(61 * time.Minute)
			w.end()
			elapse(3*time.Hour + 10*time.Minute)
			w = scheduling(t, db, clock, s)
			elapse(time.Minute)
			if n := len(db.keys()); n != want {
				t.Errorf("%s: %d firings, want %d: %v", missed, n, want, db.keys())
			}
			skipped := testutil.ToFloat64(w.metrics.ScheduleFirings.WithLabelValues("s", telemetry.FiringSkipped))
			if int(skipped)+want != 4 {
				t.Errorf("%s: %v skipped", missed, skipped)
			}
			w.end()
		})
	}
}

// A clock that is put back brings no firing a second time, and one that is put
// forward is noticed.
func TestSchedules_TheMachinesClockIsSet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, clock := newShared(), &machine{}
		w := scheduling(t, db, clock, recurs(t, "s", "0 * * * *", "", job.MissedRunLast))
		elapse(61 * time.Minute)
		clock.put(-30 * time.Minute)
		elapse(90 * time.Minute) // it is 2:01 by that clock
		if n := len(db.keys()); n != 2 {
			t.Errorf("%d firings, want 2: %v", n, db.keys())
		}
		clock.put(24 * time.Hour)
		elapse(15 * time.Second)
		if n := len(db.keys()); n != 3 {
			t.Errorf("%d firings, want 3: %v", n, db.keys())
		}
		w.end()
	})
}

// A firing that fails comes later, is counted and shown, and holds up nobody else.
func TestSchedules_AFiringThatFailsIsTriedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, clock := newShared(), &machine{}
		db.fail = func(key idempotency.Key) error {
			if key < "schedule:good" {
				return job.ErrQuota
			}
			return nil
		}
		w := scheduling(t, db, clock, recurs(t, "bad", "0 * * * *", "", job.MissedRunLast), recurs(t, "good", "0 * * * *", "", job.MissedRunLast))
		elapse(62 * time.Minute)
		if keys := db.keys(); len(keys) != 1 || keys[0] < "schedule:good" {
			t.Fatalf("firings %v", keys)
		}
		if state := db.state("bad"); state.LastError == "" || !state.FiredTime.IsZero() {
			t.Errorf("state %+v", state)
		}
		failed := testutil.ToFloat64(w.metrics.ScheduleFirings.WithLabelValues("bad", telemetry.FiringFailed))
		if failed < 5 || failed > 20 || !slices.Contains(w.logged.all(), "WARN a firing could not be made; it is tried again") {
			t.Errorf("%v failures counted; log %v", failed, w.logged.all())
		}
		db.set(func() { db.fail = nil })
		elapse(31 * time.Second)
		if state := db.state("bad"); len(db.keys()) != 2 || state.LastError != "" || state.FiredTime.IsZero() {
			t.Errorf("state %+v, firings %v", state, db.keys())
		}
		w.end()
	})
}

func TestSchedules_APanicEndsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, clock := newShared(), &machine{}
		panics := 0
		db.fail = func(idempotency.Key) error {
			if panics++; panics == 1 {
				panic(errors.New("broken"))
			}
			return nil
		}
		w := scheduling(t, db, clock, recurs(t, "s", "0 * * * *", "", job.MissedSkip))
		elapse(61 * time.Minute)
		if n := len(db.keys()); n != 1 {
			t.Errorf("%d firings", n)
		}
		w.end()
	})
}

// A key that a client has used is an error that no repetition mends: it is shown,
// and the next firing is made.
func TestSchedules_AKeyThatAClientHasUsed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, clock := newShared(), &machine{}
		first := time.Now().Truncate(time.Hour).Add(time.Hour)
		key := job.FiringKey("s", first)
		db.accepted[key] = idempotency.Request{Tenant: "acme", Key: key, Fingerprint: idempotency.NewFingerprint("POST", "/jobs", nil, "", nil)}
		w := scheduling(t, db, clock, recurs(t, "s", "0 * * * *", "", job.MissedRunAll))
		elapse(time.Until(first.Add(time.Minute)))
		if state := db.state("s"); state.LastError == "" || !state.LastTime.Equal(first) || len(db.keys()) != 0 || db.asked() != 1 {
			t.Errorf("state %+v after %d submits", state, db.asked())
		}
		elapse(time.Hour)
		if state := db.state("s"); state.LastError != "" || !state.FiredTime.Equal(first.Add(time.Hour)) {
			t.Errorf("state %+v", state)
		}
		w.end()
	})
}
