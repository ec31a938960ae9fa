package e2e_test

import (
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/testenv"
)

func (g *gateway) executor(t testing.TB, name string, headers ...string) map[string]any {
	t.Helper()
	return g.get("/executors/"+name, headers...).want(t, http.StatusOK, "Content-Type: application/json").json(t)
}

func (g *gateway) switchType(name, act string, headers ...string) answer {
	g.t.Helper()
	return g.do(http.MethodPost, "/executors/"+name+"/"+act, "", headers...)
}

func waiting(e map[string]any) map[string]any {
	w, _ := e["waiting"].(map[string]any)
	return w
}

func runningOf(e map[string]any) []map[string]any {
	list, _ := e["running"].([]any)
	var found []map[string]any
	for _, r := range list {
		entry, _ := r.(map[string]any)
		found = append(found, entry)
	}
	return found
}

func TestContract_Row114_ExecutorsOverTwoReplicas(t *testing.T) {
	t.Parallel()
	database, s, held := testenv.Postgres(t), newSink(t), newHeldReceiver(t)
	config := both(t, s.types(map[string]string{"ok": "/ok", "wrong": "/status/400", "down": "/status/500"}), held.config(),
		"defaults: {lease: 30s}\njob_types: {down: {backoff: {base: 1h, cap: 2h}}, call: {on_business_key_conflict: queue}}\ndispatcher: {slots: 5}")
	a, b := start(t, database, config), start(t, database, config)
	for i := range 10 {
		g := []*gateway{a, b}[i%2]
		g.submit(fmt.Sprint("ok-", i), `{"type":"ok"}`)
		g.submit(fmt.Sprint("wrong-", i), `{"type":"wrong"}`)
	}
	a.submit("held", `{"type":"call","business_key":"42"}`).want(t, http.StatusAccepted)
	next(t, held.begun, 1, "begun")
	a.submit("behind", `{"type":"call","business_key":"42"}`).want(t, http.StatusAccepted)
	a.submit("retrying", `{"type":"down"}`)
	a.submit("scheduled", `{"type":"down","delay_seconds":3600}`)

	var list []map[string]any
	testenv.Eventually(t, 60*time.Second, "both processes have told what they did", func() bool {
		list = b.members(t, "/executors", "executors")
		ok, wrong, down := b.executor(t, "ok"), b.executor(t, "wrong"), b.executor(t, "down")
		workers, _ := ok["workers"].([]any)
		return len(workers) == 2 && fmt.Sprint(ok["succeeded"], " ", wrong["failed"], " ", down["failed"]) == "10 10 1"
	})
	if column(list, "name") != "call down echo ok wrong" || column(list, "executor") != "http http echo http http" || column(list, "configured") != "true true true true true" {
		t.Errorf("executors %s", column(list, "name"))
	}
	ok, call := b.executor(t, "ok"), b.executor(t, "call")
	is(t, ok, "10 0 0 0 10 9 0 3600 [ok] <nil>", "succeeded", "failed", "lost", "released", "slots", "free", "busy", "window_seconds", "types", "paused_at")
	workers, _ := ok["workers"].([]any)
	if text := fmt.Sprint(workers); !strings.Contains(text, a.workerID()) || !strings.Contains(text, b.workerID()) {
		t.Errorf("workers %v", workers)
	}
	if mean, p95 := fmt.Sprint(ok["mean_ms"]), fmt.Sprint(ok["p95_ms"]); mean == "<nil>" || p95 == "<nil>" || b.executor(t, "echo")["mean_ms"] != nil {
		t.Errorf("mean %v, p95 %v", mean, p95)
	}
	if beat := parsed(t, fmt.Sprint(ok["last_heartbeat_at"])); time.Since(beat) > time.Minute {
		t.Errorf("last heartbeat %v", beat)
	}
	r := runningOf(call)
	if len(r) != 1 || r[0]["key"] != "held" || fmt.Sprint(r[0]["attempt"]) != "1" || r[0]["worker_id"] != a.get("/jobs/held").json(t)["worker_id"] ||
		!parsed(t, fmt.Sprint(r[0]["lease_expires_at"])).After(parsed(t, fmt.Sprint(r[0]["started_at"]))) {
		t.Errorf("running %v", r)
	}
	is(t, call, "1 9", "busy", "free")
	is(t, waiting(call), "0 0 0 1 1 behind another job of the same business key", "pending", "scheduled", "retrying", "blocked", "why")
	is(t, waiting(b.executor(t, "down")), "0 1 1 0 1 until their time; 1 until their next attempt", "pending", "scheduled", "retrying", "blocked", "why")

	a.do(http.MethodHead, "/executors", "").want(t, http.StatusOK)
	b.get("/executors/unknown").problem(t, http.StatusNotFound, "executor-not-found")
	b.switchType("unknown", "pause").problem(t, http.StatusNotFound, "executor-not-found")
	b.switchType("%00", "resume").problem(t, http.StatusNotFound, "executor-not-found")
	b.do(http.MethodGet, "/executors/ok/pause", "").problem(t, http.StatusMethodNotAllowed, "method-not-allowed")

	// Who is gone is not shown, and a type that is gone is as long as it has jobs.
	close(held.let[1])
	a.finished("behind")
	a.signal(syscall.SIGTERM)
	a.wait(60 * time.Second)
	testenv.Eventually(t, 0, "the process that ended is gone", func() bool { return fmt.Sprint(b.executor(t, "ok")["slots"]) == "5" })
	bare := start(t, database, "dispatcher: {slots: 0}")
	b.kill()
	is(t, bare.executor(t, "down"), "<nil> false", "executor", "configured")
	if names := column(bare.members(t, "/executors", "executors"), "name"); !strings.Contains(names, "down") {
		t.Errorf("executors %s", names)
	}
	// Jobs of a type that the gateway does not know can be paused and cancelled, not retried.
	bare.switchType("down", "pause").want(t, http.StatusOK)
	bare.cancel("scheduled").want(t, http.StatusOK)
	bare.retry("scheduled", "op").refused(t, http.StatusBadRequest, "unknown-job-type", false)
	is(t, bare.get("/jobs/retrying").json(t), "retrying", "status")
}

