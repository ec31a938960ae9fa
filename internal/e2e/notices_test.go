package e2e_test

import (
	"bytes"
	"database/sql"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/testenv"
)

const (
	// seldomPolls lets a replica look for itself so seldom that what comes sooner
	// came by a notice.
	seldomPolls = "dispatcher: {poll_interval: 60s}"
	// byNotice is far less, and far more than a notice needs.
	byNotice = 20 * time.Second
	// acceptsOnly is a replica that runs nothing.
	acceptsOnly = "dispatcher: {slots: 0}"
)

// listening waits until that many replicas hear each other, each by another connection
// than those before: one that was ended is seen for a while yet.
func listening(t testing.TB, db *sql.DB, replicas int, before ...string) (pids []string) {
	t.Helper()
	testenv.Eventually(t, 60*time.Second, "the replicas listen", func() bool {
		pids = strings.Fields(text(t, db, `select string_agg(cast(pid as text), ' ') from pg_stat_activity
			where datname = current_database() and query like 'select pg_notify(%' and pid <> pg_backend_pid()`))
		stale := func(pid string) bool { return slices.Contains(before, pid) }
		return len(pids) == replicas && !slices.ContainsFunc(pids, stale)
	})
	return pids
}

// handOver submits jobs at one replica that another one runs, and waits for each at
// the first one. It returns how long the slowest took.
func handOver(t testing.TB, g *gateway, prefix string, n int) time.Duration {
	t.Helper()
	var took []time.Duration
	for i := range n {
		key, began := fmt.Sprint(prefix, i), time.Now()
		g.submit(key, effect).want(t, http.StatusAccepted)
		is(t, g.get("/jobs/"+key, "Prefer: wait=60").want(t, http.StatusOK).json(t), "succeeded", "status")
		took = append(took, time.Since(began))
	}
	middle := median(took)
	t.Logf("from the submission at one replica to the answer there, run by another: median %v, longest %v", middle, took[n-1])
	return took[n-1]
}

// A job that one replica accepts, another one runs; and who waits at the first one is
// answered, without either of them polling.
func TestNotices_AcceptedHereRunThereWaitedForHere(t *testing.T) {
	t.Parallel()
	database := testenv.Postgres(t)
	a, b := start(t, database, both(t, effects, seldomPolls, acceptsOnly)), start(t, database, both(t, effects, seldomPolls))
	listening(t, beside(t, database), 2)
	if longest := handOver(t, a, "k", 20); longest > byNotice {
		t.Errorf("one took %v", longest)
	}
	if n := b.measured("sekali_notices_total", `what="heard"`); n < 1 {
		t.Errorf("it heard %v notices", n)
	}
	if n := a.measured("sekali_notices_total", `what="heard"`); n < 1 {
		t.Errorf("the other one heard %v notices", n)
	}
}

// A replica whose slots are taken leaves its jobs to one that has free ones.
func TestNotices_AFullReplicaLeavesItsJobsToOthers(t *testing.T) {
	t.Parallel()
	database, r := testenv.Postgres(t), newHeldReceiver(t)
	config := both(t, effects, r.config(), seldomPolls, "defaults: {lease: 60s}")
	full := start(t, database, both(t, config, "dispatcher: {slots: 1}"))
	full.submit("held", `{"type":"call"}`).want(t, http.StatusAccepted)
	next(t, r.begun, 1, "begun")
	start(t, database, config)
	listening(t, beside(t, database), 2)
	if longest := handOver(t, full, "k", 5); longest > byNotice {
		t.Errorf("one took %v", longest)
	}
	close(r.let[1])
	is(t, full.finished("held"), "succeeded 1", "status", "attempts")
}

// A cancellation reaches the replica that runs the job long before its heartbeat.
func TestContract_Row102_ACancellationAtAnotherReplicaIsHeard(t *testing.T) {
	t.Parallel()
	database, r := testenv.Postgres(t), newHeldReceiver(t)
	config := both(t, r.config(), seldomPolls, "defaults: {lease: 5m, heartbeat: 100s, timeout: 1h}")
	a, b := start(t, database, both(t, config, acceptsOnly)), start(t, database, config)
	listening(t, beside(t, database), 2)
	b.submit("k", `{"type":"call"}`).want(t, http.StatusAccepted)
	next(t, r.begun, 1, "begun")
	a.cancel("k").want(t, http.StatusAccepted)
	next(t, r.left, 1, "been given up")
	is(t, a.get("/jobs/k", "Prefer: wait=60").want(t, http.StatusOK).json(t), "cancelled", "status")
}

// Listening connections that the server ends are opened again, and notices go on.
func TestFailure_Q34_BR79_ListenersComeBack(t *testing.T) {
	t.Parallel()
	database := testenv.Postgres(t)
	a := start(t, database, both(t, effects, seldomPolls, acceptsOnly))
	start(t, database, both(t, effects, seldomPolls))
	db := beside(t, database)
	pids := listening(t, db, 2)
	if n := count(t, db, `select count(pg_terminate_backend(pid)) from pg_stat_activity
		where datname = current_database() and query like 'select pg_notify(%' and pid <> pg_backend_pid()`); n != 2 {
		t.Fatalf("%d connections were ended", n)
	}
	listening(t, db, 2, pids...)
	if longest := handOver(t, a, "k", 5); longest > byNotice {
		t.Errorf("one took %v", longest)
	}
}

