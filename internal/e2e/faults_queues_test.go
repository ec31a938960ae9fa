package e2e_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/testenv"
)

// Queues 6: a repetition costs no more than twice what a first request does,
// with very many keys.
func TestFailure_Q6_ARepetitionCostsNoMoreThanTwiceAFirstRequest(t *testing.T) {
	t.Parallel()
	database := testenv.Postgres(t)
	g := start(t, database, "dispatcher: {slots: 0}")
	const body = `{"type":"echo","delay_seconds":86400}`
	g.submit("model", body).want(t, http.StatusAccepted)
	db := beside(t, database)
	const keys = 100_000
	change(t, db, `insert into idempotency_keys (slot, tenant, key, fingerprint, state, job_slot, job_id, alias, response_status, response_headers, response_body, created_at)
		select n % 256, 'default', 'filler-' || n, fingerprint, state, job_slot, job_id, true, response_status, response_headers, response_body, created_at
		from idempotency_keys, generate_series(1, $1) as n where key = 'model'`, keys)
	change(t, db, `analyze idempotency_keys`)
	timed := func(key, replayed string) time.Duration {
		began := time.Now()
		a := g.submit(key, body)
		took := time.Since(began)
		a.want(t, http.StatusAccepted, "Idempotent-Replayed: "+replayed)
		return took
	}
	var fresh, again []time.Duration
	for i := range 150 { // one by one and by turns: what slows one down slows the other
		key := fmt.Sprint("k", i)
		fresh = append(fresh, timed(key, "false"))
		again = append(again, timed(key, "true"))
	}
	if f, a := median(fresh), median(again); a > 2*f {
		t.Errorf("with %d keys a repetition takes %v, a first request %v", keys, a, f)
	}
}

// Queues 23: a process that starts anew is another worker, and takes nothing of
// its predecessor for its own. Queues 25: as delivered, a crash holds a job up
// for half a minute.
func TestFailure_Q23_Q25_EachStartIsAnotherWorkerAndLeasesAreShort(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		r := newHeldReceiver(t)
		g := start(t, database, r.config())
		g.submit("k", `{"type":"call"}`).want(t, http.StatusAccepted)
		next(t, r.begun, 1, "begun")
		first := g.workerID()
		g.kill()
		g = start(t, database, r.config())
		if second := g.workerID(); first == "" || second == "" || first == second {
			t.Errorf("the workers are %q and %q", first, second)
		}
		close(r.let[2])
		is(t, g.finished("k"), "succeeded 2 "+g.workerID(), "status", "attempts", "worker_id")
		if got := column(g.attempts(t, "k"), "worker_id"); got != first+" "+g.workerID() {
			t.Errorf("the attempts are of %s", got)
		}
		out, _, code := sekali(t, database, "config", "print")
		if code != 0 || !strings.Contains(out, "lease: 30s") || !strings.Contains(out, "heartbeat: 10s") {
			t.Errorf("as delivered, the configuration is\n%s", out)
		}
	})
}

// Queues 17: what a key stands for outlives its job's end, whatever that was, and
// a late repetition runs nothing.
func TestFailure_Q17_ALateRepetitionRunsNothing(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		s := newSink(t)
		config := s.types(map[string]string{"ok": "/ok", "bad": "/status/400", "slow": "/slow?ms=60000"})
		g := start(t, database, config)
		kinds := map[string]string{"ok": "succeeded", "bad": "failed", "slow": "cancelled"}
		first := map[string]string{}
		body := func(kind string) string { return fmt.Sprintf(`{"type":%q,"business_key":"b"}`, kind) }
		for kind := range kinds {
			first[kind] = string(g.submit(kind, body(kind)).want(t, http.StatusAccepted).body)
		}
		testenv.Eventually(t, 0, "the slow one runs", func() bool { return len(s.of("slow")) == 1 })
		g.cancel("slow").want(t, http.StatusAccepted)
		repeat := func() {
			t.Helper()
			var wg sync.WaitGroup
			for kind, end := range kinds {
				is(t, g.finished(kind), end, "status")
				for range 4 {
					wg.Go(func() {
						a := g.submit(kind, body(kind)).want(t, http.StatusAccepted, "Idempotent-Replayed: true", "Job-Status: "+end)
						if string(a.body) != first[kind] {
							t.Errorf("the answer differs:\n%s\n%s", a.body, first[kind])
						}
					})
				}
			}
			wg.Wait()
		}
		repeat()
		// Others have used the business key since: it says nothing about the keys.
		for kind := range kinds {
			g.submit(kind+"-2", body(kind)).want(t, http.StatusAccepted, "Idempotent-Replayed: false")
		}
		g.cancel("slow-2")
		g.finished("slow-2")
		g.kill()
		g = start(t, database, config)
		repeat()
		for kind := range kinds {
			if n := len(s.of(kind)); n != 1 {
				t.Errorf("%s: %d calls", kind, n)
			}
		}
		sound(t, beside(t, database))
	})
}

func median(of []time.Duration) time.Duration {
	slices.Sort(of)
	return of[len(of)/2]
}
