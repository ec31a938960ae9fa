package repository

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

// Records keeps the records of keyed requests that are no jobs, in the key space
// that they share with jobs: the record of a job's key is returned as what it is.
//
// Every statement about a claim names its owner, and repeats itself safely when
// its answer was lost.
type Records struct{ r *Repository }

var (
	_ idempotency.Store   = (*Records)(nil)
	_ idempotency.TxStore = (*Records)(nil)
)

// Records returns the records of the database. How long expired keys stay
// consumed is the repository's Options.Tombstone.
func (r *Repository) Records() *Records { return &Records{r: r} }

// recordStatements are the statements that the engines word differently, with
// the parameters
//
//	claim      key (3), fingerprint, owner, lease, time until the claim is forgotten
//	takeover   key, owner until now, owner from now on, lease, time until …, owner is dead
//	extend     key, owner, lease
//	finish     key, owner, status, headers, body, keep
//	interrupt  key, owner, keep
//	purge      key, tombstone
type recordStatements struct {
	claim, takeover, extend, finish, interrupt, purge string
}

// Begin implements idempotency.Store. Of the callers of this process that come
// at once with one key, the first one writes and the others read what it wrote:
// a hundred duplicates are one write, which matters where one may write at a
// time. That is no protection; the statements are.
func (s *Records) Begin(ctx context.Context, req idempotency.Request, b idempotency.Beginning) (idempotency.Claim, idempotency.Record, bool, error) {
	leave, first, _, err := s.r.beginning.after(ctx, req)
	if err != nil {
		return idempotency.Claim{}, idempotency.Record{}, false, s.fail("begin", err)
	}
	defer leave()
	return s.begin(ctx, req, b, !first || s.r.Exclusive())
}

// begin claims by an insert, which one of any number of callers makes; who finds
// a record there reads it, and deletes or takes it over in a statement that looks
// at it again. With look it reads first: where there is no round trip to save,
// so that replays need no write lock, and where a record is to be expected.
func (s *Records) begin(ctx context.Context, req idempotency.Request, b idempotency.Beginning, look bool) (idempotency.Claim, idempotency.Record, bool, error) {
	claim := idempotency.Claim{Tenant: req.Tenant, Key: req.Key, Owner: s.r.newOwner(), Attempt: 1}
	for try := range acceptTries {
		if try > 0 || !look {
			n, err := s.claim(ctx, req, claim.Owner, b.Lease)
			if n > 0 || err != nil {
				return claim, idempotency.Record{}, err == nil, s.forsake(ctx, claim, err)
			}
		}
		row, err := s.r.record(ctx, req.Tenant, req.Key)
		if errors.Is(err, job.ErrNotFound) {
			continue
		}
		if err != nil {
			return idempotency.Claim{}, idempotency.Record{}, false, s.fail("begin", err)
		}
		if string(row.Owner) == claim.Owner && row.state() == idempotency.InProgress {
			return claim, idempotency.Record{}, true, nil // by a statement whose answer was lost
		}
		if row.replaceable(s.r.retention, b.AfterExpiry) {
			if _, _, err := s.execute(ctx, "begin", s.sql().purge, s.r.retention.purgeArgs(req, b.AfterExpiry)...); err != nil {
				return idempotency.Claim{}, idempotency.Record{}, false, err
			}
			continue
		}
		taken, rec, done, err := s.takeOver(ctx, req, b, row, claim)
		if done || err != nil {
			return taken, rec, err == nil && taken.Owner != "", s.forsake(ctx, claim, err)
		}
	}
	return idempotency.Claim{}, idempotency.Record{}, false, s.fail("begin", errVanished)
}

// forsakeTimeout is short of what a client waits for the refusal.
const forsakeTimeout = time.Second

// forsake gives a claim back that may have been made by a statement whose answer
// was lost: the caller is told that nothing was decided, nobody else knows the
// owner token, and a key that nobody works for must not look interrupted later.
func (s *Records) forsake(ctx context.Context, c idempotency.Claim, err error) error {
	if !errors.Is(err, job.ErrUnavailable) && !errors.Is(err, job.ErrOutcomeUnknown) {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), forsakeTimeout)
	defer cancel()
	if why := s.Release(ctx, c); why != nil && !errors.Is(why, idempotency.ErrClaimLost) {
		return errors.Join(err, why)
	}
	return err
}