func TestContract_Row114a_APauseIsObeyedByAllReplicasAndOutlivesThem(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		s := newSink(t)
		config := both(t, keptLease, s.types(map[string]string{"ok": "/ok", "slow": "/slow?ms=5000", "other": "/ok"}))
		replicas := []*gateway{start(t, database, config)}
		if !onSQLite(database) {
			replicas = append(replicas, start(t, database, config))
		}
		a, b := replicas[0], replicas[len(replicas)-1]
		a.submit("before", `{"type":"slow"}`).want(t, http.StatusAccepted)
		a.became(t, "before", "processing")
		var paused []string
		for _, name := range []string{"ok", "slow"} {
			e := a.switchType(name, "pause", "Idempotency-Key: any").want(t, http.StatusOK, "Idempotency-Status: ignored", "Cache-Control: no-store").json(t)
			paused = append(paused, fmt.Sprint(e["paused_at"]))
			if at := parsed(t, paused[len(paused)-1]); time.Since(at).Abs() > time.Minute {
				t.Errorf("paused at %v", at)
			}
		}
		<-time.After(time.Second) // by then all replicas obey
		var keys []string
		for i := range 20 {
			key := fmt.Sprint("k-", i)
			keys = append(keys, key)
			replicas[i%len(replicas)].submit(key, `{"type":"`+[]string{"ok", "slow"}[i%2]+`","max_attempts":1}`).want(t, http.StatusAccepted, "Job-Status: pending")
		}
		b.ended(t, "other", `{"type":"other"}`) // another type goes on
		is(t, b.finished("before"), "succeeded 1", "status", "attempts")
		for i, name := range []string{"ok", "slow"} { // once more changes nothing
			is(t, b.switchType(name, "pause").want(t, http.StatusOK).json(t), paused[i], "paused_at")
		}
		for i := range replicas {
			replicas[i].signal(syscall.SIGTERM)
			replicas[i].wait(60 * time.Second)
			replicas[i] = start(t, database, config)
		}
		a, b = replicas[0], replicas[len(replicas)-1]
		a.ended(t, "other-2", `{"type":"other"}`)
		<-time.After(600 * time.Millisecond) // several polls, in which nothing may happen
		for i, name := range []string{"ok", "slow"} {
			e := b.executor(t, name)
			is(t, e, paused[i]+" 0", "paused_at", "busy")
			is(t, waiting(e), "10 10 because the type is paused", "pending", "why")
		}
		for _, key := range keys {
			is(t, a.get("/jobs/"+key).json(t), "pending 0", "status", "attempts")
			if n := len(s.of(key)); n != 0 {
				t.Errorf("%s: %d calls during the pause", key, n)
			}
		}
		is(t, b.switchType("ok", "resume").want(t, http.StatusOK).json(t), "<nil>", "paused_at")
		for i := 0; i < 20; i += 2 {
			is(t, a.finished(keys[i]), "succeeded 1", "status", "attempts")
			is(t, a.get("/jobs/"+keys[i+1]).json(t), "pending 0", "status", "attempts") // the other pause holds
		}
		for range 2 {
			is(t, a.switchType("slow", "resume").want(t, http.StatusOK).json(t), "<nil>", "paused_at")
		}
		is(t, b.finished(keys[1]), "succeeded 1", "status", "attempts")
		is(t, b.switchType("echo", "resume").want(t, http.StatusOK).json(t), "<nil>", "paused_at") // was never paused
	})
}

