package dispatcher

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sekali/sekali/internal/telemetry"
	"github.com/sekali/sekali/job"
)

// Remote is the side of the dispatcher that workers outside of the gateway see.
// They run jobs of the types whose Work says Remote, under the same leases as the
// gateway's own executors, and what they say about them goes through the same
// decisions and writes. Nothing about an execution is kept in a process: any
// process of the database can answer any call.
type Remote struct {
	d     *Dispatcher
	turn  atomic.Uint64 // where the rotation over types stands
	queue *claimQueue
	// secret of lease tokens; nil until it was read.
	secret atomic.Pointer[[]byte]
	stales staleCalls
}

var _ job.Workers = (*Remote)(nil)

func newRemote(d *Dispatcher) *Remote {
	r := &Remote{d: d, queue: newClaimQueue()}
	for t, w := range d.Work {
		if w.Remote {
			r.queue.groups[t] = groups{}
		}
	}
	return r
}

// Remote returns what workers outside of the gateway can do.
func (d *Dispatcher) Remote() *Remote { return d.remote }

// EndClaims answers every claim that waits, and lets none wait any more: the
// process is about to end.
func (r *Remote) EndClaims() { r.queue.end() }

// Claim implements job.Workers. A caller who has left gets nothing: what its claim
// has brought is handed back.
func (r *Remote) Claim(ctx context.Context, ask job.WorkerClaim) ([]job.Handed, error) {
	if err := r.readSecret(ctx); err != nil {
		return nil, err
	}
	w := r.queue.enter(ask)
	defer r.leave(w)
	timer := time.NewTimer(ask.Wait)
	defer timer.Stop()
	for types := untold(ask.Types); ; types = r.queue.take(w) {
		handed, err := r.look(ctx, ask, types)
		if err != nil || len(handed) > 0 || ask.Wait <= 0 {
			return handed, err
		}
		r.queue.lookedInVain(w)
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-r.queue.ended:
			return nil, nil
		case <-timer.C:
			return nil, nil
		case <-w.signal:
		}
	}
}

// untold are types that a claim looks at without having been told of any job.
func untold(types []job.Type) map[job.Type]bool {
	set := make(map[job.Type]bool, len(types))
	for _, t := range types {
		set[t] = false
	}
	return set
}

// look claims jobs of the types, a share of each in turn. Types of which there may
// be more than was asked for are passed on to who waits for them.
func (r *Remote) look(ctx context.Context, ask job.WorkerClaim, types map[job.Type]bool) ([]job.Handed, error) {
	var handed []job.Handed
	var failed error
	hungry := r.inTurn(types)
	for range claimRounds {
		if len(hungry) == 0 || len(handed) >= ask.Max || ctx.Err() != nil {
			break
		}
		t := hungry[0]
		want := max(1, (ask.Max-len(handed))/len(hungry))
		var got []job.Handed
		var found int
		got, found, failed = r.claim(ctx, ask, t, want)
		handed = append(handed, got...)
		if failed != nil {
			break
		}
		hungry = hungry[1:]
		switch {
		case r.queue.rests(t):
		case found == want:
			hungry = append(hungry, t)
		case ask.Tenant != "" && types[t]: // the job may be another tenant's, whose workers ask elsewhere
			r.d.outgoing.claimable(t)
		}
	}
	for _, t := range hungry {
		r.pass(ask, t, types[t])
	}
	handed = r.inTime(ctx, handed)
	if failed != nil {
		return handed, r.partly(handed, failed)
	}
	if ctx.Err() != nil {
		r.HandBack(ctx, handed)
		return nil, context.Cause(ctx)
	}
	return handed, nil
}

// claimRounds bounds the statements of one look: where most jobs turn out to be done
// already it ends with few, and others go on.
const claimRounds = 200

// inTime tells how much is left of each lease, now that all are there. What has none
// left goes back.
func (r *Remote) inTime(ctx context.Context, handed []job.Handed) []job.Handed {
	now := r.d.Clock.Now()
	var inTime, late []job.Handed
	for _, h := range handed {
		if h.LeaseFor = h.LeaseEndsAt.Sub(now); h.LeaseFor > 0 {
			inTime = append(inTime, h)
		} else {
			late = append(late, h)
		}
	}
	r.HandBack(ctx, late)
	return inTime
}

// partly is the error of a claim that has brought something all the same: none.
func (r *Remote) partly(handed []job.Handed, err error) error {
	if len(handed) == 0 {
		return err
	}
	r.d.loopFailed("remote")
	return nil
}

// inTurn lists the types, each time beginning with another one.
func (r *Remote) inTurn(types map[job.Type]bool) []job.Type {
	list := make([]job.Type, 0, len(types))
	for t := range types {
		list = append(list, t)
	}
	slices.Sort(list)
	if len(list) < 2 {
		return list
	}
	first := int(r.turn.Add(1) % uint64(len(list)))
	return slices.Concat(list[first:], list[:first])
}

// claim takes jobs of one type; found counts also those that turned out to be not
// for this worker.
func (r *Remote) claim(ctx context.Context, ask job.WorkerClaim, t job.Type, want int) (handed []job.Handed, found int, err error) {
	d := r.d
	lease := d.settings(t).Lease
	claims, err := d.claimOf(ctx, job.Claiming{
		Type: t, Max: want, Worker: ask.Worker, Remote: true, Lease: lease, Tenant: ask.Tenant,
	})
	if err != nil {
		return nil, 0, fmt.Errorf("claim %s: %w", t, err)
	}
	if claims.Next > 0 { // nothing of the type may start before
		r.queue.rest(t, min(claims.Next, longestRest))
	}
	d.Metrics.Claimed.WithLabelValues(string(t)).Add(float64(len(claims.Jobs)))
	for _, c := range claims.Jobs {
		if h, ok := r.begin(ctx, c); ok {
			handed = append(handed, h)
		}
	}
	return handed, len(claims.Jobs), nil
}

