package repository_test

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/testenv"
	"github.com/sekali/sekali/job"
	"github.com/sekali/sekali/repository"
)

// tries are for a machine that may stand still for seconds: what takes no time
// takes none in one of them.
const tries = 3

// A row that somebody has locked, by a slow commit or by hand, must not keep
// the leases of all the others from being extended.
func TestFailure_Q24_ALockedRowHoldsUpNoOtherLease(t *testing.T) {
	t.Parallel()
	w := onPostgres(t)
	accept(t, w.Repo, "locked")
	accept(t, w.Repo, "free")
	locked, free := claimOne(t, w.Repo), claimOne(t, w.Repo)
	tx, err := w.DB.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.ExecContext(t.Context(), `select id from jobs where id = $1 for update`, string(locked.ID)); err != nil {
		t.Fatal(err)
	}
	quickest := time.Hour
	for range tries {
		started := time.Now()
		kept, err := w.Repo.Extend(t.Context(), []job.Lease{locked.Lease, free.Lease}, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		quickest = min(quickest, time.Since(started))
		if k, ours := kept[locked.ID]; k.Extended || !ours {
			t.Errorf("the locked one: extended %v, ours %v; want it to be ours and not extended", k.Extended, ours)
		}
		if !kept[free.ID].Extended {
			t.Error("the free one was not extended")
		}
	}
	if quickest > 900*time.Millisecond {
		t.Errorf("took %v: it waited for the lock", quickest)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if kept, err := w.Repo.Extend(t.Context(), []job.Lease{locked.Lease}, time.Minute); err != nil || !kept[locked.ID].Extended {
		t.Errorf("after the lock was gone: %v, %v", kept, err)
	}
}

// silent accepts connections and never says a word.
func silent(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	return listener.Addr().String()
}

// A probe answers within the second that probes wait, even if the server does
// not answer the start of a connection (BR-76).
func TestFailure_BR76_AProbeOfASilentServerIsShort(t *testing.T) {
	t.Parallel()
	r, err := repository.Open(t.Context(), "postgres://u:p@"+silent(t)+"/x?sslmode=disable", repository.Options{Slots: 1})
	if err != nil {
		t.Fatal(err)
	}
	quickest := time.Hour
	for range tries {
		started := time.Now()
		if err := r.Ping(t.Context()); err == nil {
			t.Error("a silent server answered")
		}
		quickest = min(quickest, time.Since(started))
	}
	if quickest > time.Second {
		t.Errorf("the probe took %v", quickest)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// Closing does not wait for a server that does not hear, however many
// connections and statements there are.
func TestClose_DoesNotWaitForASilentServer(t *testing.T) {
	t.Parallel()
	relay, through := newProxy(t, testenv.Postgres(t))
	r, err := repository.Open(t.Context(), through, repository.Options{Slots: 4, MaxConns: 12})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i := range 6 {
		accept(t, r, "k"+strings.Repeat("x", i))
	}
	claimOne(t, r)
	deaf := func(byte, string) verdict { return swallow }
	relay.rule(deaf, deaf)
	started := time.Now()
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if took := time.Since(started); took > 8*time.Second { // it would wait for each statement, 5 s
		t.Errorf("closing took %v", took)
	}
}
