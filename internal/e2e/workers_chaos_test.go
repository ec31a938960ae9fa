package e2e_test

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/testenv"
)

// The example workers, a worker in Go and the executors of two gateways work off
// jobs together, while workers are killed, stopped past their leases and ended, a
// gateway is killed, and answers get lost. `make torture-short` does it with many
// more jobs; TORTURE_SEED repeats the choice of faults.

const chaosLease = 2500 * time.Millisecond

const chaosConfig = `
defaults: {lease: 2500ms, heartbeat: 500ms, timeout: 60s, max_attempts: 100, backoff: {base: 50ms, cap: 500ms}}
dispatcher: {slots: 4, poll_interval: 200ms, shutdown_grace: 1s}
log: {level: info}
job_types:
  thumbnail: {executor: remote}
  sleep: {executor: remote}
  write:
    executor: sql
    sql:
      setup: "create table if not exists effects (job text not null)"
      statement: "insert into effects (job) values ({{ .key }})"
`

// chaos is the world of one run.
type chaos struct {
	t        *testing.T
	random   *rand.Rand
	database string
	db       *sql.DB
	front    *workerFront
	jobs     int // submitted, and to succeed

	mu       sync.Mutex
	replicas []*gateway
	turn     int

	workers []*chaosWorker
	inGo    atomic.Int64 // jobs that the worker in Go has completed
}

// chaosWorker is one of the example workers, through its deaths.
type chaosWorker struct {
	kind string
	*workerProcess
}

func TestDoneWhen_WorkersKilledAndStoppedAtRandomLoseAndDoubleNothing(t *testing.T) {
	t.Parallel()
	runChaos(t, 300)
}

func runChaos(t *testing.T, jobs int) {
	seed := rand.Uint64()
	if text := os.Getenv("TORTURE_SEED"); text != "" {
		seed, _ = strconv.ParseUint(text, 10, 64)
	}
	t.Logf("TORTURE_SEED=%d", seed)
	c := newChaos(t, seed)
	begun := time.Now()
	c.submit("j", jobs, c.draft)
	ctx, cancel := context.WithCancel(t.Context())
	var inGo sync.WaitGroup
	for n := range 4 {
		inGo.Go(func() { c.workInGo(ctx, n) })
	}
	defer inGo.Wait()
	defer cancel()
	for range 2 {
		for kind := range exampleWorkers {
			c.workers = append(c.workers, &chaosWorker{kind, c.startWorker(kind)})
		}
	}
	did := c.hurtUntilDone(begun.Add(20 * time.Minute))
	took := time.Since(begun)
	c.beLate()
	c.check()
	fmt.Printf("%s: TORTURE_SEED=%d, %d jobs in %v, %d completed by the worker in Go, faults %v, %d answers lost, %d attempts lost, late calls: %d completes, %d heartbeats, %d others\n",
		t.Name(), seed, c.jobs, took.Round(time.Second), c.inGo.Load(), did, c.front.losses(),
		count(t, c.db, `select count(*) from job_attempts where outcome = 'lost'`),
		c.front.late("complete"), c.front.late("heartbeat"), c.front.late("fail")+c.front.late("release"))
}

func newChaos(t *testing.T, seed uint64) *chaos {
	c := &chaos{t: t, random: rand.New(rand.NewPCG(seed, 1)), database: testenv.Postgres(t)}
	for range 2 {
		c.replicas = append(c.replicas, start(t, c.database, chaosConfig))
	}
	c.db = beside(t, c.database)
	c.front = newWorkerFront(t, rand.New(rand.NewPCG(seed, 2)), c.gatewayURL)
	c.front.losing = 50
	return c
}

// gatewayURL is that of one replica after the other.
func (c *chaos) gatewayURL() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.turn++
	return c.replicas[c.turn%len(c.replicas)].url
}

func (c *chaos) startWorker(kind string) *workerProcess {
	return startWorker(c.t, kind, c.front.URL, "SLOTS=8", "GRACE=1")
}

// submit accepts n jobs.
func (c *chaos) submit(prefix string, n int, draft func(n int) string) {
	c.t.Helper()
	const most = 500
	for from := 0; from < n; from += most {
		var items []string
		for i := from; i < min(from+most, n); i++ {
			items = append(items, fmt.Sprintf(`{"key":"%s-%d",%s}`, prefix, i, draft(i)))
		}
		body := "[" + strings.Join(items, ",") + "]"
		seldom(c.t, 60*time.Second, "all jobs are accepted", func() bool { // again, where the database was slow
			return !slices.ContainsFunc(c.replicas[0].batch(body), func(result map[string]any) bool { return fmt.Sprint(result["status"]) != "202" })
		})
	}
	c.jobs += n
}

// draft is a third each for the gateways, for computing and for waiting; some jobs
// outlast their lease.
func (c *chaos) draft(n int) string {
	switch n % 3 {
	case 0:
		return `"type":"write"`
	case 1:
		return fmt.Sprintf(`"type":"thumbnail","payload":{"pixels":[[%d,%[1]d],[%[1]d,%[1]d]]}`, n%256)
	}
	seconds := 0.005 + 0.045*c.random.Float64()
	if c.random.IntN(25) == 0 {
		seconds = 0.3 + 3*c.random.Float64()
	}
	return nap(seconds)
}

func nap(seconds float64) string {
	return fmt.Sprintf(`"type":"sleep","payload":{"seconds":%.3f}`, seconds)
}

func (c *chaos) left() int { return count(c.t, c.db, `select count(*) from jobs`) }

// chaosFault is one way to hurt workers and gateways.
type chaosFault struct {
	name string
	do   func()
}