func (s *Records) sql() *recordStatements { return s.r.engine.records() }

// claim inserts a claim, and reports 0 if the key has a record.
func (s *Records) claim(ctx context.Context, req idempotency.Request, owner string, lease time.Duration) (int64, error) {
	args := append(keyArgs(req.Tenant, req.Key), req.Fingerprint.Bytes(), owner, lease.Milliseconds(), s.r.retention.claims().Milliseconds())
	n, _, err := s.execute(ctx, "begin", s.sql().claim, args...)
	if s.r.engine.classify(err) == busy {
		err = &idempotency.InProgressError{}
	}
	return n, err
}

// takeOver decides what the request gets from the record that it found: the
// claim, if that has ended and may be taken over, or the record. done is false
// if the record has changed meanwhile.
func (s *Records) takeOver(ctx context.Context, req idempotency.Request, b idempotency.Beginning, row *recordRow, c idempotency.Claim) (idempotency.Claim, idempotency.Record, bool, error) {
	rec, err := row.record(req.Tenant, req.Key)
	if err != nil {
		return idempotency.Claim{}, rec, true, s.fail("begin", err)
	}
	dead := rec.State == idempotency.InProgress && s.r.engine.outlived(string(row.Owner), s.r.process)
	if rec.State != idempotency.InProgress || !row.LeaseEnded && !dead {
		return idempotency.Claim{}, rec, true, nil
	}
	rec.RetryIn = 0
	if rec.Fingerprint != req.Fingerprint {
		return idempotency.Claim{}, rec, true, nil
	}
	if !b.Takeover {
		rec.State = idempotency.Interrupted
		return idempotency.Claim{}, rec, true, nil
	}
	args := append(keyArgs(req.Tenant, req.Key), string(row.Owner), c.Owner, b.Lease.Milliseconds(), s.r.retention.claims().Milliseconds(), dead)
	n, _, err := s.execute(ctx, "begin", s.sql().takeover, args...)
	c.Attempt = row.RecordAttempt + 1
	if n == 0 {
		c = idempotency.Claim{} // somebody was faster, or the holder is back
	}
	return c, idempotency.Record{}, n > 0, err
}

// Extend implements idempotency.Store.
func (s *Records) Extend(ctx context.Context, c idempotency.Claim, lease time.Duration) error {
	n, _, err := s.change(ctx, "extend", s.sql().extend, c, lease.Milliseconds())
	return lostIf(n == 0, err)
}

// Finish implements idempotency.Store.
func (s *Records) Finish(ctx context.Context, c idempotency.Claim, resp idempotency.Response, keep time.Duration) error {
	n, _, err := s.change(ctx, "finish", s.sql().finish, c, resp.Status, encodeHeader(resp.Header), storedBody(resp), keep.Milliseconds())
	if n > 0 || err != nil {
		return err
	}
	return s.endedBefore(ctx, c, idempotency.Completed)
}

// storedBody is NULL for a body that is not kept.
func storedBody(resp idempotency.Response) any {
	if resp.NotRetained {
		return nil
	}
	return notNil(resp.Body)
}

// releaseSQL needs no words of an engine.
const releaseSQL = `
delete from idempotency_keys
where slot = $1 and tenant = $2 and key = $3 and owner = $4 and state = 'in_progress'`

// Release implements idempotency.Store.
func (s *Records) Release(ctx context.Context, c idempotency.Claim) error {
	n, repeated, err := s.change(ctx, "release", releaseSQL, c)
	return lostIf(n == 0 && !repeated, err)
}

// Interrupt implements idempotency.Store.
func (s *Records) Interrupt(ctx context.Context, c idempotency.Claim, keep time.Duration) error {
	n, _, err := s.change(ctx, "interrupt", s.sql().interrupt, c, keep.Milliseconds())
	if n > 0 || err != nil {
		return err
	}
	return s.endedBefore(ctx, c, idempotency.Interrupted)
}

