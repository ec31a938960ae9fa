package e2e_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/testenv"
)

// freeze lets the wire hand nothing on, and close nothing, until thaw.
func (w *wire) freeze() (thaw func()) {
	frozen := make(chan struct{})
	w.rule(func([]byte) fate {
		<-frozen
		return pass
	})
	return sync.OnceFunc(func() {
		w.rule(nil)
		close(frozen)
	})
}

// The network between a gateway and its database swallows everything for a while,
// without a word to either: requests are refused in time, nothing is lost, and
// after it work goes on at once.
func TestFailure_BR79_Q10_Q34_ASilentDatabaseLosesNothing(t *testing.T) {
	t.Parallel()
	database, r, s := testenv.Postgres(t), newHeldReceiver(t), newSink(t)
	w := newWire(t, database)
	// The job that runs keeps its lease meanwhile: whose it would be after that, if the
	// gateway that is started late looks for lost jobs before its holder can write, is open.
	config := both(t, effects, r.config(), s.types(map[string]string{"ok": "/ok"}), "defaults: {lease: 5s}\njob_types: {call: {lease: 5m}}")
	g := start(t, w.url, config)
	g.submit("running", `{"type":"call"}`).want(t, http.StatusAccepted)
	next(t, r.begun, 1, "begun")
	g.submit("later", `{"type":"ok","delay_seconds":1}`).want(t, http.StatusAccepted)
	g.submit("doomed", `{"type":"ok","delay_seconds":3600}`).want(t, http.StatusAccepted)

	thaw := w.freeze()
	defer thaw()
	close(r.let[1]) // the work ends while nobody can be told
	for _, ask := range []func() answer{
		func() answer { return g.submit("new", effect) },
		func() answer { return g.get("/jobs/running") },
		func() answer { return g.cancel("doomed") },
	} {
		began := time.Now()
		a := ask()
		a.want(t, http.StatusServiceUnavailable, "Retry-After: *", "Content-Type: application/problem+json")
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("%s was refused after %v", a.Request.URL, took)
		}
	}
	g.get("/readyz").want(t, http.StatusServiceUnavailable)
	g.get("/healthz").want(t, http.StatusOK)
	testenv.Eventually(t, 60*time.Second, "the end of the work could not be written", func() bool {
		return len(g.logLines("attempt's end not written yet")) > 0
	})
	// A gateway that starts now waits, and says so.
	late := launch(t, w.url, both(t, config, "dispatcher: {slots: 0}"))
	testenv.Eventually(t, 30*time.Second, "it says that it waits", func() bool {
		return len(late.logLines("the database cannot be reached yet; trying again")) > 0
	})

	thaw()
	thawed := time.Now()
	db := beside(t, database)
	testenv.Eventually(t, 60*time.Second, "the gateway is ready again", func() bool { return g.get("/readyz").StatusCode == http.StatusOK })
	is(t, g.finished("running"), "succeeded 1", "status", "attempts")
	// It may have been claimed by a statement that was on its way: then it is put
	// back, untried, when that lease is over.
	is(t, g.finished("later"), "succeeded 1", "status", "attempts")
	g.cancel("doomed").want(t, http.StatusOK)
	for i := range 3 {
		key := fmt.Sprint("soon-", i)
		is(t, g.ended(t, key, `{"type":"ok"}`), "succeeded 1", "status", "attempts")
	}
	if took := time.Since(thawed); took > 30*time.Second {
		t.Errorf("work went on only %v after the network did", took)
	}
	select {
	case <-late.serving():
	case <-late.exited:
		t.Fatal("the gateway that was started meanwhile has ended")
	case <-time.After(30 * time.Second):
		t.Fatal("the gateway that was started meanwhile does not serve")
	}
	is(t, late.ended(t, "late", `{"type":"ok"}`), "succeeded 1", "status", "attempts")
	// The refused request may have been written all the same; its repetition tells.
	persist(t, "new", effect, g)
	is(t, g.finished("new"), "succeeded 1", "status", "attempts")
	if n := count(t, db, `select count(*) from effects`); n != 1 || len(r.seen()) != 1 {
		t.Errorf("%d effects and %d calls, want one of each", n, len(r.seen()))
	}
	sound(t, db)
}

// After an outage of a receiver its jobs do not come back all at once.
func TestFailure_BR69_SecondAttemptsArriveSpread(t *testing.T) {
	t.Parallel()
	const jobs = 200
	s := newSink(t)
	database := testenv.Postgres(t)
	g := start(t, database, both(t, s.types(map[string]string{"down": "/flaky?fail=1"}),
		"dispatcher: {slots: 64, poll_interval: 1s}\ndefaults: {backoff: {base: 5s, cap: 1m}}"))
	persistAll(t, jobs, func(i int) (string, string) { return fmt.Sprint("k", i), `{"type":"down"}` }, g)
	db := beside(t, database)
	testenv.Eventually(t, 60*time.Second, "all jobs ended", func() bool { return count(t, db, `select count(*) from jobs`) == 0 })
	var delays []time.Duration
	for i := range jobs {
		hits := s.of(fmt.Sprint("k", i))
		if len(hits) != 2 {
			t.Fatalf("job %d: %d calls", i, len(hits))
		}
		delays = append(delays, hits[1].at.Sub(hits[0].at))
	}
	middle := median(delays)
	if delays[0] < 2400*time.Millisecond {
		t.Errorf("a second attempt after %v: half of the delay is the least", delays[0])
	}
	if spread := delays[jobs*9/10] - delays[jobs/10]; spread < 1500*time.Millisecond {
		t.Errorf("of a delay of 5 s, second attempts came within %v, half of them after %v", spread, middle)
	}
	for first := range delays {
		last := first
		for last < jobs && delays[last]-delays[first] < 100*time.Millisecond {
			last++
		}
		if last-first > jobs/5 {
			t.Fatalf("%d of %d second attempts came within 100 ms: %v", last-first, jobs, delays)
		}
	}
}

// The end of an attempt that somebody cancels is recorded at once, with its
// reason, though the receiver would go on for long.
func TestFailure_BR63_ACancelInTheMiddleIsRecordedInTime(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		r := newHeldReceiver(t)
		g := start(t, database, both(t, r.config(), "defaults: {timeout: 1h}", keptLease))
		g.submit("br63", `{"type":"call"}`).want(t, http.StatusAccepted)
		next(t, r.begun, 1, "begun")
		g.cancel("br63").want(t, http.StatusAccepted)
		asked := time.Now()
		next(t, r.left, 1, "been given up")
		j := g.finished("br63")
		if took := time.Since(asked); took > 2*time.Second+atOnce {
			t.Errorf("it took %v", took)
		}
		is(t, j, "cancelled 1", "status", "attempts")
		if reason := failure(j); !strings.HasPrefix(reason, "cancelled ") {
			t.Errorf("the reason is %s", reason)
		}
		// Nobody knows how far the receiver came.
		if got := column(g.attempts(t, "br63"), "outcome"); got != "lost" {
			t.Errorf("attempts %s", got)
		}
		sound(t, beside(t, database))
	})
}
