package repository

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"time"

	"github.com/lib/pq"

	"github.com/sekali/sekali/job"
)

// failure is what an error of a database means to us.
type failure int

const (
	other       failure = iota
	unavailable         // not reachable, overloaded, read-only, too slow
	busy                // a lock was not to be had in time
	conflict            // lost against a concurrent transaction: run it again
	unique              // a unique constraint refused the row
	wrong               // the data or the statement is at fault: the same again fails again
)

// connectionFailure recognises what both engines share: errors that are no
// answer of a server.
func connectionFailure(err error) failure {
	var network net.Error
	switch {
	case errors.Is(err, driver.ErrBadConn), errors.Is(err, sql.ErrConnDone), errors.As(err, &network),
		errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF),
		errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return unavailable
	}
	return other
}

// fail wraps an error with what was being done, and with the domain's error
// that it stands for.
func (r *Repository) fail(doing string, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, job.ErrOutcomeUnknown) || errors.Is(err, job.ErrUnavailable) {
		return fmt.Errorf("repository: %s: %w", doing, err)
	}
	switch r.engine.classify(err) {
	case unavailable, busy, conflict:
		return fmt.Errorf("repository: %s: %w: %w", doing, job.ErrUnavailable, err)
	default:
		return fmt.Errorf("repository: %s: %w", doing, err)
	}
}

// A transaction that lost against another is run again a few times, after a
// random wait that grows: the two must not meet again (BR-46).
const (
	conflictTries = 6
	conflictWait  = 10 * time.Millisecond
)

// again runs do until it does not end in a conflict. do must have no effect
// outside the database.
func again(ctx context.Context, e engine, do func(context.Context) error) error {
	wait := conflictWait
	for try := 1; ; try++ {
		err := do(ctx)
		if err == nil || try == conflictTries || e.classify(err) != conflict {
			return err
		}
		timer := time.NewTimer(wait/2 + rand.N(wait))
		select {
		case <-ctx.Done():
			timer.Stop()
			return err
		case <-timer.C:
		}
		wait *= 2
	}
}

// write runs a change that may be repeated as a whole, and repeats it once if
// its answer was lost. It goes on when the caller has left: a statement that is
// cut off costs the connection and leaves unknown what it did. Each statement
// has its pool's timeout.
func (r *Repository) write(ctx context.Context, doing string, do func(context.Context) error) error {
	ctx, sent := withDelivery(context.WithoutCancel(ctx))
	lost := func(err error) bool {
		return err != nil && sent.unknown() && r.engine.classify(err) == unavailable
	}
	err := again(ctx, r.engine, do)
	if lost(err) {
		err = again(ctx, r.engine, do)
	}
	if lost(err) {
		err = fmt.Errorf("%w: %w", job.ErrOutcomeUnknown, err)
	}
	return r.fail(doing, err)
}

// Answered reports whether the error is what a Postgres server said: it was reached.
func Answered(err error) bool {
	var said *pq.Error
	return errors.As(err, &said)
}

// IsUniqueViolation reports whether a unique constraint refused a row.
func (r *Repository) IsUniqueViolation(err error) bool { return r.engine.classify(err) == unique }

// Permanent reports whether the same statement with the same parameters would
// fail again: the data or the statement is at fault, not the moment.
func (r *Repository) Permanent(err error) bool {
	f := r.engine.classify(err)
	return f == unique || f == wrong
}