// begin makes a claimed job ready for its worker. A job that cannot go on, because
// its operation was done before, or is being done, does not reach it.
func (r *Remote) begin(ctx context.Context, c job.Claimed) (job.Handed, bool) {
	d := r.d
	d.begun(c)
	a := r.attempt(ctx, c)
	if e, goes := d.prepare(a); !goes {
		if _, err := r.conclude(ctx, a, e); err != nil {
			d.loopFailed("remote") // its lease ends it
		}
		return job.Handed{}, false
	}
	h := job.Handed{Claimed: c, LeaseToken: r.token(c.Lease)}
	if c.Timeout < a.work.Settings.Lease { // the attempt's time is over before its lease
		h.LeaseEndsAt = c.ExecutionDeadline()
		if _, err := d.Leases.Extend(ctx, []job.Lease{c.Lease}, c.Timeout); err != nil {
			d.loopFailed("remote") // the lease ends later than it might
		}
	}
	return h, true
}

// attempt is the attempt that a claimed job is in, for what decides on its end and
// writes that.
func (r *Remote) attempt(ctx context.Context, c job.Claimed) *attempt {
	d := r.d
	a := &attempt{Claimed: c, work: Work{Settings: d.settings(c.Type), Remote: true}}
	a.started = time.Now().Add(min(0, c.ClaimedAt.Sub(d.Clock.Now())))
	a.ctx, a.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	return a
}

// errUnreached is what an attempt ended with whose job never reached its worker.
var errUnreached = errors.New("dispatcher: the worker left before it got the job")

// HandBack implements job.Workers. What cannot be handed back now goes on when its
// lease ends.
func (r *Remote) HandBack(ctx context.Context, handed []job.Handed) {
	for _, h := range handed {
		a := r.attempt(ctx, h.Claimed)
		a.cancel(job.ErrShutdown)
		if _, err := r.conclude(ctx, a, ended{err: errUnreached, untried: true}); err != nil {
			r.d.Log.LogAttrs(ctx, slog.LevelWarn, "a job that did not reach its worker was not handed back",
				append(r.d.jobAttrs(h.Claimed), slog.Any(telemetry.Error, err))...)
		}
	}
}

// leave takes the claim out of the queue, and passes on what it was told and did
// not look at.
func (r *Remote) leave(w *waitingClaim) {
	for t, untold := range r.queue.leave(w) {
		r.pass(w.ask, t, untold)
	}
}

// pass lets the next claim of the same sort look at the type. If none waits here,
// other processes are told, unless they know.
func (r *Remote) pass(ask job.WorkerClaim, t job.Type, untold bool) {
	if !r.queue.wake(t, string(ask.Tenant), untold) && untold {
		r.d.outgoing.claimable(t)
	}
}

// mark notes that this process has made jobs of the types claimable, and returns
// those types that are not for workers outside.
func (r *Remote) mark(types []job.Type) (others []job.Type) {
	for _, t := range types {
		switch {
		case !r.queue.knows(t):
			others = append(others, t)
		case !r.queue.wakeAll(t, true):
			r.d.outgoing.claimable(t)
		}
	}
	return others
}

// hint notes the same as something that every other process may know.
func (r *Remote) hint(types []job.Type) (others []job.Type) {
	for _, t := range types {
		if !r.queue.knows(t) {
			others = append(others, t)
			continue
		}
		r.queue.wakeAll(t, false)
	}
	return others
}

// poll lets one claim of each sort look: the truth about jobs of which nobody told
// this process.
func (r *Remote) poll(context.Context) (time.Duration, error) {
	r.hint(r.types())
	return 0, nil
}

// types are those for workers outside.
func (r *Remote) types() []job.Type { return slices.Collect(maps.Keys(r.queue.groups)) }

// serves reports whether there are any.
func (r *Remote) serves() bool { return len(r.queue.groups) > 0 }

// leaseSecret is the name under which the database keeps the secret of lease
// tokens.
const leaseSecret = "lease_tokens"

// readSecret reads the secret once.
func (r *Remote) readSecret(ctx context.Context) error {
	if r.secret.Load() != nil {
		return nil
	}
	secret, err := r.d.Executions.Secret(ctx, leaseSecret)
	if err != nil {
		return fmt.Errorf("read the secret of lease tokens: %w", err)
	}
	r.secret.Store(&secret)
	return nil
}

// macSize bytes of a MAC nobody can guess.
const macSize = 16

// token is the lease in the form that a worker gets: the fencing token, and a MAC
// by which we know again that we gave it out for this job.
func (r *Remote) token(l job.Lease) string {
	mac := hmac.New(sha256.New, *r.secret.Load())
	fmt.Fprintf(mac, "%s %d", l.ID, l.Token)
	return strconv.FormatInt(l.Token, 10) + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil)[:macSize])
}

// lease is token backwards; genuine tells whether we gave it out.
func (r *Remote) lease(c job.WorkerCall) (l job.Lease, genuine bool) {
	number, _, _ := strings.Cut(c.LeaseToken, ".")
	token, err := strconv.ParseInt(number, 10, 64)
	l = job.Lease{ID: c.ID, Token: token}
	return l, err == nil && hmac.Equal([]byte(r.token(l)), []byte(c.LeaseToken))
}
