package e2e_test

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/testenv"
	"github.com/sekali/sekali/job"
)

// keyIsFree fails unless the key was not used up: a good body is accepted under it.
func (g *gateway) keyIsFree(t testing.TB, key string) {
	t.Helper()
	g.submit(key, `{"type":"echo","delay_seconds":600}`).want(t, http.StatusAccepted, "Idempotent-Replayed: false", "Job-Status: scheduled")
}

func TestContract_Row64_Row65_Row66_Row73_Row29_WhatADuplicateGets(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		receiver, receives := newHeld(t), newSink(t)
		g := start(t, database, string(merge(t, receiver.config("held"), receives.types(map[string]string{"refused": "/status/400"}))))
		// A job that waits long enough for its pace to change; looked at below.
		const scheduled = `{"type":"echo","delay_seconds":600}`
		old := g.submit("old", scheduled).want(t, http.StatusAccepted, "Job-Status: scheduled", "Retry-After: 1", "Location: /jobs/old").keyed(t, "old", false)

		first := g.submit("k", heldBody).want(t, http.StatusAccepted, "Location: /jobs/k", "Retry-After: 1", "Job-Status: pending", "Idempotency-Expires:",
			"Content-Type: application/json", "Error-Source:").keyed(t, "k", false)
		doc := first.json(t)
		_, payload := doc["payload"]
		_, result := doc["result"]
		if payload || result || doc["status"] != "pending" || fmt.Sprintf("%v %v %v", doc["version"], doc["attempts"], doc["generation"]) != "1 0 1" {
			t.Errorf("Row64: %s", first.body)
		}
		receiver.called(t, "k")
		same := func(a answer) answer {
			t.Helper()
			if !bytes.Equal(a.body, first.body) {
				t.Errorf("Row65: C33 C43: not byte for byte:\n%s\n%s", a.body, first.body)
			}
			return a.want(t, http.StatusAccepted, "Location: /jobs/k", "Content-Type: application/json", "Preference-Applied:").keyed(t, "k", true)
		}
		for range 3 {
			same(g.submit("k", heldBody)).want(t, http.StatusAccepted, "Job-Status: processing", "Retry-After: *", "Idempotency-Expires:")
		}
		receiver.release("k")
		ended := g.finished("k")
		if ended["id"] != doc["id"] || ended["created_at"] != doc["created_at"] {
			t.Errorf("C38: the accepted job is %v, the one that ran %v", doc, ended)
		}
		a := same(g.submit("k", heldBody)).want(t, http.StatusAccepted, "Job-Status: succeeded", "Retry-After:", "Idempotency-Expires: *")
		if at, err := time.Parse(time.RFC3339Nano, a.Header.Get("Idempotency-Expires")); err != nil || at.Format(time.RFC3339Nano) != ended["expires_at"] {
			t.Errorf("Row66: Idempotency-Expires %v, expires_at %v: %v", at, ended["expires_at"], err)
		}
		if n := receiver.callsOf("k"); n != 1 {
			t.Errorf("BR02: %d calls", n)
		}
		failedForGood(t, g, receives)

		testenv.Eventually(t, 20*time.Second, "Row65: Retry-After is of the moment", func() bool {
			a := g.submit("old", scheduled)
			after := a.Header.Get("Retry-After") // more and more seconds; the time of two may be over by now
			return len(after) == 1 && after >= "2" && after <= "5" && bytes.Equal(a.body, old.body)
		})
	})
}

