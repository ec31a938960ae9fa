package dispatcher_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
	"github.com/sekali/sekali/lock"
)

// diary notes in which order things happened, over all fakes of a world.
type diary struct {
	mu    sync.Mutex
	lines []string
}

func (d *diary) add(format string, values ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, fmt.Sprintf(format, values...))
}

func (d *diary) all() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.lines)
}

// locker gives every lock that is asked for, unless its hooks say otherwise;
// they count calls from 1.
type locker struct {
	diary *diary

	mu        sync.Mutex
	acquired  []acquisition
	refreshed []time.Time
	onAcquire func(ctx context.Context, n int) error
	onRefresh func(n int) error
}

type acquisition struct {
	name string
	ttl  time.Duration
}

func (l *locker) Acquire(ctx context.Context, key string, ttl time.Duration) (lock.Lock, error) {
	l.mu.Lock()
	l.acquired = append(l.acquired, acquisition{key, ttl})
	n, hook := len(l.acquired), l.onAcquire
	l.mu.Unlock()
	if hook != nil {
		if err := hook(ctx, n); err != nil {
			return nil, err
		}
	}
	l.diary.add("acquire")
	return &held{l, key}, nil
}

func (l *locker) names() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	names := make([]string, len(l.acquired))
	for i, a := range l.acquired {
		names[i] = a.name
	}
	return names
}

func (l *locker) refreshes() []time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.refreshed)
}

// set changes a hook while the dispatcher runs.
func (l *locker) set(change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
}

type held struct {
	from *locker
	key  string
}

func (h *held) Key() string { return h.key }

func (h *held) Refresh(_ context.Context, ttl time.Duration) error {
	h.from.mu.Lock()
	defer h.from.mu.Unlock()
	h.from.refreshed = append(h.from.refreshed, time.Now())
	if ttl != lease {
		return fmt.Errorf("refreshed for %v, want the length of the lease", ttl)
	}
	return call(h.from.onRefresh, len(h.from.refreshed))
}

func (h *held) Release(context.Context) error {
	h.from.diary.add("release")
	return nil
}

// operations answers each taking with what answer says, counted from 1.
type operations struct {
	diary *diary

	mu     sync.Mutex
	takes  int
	answer func(n int) (job.OperationTaken, error)
}

func (o *operations) Take(context.Context, job.Claimed) (job.OperationTaken, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.takes++
	o.diary.add("take")
	if o.answer == nil {
		return job.OperationTaken{Mine: true}, nil
	}
	return o.answer(o.takes)
}

func (o *operations) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.takes
}

// eventLog keeps events, unless its hook makes it fail.
type eventLog struct {
	mu       sync.Mutex
	events   []job.Event
	calls    int
	onRecord func(ctx context.Context, n int) error
}

func (l *eventLog) Record(ctx context.Context, events []job.Event) error {
	l.mu.Lock()
	l.calls++
	n, hook := l.calls, l.onRecord
	l.mu.Unlock()
	if hook != nil {
		if err := hook(ctx, n); err != nil {
			return err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, events...)
	return nil
}

func (l *eventLog) recorded() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.calls
}

func (l *eventLog) all() []job.Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.events)
}

// named returns the stored events of the name.
func (l *eventLog) named(name job.EventName) []job.Event {
	return slices.DeleteFunc(l.all(), func(e job.Event) bool { return e.Name != name })
}

// reporter keeps what processes told of themselves.
type reporter struct {
	mu       sync.Mutex
	workers  []job.Worker
	tallies  []job.Tally
	at       []time.Time
	left     []string
	calls    int
	onReport func(ctx context.Context, n int) error
}

func (r *reporter) Report(ctx context.Context, w job.Worker, done []job.Tally) error {
	r.mu.Lock()
	r.calls++
	n, hook := r.calls, r.onReport
	r.mu.Unlock()
	if hook != nil {
		if err := hook(ctx, n); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.workers, r.at = append(r.workers, w), append(r.at, time.Now())
	r.tallies = append(r.tallies, done...)
	return nil
}

func (r *reporter) Leave(_ context.Context, workerID string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left = append(r.left, workerID)
	return nil
}

// cache keeps what it was told.
type cache struct {
	diary *diary

	mu   sync.Mutex
	puts []job.Job
}

func (c *cache) Put(j job.Job) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.puts = append(c.puts, j)
	c.diary.add("cache %s", j.Status)
}

func (c *cache) Find(context.Context, idempotency.Tenant, idempotency.Key) (job.Cached, bool) {
	return job.Cached{}, false
}

func (c *cache) all() []job.Job {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.puts)
}

// logged keeps the levels and messages of log lines.
type logged struct {
	mu    sync.Mutex
	lines []string
}

func (l *logged) Enabled(context.Context, slog.Level) bool { return true }
func (l *logged) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *logged) WithGroup(string) slog.Handler            { return l }

func (l *logged) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, r.Level.String()+" "+r.Message)
	return nil
}

func (l *logged) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.lines)
}
