package repository_test

import (
	"cmp"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/internal/testenv"
	"github.com/sekali/sekali/job"
	"github.com/sekali/sekali/repository"
)

// together is how many callers come at once, so that their calls share statements.
const together = 40

// apiece runs do for the names 0 … together-1 at once, and waits for all.
func apiece(do func(name string)) {
	var wg sync.WaitGroup
	for n := range together {
		wg.Go(func() { do(fmt.Sprint(n)) })
	}
	wg.Wait()
}

// Callers that come while others wait for their answer share a statement.
func TestAccept_CallersShareStatements(t *testing.T) {
	t.Parallel()
	p, url := newProxy(t, testenv.Postgres(t))
	r := migrated(t, url, repository.Options{MaxConns: 24})
	accept(t, r, "warm")
	let := make(chan struct{})
	var statements atomic.Int64
	p.rule(nil, func(kind byte, _ string) verdict {
		if kind == 'C' {
			statements.Add(1)
			<-let
		}
		return pass
	})
	var wg sync.WaitGroup
	for n := range together {
		wg.Go(func() { accept(t, r, fmt.Sprint(n)) })
	}
	testenv.Eventually(t, 0, "all wait", func() bool { return r.Waiting() >= together-2 })
	close(let)
	wg.Wait()
	// Two were on their way; all others shared one or two more.
	if n := statements.Load(); n > 4 {
		t.Errorf("%d statements for %d submissions", n, together)
	}
}

// hold runs a statement in a transaction that stays open until let go.
func hold(t *testing.T, db *sql.DB, statement string, args ...any) (letGo func()) {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.ExecContext(t.Context(), statement, args...); err != nil {
		t.Fatal(err)
	}
	letGo = sync.OnceFunc(func() { _ = tx.Rollback() })
	t.Cleanup(letGo)
	return letGo
}

// backend is the process of the server that has the transaction.
func backend(t *testing.T, tx *sql.Tx) int {
	t.Helper()
	var pid int
	if err := tx.QueryRowContext(t.Context(), `select pg_backend_pid()`).Scan(&pid); err != nil {
		t.Fatal(err)
	}
	return pid
}

// awaitBlocked waits until somebody waits for a lock that the transaction of the process has.
func awaitBlocked(t *testing.T, db *sql.DB, pid int) {
	t.Helper()
	testenv.Eventually(t, 0, "somebody waits for the transaction", func() bool {
		return count(t, db, fmt.Sprintf(`select count(*) from pg_stat_activity where %d = any(pg_blocking_pids(pid))`, pid)) > 0
	})
}

// One key that somebody else holds neither fails nor holds up those that came with
// it, however often it is asked for.
func TestAccept_AHeldKeyWaitsAlone(t *testing.T) {
	t.Parallel()
	w := onPostgres(t)
	held := submission(w.Repo, "held")
	letGo := hold(t, w.DB, `insert into idempotency_keys (slot, tenant, key, fingerprint, state, created_at) values ($1, 'acme', 'held', '', 'completed', now())`,
		int(job.KeySlot("acme", "held")))
	var waiting sync.WaitGroup
	for range 3 {
		waiting.Go(func() {
			_, err := w.Repo.Accept(t.Context(), held)
			if inProgress := (*idempotency.InProgressError)(nil); err != nil && !errors.As(err, &inProgress) {
				t.Errorf("held: %v", err)
			}
		})
	}
	for round := range 3 {
		apiece(func(name string) { accept(t, w.Repo, fmt.Sprint(round, "-", name)) })
	}
	letGo()
	waiting.Wait()
	if receipt, err := w.Repo.Accept(t.Context(), held); err != nil || receipt.Job.ID != held.Job.ID {
		t.Errorf("held, afterwards: %+v, %v", receipt, err)
	}
}

// BR-47: what the database refuses is refused alone.
func TestFailure_BR47_ABadSubmissionFailsAlone(t *testing.T) {
	t.Parallel()
	w := onPostgres(t)
	var failed atomic.Int64
	apiece(func(name string) {
		s := submission(w.Repo, name)
		if name == "7" {
			s.Job.Type = "a\x00b"
		}
		if _, err := w.Repo.Accept(t.Context(), s); err != nil {
			failed.Add(1)
		}
	})
	if n, jobs := failed.Load(), count(t, w.DB, `select count(*) from jobs`); n != 1 || jobs != together-1 {
		t.Errorf("%d failed, %d jobs", n, jobs)
	}
}

