package middleware

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/internal/telemetry"
)

// What becomes of the key when a handler has answered 5xx or panicked, and
// nobody can tell what it had done by then (contract row 38).
const (
	// Release5xx gives the key back: the same request again runs the handler
	// again. It is right where a failed handler has done nothing, or where doing
	// it twice is better than not at all.
	Release5xx = "release"
	// Store5xx stores the answer like any other. It is right for payments. After a
	// panic there is no answer to store, and the key becomes interrupted.
	Store5xx = "store"
	// Interrupt5xx refuses the same request from then on: somebody has to find out.
	Interrupt5xx = "interrupt"
)

// What becomes of a request whose handler was interrupted by the end of its
// process (rows 42 and 43).
const (
	// ReexecuteInterrupted lets the next request with the key run the handler.
	ReexecuteInterrupted = "reexecute"
	// RejectInterrupted refuses the key: nobody knows what the handler had done.
	RejectInterrupted = "reject"
)

// What becomes of a key whose record has expired (row 57).
const (
	// RefuseExpired refuses it for as long as its tombstone is kept.
	RefuseExpired = "refuse"
	// ExecuteExpired takes it for a new one.
	ExecuteExpired = "execute"
)

// The defaults of Options.
const (
	defaultLease = 30 * time.Second // longer than any pause of a healthy process
	defaultKeep  = 24 * time.Hour   // what most APIs keep
	// defaultStoreTimeout is far above what a store needs, and leaves a client time
	// to try again within its own limit.
	defaultStoreTimeout = 2 * time.Second
	// onceMaxWait is what most proxies allow a silent connection.
	onceMaxWait          = 30 * time.Second
	defaultResponseLimit = 1 << 20
)

// Outcome is how one run of a keyed handler ended, for those who count.
type Outcome string

// The outcomes.
const (
	Stored      Outcome = telemetry.RunStored
	NotRetained Outcome = telemetry.RunNotRetained
	Released    Outcome = telemetry.RunReleased
	Interrupted Outcome = telemetry.RunInterrupted
	Lost        Outcome = telemetry.RunLost
	NotRecorded Outcome = telemetry.RunNotRecorded
	Unprotected Outcome = telemetry.RunUnprotected
)

// WaiterLimit bounds how many requests may wait at once (row 90).
type WaiterLimit interface {
	// Enter takes a place for a request of the tenant, until leave is called.
	Enter(t idempotency.Tenant) (leave func(), ok bool)
}

// Options say how Once treats the requests of a route. The zero value is the
// documented default.
type Options struct {
	// Lease is how long a claim holds after its process has died; 0 means 30 s.
	// While the handler runs the claim is extended, however long that takes.
	Lease time.Duration
	// Keep is how long a response can be replayed; 0 means 24 h.
	Keep time.Duration
	// Now is the store's time, for Idempotency-Expires on a first answer; nil
	// leaves it out there. A replay has it in any case.
	Now func() time.Time
	// StoreTimeout bounds each use of the store; 0 means 2 s.
	StoreTimeout time.Duration
	// MaxWait is the longest Prefer: wait that is granted; 0 means 30 s.
	MaxWait time.Duration
	// ResponseLimit is the largest body that is stored; 0 means 1 MiB. Answers
	// up to it are held back until the handler has returned.
	ResponseLimit int
	// On5xx is Release5xx (the default), Store5xx or Interrupt5xx.
	On5xx string
	// OnInterrupted is ReexecuteInterrupted (the default) or RejectInterrupted.
	OnInterrupted string
	// AfterExpiry is RefuseExpired (the default) or ExecuteExpired.
	AfterExpiry string
	// FailOpen runs the handler without protection while the store is away. The
	// default is to refuse with 503.
	FailOpen bool
	// ReplayHeaders are replayed besides the usual ones. Those that are about one
	// client or one moment are never replayed.
	ReplayHeaders []string
	// CancelWithClient ends the handler's context when its client leaves. The
	// default is to let it go on: the client will come back for the answer.
	CancelWithClient bool
	// IgnoreFlush is for handlers that flush out of habit, such as proxies: only
	// text/event-stream and upgrades are streams then.
	IgnoreFlush bool
	// Waiters bounds how many may wait for requests in flight; nil: no bound.
	Waiters WaiterLimit
	// Stopping ends all waiting when it is closed.
	Stopping <-chan struct{}
	// Still returns an error if the caller would not be let in any more, after a
	// wait; nil: it always would.
	Still func(*http.Request) error
	// Log gets a line whenever protection was less than whole; nil: none.
	Log *slog.Logger
	// RedactKeys logs a short hash in place of the key.
	RedactKeys bool
	// Count is told how each run ended; nil: nobody is.
	Count func(Outcome)
}

