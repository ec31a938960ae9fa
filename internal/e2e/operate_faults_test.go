package e2e_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/testenv"
)

// A retry whose gateway dies before it answers has been accepted whole or not at
// all; the same call again tells which.
func TestContract_Row75_KillsInTheMiddleOfARetry(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		const jobs, rounds = 8, 3
		s := newSink(t)
		config := s.types(map[string]string{"wrong": "/status/400"})
		answered := map[string][]byte{}
		var mu sync.Mutex
		g := start(t, database, config)
		for round := range rounds {
			var keys []string
			for i := range jobs {
				keys = append(keys, fmt.Sprintf("r%d-%d", round, i))
				g.submit(keys[i], `{"type":"wrong"}`).want(t, http.StatusAccepted)
			}
			for _, key := range keys {
				g.finished(key)
			}
			var wg sync.WaitGroup
			first := make(chan struct{}, jobs)
			for _, key := range keys {
				wg.Go(func() {
					a, err := g.try(http.MethodPost, "/jobs/"+key+"/retry", "", "Idempotency-Key: op-"+key)
					if err == nil {
						mu.Lock()
						defer mu.Unlock()
						answered[key] = a.body
						first <- struct{}{}
					}
				})
			}
			if round%2 == 1 { // in the other rounds perhaps before the first one is answered
				select {
				case <-first:
				case <-time.After(60 * time.Second):
					t.Fatal("nothing was answered")
				}
			}
			<-time.After(rand.N(60 * time.Millisecond)) // the random point is what is tested
			g.kill()
			wg.Wait()
			g = start(t, database, config)
			for _, key := range keys {
				a := g.retry(key, "op-"+key).want(t, http.StatusAccepted)
				if body := answered[key]; body != nil && !bytes.Equal(a.body, body) {
					t.Errorf("%s: the answer was\n%s\nand is\n%s", key, body, a.body)
				}
				g.retry(key, "op-"+key).want(t, http.StatusAccepted, "Idempotent-Replayed: true")
				j := g.finished(key)
				is(t, j, "failed 2", "status", "generation")
				// An attempt that was under way when its gateway died counts.
				if n := fmt.Sprint(j["attempts"]); !slices.Contains([]string{"2", "3"}, n) {
					t.Errorf("%s: %s attempts", key, n)
				}
			}
		}
		t.Logf("%d of %d retries were answered before the kill", len(answered), jobs*rounds)
		sound(t, beside(t, database))
	})
}

// The answer to the commit of an operator's call is lost, or the commit itself.
func TestContract_Row75_Row75a_Row83_TheAnswerToAnOperatorsCommitIsLost(t *testing.T) {
	t.Parallel()
	database, d := testenv.Postgres(t), newDoubtful(t)
	w := newWire(t, database)
	g := start(t, w.url, d.config())
	db := beside(t, database)
	for round, each := range []fate{cutAfter, cut, cutAfter, cut} {
		failed, doubt := fmt.Sprint("failed-", round), fmt.Sprint("doubt-", round)
		g.ended(t, failed, `{"type":"wrong"}`)
		g.park(t, doubt, `{"type":"pay"}`)
		for _, act := range []func() answer{
			func() answer { return g.retry(failed, "op-"+failed) },
			func() answer { return g.resolve(doubt, "op-"+doubt, `{"status":"succeeded"}`) },
		} {
			var begun atomic.Bool
			var cuts atomic.Int32
			w.rule(func(sent []byte) fate {
				if bytes.Contains(sent, []byte("op-failed")) || bytes.Contains(sent, []byte("op-doubt")) {
					begun.Store(true)
				}
				if begun.Load() && bytes.Contains(sent, []byte("COMMIT")) && cuts.Add(1) == 1 {
					return each
				}
				return pass
			})
			a := act()
			w.rule(nil)
			if cuts.Load() == 0 {
				t.Fatal("no commit was cut")
			}
			if a.StatusCode >= 300 {
				p := a.problem(t, http.StatusServiceUnavailable, fmt.Sprint(a.json(t)["code"]))
				if p["retryable"] != true || a.Header.Get("Retry-After") == "" {
					t.Errorf("%s", a.body)
				}
			}
			if again := act(); again.StatusCode != http.StatusOK && again.StatusCode != http.StatusAccepted {
				t.Errorf("again: %d %s", again.StatusCode, again.body)
			}
		}
		is(t, g.finished(failed), "failed 2 2", "status", "attempts", "generation")
		is(t, g.finished(doubt), "succeeded 1 <nil>", "status", "attempts", "outcome")
		for key, event := range map[string]string{failed: "retried", doubt: "resolved"} {
			if n := len(told(g.events(t, key), event)); n != 1 {
				t.Errorf("%s: %d events %s", key, n, event)
			}
		}
	}
	if n := count(t, db, `select count(*) from finished_jobs where generation > 2`); n != 0 {
		t.Errorf("%d jobs were brought back twice", n)
	}
}

