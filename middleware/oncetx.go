package middleware

import (
	"context"
	"database/sql"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/idempotency"
)

// txPause lies between two tries to get at a record that another transaction
// holds. The store itself waits for that one, so it is short.
const txPause = 50 * time.Millisecond

// errRolledBack makes a store roll back a handler whose answer is not stored.
var errRolledBack = errors.New("middleware: the handler's answer is not stored")

// errLostSuccess reports a handler that answers with success and opts out of
// storing it: what it wrote is rolled back with the record.
var errLostSuccess = errors.New("middleware: a handler under OnceTx cannot succeed and keep its answer from being stored")

// OnceTx is [Once] for handlers that write in the store's own database. The
// handler gets the transaction from [idempotency.TxOf]: what it writes there and
// the answer that it gives are one commit, so its effect happens exactly once,
// whatever dies when. An answer of 5xx, 401, 403, 408, 425 or 429, a panic and
// [Reject] roll everything back and leave the key free.
//
// The answer is held in memory until the commit: there are no streams here, and
// flushing does nothing. Of the options, Lease, On5xx, OnInterrupted,
// AfterExpiry, FailOpen and IgnoreFlush have no meaning.
func OnceTx(store idempotency.TxStore, o Options) func(http.Handler) http.Handler {
	once := &onceTx{Options: o.filled(), store: store}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { once.serve(w, r, next) })
	}
}

type onceTx struct {
	Options
	store idempotency.TxStore
}

func (o *onceTx) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	req, ok := idempotency.FromContext(r.Context())
	if !ok {
		api.WriteError(w, r, errNotKeyed)
		return
	}
	if req.Key == "" {
		passOn(w, r, next)
		return
	}
	rec, c, err := o.do(w, r, req, next)
	if inFlight(err) {
		rec, c, err = o.again(w, r, req, next, err)
	}
	switch {
	case err != nil:
		o.refuse(w, r, err)
	case c != nil:
		api.SetExpires(w.Header(), rec.ExpiresAt)
		c.deliver()
	default:
		o.replay(w, r, req, rec)
	}
}

// do runs the handler in a transaction, or finds the record that was there. The
// capture is there if the handler has run and its answer is to be delivered.
func (o *onceTx) do(w http.ResponseWriter, r *http.Request, req idempotency.Request, next http.Handler) (idempotency.Record, *capture, error) {
	var (
		c        *capture
		response idempotency.Response
		ended    bool
	)
	rec, err := o.store.Do(o.forHandler(r).Context(), req, o.Keep, func(ctx context.Context, tx *sql.Tx) (idempotency.Response, error) {
		c = newCapture(w, r, afterCommit, o.ResponseLimit)
		next.ServeHTTP(c, r.WithContext(idempotency.WithTx(ctx, tx)))
		c.seal()
		if rolledBack(c) {
			return response, errRolledBack
		}
		response, ended = c.response(o.ReplayHeaders), true
		return response, nil
	})
	switch {
	case errors.Is(err, errRolledBack) && c.optedOut() && c.status < http.StatusBadRequest:
		// Its writes are gone with the record: it must not look like a success.
		o.Count(Released)
		return rec, nil, errLostSuccess
	case errors.Is(err, errRolledBack):
		o.Count(Released)
		return rec, c, nil
	case err != nil && ended:
		o.Count(NotRecorded)
		return rec, nil, errors.Join(idempotency.ErrOutcomeUnknown, err)
	case err != nil:
		return rec, nil, storeFailure(err)
	case ended:
		o.Count(outcomeOf(response))
		return rec, c, nil
	}
	rec.Response, err = idempotency.Answer(rec, req)
	return rec, nil, err
}

func rolledBack(c *capture) bool {
	return c.optedOut() || c.short() || c.status >= http.StatusInternalServerError || slices.Contains(momentary, c.status)
}

// again waits for the request in flight, as Once does. Each try waits in the
// database for the end of the other transaction.
func (o *onceTx) again(w http.ResponseWriter, r *http.Request, req idempotency.Request, next http.Handler, why error) (idempotency.Record, *capture, error) {
	wait, leave, err := o.mayWait(r, req.Tenant, why)
	if wait == 0 {
		return idempotency.Record{}, nil, err
	}
	defer leave()
	w.Header().Set("Preference-Applied", api.WaitApplied(wait))
	waiting, cancel := context.WithTimeout(r.Context(), wait)
	defer cancel()
	for pause(waiting, txPause) {
		if err := o.still(r); err != nil {
			return idempotency.Record{}, nil, err
		}
		rec, c, err := o.do(w, r, req, next)
		if !inFlight(err) {
			return rec, c, err
		}
	}
	return idempotency.Record{}, nil, why
}