// failedForGood is row 73, BR-17 and BR-25: the stored answer, marked, and the
// outcome one GET away.
func failedForGood(t *testing.T, g *gateway, receives *sink) {
	t.Helper()
	const body = `{"type":"refused"}`
	first := g.submit("bad", body).want(t, http.StatusAccepted, "Idempotent-Replayed: false")
	if j := g.finished("bad"); j["status"] != "failed" || j["error"] == nil {
		t.Errorf("BR25: job %v", j)
	}
	for range 2 {
		a := g.submit("bad", body).want(t, http.StatusAccepted, "Job-Status: failed", "Retry-After:", "Idempotency-Expires: *", "Error-Source:").keyed(t, "bad", true)
		if !bytes.Equal(a.body, first.body) {
			t.Errorf("Row73: %s", a.body)
		}
	}
	current := g.submit("bad", body, "Prefer: wait=9").want(t, http.StatusOK, "Job-Status: failed", "Location: /jobs/bad").keyed(t, "bad", true)
	if doc := current.json(t); doc["status"] != "failed" || doc["error"] == nil {
		t.Errorf("BR25: %s", current.body)
	}
	if n := len(receives.of("bad")); n != 1 {
		t.Errorf("Row73: %d calls", n)
	}
}

// What was answered with 202 outlives the process that answered.
func TestContract_Row64_CommittedBeforeTheAnswer(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		g := start(t, database, "dispatcher: {slots: 0}")
		bodies := make([][]byte, 10)
		for i := range bodies {
			bodies[i] = g.submit("k"+strconv.Itoa(i), echoBody).want(t, http.StatusAccepted).body
		}
		g.kill()
		g = start(t, database, "")
		for i, body := range bodies {
			key := "k" + strconv.Itoa(i)
			if a := g.submit(key, echoBody).want(t, http.StatusAccepted, "Idempotent-Replayed: true"); !bytes.Equal(a.body, body) {
				t.Errorf("replay after the end differs:\n%s\n%s", a.body, body)
			}
			if j := g.finished(key); j["status"] != "succeeded" {
				t.Errorf("job %v", j)
			}
		}
	})
}

// once submits under the key.
func (g *gateway) once(key, body string) (answer, error) {
	return g.try(http.MethodPost, "/jobs", body, jsonType, "Idempotency-Key: "+key)
}

// resent does so again while the first request with the key is said to be under way:
// the others wait for it for a second, and it may stand still for longer (row 67).
func (g *gateway) resent(key, body string) (answer, error) {
	for deadline := time.Now().Add(60 * time.Second); ; {
		a, err := g.once(key, body)
		if err != nil || a.StatusCode != http.StatusConflict || !bytes.Contains(a.body, []byte(`"idempotency-key-in-use"`)) || time.Now().After(deadline) {
			return a, err
		}
		<-time.After(100 * time.Millisecond) // less patient than Retry-After asks for
	}
}

// together sends the bodies under one key at the same moment.
func together(t testing.TB, send func(key, body string) (answer, error), key string, bodies ...string) []answer {
	t.Helper()
	answers, begin := make(chan answer, len(bodies)), make(chan struct{})
	for _, body := range bodies {
		go func() {
			<-begin
			a, err := send(key, body)
			if err != nil {
				a = answer{}
			}
			answers <- a
		}()
	}
	close(begin)
	all := make([]answer, 0, len(bodies))
	for range bodies {
		a := <-answers
		if a.Response == nil {
			t.Fatalf("%s: a submit got no answer", key)
		}
		all = append(all, a)
	}
	return all
}

func TestContract_Row33_TwoFirstRequestsAtOnce_BR01(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		receives := newSink(t)
		g := start(t, database, receives.types(map[string]string{"ok": "/ok"}))
		const rounds = 100
		for i := range rounds {
			key := fmt.Sprintf("br01-%d", i)
			pair := together(t, g.resent, key, `{"type":"ok"}`, `{"type":"ok"}`)
			for _, a := range pair {
				a.want(t, http.StatusAccepted, "Location: /jobs/"+key)
			}
			if !bytes.Equal(pair[0].body, pair[1].body) || pair[0].Header.Get("Idempotent-Replayed") == pair[1].Header.Get("Idempotent-Replayed") {
				t.Errorf("%s: two answers:\n%v %s\n%v %s", key, pair[0].Header, pair[0].body, pair[1].Header, pair[1].body)
			}
		}
		for i := range rounds {
			key := fmt.Sprintf("br01-%d", i)
			g.finished(key)
			if n := len(receives.of(key)); n != 1 {
				t.Errorf("%s: %d calls", key, n)
			}
		}
	})
}