// BR-06: while somebody holds the whole table everybody is told in time, and no key
// is used up.
func TestFailure_BR06_ALockedTableIsNotWaitedForRowByRow(t *testing.T) {
	t.Parallel()
	w := onPostgres(t)
	letGo := hold(t, w.DB, `lock table idempotency_keys in access exclusive mode`)
	var inProgress atomic.Int64
	started := time.Now()
	apiece(func(name string) {
		_, err := w.Repo.Accept(t.Context(), submission(w.Repo, name))
		switch {
		case errors.As(err, new(*idempotency.InProgressError)):
			inProgress.Add(1)
		case !errors.Is(err, job.ErrUnavailable):
			t.Errorf("%s: %v", name, err)
		}
	})
	// A few wait for a lock of their own, which takes a second.
	if took := time.Since(started); took > 15*time.Second {
		t.Errorf("took %v", took)
	}
	if n := inProgress.Load(); n > together/2 {
		t.Errorf("%d were told that their key is in use", n)
	}
	letGo()
	apiece(func(name string) { accept(t, w.Repo, name) })
}

// BR-06: a batch is answered as soon, although it has many statements.
func TestFailure_BR06_ABatchOnALockedTable(t *testing.T) {
	t.Parallel()
	w := onPostgres(t)
	letGo := hold(t, w.DB, `lock table idempotency_keys in access exclusive mode`)
	batch := make([]job.Submission, 500)
	for i := range batch {
		batch[i] = submission(w.Repo, fmt.Sprint(i))
	}
	started := time.Now()
	_, errs := w.Repo.AcceptAll(t.Context(), batch)
	for i, err := range errs {
		if !errors.Is(err, job.ErrUnavailable) && !errors.As(err, new(*idempotency.InProgressError)) {
			t.Errorf("%d: %v", i, err)
		}
	}
	// Each of two statements waits for its lock, and those that wait alone do so together.
	if took := time.Since(started); took > 10*time.Second {
		t.Errorf("took %v", took)
	}
	letGo()
	if _, errs = w.Repo.AcceptAll(t.Context(), batch); errors.Join(errs...) != nil {
		t.Error(errors.Join(errs...))
	}
}

// A refused row is found among those that wait together for what seems to be a
// locked table.
func TestAccept_ARefusedRowFailsAloneAlsoWhileOthersAreHeld(t *testing.T) {
	t.Parallel()
	w := onPostgres(t)
	batch := make([]job.Submission, 12)
	for i := range batch {
		batch[i] = submission(w.Repo, fmt.Sprint(i))
	}
	slices.SortFunc(batch, func(a, b job.Submission) int { // as they are locked
		return cmp.Compare(job.KeySlot("acme", a.Request.Key), job.KeySlot("acme", b.Request.Key))
	})
	held := []idempotency.Key{batch[0].Request.Key, batch[1].Request.Key, batch[2].Request.Key, batch[11].Request.Key}
	for _, key := range held {
		accept(t, w.Repo, string(key))
	}
	letGo := hold(t, w.DB, `delete from idempotency_keys`)
	other := submission(w.Repo, "other")
	other.Job.BusinessKey, batch[5].Job.BusinessKey = "order", "order"
	batch[5].Job.ID = job.NewID(batch[5].Job.CreatedAt, other.Job.ID.Slot()) // jobs of one business key share a slot
	rival, err := w.DB.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := rival.ExecContext(t.Context(), `insert into jobs (slot, id, tenant, key, key_slot, type, state, payload, business_key, run_at, claim_at, timeout_ms, max_attempts, created_at)
		values ($1, $2, 'acme', 'other', 1, 't', 'pending', '{}', 'order', now(), now(), 1, 1, now())`, int(other.Job.ID.Slot()), string(other.Job.ID)); err != nil {
		t.Fatal(err)
	}
	pid, answered := backend(t, rival), make(chan []error, 1)
	go func() {
		_, errs := w.Repo.AcceptAll(t.Context(), batch)
		answered <- errs
	}()
	awaitBlocked(t, w.DB, pid) // by the rest: whoever came before waits for the records that are held
	if err := rival.Commit(); err != nil {
		t.Fatal(err)
	}
	errs := <-answered
	for i, err := range errs {
		if slices.Contains(held, batch[i].Request.Key) != (err != nil) {
			t.Errorf("%s: %v", batch[i].Request.Key, err)
		}
	}
	letGo()
}

