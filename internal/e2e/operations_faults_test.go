package e2e_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/testenv"
)

// operationCalls is a type whose calls the test answers.
func (r *heldReceiver) operationCalls() string {
	return fmt.Sprintf(`
defaults: {backoff: {base: 20ms, cap: 40ms}}
job_types: {call: {executor: http, operation_key: "{{ .payload.event }}", http: {url: %q}}}
`, r.URL)
}

// waitsFor fails unless the job waits, untried, for the operation of the other.
func waitsFor(t *testing.T, g *gateway, key, other string) {
	t.Helper()
	is(t, g.became(t, key, "retrying"), "0 <nil>", "attempts", "error")
	testenv.Eventually(t, 0, key+" tells what it waits for", func() bool {
		for _, e := range g.events(t, key) {
			if e["event"] == "operation_busy" {
				return e["data"].(map[string]any)["held_by"] == other
			}
		}
		return false
	})
}

const callOfE = `{"type":"call","payload":{"event":"e"}}`

// The process of the first job dies before it has done the operation, and after
// it.
func TestContract_SectionI_BR62_TheDoerOfAnOperationIsKilled(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		r := newHeldReceiver(t)
		config := both(t, r.operationCalls(), "defaults: {lease: 5s}") // which the doer keeps until it is killed
		g := start(t, database, config)
		var other *gateway
		if !onSQLite(database) {
			other = start(t, database, config)
		}
		g.submit("first", callOfE).want(t, http.StatusAccepted)
		next(t, r.begun, 1, "begun")
		waiting := g
		if other != nil {
			waiting = other
		}
		waiting.submit("second", callOfE).want(t, http.StatusAccepted)
		waitsFor(t, waiting, "second", "first")
		db := beside(t, database)
		holder := text(t, db, `select worker_id from jobs where key = 'first'`)
		for _, one := range []*gateway{g, other} {
			if one != nil && one.workerID() == holder {
				one.kill()
			}
		}
		g = start(t, database, config)
		next(t, r.begun, 2, "begun")
		if j := g.get("/jobs/second").json(t); j["status"] == "succeeded" {
			t.Errorf("the second job did not wait: %v", j)
		}
		close(r.let[2])
		is(t, g.finished("first"), "succeeded <nil> 2", "status", "outcome", "attempts")
		isDuplicate(t, g, "second", "first")
		g.kill()
		g = start(t, database, config)
		g.submit("third", callOfE).want(t, http.StatusAccepted)
		isDuplicate(t, g, "third", "first")
		for _, h := range r.seen() {
			if key := h.header.Get("Sekali-Key"); key != "first" {
				t.Errorf("%s called", key)
			}
		}
		if n := len(r.seen()); n != 2 {
			t.Errorf("%d calls", n)
		}
		operationDone(t, db, "call", "e", "first")
		sound(t, db)
	})
}

