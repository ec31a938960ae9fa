package e2e_test

import (
	"bytes"
	"database/sql"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/testenv"
)

// heldReceiver answers each attempt when the test lets it.
type heldReceiver struct {
	*httptest.Server
	begun chan int              // attempts that have arrived
	left  chan int              // attempts whose caller went away before the answer
	let   map[int]chan struct{} // closed: the attempt is answered

	mu    sync.Mutex
	calls []hit
}

func newHeldReceiver(t testing.TB) *heldReceiver {
	r := &heldReceiver{begun: make(chan int, 8), left: make(chan int, 8), let: map[int]chan struct{}{}}
	for attempt := range 8 {
		r.let[attempt] = make(chan struct{})
	}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, call *http.Request) {
		io.Copy(io.Discard, call.Body)
		attempt, _ := strconv.Atoi(call.Header.Get("Sekali-Attempt"))
		r.mu.Lock()
		r.calls = append(r.calls, hit{header: call.Header.Clone(), at: time.Now()})
		r.mu.Unlock()
		r.begun <- attempt
		select {
		case <-r.let[attempt]:
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"attempt":%d}`, attempt)
		case <-call.Context().Done():
			r.left <- attempt
		}
	}))
	t.Cleanup(func() {
		r.CloseClientConnections()
		r.Close()
	})
	return r
}

// seen returns the calls so far.
func (r *heldReceiver) seen() []hit {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.calls)
}

// config is a job type that calls the receiver, with leases that are soon over.
func (r *heldReceiver) config() string {
	return fmt.Sprintf("defaults: {lease: 2s}\njob_types: {call: {executor: http, http: {url: %q}}}", r.URL)
}

// next fails unless the attempt comes next on the channel.
func next(t testing.TB, c chan int, attempt int, what string) {
	t.Helper()
	select {
	case got := <-c:
		if got != attempt {
			t.Fatalf("attempt %d %s, want %d", got, what, attempt)
		}
	case <-time.After(60 * time.Second):
		t.Fatalf("attempt %d has not %s", attempt, what)
	}
}

// pause and resume are what happens to a process whose machine stops for a while.
func (g *gateway) pause()  { g.signal(syscall.SIGSTOP) }
func (g *gateway) resume() { g.signal(syscall.SIGCONT) }

// longerLease is one that a holder keeps also on a machine that stands still for two
// seconds: its heartbeats must come until a fifth of it is left.
const longerLease = "defaults: {lease: 4s}"

// sessionsOfKilled are those of the gateway of that application name. What it has asked
// the database for may be done after its end, until they have ended too.
const sessionsOfKilled = `select count(*) from pg_stat_activity where datname = current_database() and application_name = 'killed'`

// pausedAmid stops that gateway, and lets it go on again unless it has jobs that no
// statement is about to end.
func (g *gateway) pausedAmid(t testing.TB, db *sql.DB) bool {
	t.Helper()
	g.pause()
	testenv.Eventually(t, 0, "no statement of the stopped gateway runs", func() bool {
		return count(t, db, sessionsOfKilled+` and state = 'active'`) == 0
	})
	if g.holds(t, db) > 0 {
		return true
	}
	g.resume()
	return false
}

// holds counts the jobs that the gateway runs.
func (g *gateway) holds(t testing.TB, db *sql.DB) int {
	t.Helper()
	return count(t, db, `select count(*) from jobs where state = 'processing' and worker_id = $1`, g.workerID())
}

// zombie starts a job at one replica, stops that one past its lease, and
// returns when the other one runs the second attempt.
func zombie(t *testing.T, r *heldReceiver) (database string, stopped, heir *gateway) {
	t.Helper()
	database = testenv.Postgres(t)
	config := both(t, r.config(), longerLease)
	stopped = start(t, database, config)
	stopped.submit("zombie", `{"type":"call"}`).want(t, http.StatusAccepted)
	next(t, r.begun, 1, "begun")
	stopped.pause()
	heir = start(t, database, config)
	next(t, r.begun, 2, "begun")
	return database, stopped, heir
}

// heldBy fails unless the worker holds the one job under the token.
func heldBy(t *testing.T, database string, g *gateway, token int) {
	t.Helper()
	db := beside(t, database)
	if n := count(t, db, `select count(*) from jobs where state = 'processing' and worker_id = $1 and token = $2`, g.workerID(), token); n != 1 {
		t.Errorf("the job is not held under the token %d by its new holder but: %s", token,
			text(t, db, `select coalesce((select row_to_json(j) from jobs j limit 1), (select row_to_json(f) from finished_jobs f limit 1))`))
	}
}

// endedBy lets the second attempt end and fails unless the job has its result.
func endedBy(t *testing.T, r *heldReceiver, database string, g *gateway) {
	t.Helper()
	keyEndedBy(t, r, database, g, "zombie")
}

func keyEndedBy(t *testing.T, r *heldReceiver, database string, g *gateway, key string) {
	t.Helper()
	close(r.let[2])
	j := g.finished(key)
	if j["status"] != "succeeded" || fmt.Sprint(j["attempts"]) != "2" || j["worker_id"] != g.workerID() {
		t.Errorf("the job is %v", j)
	}
	if result := g.get("/jobs/" + key + "/result"); string(result.body) != `{"attempt":2}` {
		t.Errorf("the result is %s", result.body)
	}
	db := beside(t, database)
	if n := count(t, db, `select count(*) from job_attempts where outcome = 'lost' and token = 1`); n != 1 {
		t.Errorf("%d first attempts are told as lost", n)
	}
	sound(t, db)
}

func TestFailure_BR53_Q1_Q32_TheLateResultOfAStoppedGatewayIsRefused(t *testing.T) {
	t.Parallel()
	r := newHeldReceiver(t)
	database, stopped, heir := zombie(t, r)
	close(r.let[1]) // the answer waits for the stopped gateway
	stopped.resume()
	testenv.Eventually(t, 0, "the stale end was counted and logged, and its slot freed", func() bool {
		return stopped.measured("sekali_stale_calls_total") >= 1 && stopped.measured("sekali_jobs_running") == 0 &&
			strings.Contains(stopped.logged(), "lease lost")
	})
	heldBy(t, database, heir, 2)
	endedBy(t, r, database, heir)
	if n := len(r.begun); n != 0 {
		t.Errorf("%d more attempts", n)
	}
}

func TestFailure_BR54_Q1_TheLateHeartbeatOfAStoppedGatewayIsRefused(t *testing.T) {
	t.Parallel()
	r := newHeldReceiver(t)
	database, stopped, heir := zombie(t, r)
	stopped.resume()
	resumed := time.Now()
	next(t, r.left, 1, "been given up")
	if took := time.Since(resumed); took > 10*time.Second { // a heartbeat is half a second
		t.Errorf("the stopped gateway went on for %v", took)
	}
	testenv.Eventually(t, 0, "the stale call was counted", func() bool { return stopped.measured("sekali_stale_calls_total") >= 1 })
	heldBy(t, database, heir, 2)
	endedBy(t, r, database, heir)
}

// A transaction that was open when its gateway stopped must not be committed by
// it later.
func TestFailure_BR53_AStoppedTransactionLeavesNoSecondEffect(t *testing.T) {
	t.Parallel()
	database := testenv.Postgres(t)
	config := both(t, slowEffects, longerLease)
	stopped := start(t, database, config)
	db := beside(t, database)
	const running = `select count(*) from pg_stat_activity
		where datname = current_database() and state = 'active' and query like 'insert into effects%'`
	stopped.submit("stopped", `{"type":"effect","payload":{"seconds":3}}`).want(t, http.StatusAccepted)
	testenv.Eventually(t, 0, "the first attempt runs", func() bool { return count(t, db, running) == 1 })
	stopped.pause()
	heir := start(t, database, config)
	j := heir.finished("stopped")
	if j["status"] != "succeeded" || fmt.Sprint(j["attempts"]) != "2" {
		t.Errorf("the job is %v", j)
	}
	etag := heir.get("/jobs/stopped").Header.Get("ETag")
	stopped.resume()
	testenv.Eventually(t, 0, "the stale end was counted", func() bool {
		return stopped.measured("sekali_stale_calls_total") >= 1 && stopped.measured("sekali_jobs_running") == 0
	})
	testenv.Eventually(t, 0, "its transaction ended", func() bool {
		return count(t, db, `select count(*) from pg_stat_activity where datname = current_database() and state like 'idle in transaction%'`) == 0
	})
	allOnce(t, db, 1)
	heir.get("/jobs/stopped").want(t, http.StatusOK, "ETag: "+etag)
}

// With SQLite nobody else can have taken the job: time ends no lease there.
func TestFailure_BR53_OnSQLiteAStoppedGatewayGoesOn(t *testing.T) {
	t.Parallel()
	r := newHeldReceiver(t)
	database := testenv.SQLite(t)
	g := start(t, database, both(t, r.config(), "defaults: {lease: 1s}"))
	g.submit("stopped", `{"type":"call"}`).want(t, http.StatusAccepted)
	next(t, r.begun, 1, "begun")
	g.pause()
	<-time.After(2500 * time.Millisecond) // longer than the lease and the grace after it
	g.resume()
	close(r.let[1])
	if j := g.finished("stopped"); j["status"] != "succeeded" || fmt.Sprint(j["attempts"]) != "1" {
		t.Errorf("the job is %v", j)
	}
	if n := g.measured("sekali_stale_calls_total"); n != 0 || len(r.begun) != 0 {
		t.Errorf("%v stale calls, %d more attempts", n, len(r.begun))
	}
	sound(t, beside(t, database))
}

// A lease that had run out when the rescuer looked is extended before the
// rescuer acts. Here the clock of the database seems to jump.
func TestFailure_Q1_Q24_ARescueThatComesTooLateChangesNothing(t *testing.T) {
	t.Parallel()
	r := newHeldReceiver(t)
	database := testenv.Postgres(t)
	// Long enough that the changes below, which now and then have the row when a
	// heartbeat comes, do not cost the holder its trust.
	config := both(t, r.config(), longerLease)
	holder := start(t, database, config)
	holder.submit("q1", `{"type":"call"}`).want(t, http.StatusAccepted)
	next(t, r.begun, 1, "begun")
	seen, hold := make(chan struct{}, 8), make(chan struct{})
	w := newWire(t, database)
	w.rule(func(sent []byte) fate {
		if bytes.Contains(sent, []byte("lost")) { // the outcome that the rescuer writes
			seen <- struct{}{}
			<-hold
		}
		return pass
	})
	rescuer := start(t, w.url, config)
	db := beside(t, database)
	testenv.Eventually(t, 60*time.Second, "the rescuer is about to act", func() bool {
		change(t, db, `update jobs set locked_until = now() - interval '3 seconds'`)
		return len(seen) > 0
	})
	lease := func() string { return text(t, db, `select max(locked_until) from jobs where locked_until > now()`) }
	testenv.Eventually(t, 0, "the holder extended its lease", func() bool { return lease() != "" })
	close(hold)
	for range 3 {
		last := lease()
		testenv.Eventually(t, 0, "the holder extended its lease again", func() bool { return lease() != last })
	}
	heldBy(t, database, holder, 1)
	close(r.let[1])
	if j := holder.finished("q1"); j["status"] != "succeeded" || fmt.Sprint(j["attempts"]) != "1" {
		t.Errorf("the job is %v", j)
	}
	if n := rescuer.measured("sekali_jobs_rescued_total"); n != 0 || len(r.begun) != 0 {
		t.Errorf("%v jobs rescued, %d more attempts", n, len(r.begun))
	}
	sound(t, db)
}
