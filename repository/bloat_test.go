package repository_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/testenv"
	"github.com/sekali/sekali/job"
	"github.com/sekali/sekali/repository"
)

// TestFailure_Q30_TheClaimIndexStaysSmall: queues 30 wants an index of at most
// 20 MB after ten million jobs. That is to say that it does not grow with the jobs
// that have gone through it, which a few thousand show as well: with a vacuum
// after as many dead rows as autovacuum is set to wait for, it is about as large
// after sixteen rounds as after two. Without it would be eight times as large. The
// server is its own, because transactions of others on it would keep pages, and does
// not vacuum or analyze by itself, which is such a transaction too.
func TestFailure_Q30_TheClaimIndexStaysSmall(t *testing.T) {
	t.Parallel()
	const batch, threshold = 500, 2000
	server, err := testenv.StartPostgres(testenv.WithSetting("autovacuum", "off"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Stop() })
	url := server.Database(t)
	r := migrated(t, url, repository.Options{Slots: 1, MaxConns: 4})
	db := beside(t, "postgres", url)
	if n := count(t, db, fmt.Sprintf(`select count(*) from pg_class where relname = 'jobs'
		and reloptions @> array['autovacuum_vacuum_threshold=%d', 'autovacuum_vacuum_scale_factor=0', 'autovacuum_vacuum_cost_delay=0']`, threshold)); n != 1 {
		t.Error("autovacuum is not set to keep the table of unfinished jobs small")
	}
	round := func(n int) int {
		for b := range threshold / batch / 2 { // a claim and an end each leave a dead row
			workOff(t, r, fmt.Sprint(n, "-", b), batch)
		}
		if _, err := db.ExecContext(t.Context(), `vacuum jobs`); err != nil {
			t.Fatal(err)
		}
		return count(t, db, `select pg_relation_size('jobs_turns') + pg_relation_size('jobs_running') + pg_relation_size('jobs_pkey')`)
	}
	round(0)
	first, last := round(1), 0
	for n := range 14 {
		last = round(n + 2)
	}
	if last > 2*first {
		t.Errorf("the indexes of unfinished jobs grew from %d to %d bytes", first, last)
	}
}

// workOff accepts, claims and ends so many jobs.
func workOff(t *testing.T, r *repository.Repository, prefix string, n int) {
	t.Helper()
	submissions := make([]job.Submission, n)
	for i := range submissions {
		submissions[i] = submission(r, fmt.Sprint(prefix, "-", i))
	}
	if _, errs := r.AcceptAll(t.Context(), submissions); len(errs) > 0 && errs[0] != nil {
		t.Fatal(errs[0])
	}
	for done := 0; done < n; {
		claimed, err := r.Claim(t.Context(), job.Claiming{Type: "t", Max: n, Worker: "w", Lease: time.Minute})
		if err != nil || len(claimed) == 0 {
			t.Fatalf("%d claimed, %v", len(claimed), err)
		}
		endings := make([]job.Ending, len(claimed))
		for i, c := range claimed {
			endings[i] = succeeded(c.Lease)
		}
		if _, err := r.Finish(t.Context(), endings); err != nil {
			t.Fatal(err)
		}
		done += len(claimed)
	}
}