// Find implements idempotency.Store.
func (s *Records) Find(ctx context.Context, t idempotency.Tenant, k idempotency.Key) (idempotency.Record, error) {
	row, err := s.r.record(ctx, t, k)
	if errors.Is(err, job.ErrNotFound) || err == nil && row.over(s.r.retention.tombstone) {
		return idempotency.Record{}, idempotency.ErrNotFound
	}
	if err != nil {
		return idempotency.Record{}, s.fail("find record", err)
	}
	rec, err := row.record(t, k)
	if err == nil && rec.State == idempotency.InProgress && s.r.engine.outlived(string(row.Owner), s.r.process) {
		rec.RetryIn = 0
	}
	return rec, s.fail("find record", err)
}

// endedBefore reports whether the claim had ended in this way already, by a
// statement whose answer was lost.
func (s *Records) endedBefore(ctx context.Context, c idempotency.Claim, state idempotency.State) error {
	row, err := s.r.record(ctx, c.Tenant, c.Key)
	if err != nil && !errors.Is(err, job.ErrNotFound) {
		return s.fail("look at an ended claim", err)
	}
	return lostIf(err != nil || string(row.Owner) != c.Owner || row.state() != state, nil)
}

func lostIf(lost bool, err error) error {
	if err == nil && lost {
		return idempotency.ErrClaimLost
	}
	return err
}

// change runs a statement about a claim. An owner that was never given cannot be
// one; Postgres would not take it for an owner at all.
func (s *Records) change(ctx context.Context, doing, query string, c idempotency.Claim, more ...any) (int64, bool, error) {
	if _, err := job.ParseID(c.Owner); err != nil {
		return 0, false, idempotency.ErrClaimLost
	}
	return s.execute(ctx, doing, query, append(append(keyArgs(c.Tenant, c.Key), c.Owner), more...)...)
}

func (s *Records) execute(ctx context.Context, doing, query string, args ...any) (int64, bool, error) {
	n, repeated, err := s.r.execute(ctx, doing, query, args...)
	return n, repeated, named(err)
}

// execute runs one statement that may be repeated, and tells how many rows it
// changed and whether it had to be, by us or by database/sql. It goes on when the caller has left, but not
// longer than the caller would have waited.
func (r *Repository) execute(ctx context.Context, doing, query string, args ...any) (changed int64, repeated bool, err error) {
	deadline, bounded := ctx.Deadline()
	runs := 0
	err = r.write(ctx, doing, func(ctx context.Context) error {
		if bounded {
			limited, cancel := context.WithDeadline(ctx, deadline)
			defer cancel()
			ctx = limited
		}
		runs++
		n, err := r.engine.exec(ctx, query, args...)
		changed, repeated = n, runs > 1 || lostBefore(ctx)
		return err
	})
	return changed, repeated, err
}

// fail wraps an error like Repository.fail, with idempotency's names for it.
func (s *Records) fail(doing string, err error) error { return named(s.r.fail(doing, err)) }

// named adds the error of package idempotency that an error stands for.
func named(err error) error {
	switch {
	case errors.Is(err, job.ErrOutcomeUnknown):
		return fmt.Errorf("%w: %w", idempotency.ErrOutcomeUnknown, err)
	case errors.Is(err, job.ErrUnavailable):
		return fmt.Errorf("%w: %w", idempotency.ErrUnavailable, err)
	}
	return err
}

// An owner token is a UUID whose first half is the process's and whose second
// half is random: on an engine that one process owns, a claim of another one is
// a dead one's.
const halfToken = 8

func randomHex() string {
	var b [halfToken]byte
	rand.Read(b[:]) // never fails: crypto/rand ends the program instead
	return hex.EncodeToString(b[:])
}

func (r *Repository) newOwner() string {
	p, c := r.process, randomHex()
	return p[:8] + "-" + p[8:12] + "-" + p[12:] + "-" + c[:4] + "-" + c[4:]
}

// ofProcess reports whether the owner token is one of the process.
func ofProcess(owner, process string) bool {
	return len(owner) > 18 && owner[:8]+owner[9:13]+owner[14:18] == process
}