func TestContract_Row114_Row75_Row102_WhatEachPermissionMay(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		s := newSink(t)
		tokens := map[string]string{"": ""}
		for _, p := range []string{"submit", "read", "operate", "manage", "proxy", "*"} {
			_, tokens[p] = token(t, database, "--tenant", "one", "--permissions", p)
		}
		_, two := token(t, database, "--tenant", "two")
		g := start(t, database, both(t, withKeys, keptLease, s.types(map[string]string{"slow": "/slow?ms=30000", "wrong": "/status/400"})))
		all := bearer(tokens["*"])
		g.submit("failed", `{"type":"wrong"}`, all).want(t, http.StatusAccepted)
		testenv.Eventually(t, 60*time.Second, "it failed", func() bool { return g.get("/jobs/failed", all).json(t)["status"] == "failed" })
		for _, call := range []struct {
			method, path, body, permission string
			status                         int
		}{
			{http.MethodPost, "/jobs/failed/cancel", "", "submit", http.StatusUnprocessableEntity},
			{http.MethodPost, "/jobs/failed/retry", "[]", "operate", http.StatusBadRequest},
			{http.MethodPost, "/jobs/failed/resolve", `{"status":"failed"}`, "operate", http.StatusUnprocessableEntity},
			{http.MethodGet, "/jobs/failed/attempts", "", "read", http.StatusOK},
			{http.MethodGet, "/jobs/failed/events", "", "read", http.StatusOK},
			{http.MethodGet, "/executors", "", "read", http.StatusOK},
			{http.MethodGet, "/executors/wrong", "", "read", http.StatusOK},
			{http.MethodPost, "/executors/echo/pause", "", "manage", http.StatusOK},
			{http.MethodPost, "/executors/echo/resume", "", "manage", http.StatusOK},
			{http.MethodPost, "/executors/none/resume", "", "manage", http.StatusNotFound},
		} {
			for permission, text := range tokens {
				headers := []string{jsonType, "Idempotency-Key: permitted"}
				if text != "" {
					headers = append(headers, bearer(text))
				}
				a := g.do(call.method, call.path, call.body, headers...)
				switch permission {
				case call.permission, "*":
					a.want(t, call.status)
				case "":
					a.problem(t, http.StatusUnauthorized, "unauthenticated")
				default:
					a.problem(t, http.StatusForbidden, "forbidden")
				}
			}
		}

		// Another tenant's job is none, and is not seen where it runs.
		for _, act := range []string{"cancel", "retry", "resolve"} {
			body := map[string]string{"resolve": `{"status":"failed"}`}[act]
			mine := g.do(http.MethodPost, "/jobs/failed/"+act, body, jsonType, "Idempotency-Key: op", bearer(two))
			none := g.do(http.MethodPost, "/jobs/nobodys/"+act, body, jsonType, "Idempotency-Key: op", bearer(two))
			mine.problem(t, http.StatusNotFound, "job-not-found")
			if masked(mine.body) != masked(none.body) {
				t.Errorf("another tenant's job can be told from none:\n%s\n%s", mine.body, none.body)
			}
		}
		for _, below := range []string{"/attempts", "/events"} {
			g.get("/jobs/failed"+below, bearer(two)).problem(t, http.StatusNotFound, "job-not-found")
		}
		g.submit("mine", `{"type":"slow"}`, all).want(t, http.StatusAccepted)
		g.submit("theirs", `{"type":"slow"}`, bearer(two)).want(t, http.StatusAccepted)
		seen := func(header string) string {
			e := g.executor(t, "slow", header)
			return fmt.Sprint(e["busy"], " ", column(runningOf(e), "key"))
		}
		testenv.Eventually(t, 60*time.Second, "both run", func() bool { return strings.HasPrefix(seen(all), "2 ") })
		if one, other := seen(all), seen(bearer(two)); one != "2 mine" || other != "2 theirs" {
			t.Errorf("one tenant sees %q, the other %q", one, other)
		}
		if list := string(g.get("/executors", bearer(two)).body); strings.Contains(list, `"mine"`) {
			t.Errorf("another tenant's job is listed: %s", list)
		}
		// A pause is for all tenants.
		g.switchType("echo", "pause", bearer(tokens["manage"])).want(t, http.StatusOK)
		<-time.After(time.Second) // by then it is obeyed
		g.submit("waits", `{"type":"echo"}`, bearer(two)).want(t, http.StatusAccepted)
		g.submit("one-waits", `{"type":"wrong"}`, bearer(two)).want(t, http.StatusAccepted)
		testenv.Eventually(t, 60*time.Second, "the other type runs", func() bool { return g.get("/jobs/one-waits", bearer(two)).json(t)["status"] == "failed" })
		is(t, g.get("/jobs/waits", bearer(two)).json(t), "pending", "status")
	})
}

