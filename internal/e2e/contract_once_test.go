package e2e_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/testenv"
)

// onProxy runs the test on each engine, with a gateway before an upstream of its
// own. more goes into the rule of POST /v1/*, config over the whole.
func onProxy(t *testing.T, more, config string, answer func(w http.ResponseWriter, r *http.Request, n int), test func(t *testing.T, g *gateway, u *upstream)) {
	t.Helper()
	onEngines(t, func(t *testing.T, database string) {
		u := newUpstream(t, answer)
		test(t, start(t, database, both(t, u.rule(more), config)), u)
	})
}

// doors hold an upstream's answers back, each by its key.
type doors struct{ made sync.Map }

func (d *doors) of(key string) chan struct{} {
	door, _ := d.made.LoadOrStore(key, make(chan struct{}))
	return door.(chan struct{})
}

// pass returns once the request's door is open, or its client has left.
func (d *doors) pass(r *http.Request) {
	select {
	case <-d.of(strings.Trim(r.Header.Get("Idempotency-Key"), `"`)):
	case <-r.Context().Done():
	}
}

// charging sends a charge and returns where its answer will be.
func (g *gateway) charging(key string, headers ...string) <-chan answer {
	got := make(chan answer, 1)
	go func() {
		a, _ := g.try(http.MethodPost, "/v1/charges?x=1", `{"amount":1}`, append([]string{jsonType, "Idempotency-Key: " + key}, headers...)...)
		got <- a
	}()
	return got
}

// insisting is charging for one who wants to wait, and tries again when there is
// no room, until ctx ends.
func (g *gateway) insisting(ctx context.Context, key string, prefer string) <-chan answer {
	got := make(chan answer, 1)
	go func() {
		for ctx.Err() == nil {
			request, _ := http.NewRequestWithContext(ctx, http.MethodPost, g.url+"/v1/charges?x=1", strings.NewReader(`{"amount":1}`))
			request.Header = http.Header{"Content-Type": {"application/json"}, "Idempotency-Key": {key}, "Prefer": {prefer}}
			response, err := client.Do(request)
			if err != nil {
				continue
			}
			body, _ := io.ReadAll(response.Body)
			_ = response.Body.Close()
			if response.StatusCode != http.StatusConflict || response.Header.Get("Preference-Applied") != "" {
				got <- answer{response, body}
				return
			}
		}
	}()
	return got
}

// came returns the answer of a charge under way.
func came(t testing.TB, c <-chan answer) answer {
	t.Helper()
	select {
	case a := <-c:
		if a.Response == nil {
			t.Fatal("a charge got no answer")
		}
		return a
	case <-time.After(60 * time.Second):
		t.Fatal("a charge gets no answer")
	}
	panic("unreachable")
}

// ran fails unless the upstream saw the key so often.
func (u *upstream) ran(t testing.TB, key string, times int) {
	t.Helper()
	if n := u.times(key); n != times {
		t.Errorf("%s was executed %d times, want %d", key, n, times)
	}
}

// isReplayOf fails unless the answer repeats the first one.
func (a answer) isReplayOf(t testing.TB, key string, first answer) {
	t.Helper()
	a.want(t, first.StatusCode, "Idempotency-Expires: *", "Location: "+first.Header.Get("Location"), "Content-Type: "+first.Header.Get("Content-Type")).keyed(t, key, true)
	if !bytes.Equal(a.body, first.body) {
		t.Errorf("the replay is %q, the first answer was %q", a.body, first.body)
	}
}

// inUse fails unless the key's first request is said to be under way.
func (a answer) inUse(t testing.TB, key string) answer {
	t.Helper()
	p := a.keyed(t, key, false).refused(t, http.StatusConflict, "idempotency-key-in-use", true)
	if after := a.Header.Get("Retry-After"); len(after) != 1 || after < "1" || after > "5" {
		t.Errorf("Retry-After %q", after)
	}
	if p["job"] != nil || a.Header.Get("Location") != "" {
		t.Errorf("a placeholder that nobody can poll (C38): %s", a.body)
	}
	return a
}

