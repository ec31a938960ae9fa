package e2e_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/testenv"
)

// overdue counts jobs that run without a live lease, a grace and a look later.
const overdue = `select count(*) from jobs where state = 'processing' and locked_until < `

func (g *gateway) overdue(t testing.TB) int {
	t.Helper()
	ago := "now() - interval '5 seconds'"
	if onSQLite(g.database) {
		ago = "strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-5 seconds')"
	}
	return count(t, g.beside(t), overdue+ago)
}

// A worker that dies loses its job after the lease, and nothing but the lease: the
// process that answers need not run anything itself.
func TestFailure_BR62_AWorkerThatDiesLosesItsJob(t *testing.T) {
	onGateway(t, both(t, remote, "dispatcher: {slots: 0}"), func(t *testing.T, g *gateway) {
		g.outside("a", `,"max_attempts":3`)
		dead := g.claimed("dead")
		next := g.claimed("alive")
		if waited := next.Ends.Sub(dead.Ends); next.ID != dead.ID || next.Number != 2 || waited < 3*time.Second { // from claim to claim
			t.Errorf("%+v after %v", next, waited)
		}
		dead.lost(t)
		next.say("complete", `,"result":2`).want(t, http.StatusOK)
		is(t, g.finished("a"), "succeeded 2 2", "status", "attempts", "result")
		if got := column(g.attempts(t, "a"), "outcome"); got != "lost succeeded" {
			t.Errorf("attempts %s", got)
		}
		if n := count(t, g.beside(t), `select count(*) from finished_jobs where state = 'succeeded' and attempt = 2`); n != 1 {
			t.Errorf("%d such rows", n)
		}
	})
}

// A worker outlives its gateway: kill -9 between claim and complete costs it nothing,
// on either engine, and neither does a deploy. What it does not finish comes back
// when its lease ends.
func TestFailure_BR61_BR62_LeasesOutliveTheGateway(t *testing.T) {
	for name, end := range map[string]func(g *gateway){
		"killed":   func(g *gateway) { g.kill() },
		"deployed": func(g *gateway) { g.signal(syscall.SIGTERM); g.wait(time.Minute) },
	} {
		t.Run(name, func(t *testing.T) {
			onEngines(t, func(t *testing.T, database string) {
				config := "job_types: {outside: {executor: remote, lease: 6s}}"
				g := start(t, database, config)
				g.outside("a")
				g.outside("b")
				kept, lost := g.claimed("w1"), g.claimed("w1")
				for _, e := range []*execution{&kept, &lost} {
					e.say("heartbeat", "").want(t, http.StatusOK)
				}
				end(g)
				g = start(t, database, config)
				kept.g, lost.g = g, g
				if a := kept.say("complete", `,"result":1`); a.StatusCode != http.StatusOK && time.Now().Before(kept.Ends) {
					t.Errorf("the lease has not ended, and the complete got %d %s", a.StatusCode, a.body)
				}
				next := g.claimed("w2")
				if next.Key == lost.Key && (next.Number != 2 || next.Fence != lost.Fence+1) {
					t.Errorf("%+v after %+v", next, lost)
				}
				next.say("complete", `,"result":2`).want(t, http.StatusOK)
				testenv.Eventually(t, 0, "nothing runs without a live lease", func() bool { return g.overdue(t) == 0 })
				is(t, g.finished(next.Key), "succeeded", "status")
				g.outside("c")
				g.claimed("w3").say("complete", "").want(t, http.StatusOK)
			})
		})
	}
}

