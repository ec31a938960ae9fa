package dispatcher

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sekali/sekali/internal/telemetry"
	"github.com/sekali/sekali/job"
)

const (
	// noticeEvery is the least time between two notices of a process: the first one
	// after a pause goes out at once, what happens meanwhile goes into the next.
	noticeEvery = 10 * time.Millisecond
	// noticeEndings is how many ends of jobs are kept for the next notice. Beyond
	// that the others may as well look themselves.
	noticeEndings = 500
	// noticeCancels likewise; those beyond come with the heartbeat.
	noticeCancels = 100
	// lookEvery is the least time between two looks at all jobs that somebody waits
	// for, however many notices ask for it.
	lookEvery = 100 * time.Millisecond
	// listenEvery is how often a database without notices is asked again.
	listenEvery = time.Minute
	// lastNoticeAfter bounds what the end of a process waits for to tell the others.
	lastNoticeAfter = 100 * time.Millisecond
)

// outgoing collects the next notice. Adding to it is cheap and never blocks: accepts
// and ends of attempts do it. Where there are no other processes it is nil, and
// collects nothing.
type outgoing struct {
	mu     sync.Mutex
	next   job.Notice
	signal chan struct{}
	sent   time.Time // the last notice; the loop's own
}

func newOutgoing(n job.Notices) *outgoing {
	if n == nil {
		return nil
	}
	return &outgoing{signal: make(chan struct{}, 1)}
}

func (o *outgoing) add(change func(n *job.Notice)) {
	if o == nil {
		return
	}
	o.mu.Lock()
	change(&o.next)
	o.mu.Unlock()
	select {
	case o.signal <- struct{}{}:
	default:
	}
}

// claimable tells that jobs of the types are left for others.
func (o *outgoing) claimable(types ...job.Type) {
	if len(types) == 0 {
		return
	}
	o.add(func(n *job.Notice) {
		for _, t := range types {
			if !slices.Contains(n.Claimable, t) {
				n.Claimable = append(n.Claimable, t)
			}
		}
	})
}

// moved tells that the job has ended, if it has. What it goes through before that
// its watchers find by looking: it would be a notice for each claim.
func (o *outgoing) moved(j job.Job) {
	if !j.Status.Finished() {
		return
	}
	o.add(func(n *job.Notice) {
		if len(n.Ended) >= noticeEndings {
			n.More = true
			return
		}
		if n.Ended == nil {
			n.Ended = map[job.ID]job.Version{}
		}
		n.Ended[j.ID] = job.Version{Number: j.Version, Status: j.Status}
	})
}

// cancelling tells that the holder of the lease was asked to cancel.
func (o *outgoing) cancelling(l job.Lease) {
	o.add(func(n *job.Notice) {
		if len(n.Cancelling) < noticeCancels {
			n.Cancelling = append(n.Cancelling, l)
		}
	})
}

func (o *outgoing) take() job.Notice {
	o.mu.Lock()
	defer o.mu.Unlock()
	taken := o.next
	o.next = job.Notice{}
	return taken
}

// leaveUnknown takes the types out of the set that this process has no work for.
func (d *Dispatcher) leaveUnknown(set map[job.Type]bool) {
	maps.DeleteFunc(set, func(t job.Type, untold bool) bool {
		_, known := d.Work[t]
		if !known && untold {
			d.outgoing.claimable(t)
		}
		return !known
	})
}

// leaveToOthers tells them, once, of the types whose jobs this process has made
// claimable and does not run now.
func (d *Dispatcher) leaveToOthers(types map[job.Type]bool) {
	for t, untold := range types {
		if untold {
			d.outgoing.claimable(t)
			types[t] = false
		}
	}
}

// notify sends what was collected. A notice that cannot be sent is lost.
func (d *Dispatcher) notify(ctx context.Context) (time.Duration, error) {
	if rest := noticeEvery - time.Since(d.outgoing.sent); rest > 0 {
		timer := time.NewTimer(rest)
		defer timer.Stop()
		select {
		case <-ctx.Done():
			return 0, nil
		case <-timer.C:
		}
	}
	d.outgoing.sent = time.Now()
	return 0, d.send(ctx)
}

func (d *Dispatcher) send(ctx context.Context) error {
	notice := d.outgoing.take()
	if notice.Empty() {
		return nil
	}
	sent, err := d.Notices.Send(ctx, notice)
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		return nil // Listen says so
	case err != nil:
		return wrap("notify", err)
	case sent:
		d.Metrics.Notices.WithLabelValues(telemetry.NoticeSent).Inc()
	}
	return nil
}

// lastNotice tells the others what this process leaves to them.
func (d *Dispatcher) lastNotice() {
	if d.outgoing == nil {
		return
	}
	d.leaveToOthers(d.ready.take()) // what came after the last claim
	ctx, cancel := context.WithTimeout(context.WithoutCancel(d.base), lastNoticeAfter)
	defer cancel()
	if err := d.send(ctx); err != nil {
		d.Log.LogAttrs(ctx, slog.LevelInfo, "the last notice was not sent", slog.Any(telemetry.Error, err))
	}
}

// listen hears what other processes say, until the connection is lost. A connection
// that has worked is opened anew at once.
func (d *Dispatcher) listen(ctx context.Context) (time.Duration, error) {
	heard := false
	err := d.Notices.Listen(ctx, func() {
		heard = true
		d.deaf(false)
		d.lookAround() // nobody knows what was missed
	}, d.hear)
	if ctx.Err() != nil {
		return 0, nil
	}
	d.deaf(true)
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		d.Log.LogAttrs(ctx, slog.LevelInfo, "the database has no notices; other processes are followed by polling", slog.Any(telemetry.Error, err))
		return 0, nil
	case heard:
		d.loopFailed("listener")
		d.Log.LogAttrs(ctx, slog.LevelWarn, "the connection for notices was lost; other processes are followed by polling until it is back",
			slog.Any(telemetry.Error, err))
		return failFirst, nil
	}
	return 0, wrap("listen", err)
}

// deaf shows as a metric whether this process hears the others.
func (d *Dispatcher) deaf(now bool) {
	value := 0.0
	if now {
		value = 1
	}
	d.Metrics.Degraded.WithLabelValues(telemetry.PartNotices).Set(value)
}

// hear acts on a notice of another process. It is told to nobody else: each process
// hears it from the one that sent it.
func (d *Dispatcher) hear(n job.Notice) {
	d.Metrics.Notices.WithLabelValues(telemetry.NoticeHeard).Inc()
	if n.More {
		d.lookAround()
	}
	if others := d.remote.hint(n.Claimable); d.runs() {
		d.ready.hint(others...)
	}
	for id, v := range n.Ended {
		d.Waiters.Changed(id, v)
	}
	for _, l := range n.Cancelling {
		d.cancelHere(l)
	}
}

// lookAround does now what every poll does.
func (d *Dispatcher) lookAround() {
	if d.runs() {
		d.ready.hint(d.types...)
	}
	d.remote.hint(d.remote.types())
	select {
	case d.look <- struct{}{}:
	default:
	}
}