// statuses answers with the status that the path ends in.
func statuses(w http.ResponseWriter, r *http.Request, n int) {
	code, _ := strconv.Atoi(path.Base(r.URL.Path))
	if choice := r.URL.Query().Get("store"); choice != "" {
		w.Header().Set("Idempotency-Store", choice)
	}
	if code/100 == 3 {
		w.Header().Set("Location", fmt.Sprintf("/v1/elsewhere/%d", n))
	}
	w.WriteHeader(code)
	_, _ = fmt.Fprintf(w, "run %d", n)
}

// C17: what says nothing about the request itself is never kept.
func TestContract_Row26_Row34_Row35_Row36_Row39_C17_C30_C45_WhatIsStoredOfAnAnswer(t *testing.T) {
	stored := []string{
		"200", "201", "202", "203", "204", "206", "300", "301", "302", "303", "304", "307", "308",
		"400", "402", "404", "405", "406", "409", "410", "412", "413", "415", "418", "422", "424", "426", "428", "431", "451",
		"200?store=yes", "201?store=",
	}
	released := []string{"401", "403", "408", "425", "429", "200?store=no", "404?store=no", "303?store=No"}
	onProxy(t, "on_5xx: store", "", statuses, func(t *testing.T, g *gateway, u *upstream) {
		for i, status := range append(stored, released...) {
			keeps := i < len(stored)
			key := rand.Text()
			send := func() answer { return g.do(http.MethodPost, "/v1/"+status, "{}", jsonType, "Idempotency-Key: "+key) }
			code, _ := strconv.Atoi(status[:3])
			first := send().want(t, code, "Idempotency-Store:", "Idempotency-Status:").keyed(t, key, false)
			if wanted := map[bool]string{true: "handler"}[code >= 400]; first.Header.Get("Error-Source") != wanted {
				t.Errorf("%s: Error-Source %q", status, first.Header.Get("Error-Source"))
			}
			if code != 204 && code != 304 && string(first.body) != "run 1" {
				t.Errorf("%s: body %q", status, first.body)
			}
			if keeps {
				send().isReplayOf(t, key, first)
				u.ran(t, key, 1)
				continue
			}
			if again := send().want(t, code).keyed(t, key, false); string(again.body) != "run 2" {
				t.Errorf("%s: body %q", status, again.body)
			}
			u.ran(t, key, 2)
		}
	})
}

func TestContract_Row30_Row31_Row32_Row90_C2_C10_C38_C39_C40_BR23_WhileTheFirstIsUnderWay(t *testing.T) {
	var held doors
	answer := func(w http.ResponseWriter, r *http.Request, n int) { held.pass(r); charged(w, r, n) }
	onProxy(t, "", "{idempotency: {lease: 3s}, limits: {waiters: 2}}", answer, func(t *testing.T, g *gateway, u *upstream) {
		key, began := rand.Text(), time.Now()
		first := g.charging(key)
		u.awaited(key)
		g.charge(key).inUse(t, key).want(t, http.StatusConflict, "Preference-Applied:")
		g.do(http.MethodPost, "/v1/charges?x=1", `{"amount":2}`, jsonType, "Idempotency-Key: "+key, "Prefer: wait=20").
			refused(t, http.StatusUnprocessableEntity, "idempotency-key-reused", false) // C10
		asked := time.Now()
		g.charge(key, "Prefer: wait=1").inUse(t, key).want(t, http.StatusConflict, "Preference-Applied: wait=1")
		if waited := time.Since(asked); waited < time.Second {
			t.Errorf("waited %v instead of a second", waited)
		}

		// Row 90: two may wait. One of them leaves (row 32), and makes room.
		leaving, leave := context.WithCancel(t.Context())
		g.insisting(leaving, key, "wait=30")
		waiter := g.insisting(t.Context(), key, "wait=600")
		crowded := func() bool {
			return g.charge(key, "Prefer: wait=1").want(t, http.StatusConflict).Header.Get("Preference-Applied") == ""
		}
		testenv.Eventually(t, 0, "no more may wait", crowded)
		leave()
		testenv.Eventually(t, 0, "one more may wait", func() bool { return !crowded() })

		// The lease is renewed for as long as the upstream takes (C2, BR-23).
		for time.Since(began) < 7*time.Second {
			g.charge(key, "Prefer: wait=1").inUse(t, key)
		}
		close(held.of(key))
		a := came(t, first).want(t, http.StatusCreated, "Idempotency-Status:").keyed(t, key, false)
		late := came(t, waiter).want(t, http.StatusCreated, "Preference-Applied: wait=30")
		late.isReplayOf(t, key, a)
		g.charge(key).want(t, http.StatusCreated, "Preference-Applied:").isReplayOf(t, key, a)
		u.ran(t, key, 1)
	})
}