// errNotKeyed reports a route whose middleware is in the wrong order.
var errNotKeyed = errors.New("middleware: Once needs Key around it")

// Once runs the handler once for each key: the first request claims the key,
// runs the handler and stores its answer; the same request again gets that
// answer, byte for byte; another request with the key is refused. It stands
// inside [Key], which makes the keyed request; a request without a key runs the
// handler as it is.
//
// The claim is a lease that is extended while the handler runs, and every write
// about it names its owner, so a process that was taken for dead can no longer
// write over its successor's answer. What the handler did outside the store is
// not undone by anything: see On5xx and OnInterrupted, and [OnceTx] for
// handlers that write in the store's own database.
//
// Once panics if an option is none of those that it documents.
func Once(store idempotency.Store, o Options) func(http.Handler) http.Handler {
	o = o.filled()
	once := &once{Options: o, store: store, flights: newFlights()}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { once.serve(w, r, next) })
	}
}

// filled returns the options with their defaults, after a check.
func (o Options) filled() Options {
	o.Lease = cmp.Or(o.Lease, defaultLease)
	o.Keep = cmp.Or(o.Keep, defaultKeep)
	o.StoreTimeout = cmp.Or(o.StoreTimeout, defaultStoreTimeout)
	o.MaxWait = cmp.Or(o.MaxWait, onceMaxWait)
	o.ResponseLimit = cmp.Or(o.ResponseLimit, defaultResponseLimit)
	o.On5xx = oneOf("On5xx", o.On5xx, Release5xx, Store5xx, Interrupt5xx)
	o.OnInterrupted = oneOf("OnInterrupted", o.OnInterrupted, ReexecuteInterrupted, RejectInterrupted)
	o.AfterExpiry = oneOf("AfterExpiry", o.AfterExpiry, RefuseExpired, ExecuteExpired)
	if min(o.Lease, o.Keep, o.StoreTimeout, o.MaxWait, time.Duration(o.ResponseLimit)) < 0 {
		panic("middleware: a duration or limit of Options is negative")
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Count == nil {
		o.Count = func(Outcome) {}
	}
	return o
}

// oneOf returns the value, or the first choice in place of none.
func oneOf(option, value string, choices ...string) string {
	for _, choice := range choices {
		if value == choice {
			return value
		}
	}
	if value != "" {
		panic(fmt.Sprintf("middleware: %s cannot be %q", option, value))
	}
	return choices[0]
}

type once struct {
	Options
	store   idempotency.Store
	flights *flights
}

func (o *once) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	ctx := r.Context()
	req, ok := idempotency.FromContext(ctx)
	if !ok {
		api.WriteError(w, r, errNotKeyed)
		return
	}
	if req.Key == "" {
		passOn(w, r, next)
		return
	}
	claim, rec, err := o.begin(ctx, req)
	if o.FailOpen && errors.Is(err, idempotency.ErrUnavailable) {
		o.unprotected(w, r, next, err)
		return
	}
	if inFlight(err) {
		claim, rec, err = o.await(w, r, req, err)
	}
	switch {
	case err != nil:
		o.refuse(w, r, err)
	case claim != nil:
		o.run(w, r, next, *claim)
	default:
		o.replay(w, r, req, rec)
	}
}

