package e2e_test

import (
	"database/sql"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/testenv"
)

// visited is a receiver that counts how many calls are in it at once. A call takes as
// long as its payload says.
type visited struct {
	*httptest.Server
	mu           sync.Mutex
	inside, most int
	calls        map[string]int
}

func newVisited(t testing.TB) *visited {
	c := &visited{calls: map[string]int{}}
	c.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		payload, _ := io.ReadAll(r.Body)
		took, _ := time.ParseDuration(strings.Trim(string(payload), `"`))
		c.enter(r.Header.Get("Sekali-Key"))
		defer c.leave()
		select {
		case <-time.After(took): // the work
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(func() {
		c.CloseClientConnections()
		c.Close()
	})
	return c
}

func (c *visited) enter(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inside++
	c.calls[key]++
	c.most = max(c.most, c.inside)
}

func (c *visited) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inside--
}

// config is a type that calls the visited, with more settings for it.
func (c *visited) config(settings string) string {
	return fmt.Sprintf("job_types: {call: {executor: http, http: {url: %q}, %s}}", c.URL, settings)
}

// batchOf is a body of POST /jobs/batch: n jobs of the type, each with the payload.
func batchOf(prefix string, n int, payload string) string {
	items := make([]string, n)
	for i := range items {
		items[i] = fmt.Sprintf(`{"key":"%s-%d","type":"call","payload":%q}`, prefix, i, payload)
	}
	return `[` + strings.Join(items, ",") + `]`
}

// startsOf are the times at which attempts of the type have started, in order.
func startsOf(t testing.TB, db *sql.DB) []time.Time {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), `select started_at from job_attempts order by started_at`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var starts []time.Time
	for rows.Next() {
		var at time.Time
		if err := rows.Scan(&at); err != nil {
			t.Fatal(err)
		}
		starts = append(starts, at)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return starts
}

// limitsOf are those that GET /executors/call shows.
func (g *gateway) limitsOf(t testing.TB) map[string]any {
	a, err := g.try(http.MethodGet, "/executors/call", "")
	if err != nil || a.StatusCode != http.StatusOK {
		return nil
	}
	e := a.json(t)
	limits, _ := e["limits"].(map[string]any)
	if limits != nil {
		limits["why"] = waiting(e)["why"]
	}
	return limits
}