// Kills at random points of a stream of operations, each named by two jobs.
func TestContract_SectionI_BR20_KillsAtRandomPointsDoNoOperationTwice(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		l, s := newLedger(t), newSink(t)
		config := both(t, fmt.Sprintf(operations, "/dev/null", l.URL, s.URL), "defaults: {lease: 1s, max_attempts: 100}")
		const rounds, events = 3, 6
		kinds := []string{"write", "call"}
		submitAll := func(g *gateway, round int, again func(key, body string)) {
			var wg sync.WaitGroup
			for i := range events * len(kinds) * 2 {
				kind, event := kinds[i%2], fmt.Sprintf("r%d-e%d", round, i/4)
				wg.Go(func() { again(fmt.Sprintf("r%d-k%d", round, i), operation(kind, event)) })
			}
			wg.Wait()
		}
		for round := range rounds {
			g := start(t, database, config)
			var killing sync.WaitGroup
			killing.Go(func() {
				<-time.After(rand.N(300 * time.Millisecond)) // the random point is what is tested
				g.kill()
			})
			submitAll(g, round, func(key, body string) {
				_, _ = g.try(http.MethodPost, "/jobs", body, jsonType, "Idempotency-Key: "+key)
			})
			killing.Wait()
		}
		g := start(t, database, config)
		for round := range rounds {
			submitAll(g, round, func(key, body string) { persist(t, key, body, g) })
		}
		db := beside(t, database)
		testenv.Eventually(t, 60*time.Second, "all jobs ended", func() bool { return count(t, db, `select count(*) from jobs`) == 0 })
		const all = rounds * events * 2
		for what, want := range map[string]int{
			`select count(*) from finished_jobs where state = 'succeeded'`:           2 * all,
			`select count(*) from finished_jobs where outcome = 'duplicate_ignored'`: all,
			`select count(*) from processed_operations where state = 'done'`:         all,
			`select count(*) from effects`:                                           all / 2,
			`select count(distinct job) from effects`:                                all / 2,
			`select count(*) from finished_jobs d join finished_jobs f on f.key = d.duplicate_of
				and f.operation_key = d.operation_key and f.type = d.type and f.outcome is null`: all,
		} {
			if got := count(t, db, what); got != want {
				t.Errorf("%d and not %d: %s", got, want, what)
			}
		}
		if n := l.workers("/done/ok"); n != all/2 {
			t.Errorf("%d jobs called for %d operations", n, all/2)
		}
		sound(t, db)
	})
}

// An operation whose job ended without success is free: one that waits for it
// takes it over.
func TestContract_SectionI_AnOperationThatFailedIsTakenOver(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		type verdict struct {
			key    string
			status chan int
		}
		calls := make(chan verdict, 8)
		r := newReceiver(t, func(w http.ResponseWriter, c call, _ int) {
			v := verdict{c.key(), make(chan int)}
			calls <- v
			select {
			case status := <-v.status:
				w.WriteHeader(status)
			case <-c.Context().Done():
			}
		})
		answer := func(key string, status int) {
			t.Helper()
			select {
			case v := <-calls:
				if v.key != key {
					t.Fatalf("%s calls, want %s", v.key, key)
				}
				if status > 0 {
					v.status <- status
				}
			case <-time.After(60 * time.Second):
				t.Fatalf("%s does not call", key)
			}
		}
		g := start(t, database, both(t, fmt.Sprintf(operations, "/dev/null", r.URL, r.URL), keptLease))
		db := beside(t, database)

		g.submit("first", callOfE).want(t, http.StatusAccepted)
		testenv.Eventually(t, 0, "the first one has it", func() bool { return len(calls) == 1 })
		g.submit("second", callOfE).want(t, http.StatusAccepted)
		waitsFor(t, g, "second", "first")
		answer("first", http.StatusBadRequest)
		is(t, g.finished("first"), "failed <nil> 1", "status", "outcome", "attempts")
		answer("second", http.StatusOK)
		is(t, g.finished("second"), "succeeded <nil> 1", "status", "outcome", "attempts")
		operationDone(t, db, "call", "e", "second")
		g.submit("third", callOfE).want(t, http.StatusAccepted)
		isDuplicate(t, g, "third", "second")
		// The one that failed, brought back, finds it done.
		g.retry("first", "op").want(t, http.StatusAccepted)
		isDuplicate(t, g, "first", "second")

		// Likewise when the first one is cancelled.
		g.submit("cancelled", `{"type":"call","payload":{"event":"c"}}`).want(t, http.StatusAccepted)
		answer("cancelled", 0)
		g.submit("heir", `{"type":"call","payload":{"event":"c"}}`).want(t, http.StatusAccepted)
		waitsFor(t, g, "heir", "cancelled")
		g.cancel("cancelled").want(t, http.StatusAccepted)
		answer("heir", http.StatusOK)
		is(t, g.finished("cancelled"), "cancelled", "status")
		is(t, g.finished("heir"), "succeeded <nil>", "status", "outcome")
		operationDone(t, db, "call", "c", "heir")

		// In a transaction, a failure leaves nothing to take over.
		is(t, g.ended(t, "w1", `{"type":"write","payload":{"event":"w","effect":null}}`), "failed <nil> 1", "status", "outcome", "attempts")
		is(t, g.ended(t, "w2", `{"type":"write","payload":{"event":"w","effect":"w"}}`), "succeeded <nil> 1", "status", "outcome", "attempts")
		g.submit("w3", `{"type":"write","payload":{"event":"w","effect":"w"}}`).want(t, http.StatusAccepted)
		isDuplicate(t, g, "w3", "w2")
		operationDone(t, db, "write", "w", "w2")
		if n := count(t, db, `select count(*) from effects`); n != 1 {
			t.Errorf("%d effects", n)
		}
		sound(t, db)
	})
}