func TestContract_Row84_Row75_Row75a_Row102_OperatorsOfAGatewayThatEnds(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		d, r := newDoubtful(t), newHeldReceiver(t)
		g := start(t, database, both(t, d.config(), r.config(), keptLease, "dispatcher: {shutdown_grace: 20s}"))
		g.park(t, "doubt", `{"type":"pay"}`)
		g.ended(t, "wrong", `{"type":"wrong"}`)
		g.submit("later", `{"type":"wrong","delay_seconds":3600}`).want(t, http.StatusAccepted)
		g.submit("running", `{"type":"call"}`).want(t, http.StatusAccepted)
		next(t, r.begun, 1, "begun")
		g.draining()
		// What brings work is refused, and consumes nothing; what ends it is done.
		g.retry("wrong", "op").want(t, http.StatusServiceUnavailable, "Retry-After: *").problem(t, http.StatusServiceUnavailable, "shutting-down")
		g.cancel("later").want(t, http.StatusOK, "Job-Status: cancelled")
		g.resolve("doubt", "op-2", `{"status":"failed"}`).want(t, http.StatusOK)
		g.cancel("running").want(t, http.StatusAccepted)
		next(t, r.left, 1, "been given up")
		if code := g.wait(60 * time.Second); code != 0 {
			t.Errorf("exit code %d", code)
		}
		g = start(t, database, both(t, d.config(), r.config()))
		is(t, g.finished("running"), "cancelled 1", "status", "attempts")
		g.retry("wrong", "op").want(t, http.StatusAccepted, "Idempotent-Replayed: false")
		g.resolve("doubt", "op-2", `{"status":"failed"}`).want(t, http.StatusOK, "Idempotent-Replayed: true")
		sound(t, beside(t, database))
	})
}

func TestContract_Row102_Row75_Row114a_WithoutDatabaseNothingIsPromised(t *testing.T) {
	t.Parallel()
	database, s := testenv.Postgres(t), newSink(t)
	w := newWire(t, database)
	g := start(t, w.url, s.types(map[string]string{"wrong": "/status/400"}))
	g.ended(t, "failed", `{"type":"wrong"}`)
	g.submit("waits", `{"type":"wrong","delay_seconds":3600}`).want(t, http.StatusAccepted)
	w.rule(func([]byte) fate { return cut })
	for what, act := range map[string]func() answer{
		"cancel":    func() answer { return g.cancel("waits") },
		"retry":     func() answer { return g.retry("failed", "op") },
		"resolve":   func() answer { return g.resolve("failed", "op", `{"status":"failed"}`) },
		"pause":     func() answer { return g.do(http.MethodPost, "/executors/wrong/pause", "") },
		"executors": func() answer { return g.get("/executors") },
		"events":    func() answer { return g.get("/jobs/failed/events") },
	} {
		asked := time.Now()
		a := act().want(t, http.StatusServiceUnavailable, "Retry-After: *", "Content-Type: application/problem+json")
		if took := time.Since(asked); a.json(t)["retryable"] != true || took > 10*time.Second {
			t.Errorf("%s: after %v %s", what, took, a.body)
		}
	}
	w.rule(nil)
	testenv.Eventually(t, 60*time.Second, "the database is back", func() bool { return g.get("/readyz").StatusCode == http.StatusOK })
	is(t, g.get("/jobs/waits").json(t), "scheduled", "status")
	g.cancel("waits").want(t, http.StatusOK)
	g.retry("failed", "op").want(t, http.StatusAccepted, "Idempotent-Replayed: false")
	is(t, g.finished("failed"), "failed 2 2", "status", "attempts", "generation")
	sound(t, beside(t, database))
}
