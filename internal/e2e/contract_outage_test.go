package e2e_test

import (
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/testenv"
)

// C20: an answer that could not be stored is still its client's.
func TestContract_Row46_C20_AnAnswerThatCannotBeStored(t *testing.T) {
	for policy, repeated := range map[string]int{"reexecute": http.StatusCreated, "reject": http.StatusUnprocessableEntity} {
		t.Run(policy, func(t *testing.T) {
			onProxy(t, "on_interrupted: "+policy, "", charged, func(t *testing.T, g *gateway, u *upstream) {
				key := rand.Text()
				repair := breakRecords(t, g, "update", `new.state = 'completed'`)
				g.charge(key).want(t, http.StatusCreated, "Idempotency-Status: not-recorded", "Location: /v1/charges/1").keyed(t, key, false)
				if n := g.measured("sekali_keyed_runs_total", `outcome="not_recorded"`); n != 1 {
					t.Errorf("%v runs counted as not recorded", n)
				}
				repair()
				a := g.settledCharge(t, key).want(t, repeated)
				if policy == "reject" {
					a.refused(t, repeated, "idempotency-outcome-unknown", false) // row 43
				}
				u.ran(t, key, map[string]int{"reexecute": 2, "reject": 1}[policy])
			})
		})
	}
}

// breakRecords makes the database refuse to write records, until repair.
func breakRecords(t testing.TB, g *gateway, event, when string) (repair func()) {
	t.Helper()
	db := g.beside(t)
	if onSQLite(g.database) {
		change(t, db, fmt.Sprintf(`create trigger broken before %s on idempotency_keys when %s begin select raise(abort, 'broken'); end`, event, when))
		return func() { change(t, db, `drop trigger broken`) }
	}
	change(t, db, `create or replace function broken() returns trigger language plpgsql as $$ begin raise exception 'broken'; end $$`)
	change(t, db, fmt.Sprintf(`create trigger broken before %s on idempotency_keys for each row when (%s) execute function broken()`, event, when))
	return func() { change(t, db, `drop trigger broken on idempotency_keys`) }
}

// C21: without its store the gateway runs nothing, unless a rule says so.
func TestContract_Row47_Row48_Row50_C21_TheStoreIsAway(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		u := newUpstream(t, charged)
		config := u.rule("") + fmt.Sprintf("  - {match: POST /open/*, upstream: %q, fail_open: true}\n", u.URL)
		var g *gateway
		var away, silent func() (back func())
		if onSQLite(database) {
			g = start(t, database, config)
			away = func() func() { return breakRecords(t, g, "insert", "true") }
			silent = func() func() { return lockOut(t, g) } // nobody can write for as long
		} else {
			w := newWire(t, database)
			g = start(t, w.url, config)
			g.database = database
			broken := func(decide func([]byte) fate) func() { w.rule(decide); return func() { w.rule(nil) } }
			away = func() func() { return broken(func([]byte) fate { return cut }) }
			silent = func() func() {
				again := make(chan struct{})
				undo := broken(func([]byte) fate { <-again; return pass })
				return func() { undo(); close(again) }
			}
		}
		open := func(key string) answer {
			return g.do(http.MethodPost, "/open/charges", `{"amount":1}`, jsonType, "Idempotency-Key: "+key)
		}
		closedKey, openKey := rand.Text(), rand.Text()
		back := away()
		g.charge(closedKey).keyed(t, closedKey, false).refused(t, http.StatusServiceUnavailable, "idempotency-store-unavailable", true)
		for n := range 2 {
			open(openKey).want(t, http.StatusCreated, "Idempotency-Status: unprotected", "Idempotent-Replayed: false", fmt.Sprintf("Location: /v1/charges/%d", n+1))
		}
		back()
		u.ran(t, closedKey, 0)
		lines := g.logLines("store away: the request runs unprotected")
		if len(lines) != 2 || lines[0]["level"] != "WARN" || lines[0]["idempotency_key"] != openKey {
			t.Errorf("lines in the log: %v", lines)
		}
		testenv.Eventually(t, 0, "the store is back", func() bool { return g.charge(closedKey).StatusCode == http.StatusCreated })
		u.ran(t, closedKey, 1)
		if n := g.measured("sekali_keyed_runs_total", `outcome="unprotected"`); n != 2 {
			t.Errorf("%v runs counted as unprotected", n)
		}

		key := rand.Text()
		back = silent()
		began := time.Now()
		a := g.charge(key)
		if took := time.Since(began); took > 10*time.Second { // two, and some for a machine that is busy
			t.Errorf("a silent store held the request for %v", took)
		}
		if a.StatusCode != http.StatusConflict { // who cannot write in time may have to wait for a rival
			a.refused(t, http.StatusServiceUnavailable, "idempotency-store-unavailable", true)
		}
		back()
		u.ran(t, key, 0)
		testenv.Eventually(t, 0, "the store is back", func() bool { return g.charge(key).StatusCode == http.StatusCreated })
		u.ran(t, key, 1)
	})
}

// A client that leaves takes nothing with it: neither the upstream's work nor
// the answer for those who ask again (BR-22).
func TestContract_Row56_BR22_TheClientLeavesBeforeTheAnswer(t *testing.T) {
	var held doors
	left := make(chan string, 2)
	answer := func(w http.ResponseWriter, r *http.Request, n int) {
		held.pass(r)
		if r.Context().Err() != nil {
			left <- r.URL.Path
		}
		charged(w, r, n)
	}
	// A lease that outlasts the second in which the answer is held.
	onProxy(t, "", "idempotency: {lease: 30s}", answer, func(t *testing.T, g *gateway, u *upstream) {
		key := rand.Text()
		conn := g.dial(t)
		_, _ = io.WriteString(conn, "POST /v1/charges?x=1 HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nIdempotency-Key: "+key+"\r\nContent-Length: 12\r\n\r\n{\"amount\":1}")
		u.awaited(key)
		_ = conn.Close()
		g.charge(key, "Prefer: wait=1").inUse(t, key) // a second in which nobody cancels anything
		close(held.of(key))
		a := g.settledCharge(t, key).want(t, http.StatusCreated, "Location: /v1/charges/1").keyed(t, key, true)
		g.charge(key).isReplayOf(t, key, a)
		u.ran(t, key, 1)
		if len(left) != 0 {
			t.Error("the upstream's call was given up")
		}
	})
}