func (c *chaos) faults() []chaosFault {
	return []chaosFault{
		{"kill a worker", func() { c.kill(c.any()) }},
		{"kill another worker", func() { c.kill(c.any()) }},
		{"stop a worker past its lease", func() { c.stop(c.any()) }},
		{"stop a worker for a moment", c.hiccup},
		{"end a worker", func() { c.end(c.any()) }},
		{"kill a gateway", c.killGateway},
	}
}

// hurtUntilDone does one fault after the other, all of them in a new order each
// time, until no job is left. Each is done once at least: if need be, jobs are added
// for it.
func (c *chaos) hurtUntilDone(deadline time.Time) map[string]int {
	did, faults := map[string]int{}, c.faults()
	for round := 0; ; round++ {
		for _, i := range c.random.Perm(len(faults)) {
			pause := time.NewTimer(time.Duration(200+c.random.IntN(600)) * time.Millisecond)
			<-pause.C
			left := c.left()
			switch {
			case round == 0 && left < chaosBusy:
				c.submit(fmt.Sprintf("more-%d", i), chaosBusy, c.draft)
			case left == 0:
				return did
			case time.Now().After(deadline):
				c.t.Fatalf("%d jobs are left", left)
			}
			faults[i].do()
			did[faults[i].name]++
		}
	}
}

// chaosBusy jobs are more than all workers have slots.
const chaosBusy = 60

func (c *chaos) any() *chaosWorker { return c.workers[c.random.IntN(len(c.workers))] }

func (c *chaos) kill(w *chaosWorker) {
	w.kill()
	w.workerProcess = c.startWorker(w.kind)
}

func (c *chaos) end(w *chaosWorker) {
	w.end(time.Minute)
	w.workerProcess = c.startWorker(w.kind)
}

func (c *chaos) hiccup() {
	w := c.any()
	w.signal(syscall.SIGSTOP)
	pause := time.NewTimer(time.Duration(c.random.IntN(1500)) * time.Millisecond)
	<-pause.C
	w.signal(syscall.SIGCONT)
}

// stop is a worker whose machine stands still until others have its jobs.
func (c *chaos) stop(w *chaosWorker) {
	c.t.Helper()
	w.signal(syscall.SIGSTOP)
	defer w.signal(syscall.SIGCONT)
	pause := time.NewTimer(chaosLease)
	<-pause.C
	testenv.Eventually(c.t, 0, "others have the jobs of a stopped worker", func() bool { return c.held(w) == 0 })
}

func (c *chaos) held(w *chaosWorker) int {
	return count(c.t, c.db, `select count(*) from jobs where state = 'processing' and worker_id like '%' || $1`, w.name)
}

func (c *chaos) killGateway() {
	i := c.random.IntN(len(c.replicas))
	c.mu.Lock()
	old := c.replicas[i]
	c.mu.Unlock()
	old.kill()
	fresh := start(c.t, c.database, chaosConfig)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.replicas[i] = fresh
}

// beLate makes a worker come too late with a result, unless one has: its jobs are
// others' when it goes on, and its work is done. Meanwhile others send heartbeats, and
// answers get lost, if that has not been so before.
func (c *chaos) beLate() {
	for round := 0; c.front.late("complete") == 0 || c.told() == 0 || !c.beats() || c.front.losses() == 0; round++ {
		if round == 20 {
			c.t.Fatal("void: no worker ever completed a job too late, or sent a heartbeat, or no answer was lost")
		}
		w := c.any()
		c.submit(fmt.Sprintf("late-%d", round), chaosBusy, func(int) string { return nap(1) })
		testenv.Eventually(c.t, 0, "the worker has something to do, or nothing is left", func() bool { return c.held(w) > 0 || c.left() == 0 })
		c.stop(w)
		testenv.Eventually(c.t, 60*time.Second, "every job has ended", func() bool { return c.left() == 0 })
	}
}

// beats reports whether a heartbeat was accepted.
func (c *chaos) beats() bool {
	return len(c.front.seen(func(f workerCall) bool { return f.verb == "heartbeat" && f.status == http.StatusOK })) > 0
}

// told are the late calls of which timelines tell.
func (c *chaos) told() int {
	return count(c.t, c.db, `select count(*) from job_events where event = 'stale_completion_refused'`)
}

func (c *chaos) check() {
	t := c.t
	sound(t, c.db)
	if found := c.front.twoHolders(); len(found) > 0 {
		t.Errorf("two holders at once: %v", found)
	}
	if !c.beats() {
		t.Error("void: no heartbeat was accepted")
	}
	for what, query := range map[string]string{
		"jobs that succeeded": `select count(*) from finished_jobs where state = 'succeeded'`,
		"jobs with a single success": `select count(*) from (select job_id from job_attempts where outcome = 'succeeded'
			group by slot, job_id having count(*) = 1) as once`,
	} {
		if n := count(t, c.db, query); n != c.jobs {
			t.Errorf("%d %s, want %d", n, what, c.jobs)
		}
	}
	writes, effects := count(t, c.db, `select count(*) from finished_jobs where type = 'write'`), count(t, c.db, `select count(*) from effects`)
	if distinct := count(t, c.db, `select count(distinct job) from effects`); effects != writes || distinct != writes {
		t.Errorf("%d jobs wrote %d rows for %d jobs", writes, effects, distinct)
	}
	c.replicas[0].get("/jobs/j-1/result").want(t, http.StatusOK)
	if count(t, c.db, `select count(*) from job_attempts where outcome = 'lost'`) == 0 || c.front.late("complete") == 0 {
		t.Error("void: no attempt was lost, or no complete came too late")
	}
	if c.inGo.Load() == 0 || c.front.losses() == 0 {
		t.Errorf("void: the worker in Go completed %d jobs, and %d answers were lost", c.inGo.Load(), c.front.losses())
	}
}