// Several keys that are held fail none of the others.
func TestAccept_SeveralHeldKeysFailNobodyElse(t *testing.T) {
	t.Parallel()
	w := onPostgres(t)
	const held = 6
	for n := range held {
		accept(t, w.Repo, fmt.Sprint(n))
	}
	letGo := hold(t, w.DB, `delete from idempotency_keys`)
	apiece(func(name string) {
		receipt, err := w.Repo.Accept(t.Context(), submission(w.Repo, name))
		if n, _ := strconv.Atoi(name); n >= held && (err != nil || !receipt.Record.Fresh) {
			t.Errorf("%s: %+v, %v", name, receipt.Record, err)
		}
	})
	letGo()
}

// claimAll accepts and claims a job for each caller.
func claimAll(t *testing.T, r *repository.Repository) []job.Claimed {
	t.Helper()
	apiece(func(name string) { accept(t, r, name) })
	claimed, err := r.Claim(t.Context(), job.Claiming{Type: "t", Max: together, Worker: "w", Lease: time.Minute})
	if err != nil || len(claimed) != together {
		t.Fatalf("%d claimed, %v", len(claimed), err)
	}
	return claimed
}

func TestFinish_ABadOrHeldOneKeepsNobody(t *testing.T) {
	t.Parallel()
	w := onPostgres(t)
	claimed := claimAll(t, w.Repo)
	letGo := hold(t, w.DB, `select id from jobs where id = $1 for update`, string(claimed[0].ID))
	first := make(chan error, 1)
	go func() {
		_, err := w.Repo.Finish(t.Context(), []job.Ending{succeeded(claimed[0].Lease)})
		first <- err
	}()
	var wg sync.WaitGroup
	for n, c := range claimed[1:] {
		wg.Go(func() {
			e := succeeded(c.Lease)
			if n == 0 {
				e.Outcome = "a\x00b"
			}
			applied, err := w.Repo.Finish(t.Context(), []job.Ending{e})
			if bad := n == 0; bad != (err != nil) || !bad && applied[0] != job.Applied {
				t.Errorf("%d: %v, %v", n, applied, err)
			}
		})
	}
	wg.Wait()
	if n := count(t, w.DB, `select count(*) from finished_jobs`); n != together-2 {
		t.Errorf("%d finished while one is held", n)
	}
	letGo()
	if err := <-first; err != nil && !errors.Is(err, job.ErrUnavailable) {
		t.Errorf("the held one: %v", err)
	}
	if applied, err := w.Repo.Finish(t.Context(), []job.Ending{succeeded(claimed[0].Lease)}); err != nil || applied[0] != job.Applied {
		t.Errorf("the held one, afterwards: %v, %v", applied, err)
	}
}

// Of two decisions about one job that come together, one applies.
func TestFinish_TwoDecisionsAboutOneJob(t *testing.T) {
	t.Parallel()
	w := onPostgres(t)
	for _, c := range claimAll(t, w.Repo) {
		var applied atomic.Int64
		var wg sync.WaitGroup
		for _, status := range []job.Status{job.Succeeded, job.Failed, job.Cancelled} {
			wg.Go(func() {
				e := succeeded(c.Lease)
				e.Status, e.Attempt = status, map[job.Status]job.Outcome{job.Succeeded: job.AttemptSucceeded, job.Failed: job.AttemptFailed, job.Cancelled: job.AttemptCancelled}[status]
				done, err := w.Repo.Finish(t.Context(), []job.Ending{e})
				if err != nil {
					t.Error(err)
				} else if done[0] == job.Applied {
					applied.Add(1)
				}
			})
		}
		wg.Wait()
		if n := applied.Load(); n != 1 {
			t.Fatalf("%d decisions applied", n)
		}
	}
}

// BR-07: repetitions of one key are answered by reads alone: they use no
// transaction id. The server is its own, because other tests on it would use ids all the
// time; what it does by itself may still use one, so it is enough that some round uses none.
func TestFailure_BR07_RepetitionsWriteNothing(t *testing.T) {
	t.Parallel()
	server, err := testenv.StartPostgres()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Stop() })
	w := onPostgresAt(t, server.Database(t))
	accept(t, w.Repo, "hot")
	ids := func() int {
		return count(t, w.DB, `select cast(cast(pg_snapshot_xmax(pg_current_snapshot()) as text) as bigint)`)
	}
	testenv.Eventually(t, 0, "a round uses no transaction id", func() bool {
		before := ids()
		apiece(func(string) {
			var receipt job.Receipt
			err := patiently(func() (err error) {
				receipt, err = w.Repo.Accept(t.Context(), submission(w.Repo, "hot"))
				return err
			})
			if err != nil || receipt.Record.Fresh {
				t.Errorf("%+v, %v", receipt.Record, err)
			}
		})
		return ids() == before
	})
}