// Nobody knows whether the first job did the operation: nobody does it, until
// somebody has looked.
func TestContract_SectionI_Row75a_AnOperationOfUnknownOutcomeIsHeldUntilItIsResolved(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		l := newLedger(t)
		g := start(t, database, both(t, fastTry, fmt.Sprintf(`
job_types:
  call: {executor: http, operation_key: "{{ .payload.event }}", on_unknown_outcome: park, http: {url: "%s/done/reset"}}
`, l.URL)))
		for _, event := range []string{"yes", "no"} {
			body := fmt.Sprintf(`{"type":"call","payload":{"event":%q}}`, event)
			is(t, g.ended(t, event, body), "failed outcome_unknown", "status", "outcome")
			g.submit(event+"-2", body).want(t, http.StatusAccepted)
			waitsFor(t, g, event+"-2", event)
		}
		db := beside(t, database)
		// Put off a second time, and still nobody calls.
		testenv.Eventually(t, 60*time.Second, "both were put off again", func() bool {
			return count(t, db, `select count(*) from jobs where token >= 2 and attempt = 0`) == 2
		})
		g.resolve("yes", "op-1", `{"status":"succeeded","result":{ "seen" : 1.0 }}`).want(t, http.StatusOK)
		isDuplicate(t, g, "yes-2", "yes")
		operationDone(t, db, "call", "yes", "yes")
		if got := l.counts("yes-2"); got != "0 0 0" {
			t.Errorf("calls, questions and work of the duplicate: %s", got)
		}
		g.resolve("no", "op-2", `{"status":"failed"}`).want(t, http.StatusOK)
		is(t, g.finished("no-2"), "failed outcome_unknown", "status", "outcome") // its own call is reset as well
		if got := l.counts("no-2"); got != "1 0 1" {
			t.Errorf("calls, questions and work of the heir: %s", got)
		}
		sound(t, db)
	})
}

// The operation outlives its job: what was done stays done.
func TestContract_SectionI_Q17_AnOperationOutlivesItsJob(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		l, s := newLedger(t), newSink(t)
		config := both(t, fmt.Sprintf(operations, "/dev/null", l.URL, s.URL), "idempotency: {retention: 5s}") // in which results are read
		g := start(t, database, config)
		results := map[string]string{}
		for _, kind := range []string{"write", "call"} {
			is(t, g.ended(t, kind+"-1", operation(kind, "e")), "succeeded", "status")
			results[kind] = string(g.get("/jobs/"+kind+"-1/result").want(t, http.StatusOK).body)
		}
		until(t, g, "call-1", http.StatusGone)
		g.kill()
		g = start(t, database, config) // the reaper's first look is at the start
		db := beside(t, database)
		testenv.Eventually(t, 60*time.Second, "the jobs are gone", func() bool {
			return count(t, db, `select count(*) from finished_jobs where key like '%-1'`) == 0
		})
		for kind, result := range results {
			is(t, g.ended(t, kind+"-2", operation(kind, "e")), "succeeded duplicate_ignored "+kind+"-1", "status", "outcome", "duplicate_of")
			if got := g.get("/jobs/"+kind+"-2/result").want(t, http.StatusOK); string(got.body) != result {
				t.Errorf("the result is %s, want %s", got.body, result)
			}
			operationDone(t, db, kind, "e", kind+"-1")
		}
		if got := fmt.Sprint(count(t, db, `select count(*) from effects`), " ", l.counts("call-2")); got != "1 0 0 0" {
			t.Errorf("effects, and calls, questions and work of the second one: %s", got)
		}
	})
}