// What has not started by its deadline fails; what has started may take its time.
func TestContract_SectionG_ExpiresInSeconds(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		s := newSink(t)
		held := newHeldReceiver(t)
		config := both(t, s.types(map[string]string{"ok": "/ok", "paused": "/ok", "flaky": "/flaky?fail=1", "undo": "/ok"}), held.config(), `
defaults: {lease: 30s}
job_types:
  paused: {compensate: undo}
  call: {on_business_key_conflict: queue}
  flaky: {backoff: {base: 8s, cap: 16s}}
`)
		g := start(t, database, config)
		g.switchType("paused", "pause").want(t, http.StatusOK)
		g.submit("started", `{"type":"call","expires_in_seconds":3600,"business_key":"42"}`).want(t, http.StatusAccepted)
		next(t, held.begun, 1, "begun")
		g.submit("tried", `{"type":"flaky","expires_in_seconds":3600,"max_attempts":3}`).want(t, http.StatusAccepted)
		g.became(t, "tried", "retrying")
		db := beside(t, database)
		change(t, db, `update jobs set deadline = created_at where key in ('started', 'tried')`) // it is over while they are under way
		g.submit("behind", `{"type":"call","expires_in_seconds":1,"business_key":"42"}`).want(t, http.StatusAccepted)
		g.submit("delayed", `{"type":"ok","expires_in_seconds":1,"delay_seconds":3600,"business_key":"b"}`).want(t, http.StatusAccepted)
		g.submit("waits", `{"type":"paused","expires_in_seconds":1}`).want(t, http.StatusAccepted)
		g.submit("now", `{"type":"paused","expires_in_seconds":0}`).want(t, http.StatusAccepted)
		g.submit("patient", `{"type":"paused","expires_in_seconds":3600}`).want(t, http.StatusAccepted)
		g.submit("intime", `{"type":"ok","expires_in_seconds":3600}`).want(t, http.StatusAccepted)
		for _, key := range []string{"delayed", "waits", "now", "behind"} {
			j := g.finished(key)
			is(t, j, "failed 0 <nil> <nil>", "status", "attempts", "started_at", "outcome")
			if f := failure(j); !strings.HasPrefix(f, "expired ") {
				t.Errorf("%s: %s", key, f)
			}
			if n := len(s.of(key)); n != 0 {
				t.Errorf("%s: %d calls", key, n)
			}
			if events := column(g.events(t, key), "event"); events != "accepted failed" {
				t.Errorf("%s: events %s", key, events)
			}
			id, _ := j["id"].(string)
			g.get("/jobs/compensate:"+id).problem(t, http.StatusNotFound, "job-not-found") // nothing was done
		}
		is(t, g.finished("intime"), "succeeded 1", "status", "attempts")
		close(held.let[1])
		is(t, g.finished("started"), "succeeded 1", "status", "attempts")
		is(t, g.finished("tried"), "succeeded 2", "status", "attempts")
		is(t, g.get("/jobs/patient").json(t), "pending 0", "status", "attempts")

		// It holds no business key any more, and an operator may bring it back: then it has all the time.
		a := g.submit("next", `{"type":"ok","business_key":"b"}`).want(t, http.StatusAccepted)
		is(t, a.json(t), "next", "key")
		g.finished("next")
		g.retry("delayed", "op").want(t, http.StatusAccepted)
		is(t, g.finished("delayed"), "succeeded 1 2", "status", "attempts", "generation")
		g.cancel("waits").problem(t, http.StatusUnprocessableEntity, "job-already-finished")
		sound(t, db)
	})
}