// C7, C8: who loses the race gets the winner's answer or 409, never 5xx.
func TestContract_Row33_C7_C8_OneExecutionOfManyAtOnce(t *testing.T) {
	onProxy(t, "", "idempotency: {lease: 30s}", charged, func(t *testing.T, g *gateway, u *upstream) {
		for range 3 {
			key := rand.Text()
			calls := make([]<-chan answer, 24)
			for i := range calls {
				prefer := []string{"Prefer: respond-async", "Prefer: wait=20"}[i%2]
				calls[i] = g.charging(key, prefer)
			}
			fresh := 0
			for i, c := range calls {
				a := came(t, c)
				if a.StatusCode == http.StatusConflict && i%2 == 0 {
					a.inUse(t, key)
					continue
				}
				a.want(t, http.StatusCreated, "Location: /v1/charges/1")
				if a.StatusCode == http.StatusCreated && a.Header.Get("Idempotent-Replayed") == "false" {
					fresh++
				}
			}
			if fresh != 1 {
				t.Errorf("%d answers say that they are the first one", fresh)
			}
			u.ran(t, key, 1)
		}
	})
}

// C1, C19, BR-20 and BR-23: a claim of a dead process ends with its lease, not
// with the retention.
func TestContract_Row42_C1_C19_BR20_BR23_ADeadGatewaysKeyIsFreeInTime(t *testing.T) {
	var held doors
	answer := func(w http.ResponseWriter, r *http.Request, n int) {
		if n == 1 {
			held.pass(r)
		}
		charged(w, r, n)
	}
	onEngines(t, func(t *testing.T, database string) {
		u := newUpstream(t, answer)
		config := both(t, u.rule("on_interrupted: reexecute"), "idempotency: {lease: 3s}")
		g := start(t, database, config)
		key := rand.Text()
		first := g.charging(key)
		u.awaited(key)
		g.charge(key).inUse(t, key)
		g.kill()
		killed := time.Now()
		<-first
		g = start(t, database, config)
		served := time.Now()
		g.do(http.MethodPost, "/v1/charges?x=1", `{"amount":2}`, jsonType, "Idempotency-Key: "+key).
			refused(t, http.StatusUnprocessableEntity, "idempotency-key-reused", false) // the key stays this request's
		a := g.charge(key)
		if !onSQLite(database) && time.Since(killed) < time.Second {
			a.inUse(t, key)
		}
		if a.StatusCode == http.StatusConflict {
			a = g.settledCharge(t, key)
		}
		// The lease, a second for the takeover, and some for a machine that is busy.
		if after := min(time.Since(killed)-4*time.Second, time.Since(served)); after > 4*time.Second {
			t.Errorf("the key was free %v late", after)
		}
		a.want(t, http.StatusCreated, "Location: /v1/charges/2").keyed(t, key, false)
		g.charge(key).isReplayOf(t, key, a)
		u.ran(t, key, 2)
		if n := count(t, beside(t, database), `select attempt from idempotency_keys where key = $1`, key); n != 2 {
			t.Errorf("attempt %d", n)
		}
	})
}