// While the gateway drains, a claim that waits gets its answer at once, new ones are
// refused, and what is held can be ended.
func TestContract_Row84_AGatewayThatDrainsEndsClaimsThatWait(t *testing.T) {
	t.Parallel()
	r := newHeldReceiver(t)
	g := start(t, testenv.SQLite(t), both(t, longHeld, r.config(), oneWaits, "dispatcher: {shutdown_grace: 30s}"))
	g.submit("running", `{"type":"call"}`).want(t, http.StatusAccepted)
	next(t, r.begun, 1, "begun")
	g.outside("a")
	held := g.claimed("w1")
	c := g.waitingClaim(t)
	g.draining()
	began := time.Now()
	waiting := <-c
	if waiting.Response == nil || waiting.StatusCode != http.StatusOK || len(waiting.executions(g)) != 0 || time.Since(began) > atOnce {
		t.Errorf("who waited got %v %s after %v", waiting.Response, waiting.body, time.Since(began))
	}
	g.claim(`{"worker":"w2","types":["outside"],"wait_seconds":60}`).want(t, http.StatusServiceUnavailable, "Retry-After: *", keyless).problem(t, http.StatusServiceUnavailable, "shutting-down")
	held.say("heartbeat", "").want(t, http.StatusOK)
	held.say("complete", "").want(t, http.StatusOK)
	close(r.let[1])
	if code := g.wait(time.Minute); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// oneWaits lets one request wait at a time, so that one can tell whether one does.
const oneWaits = "limits: {waiters: 1}"

// waitingClaim returns when a claim waits in a gateway where only one can.
func (g *gateway) waitingClaim(t testing.TB, headers ...string) <-chan answer {
	t.Helper()
	headers = append(headers, jsonType)
	c := make(chan answer, 1)
	crowded := func(a answer) bool { return a.Response != nil && a.Header.Get("Retry-After") != "" }
	go func() {
		a := answer{Response: &http.Response{Header: http.Header{"Retry-After": {"1"}}}}
		for crowded(a) {
			a, _ = g.try(http.MethodPost, "/executions/claim", `{"worker":"w2","types":["outside"],"wait_seconds":60}`, headers...)
		}
		c <- a
	}()
	testenv.Eventually(t, 30*time.Second, "a claim waits", func() bool {
		a, _ := g.try(http.MethodPost, "/executions/claim", `{"worker":"probe","types":["outside"],"wait_seconds":1}`, headers...)
		return crowded(a)
	})
	return c
}

// A claim that waits in one process is woken by an accept in another one.
func TestRemote_AClaimIsWokenByAnotherProcess(t *testing.T) {
	t.Parallel()
	database := testenv.Postgres(t)
	seldom := both(t, longHeld, oneWaits, "dispatcher: {poll_interval: 1m}")
	here, there := start(t, database, seldom), start(t, database, both(t, seldom, "dispatcher: {slots: 0}"))
	c := there.waitingClaim(t)
	submitted := time.Now()
	here.outside("a")
	list := (<-c).executions(there)
	if after := time.Since(submitted); len(list) != 1 || after > 20*time.Second {
		t.Fatalf("%+v came %v after the accept", list, after)
	}
	list[0].say("complete", "").want(t, http.StatusOK)
	is(t, here.finished("a"), "succeeded", "status")
}

// Who hangs up while it waits leaves nothing behind that takes jobs from others.
func TestRemote_AWorkerThatHangsUpTakesNothing(t *testing.T) {
	onGateway(t, "job_types: {outside: {executor: remote, lease: 1m}}", func(t *testing.T, g *gateway) {
		const body = `{"worker":"gone","types":["outside"],"wait_seconds":60}`
		for range 5 {
			conn := g.dial(t)
			fmt.Fprintf(conn, "POST /executions/claim HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
			_ = conn.Close()
		}
		for i := range 5 {
			g.outside(fmt.Sprint("a", i))
		}
		for range 5 {
			e := g.claimed("w1")
			if e.Number != 1 {
				t.Errorf("%+v", e)
			}
			e.say("complete", "").want(t, http.StatusOK)
		}
	})
}

// A worker that does everything wrong changes nothing, and gets nothing that is not
// its own.
func TestRemote_AHostileWorker(t *testing.T) {
	onGateway(t, both(t, longHeld, "limits: {result: 4KiB}"), func(t *testing.T, g *gateway) {
		g.outside("a")
		g.outside("b")
		mine, others := g.claimed("hostile"), g.claimed("w1")
		forged := others
		for _, token := range []string{
			mine.Token, "1", "1.", ".", "-1." + mine.Token[2:], "2" + others.Token[1:], others.Token + "A", others.Token[:len(others.Token)-1],
			strings.ToUpper(others.Token), "99999999999999999999." + others.Token[2:], "\x00", strings.Repeat("9", 200),
		} {
			if forged.Token = token; token == others.Token {
				continue
			}
			for call, more := range moreOf {
				if a := forged.say(call, more); a.StatusCode != http.StatusGone && a.StatusCode != http.StatusBadRequest {
					t.Errorf("%s with the token %q: %d %s", call, token, a.StatusCode, a.body)
				}
			}
		}
		head := "POST /executions/" + mine.ID + "/complete HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
		whole := fmt.Sprintf(`{"lease_token":%q,"result":{"half":true}}`, mine.Token)
		conn := g.dial(t) // says less than it announced, and hangs up
		fmt.Fprintf(conn, "%sContent-Length: %d\r\n\r\n%s", head, len(whole)+10, whole)
		_ = conn.CloseWrite()
		if a, err := receive(conn); err == nil && a.StatusCode != http.StatusBadRequest {
			t.Errorf("half a body: %d %s", a.StatusCode, a.body)
		}
		g.raw(head+"Transfer-Encoding: chunked\r\n\r\nzz\r\n").refused(t, http.StatusBadRequest, "body-unreadable", false)
		mine.say("complete", `,"result":"`+strings.Repeat("x", 4<<10)+`"`).refused(t, http.StatusRequestEntityTooLarge, "request-too-large", false)
		mine.say("complete", `,"result":`+strings.Repeat("[", 100)+strings.Repeat("]", 100)).problem(t, http.StatusBadRequest, "validation-failed")
		mine.say("complete", `,"result":{"a":1,"a":2}`).problem(t, http.StatusBadRequest, "validation-failed")
		mine.say("complete", `,"status":"succeeded"`).problem(t, http.StatusBadRequest, "validation-failed")
		for _, key := range []string{"a", "b"} {
			is(t, g.get("/jobs/"+key).json(t), "processing 1 2", "status", "attempts", "version")
		}
		g.doubleCompletes(t, mine)
		others.say("complete", `,"result":"own"`).want(t, http.StatusOK)
		is(t, g.finished(others.Key), "succeeded own", "status", "result")
	})
}

// doubleCompletes completes at once with many results: one wins, and those who
// brought it get 200.
func (g *gateway) doubleCompletes(t *testing.T, e execution) {
	t.Helper()
	var wait sync.WaitGroup
	statuses := [20]int{}
	for i := range statuses {
		wait.Go(func() { statuses[i] = e.say("complete", fmt.Sprintf(`,"result":%d`, i/2)).StatusCode })
	}
	wait.Wait()
	result := fmt.Sprint(g.finished(e.Key)["result"])
	for i, status := range statuses {
		want := http.StatusUnprocessableEntity
		if fmt.Sprint(i/2) == result {
			want = http.StatusOK
		}
		if status != want {
			t.Errorf("the result %d got %d, while %s stands", i/2, status, result)
		}
	}
	if n := len(g.attempts(t, e.Key)); n != 1 {
		t.Errorf("%d attempts", n)
	}
}

func TestRemote_WorkersHaveTheJobsOfTheirTenant(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		_, client := token(t, database, "--tenant", "two", "--permissions", "submit,read")
		_, one := token(t, database, "--tenant", "one")
		_, two := token(t, database, "--tenant", "two", "--permissions", "work")
		_, all := token(t, database, "--tenant", "three", "--permissions", "work_all")
		g := start(t, database, both(t, longHeld, withKeys))
		const ask = `{"worker":"w1","types":["outside"]}`
		g.claim(ask, bearer(client)).problem(t, http.StatusForbidden, "forbidden")
		for _, key := range []string{"a", "b"} {
			g.submit(key, `{"type":"outside"}`, bearer(client)).want(t, http.StatusAccepted)
		}
		if list := g.claim(ask, bearer(one)).want(t, http.StatusOK).executions(g); len(list) != 0 { // * is no work_all
			t.Errorf("another tenant's jobs: %+v", list)
		}
		e, f := g.claimed("w2", bearer(two)), g.claimed("w3", bearer(all))
		if e.whole["tenant"] != "two" || f.whole["tenant"] != "two" || e.ID == f.ID {
			t.Errorf("%+v %+v", e, f)
		}
		for call, more := range moreOf {
			e.say(call, more, bearer(client)).problem(t, http.StatusForbidden, "forbidden")
			e.say(call, more, bearer(one)).refused(t, http.StatusNotFound, "execution-not-found", false)
		}
		e.say("heartbeat", "", bearer(all)).want(t, http.StatusOK)
		e.say("complete", "", bearer(two)).want(t, http.StatusOK)
		f.say("complete", "", bearer(all)).want(t, http.StatusOK)
		e.say("complete", "", bearer(one)).refused(t, http.StatusNotFound, "execution-not-found", false)
	})
}