// The number of notices is bounded by time and not by the number of jobs, and none is
// part of a statement that accepts.
func TestFailure_Q20_ManyJobsFewNotices(t *testing.T) {
	t.Parallel()
	const jobs, least = 1000, 10 * time.Millisecond
	database := testenv.Postgres(t)
	w := newWire(t, database)
	var alone, together atomic.Int64
	w.rule(func(sent []byte) fate {
		if at := bytes.Index(sent, []byte("pg_notify")); at >= 0 {
			alone.Add(1)
			if at > len("Q....select ") || bytes.Contains(sent, []byte("insert")) {
				together.Add(1)
			}
		}
		return pass
	})
	a := start(t, w.url, both(t, effects, acceptsOnly))
	start(t, database, effects)
	db := beside(t, database)
	listening(t, db, 2)
	began, before := time.Now(), a.measured("sekali_notices_total", `what="sent"`)
	persistAll(t, jobs, func(i int) (string, string) { return fmt.Sprint("k", i), effect }, a)
	sent := a.measured("sekali_notices_total", `what="sent"`) - before
	took := time.Since(began)
	t.Logf("%v notices of %d jobs in %v", sent, jobs, took)
	if most := float64(took/least) + 2; sent > most || sent < 1 {
		t.Errorf("%v notices in %v, want one each %v at most", sent, took, least)
	}
	if alone.Load() == 0 || together.Load() != 0 {
		t.Errorf("%d notices were sent, %d of them not by themselves", alone.Load(), together.Load())
	}
	testenv.Eventually(t, 60*time.Second, "all jobs ended", func() bool { return count(t, db, `select count(*) from jobs`) == 0 })
}

// deafWire leads to Postgres. While it is deaf, connections that are there for notices
// carry nothing, in neither direction, and are not closed; all others work.
type deafWire struct {
	url  string
	deaf atomic.Bool
}

func newDeafWire(t testing.TB, database string) *deafWire {
	t.Helper()
	w := &deafWire{}
	w.url = between(t, database, w.connect)
	return w
}

func (w *deafWire) connect(gateway net.Conn, address string) {
	defer gateway.Close()
	server, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer server.Close()
	first := make([]byte, 64<<10)
	n, err := gateway.Read(first)
	if err != nil {
		return
	}
	notices := bytes.Contains(first[:n], []byte("synchronous_commit"))
	carry := func(to io.Writer, bytes []byte) (err error) {
		if !notices || !w.deaf.Load() { // else they are lost, as they are to a machine that is gone
			_, err = to.Write(bytes)
		}
		return err
	}
	pump := func(to, from net.Conn) {
		defer gateway.Close()
		buffer := make([]byte, 64<<10)
		for {
			n, err := from.Read(buffer)
			if err != nil || carry(to, buffer[:n]) != nil {
				return
			}
		}
	}
	if carry(server, first[:n]) != nil {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { pump(gateway, server) })
	both.Go(func() { pump(server, gateway) })
	both.Wait()
}

// The connection for notices goes dead without a word. Jobs start within the poll
// interval and cancellations come with the heartbeat; the replica notices it, and
// listens again as soon as it can.
func TestFailure_Q10_BR79_ADeadListenerIsNoticedAndReplaced(t *testing.T) {
	t.Parallel()
	database, r := testenv.Postgres(t), newHeldReceiver(t)
	config := both(t, effects, r.config(), "dispatcher: {poll_interval: 5s}\ndefaults: {lease: 30s, heartbeat: 1s, timeout: 1h}")
	w := newDeafWire(t, database)
	a, b := start(t, database, both(t, config, acceptsOnly)), start(t, w.url, config)
	db := beside(t, database)
	listening(t, db, 2)
	degraded := func() float64 { return b.measured("sekali_degraded", `part="notices"`) }
	if degraded() != 0 {
		t.Error("it is degraded from the start")
	}

	w.deaf.Store(true)
	a.submit("held", `{"type":"call"}`).want(t, http.StatusAccepted)
	next(t, r.begun, 1, "begun") // by a poll
	a.cancel("held").want(t, http.StatusAccepted)
	next(t, r.left, 1, "been given up") // by a heartbeat
	is(t, a.finished("held"), "cancelled 1", "status", "attempts")
	testenv.Eventually(t, 60*time.Second, "it notices", func() bool { return degraded() == 1 })

	w.deaf.Store(false)
	testenv.Eventually(t, 60*time.Second, "it listens again", func() bool { return degraded() == 0 })
	var took []time.Duration
	for i := range 9 {
		key, began := fmt.Sprint("k", i), time.Now()
		a.submit(key, effect).want(t, http.StatusAccepted)
		testenv.Eventually(t, 20*time.Second, "the job ended", func() bool {
			return count(t, db, `select count(*) from finished_jobs where key = $1`, key) == 1
		})
		took = append(took, time.Since(began))
	}
	if middle := median(took); middle > time.Second {
		t.Errorf("half of the jobs took more than %v: polling alone would do so", middle)
	}
}
