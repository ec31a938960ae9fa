package repository

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

// lockTimeout is how long a request waits for another one with its key; the
// statements' own limits on locks are as long.
const lockTimeout = time.Second

// errRecordGone reports a function that removed the record of its own request.
var errRecordGone = errors.New("the function removed the record of its request")

// Do implements idempotency.TxStore. Requests of this process that share a key
// wait for each other before they take a connection, those of other processes
// on the row. A run that fails, panics or loses its client leaves nothing, the
// record neither. It returns run's error as it is.
func (s *Records) Do(ctx context.Context, req idempotency.Request, keep time.Duration, run func(context.Context, *sql.Tx) (idempotency.Response, error)) (idempotency.Record, error) {
	timer := time.NewTimer(lockTimeout)
	defer timer.Stop()
	for {
		ended, mine := s.r.running.take(req)
		if mine {
			defer s.r.running.leave(req, ended)
			return s.do(ctx, req, keep, run)
		}
		over, err := endedBefore(ctx, ended, timer)
		if err != nil {
			return idempotency.Record{}, err
		}
		if !over {
			return idempotency.Record{}, &idempotency.InProgressError{}
		}
		// Together, not one after the other: all of them find the same record.
		if rec, found, err := s.met(ctx, req); found || err != nil {
			return rec, err
		}
	}
}

// do is Do for the one request of the key in this process.
func (s *Records) do(ctx context.Context, req idempotency.Request, keep time.Duration, run func(context.Context, *sql.Tx) (idempotency.Response, error)) (idempotency.Record, error) {
	for range acceptTries {
		rec, ran, err := s.try(ctx, req, keep, run)
		if ran || err != nil {
			return rec, err
		}
		rec, found, err := s.met(ctx, req)
		if found || err != nil {
			return rec, err
		}
	}
	return idempotency.Record{}, s.fail("run in a transaction", errVanished)
}

// try runs the function, unless the key has a record.
func (s *Records) try(ctx context.Context, req idempotency.Request, keep time.Duration, run func(context.Context, *sql.Tx) (idempotency.Response, error)) (idempotency.Record, bool, error) {
	none := idempotency.Record{}
	detached, release, end := tied(ctx)
	defer end()
	tx, done, err := s.r.engine.beginRecord(sameDeadline{detached, ctx})
	if err != nil {
		return none, false, s.held("begin", err)
	}
	defer done() // also after a panic and runtime.Goexit in run

	owner := s.r.newOwner()
	n, err := s.open(detached, tx, req, owner, keep)
	if err != nil || n == 0 {
		return none, false, s.held("insert the record", err)
	}
	resp, err := run(ctx, tx)
	if err != nil {
		return none, true, err
	}
	if err := s.fill(detached, tx, req, owner, resp, keep); err != nil {
		return none, true, err
	}
	if !release() {
		return none, true, context.Cause(ctx)
	}
	if err := s.commit(tx); err != nil {
		return none, true, err
	}
	rec := idempotency.Record{Request: req, State: idempotency.Completed, Response: resp, Fresh: true, ExpiresAt: s.r.clock.Now().Add(keep)}
	return rec, true, nil
}

func (s *Records) open(ctx context.Context, tx *sql.Tx, req idempotency.Request, owner string, keep time.Duration) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, acceptTimeout)
	defer cancel()
	return s.r.engine.openRecord(ctx, tx, append(keyArgs(req.Tenant, req.Key), req.Fingerprint.Bytes(), owner, keep.Milliseconds())...)
}

// fill puts the response into the record.
func (s *Records) fill(ctx context.Context, tx *sql.Tx, req idempotency.Request, owner string, resp idempotency.Response, keep time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	args := append(keyArgs(req.Tenant, req.Key), owner, resp.Status, encodeHeader(resp.Header), storedBody(resp), keep.Milliseconds())
	n, err := s.r.engine.finishRecord(ctx, tx, args...)
	if err == nil && n == 0 {
		err = errRecordGone
	}
	return s.fail("store the response", err)
}

// commit does not look what became of a commit that was not answered: it may
// still be going on, and the same request again waits for it.
func (s *Records) commit(tx *sql.Tx) error {
	err := tx.Commit()
	if connectionFailure(err) == unavailable {
		err = fmt.Errorf("%w: %w", job.ErrOutcomeUnknown, err)
	}
	return s.fail("commit", err)
}

// held says that another transaction has had the key for too long, if that is
// what the error means.
func (s *Records) held(doing string, err error) error {
	if s.r.engine.classify(err) == busy {
		return &idempotency.InProgressError{}
	}
	return s.fail(doing, err)
}

// met returns the record that the request met, unless that counts for nothing.
func (s *Records) met(ctx context.Context, req idempotency.Request) (idempotency.Record, bool, error) {
	row, err := s.r.record(ctx, req.Tenant, req.Key)
	if errors.Is(err, job.ErrNotFound) {
		return idempotency.Record{}, false, nil
	}
	if err != nil {
		return idempotency.Record{}, false, s.fail("find record", err)
	}
	if o := s.r.retention; row.replaceable(o, o.afterExpiry) {
		_, _, err := s.execute(ctx, "delete an old record", s.sql().purge, o.purgeArgs(req, o.afterExpiry)...)
		return idempotency.Record{}, false, err
	}
	rec, err := row.record(req.Tenant, req.Key)
	if rec.State == idempotency.InProgress && row.LeaseEnded {
		rec.State = idempotency.Interrupted // claimed by Begin, and it is not for Do to take over
	}
	return rec, true, s.fail("find record", err)
}

// beginOn begins a transaction on a connection of the pool. Only the wait for
// the connection is bounded here: the transaction lasts as long as its function.
func beginOn(ctx context.Context, p *pool) (*sql.Tx, func(), error) {
	patient, cancel := context.WithTimeout(ctx, acceptTimeout)
	defer cancel()
	conn, err := p.db.Conn(patient)
	if err != nil {
		return nil, nil, err
	}
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return nil, nil, errors.Join(err, conn.Close())
	}
	return tx, func() {
		_ = tx.Rollback() // after a commit it does nothing
		_ = conn.Close()
	}, nil
}