func TestFailure_BR03_TwoBodiesRaceForOneKey(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		receives := newSink(t)
		g := start(t, database, receives.types(map[string]string{"ok": "/ok"}))
		bodies := make([]string, 50)
		for i := range bodies {
			bodies[i] = fmt.Sprintf(`{"type":"ok","payload":{"body":"%c"}}`, "AB"[i%2])
		}
		for _, key := range []string{"br03-a", "br03-b", "br03-c"} {
			accepted, refused := 0, 0
			for _, a := range together(t, g.resent, key, bodies...) {
				switch a.StatusCode {
				case http.StatusAccepted:
					accepted++
				default:
					refused++
					g.isMismatch(t, key, "body", a)
				}
			}
			g.finished(key)
			hits := receives.of(key)
			if accepted != 25 || refused != 25 || len(hits) != 1 {
				t.Fatalf("%s: %d accepted, %d refused, %d calls", key, accepted, refused, len(hits))
			}
			winner := fmt.Sprintf(`{"type":"ok","payload":%s}`, hits[0].body)
			g.submit(key, winner).want(t, http.StatusAccepted, "Idempotent-Replayed: true")
		}
	})
}

// lockOut keeps everybody else from writing to the gateway's database.
func lockOut(t testing.TB, g *gateway) (unlock func()) {
	t.Helper()
	conn, err := g.beside(t).Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	statements := []string{"begin", "lock table jobs in access exclusive mode"}
	if strings.HasPrefix(g.database, "sqlite:") {
		statements = []string{"begin immediate"}
	}
	for _, statement := range statements {
		if _, err := conn.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	return func() {
		if _, err := conn.ExecContext(context.WithoutCancel(t.Context()), "rollback"); err != nil {
			t.Error(err)
		}
		_ = conn.Close()
	}
}

// unlessSlow is a round of requests that give up a wait of a second. One in which this
// machine stood still until the limit of row 50 shows nothing, and is sent again.
func unlessSlow(round func() []answer) (answers []answer) {
	for range 10 {
		sent := time.Now()
		answers = round()
		unavailable := slices.ContainsFunc(answers, func(a answer) bool { return a.StatusCode == http.StatusServiceUnavailable })
		if !unavailable || time.Since(sent) < 2*time.Second {
			break
		}
	}
	return answers
}

func TestContract_Row67_BR06_AnAcceptThatCannotWriteInTime(t *testing.T) {
	onGateway(t, "dispatcher: {slots: 0}", func(t *testing.T, g *gateway) {
		unlock := lockOut(t, g)
		// On SQLite requests queue for the one writer, and each one's turn takes
		// the busy timeout: the second of two would reach the limit of row 50.
		both := [][]string{{echoBody, echoBody}}
		if strings.HasPrefix(g.database, "sqlite:") {
			both = [][]string{{echoBody}, {echoBody}}
		}
		var answers []answer
		for _, bodies := range both {
			answers = append(answers, unlessSlow(func() []answer { return together(t, g.once, "br06", bodies...) })...)
		}
		for _, a := range answers {
			a.keyed(t, "br06", false).refused(t, http.StatusConflict, "idempotency-key-in-use", true)
			if after := a.Header.Get("Retry-After"); len(after) != 1 || after < "1" || after > "5" {
				t.Errorf("Retry-After %q", after)
			}
		}
		unlock()
		first := g.submit("br06", echoBody).want(t, http.StatusAccepted, "Idempotent-Replayed: false")
		if a := g.submit("br06", echoBody).want(t, http.StatusAccepted, "Idempotent-Replayed: true"); !bytes.Equal(a.body, first.body) {
			t.Errorf("%s is not %s", a.body, first.body)
		}
	})
}

// first is the transaction of a first request, made by the test, which lasts.
type first struct {
	g         *gateway
	db        *sql.DB
	statement string
	args      []any
}

// begun begins it, and returns how it ends without having done anything.
func (f first) begun(t testing.TB) (letGo func()) {
	t.Helper()
	tx, err := f.db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.ExecContext(t.Context(), f.statement, f.args...); err != nil {
		t.Fatal(err)
	}
	return func() { _ = tx.Rollback() }
}

// second sends another request with the key.
func (f first) second() <-chan answer {
	c := make(chan answer, 1)
	go func() {
		a, _ := f.g.once("k", echoBody)
		c <- a
	}()
	return c
}

// tooLate fails unless the second one is refused while the first one goes on.
func (f first) tooLate(t testing.TB) {
	t.Helper()
	letGo := f.begun(t)
	defer letGo()
	a := unlessSlow(func() []answer { return []answer{fromSlow(t, f.second())} })[0]
	a.refused(t, http.StatusConflict, "idempotency-key-in-use", true)
}

// inTime is what the second one gets that waits when the first one ends. It waits for
// a second: a round for which this machine took longer shows nothing.
func (f first) inTime(t testing.TB) answer {
	t.Helper()
	for {
		letGo, sent, waited := f.begun(t), time.Now(), false
		second := f.second()
		testenv.Eventually(t, 0, "the second waits", func() bool {
			waited = count(t, f.db, `select count(*) from pg_locks where not granted
				and pid in (select pid from pg_stat_activity where datname = current_database())`) > 0
			return waited || len(second) > 0
		})
		letGo()
		slow := time.Since(sent) >= time.Second
		a := fromSlow(t, second)
		if slow && (!waited || a.StatusCode == http.StatusConflict) {
			continue
		}
		if !waited {
			t.Error("the second does not wait")
		}
		return a
	}
}

// The second of two first requests waits for the first one's commit. The first one
// ends too late, then in time without having accepted.
func TestContract_Row67_TheSecondWaitsForTheFirst(t *testing.T) {
	t.Parallel()
	g := start(t, testenv.Postgres(t), "")
	const insert = `insert into idempotency_keys (slot, tenant, key, fingerprint, state, response_status, created_at)
		values ($1, 'default', $2, '\x00', 'completed', 202, now())`
	accepts := first{g, g.beside(t), insert, []any{int(job.KeySlot("default", "k")), "k"}}
	accepts.tooLate(t)
	fresh := accepts.inTime(t).want(t, http.StatusAccepted, "Idempotent-Replayed: false")

	// The same for one that finds a record that may vanish.
	removes := first{g, accepts.db, `delete from idempotency_keys where key = 'k'`, nil}
	removes.tooLate(t)
	if a := removes.inTime(t).want(t, http.StatusAccepted, "Idempotent-Replayed: true"); !bytes.Equal(a.body, fresh.body) {
		t.Errorf("%s is not %s", a.body, fresh.body)
	}
}

func TestContract_Row70_TheRulesChangedSince(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		const gone, strict = `{"type":"gone","payload":1}`, `{"type":"echo","payload":1,"delay_seconds":600}`
		g := start(t, database, "dispatcher: {slots: 0}\njob_types: {gone: {executor: echo}}")
		before := g.submit("k", gone).want(t, http.StatusAccepted)
		valid := g.submit("v", strict).want(t, http.StatusAccepted)
		g.kill()
		g = start(t, database, "")
		for _, prefer := range []string{"", "respond-async", "wait=1"} {
			a := g.submit("k", gone, "Prefer: "+prefer).want(t, http.StatusAccepted, "Job-Status: pending", "Location: /jobs/k").keyed(t, "k", true)
			if !bytes.Equal(a.body, before.body) {
				t.Errorf("replay differs:\n%s\n%s", a.body, before.body)
			}
		}
		g.submit("v", strict).want(t, http.StatusAccepted, "Idempotent-Replayed: true", "Location: "+valid.Header.Get("Location"))
		g.isMismatch(t, "k", "body", g.submit("k", `{"type":"gone","payload":2}`))
		g.isMismatch(t, "v", "body", g.submit("v", `{"type":"echo","payload":1,"delay_seconds":-1}`))
		g.submit("new", gone).refused(t, http.StatusBadRequest, "unknown-job-type", false)
		g.keyIsFree(t, "new")
	})
}