// TestDoneWhen_Q31_ALimitHoldsToTheLetterOverThreeReplicas: five at once and twenty a
// second, also while a replica is killed, by the receiver's own count and by the times
// that the database has stored; and GET /executors says what waits for which.
func TestDoneWhen_Q31_ALimitHoldsToTheLetterOverThreeReplicas(t *testing.T) {
	t.Parallel()
	const slow, fast, atOnce, perSecond = 20, 50, 5, 20
	database, c := testenv.Postgres(t), newVisited(t)
	config := c.config(fmt.Sprintf("concurrency: %d, rate: %d/s", atOnce, perSecond))
	replicas := []*gateway{start(t, database, config), start(t, database, config), start(t, database, config)}
	db := beside(t, database)
	a, b := replicas[0], replicas[1]
	a.do(http.MethodPost, "/jobs/batch", batchOf("slow", slow, "1s"), jsonType).want(t, http.StatusMultiStatus)
	b.do(http.MethodPost, "/jobs/batch", batchOf("fast", fast, "10ms"), jsonType).want(t, http.StatusMultiStatus)

	seen := map[string]string{} // what jobs have waited for, and how it was put
	look := func() {
		limits := b.limitsOf(t)
		if limits == nil {
			return
		}
		is(t, limits, fmt.Sprint(atOnce, " ", perSecond, "/s"), "concurrency", "rate")
		if limit, waits := limits["waits_for"].(string); waits {
			seen[limit] = fmt.Sprint(limits["why"])
		}
	}
	testenv.Eventually(t, 60*time.Second, "the limit of jobs at once is reached", func() bool {
		look()
		return seen["concurrency"] != "" && count(t, db, `select count(*) from finished_jobs`) > slow/4
	})
	replicas[2].kill()
	testenv.Eventually(t, 120*time.Second, "all jobs have ended", func() bool {
		look()
		return count(t, db, `select count(*) from finished_jobs where state = 'succeeded'`) == slow+fast
	})
	if !strings.Contains(seen["concurrency"], "because of the limit of 5 at once") || !strings.Contains(seen["rate"], "because of the limit of 20/s") {
		t.Errorf("jobs waited for %q", seen)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.most > atOnce || len(c.calls) != slow+fast {
		t.Errorf("%d calls at once, of %d jobs", c.most, len(c.calls))
	}
	starts := startsOf(t, db)
	for i := perSecond; i < len(starts); i++ {
		if apart := starts[i].Sub(starts[i-perSecond]); apart < time.Second {
			t.Errorf("%d attempts started within %s", perSecond+1, apart)
		}
	}
	t.Logf("%d attempts in %s, at most %d at once", len(starts), starts[len(starts)-1].Sub(starts[0]), c.most)
}

// TestDoneWhen_OneTenantsBacklogIsNotTheOthersDelay: from when a tenant submits its
// jobs until the last of them starts, the tenant with the backlog starts no more jobs
// than that, but for those that the slots held: twice what they take alone.
func TestDoneWhen_OneTenantsBacklogIsNotTheOthersDelay(t *testing.T) {
	t.Parallel()
	const backlog, jobs, slots = 5000, 40, 4
	database, c := testenv.Postgres(t), newVisited(t)
	g := start(t, database, both(t, c.config("timeout: 1m"), fmt.Sprintf("dispatcher: {slots: %d}", slots)))
	db := beside(t, database)
	g.switchType("call", "pause").want(t, http.StatusOK)
	if _, err := db.ExecContext(t.Context(), `
		insert into jobs (slot, id, tenant, key, key_slot, type, state, payload, run_at, claim_at, timeout_ms, max_attempts, created_at)
		select n % 256, cast(left(cast(gen_random_uuid() as text), 34) || lpad(to_hex(n % 256), 2, '0') as uuid),
		  'large', n, n % 256, 'call', 'pending', '"20ms"', now(), now() - interval '1 hour', 60000, 1, now()
		from generate_series(1, $1) n`, backlog); err != nil {
		t.Fatal(err)
	}
	g.switchType("call", "resume").want(t, http.StatusOK)
	testenv.Eventually(t, 60*time.Second, "the backlog is worked off", func() bool {
		return count(t, db, `select count(*) from finished_jobs where tenant = 'large'`) > 3*slots
	})
	g.do(http.MethodPost, "/jobs/batch", batchOf("small", jobs, "20ms"), jsonType).want(t, http.StatusMultiStatus)
	accepted := text(t, db, `select cast(now() as text)`)
	testenv.Eventually(t, 60*time.Second, "the small tenant's jobs have ended", func() bool {
		return count(t, db, `select count(*) from finished_jobs where tenant = 'default'`) == jobs
	})
	between := count(t, db, `
		select count(*) from job_attempts a join finished_jobs f on f.slot = a.slot and f.id = a.job_id
		where f.tenant = 'large' and a.started_at > cast($1 as timestamptz)
		  and a.started_at < (select max(claimed_at) from finished_jobs where tenant = 'default')`, accepted)
	if between > jobs+3*slots {
		t.Errorf("%d jobs of the backlog started before the last of %d others", between, jobs)
	}
	t.Logf("%d jobs of the backlog started among %d others", between, jobs)
}

// TestFailure_BR61_JobsOfAProcessThatEndedDoNotEatTheLimit: those that ran are handed
// back, and nothing runs without a lease.
func TestFailure_BR61_JobsOfAProcessThatEndedDoNotEatTheLimit(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		c := newVisited(t)
		config := c.config("concurrency: 2, timeout: 1m, lease: 30s")
		old := start(t, database, config)
		submit := func(i int, takes string) {
			old.submit(fmt.Sprint("job-", i), fmt.Sprintf(`{"type":"call","payload":%q,"priority":%d}`, takes, i)).want(t, http.StatusAccepted)
		}
		submit(0, "20s")
		submit(1, "20s")
		testenv.Eventually(t, 0, "two jobs run", func() bool { return fmt.Sprint(old.executor(t, "call")["busy"]) == "2" })
		submit(2, "1ms") // not before: the one with the highest priority would be claimed first
		is(t, old.get("/jobs/job-2").json(t), "pending", "status")
		old.signal(syscall.SIGTERM)
		old.wait(60 * time.Second)
		db := beside(t, database)
		if n := count(t, db, `select count(*) from jobs where state = 'processing'`); n != 0 {
			t.Errorf("%d jobs run in no process", n)
		}
		// Two that are short take the place of the first ones in the new process's view.
		if _, err := db.ExecContext(t.Context(), `update jobs set payload = $1`, []byte(`"1ms"`)); err != nil {
			t.Fatal(err)
		}
		g := start(t, database, config)
		for i := range 3 {
			is(t, g.finished(fmt.Sprint("job-", i)), "succeeded", "status")
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.most > 2 {
			t.Errorf("%d calls at once", c.most)
		}
	})
}