// begin claims the key, or returns the record whose response is the answer, or
// the reason why there is none. A client that leaves meanwhile does not stop it
// half-way: nobody would know then whether the key is claimed.
func (o *once) begin(ctx context.Context, req idempotency.Request) (*idempotency.Claim, idempotency.Record, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), o.StoreTimeout)
	defer cancel()
	claim, rec, ok, err := o.store.Begin(ctx, req, idempotency.Beginning{
		Lease:       o.Lease,
		Takeover:    o.OnInterrupted == ReexecuteInterrupted,
		AfterExpiry: o.AfterExpiry == ExecuteExpired,
	})
	if err != nil {
		return nil, rec, storeFailure(err)
	}
	if ok {
		return &claim, rec, nil
	}
	rec.Response, err = idempotency.Answer(rec, req)
	return nil, rec, err
}

// storeFailure makes an error of a store that has not run anything one of those
// that have a problem. What a store does not name is its being away, and so is a
// claim of which it cannot tell whether it was made: its text is kept, its kind
// is not.
func storeFailure(err error) error {
	if inFlight(err) || errors.Is(err, idempotency.ErrCorrupt) {
		return err
	}
	return fmt.Errorf("%w: %s", idempotency.ErrUnavailable, err.Error())
}

func inFlight(err error) bool {
	var e *idempotency.InProgressError
	return errors.As(err, &e)
}

// replay answers with the stored response. What was stored in a coding that this
// client does not take is decoded for it.
func (o *Options) replay(w http.ResponseWriter, r *http.Request, req idempotency.Request, rec idempotency.Record) {
	rec.Response = acceptable(rec.Response, r.Header)
	api.WriteRecord(w, req, rec, false, o.ReplayHeaders...)
}

// refuse answers a request that has no answer. A store that fails is also told
// to those who have no log of their requests.
func (o *Options) refuse(w http.ResponseWriter, r *http.Request, err error) {
	switch {
	case errors.Is(err, idempotency.ErrCorrupt):
		o.Log.LogAttrs(r.Context(), slog.LevelError, "record of a key is corrupt: the request is refused", o.attrs(r, idempotency.Claim{}, err)...)
	case errors.Is(err, idempotency.ErrUnavailable):
		o.Log.LogAttrs(r.Context(), slog.LevelWarn, "store away: the request is refused", o.attrs(r, idempotency.Claim{}, err)...)
	}
	api.WriteKeyError(w, r, err)
}

// unprotected runs the handler although nobody knows whether it has run before.
func (o *once) unprotected(w http.ResponseWriter, r *http.Request, next http.Handler, err error) {
	o.Count(Unprotected)
	o.Log.LogAttrs(r.Context(), slog.LevelWarn, "store away: the request runs unprotected", o.attrs(r, idempotency.Claim{}, err)...)
	w.Header().Set("Idempotency-Status", "unprotected")
	passOn(w, r, next)
}

// passOn runs the handler without protection. Its answer goes out as it comes,
// except for the header that is meant for this package.
func passOn(w http.ResponseWriter, r *http.Request, next http.Handler) {
	c := newCapture(w, r, atOnce, 0)
	next.ServeHTTP(c, r)
	c.seal()
}

// attrs name the request, and its claim if there is one, in a line of the log.
func (o *Options) attrs(r *http.Request, claim idempotency.Claim, err error) []slog.Attr {
	req, _ := idempotency.FromContext(r.Context())
	attrs := []slog.Attr{
		slog.String(telemetry.RequestID, r.Header.Get(requestIDHeader)),
		slog.String(telemetry.Tenant, string(req.Tenant)),
		telemetry.KeyLog{Redact: o.RedactKeys}.Attr(string(req.Key)),
	}
	if claim.Owner != "" {
		attrs = append(attrs, slog.Int(telemetry.Attempt, claim.Attempt),
			slog.String(telemetry.Owner, claim.Owner[max(0, len(claim.Owner)-ownerSuffix):]))
	}
	if err != nil {
		attrs = append(attrs, slog.Any(telemetry.Error, err))
	}
	return attrs
}

// ownerSuffix characters tell two owners apart, and are no use to anybody else.
const ownerSuffix = 6