// C3, C4: whoever has lost its claim writes nothing over that of its successor.
func TestContract_Row44_C3_C4_ALostClaimStoresNothing(t *testing.T) {
	var held doors
	answer := func(w http.ResponseWriter, r *http.Request, n int) { held.pass(r); charged(w, r, n) }
	onProxy(t, "", "", answer, func(t *testing.T, g *gateway, u *upstream) {
		const other = "00000000-0000-4000-8000-000000000001"
		key, db := rand.Text(), g.beside(t)
		first := g.charging(key)
		u.awaited(key)
		change(t, db, `update idempotency_keys set owner = $1, attempt = 2 where key = $2`, other, key)
		close(held.of(key))
		came(t, first).want(t, http.StatusCreated, "Idempotency-Status: lease-lost", "Location: /v1/charges/1").keyed(t, key, false)
		if n := count(t, db, `select count(*) from idempotency_keys where key = $1 and owner = $2 and state = 'in_progress' and response_status is null`, key, other); n != 1 {
			t.Errorf("%d claims of the other one are left", n)
		}
		if n := g.measured("sekali_keyed_runs_total", `outcome="lost"`); n != 1 {
			t.Errorf("%v runs counted as lost", n)
		}
		if n := len(g.logLines("claim lost while the handler ran: its answer is not stored")); n != 1 {
			t.Errorf("%d lines in the log", n)
		}
	})
}

// The same with two processes, of which one stood still for too long.
func TestContract_Row44_C3_C4_AStoppedGatewayHasLostItsClaim(t *testing.T) {
	t.Parallel()
	var held doors
	u := newUpstream(t, func(w http.ResponseWriter, r *http.Request, n int) {
		if n == 1 {
			held.pass(r)
		}
		charged(w, r, n)
	})
	database := testenv.Postgres(t)
	stopped, heir := start(t, database, u.rule("")), start(t, database, u.rule(""))
	key := rand.Text()
	first := stopped.charging(key)
	u.awaited(key)
	stopped.pause()
	second := heir.settledCharge(t, key).want(t, http.StatusCreated, "Location: /v1/charges/2").keyed(t, key, false)
	close(held.of(key))
	stopped.resume()
	came(t, first).want(t, http.StatusCreated, "Idempotency-Status: lease-lost", "Location: /v1/charges/1")
	for _, g := range []*gateway{stopped, heir} {
		g.charge(key).isReplayOf(t, key, second)
	}
	u.ran(t, key, 2)
}

// C34, BR-08: a key that a route asks for is a key that it honours.
func TestContract_Row1_Row3_Row18_C34_BR08_EveryKeyedRouteHonoursItsKey(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		u := newUpstream(t, charged)
		config := "proxy:\n"
		for _, method := range []string{"POST", "PUT", "PATCH", "DELETE"} {
			config += fmt.Sprintf("  - {match: %s /v1/*, upstream: %q}\n", method, u.URL)
		}
		g := start(t, database, config)
		for _, route := range []string{"POST /jobs", "POST /v1/a", "PUT /v1/a", "PATCH /v1/a", "DELETE /v1/a"} {
			method, path, _ := strings.Cut(route, " ")
			key := rand.Text()
			g.do(method, path, echoBody, jsonType).refused(t, http.StatusBadRequest, "idempotency-key-missing", false)
			g.do(method, path, echoBody, jsonType, `Idempotency-Key: ""`).refused(t, http.StatusBadRequest, "idempotency-key-invalid", false)
			first := g.do(method, path, echoBody, jsonType, "Idempotency-Key: "+key).keyed(t, key, false)
			again := g.do(method, path, echoBody, jsonType, "Idempotency-Key: "+key).want(t, first.StatusCode).keyed(t, key, true)
			if !bytes.Equal(first.body, again.body) || first.StatusCode/100 != 2 {
				t.Errorf("%s: %d %s, then %s", route, first.StatusCode, first.body, again.body)
			}
			if path != "/jobs" {
				u.ran(t, key, 1)
			}
		}
	})
}
