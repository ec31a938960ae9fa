package e2e_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/testenv"
)

func TestContract_Row107_FailEndsTheAttempt(t *testing.T) {
	onGateway(t, longHeld, func(t *testing.T, g *gateway) {
		g.outside("a", `,"max_attempts":3`)
		e := g.claimed("w1")
		a := e.say("fail", `,"error":"the printer is \u001b[31mon fire","retry_after_seconds":1`).want(t, http.StatusOK, keyless, "Job-Status: retrying", "Cache-Control: no-store")
		is(t, a.json(t), "retrying 1", "status", "attempts")
		if text := failure(a.json(t)); text != "worker-error the printer is \u001b[31mon fire\n" {
			t.Errorf("error %q", text)
		}
		e.say("fail", `,"error":"again"`).want(t, http.StatusOK)
		for _, call := range []string{"heartbeat", "complete", "release"} {
			e.say(call, moreOf[call]).refused(t, http.StatusGone, "lease-lost", false)
		}
		second := g.claimed("w2")
		if waited := second.Ends.Sub(e.Ends); waited < time.Second {
			t.Errorf("the second attempt came after %v", waited)
		}
		e.lost(t)
		b := second.say("fail", `,"error":"no paper","retryable":false`).want(t, http.StatusOK, "Job-Status: failed")
		is(t, b.json(t), "failed 2", "status", "attempts")
		is(t, g.finished("a"), "failed 2", "status", "attempts")
		for body, pointer := range map[string]string{
			`,"error":""`: "/error", "": "/error", `,"error":7`: "/error", `,"error":"` + strings.Repeat("é", 2049) + `"`: "/error",
			`,"error":"x","retryable":"no"`: "/retryable", `,"error":"x","retry_after_seconds":-1`: "/retry_after_seconds", `,"error":"x","code":"y"`: "/code",
		} {
			p := second.say("fail", body).problem(t, http.StatusBadRequest, "validation-failed")
			if errs, _ := p["errors"].([]any); len(errs) != 1 || errs[0].(map[string]any)["pointer"] != pointer {
				t.Errorf("%.40s: %v", body, errs)
			}
		}
		g.outside("c")
		third := g.claimed("w1")
		third.say("fail", `,"error":"`+strings.Repeat("x", 4096)+`"`).want(t, http.StatusOK)
	})
}

func TestContract_Row108_ReleaseGivesTheAttemptBack(t *testing.T) {
	onGateway(t, longHeld, func(t *testing.T, g *gateway) {
		g.outside("a")
		e := g.claimed("w1")
		released := e.say("release", "").want(t, http.StatusOK, keyless, "Job-Status: pending", "Cache-Control: no-store").json(t)
		is(t, released, "pending 0", "status", "attempts")
		e.say("release", "").want(t, http.StatusOK)
		again := g.claimed("w2")
		if again.ID != e.ID || again.Number != 1 || again.Fence != e.Fence+1 {
			t.Errorf("%+v after %+v", again, e)
		}
		e.lost(t)
		again.say("complete", "").want(t, http.StatusOK)
		if got := column(g.attempts(t, "a"), "outcome"); got != "released succeeded" {
			t.Errorf("attempts %s", got)
		}
		e.lost(t)
	})
}

func TestContract_Row109_StaleTokensChangeNothingAndAreCounted(t *testing.T) {
	onGateway(t, remote, func(t *testing.T, g *gateway) {
		g.outside("a")
		e := g.claimed("w1")
		next := g.claimed("w2") // the lease of the first has ended
		if next.ID != e.ID || next.Number != 2 || next.Fence <= e.Fence {
			t.Fatalf("%+v after %+v", next, e)
		}
		e.lost(t)
		next.say("heartbeat", "").want(t, http.StatusOK)
		next.say("complete", `,"result":2`).want(t, http.StatusOK)
		e.lost(t)
		for call := range moreOf {
			if !metric(g, fmt.Sprintf("sekali_stale_calls_total{call=%q} 2", call)) {
				t.Errorf("stale calls of %s are not counted", call)
			}
		}
		testenv.Eventually(t, 0, "the timeline tells of them", func() bool {
			calls := map[any]any{}
			for _, event := range g.events(t, "a") {
				if data, _ := event["data"].(map[string]any); data["call"] != nil && data["worker_id"] == "w1" {
					calls[data["call"]] = event["event"]
				}
			}
			return len(calls) == 4 && calls["heartbeat"] == "heartbeat_lost" && calls["complete"] == "stale_completion_refused"
		})
		is(t, g.get("/jobs/a").json(t), "succeeded 2 w2", "status", "result", "worker_id")
	})
}

func TestContract_Row110_UnknownExecutionsAreNotFound(t *testing.T) {
	onGateway(t, longHeld, func(t *testing.T, g *gateway) {
		g.outside("a")
		e := g.claimed("w1")
		for _, id := range []string{"019876a5-4c2e-7b1d-8f3a-2d5c9e7b1a40", "x", strings.ToUpper(e.ID), e.ID + "%00", "%zz"} {
			unknown := e
			unknown.ID = id
			for call, more := range moreOf {
				if id == "%zz" {
					continue // no client sends it
				}
				unknown.say(call, more).want(t, http.StatusNotFound, keyless).refused(t, http.StatusNotFound, "execution-not-found", false)
			}
		}
		e.say("complete", "").want(t, http.StatusOK)
	})
}

func TestContract_Row102_AValidCompleteIsAcceptedUntilTheJobIsCancelled(t *testing.T) {
	// Three are ended before the lease of the fourth is.
	onGateway(t, both(t, remote, "job_types: {outside: {lease: 8s}}"), func(t *testing.T, g *gateway) {
		for _, key := range []string{"done", "failed", "released", "lost"} {
			g.outside(key)
		}
		held := map[string]execution{}
		for range 4 {
			e := g.claimed("w1")
			held[e.Key] = e
			g.cancel(e.Key).want(t, http.StatusAccepted)
		}
		is(t, held["done"].say("complete", `,"result":1`).want(t, http.StatusOK).json(t), "succeeded", "status")
		if !strings.Contains(column(g.events(t, "done"), "event"), "cancel_too_late") {
			t.Error("nothing tells that the cancellation came too late")
		}
		is(t, held["failed"].say("fail", `,"error":"stopped"`).want(t, http.StatusOK, "Job-Status: cancelled").json(t), "cancelled", "status")
		is(t, held["released"].say("release", "").want(t, http.StatusOK, "Job-Status: cancelled").json(t), "cancelled", "status")
		is(t, g.finished("lost"), "cancelled", "status")
		for _, key := range []string{"failed", "released", "lost"} {
			held[key].say("complete", `,"result":1`).refused(t, http.StatusGone, "lease-lost", false)
			is(t, g.get("/jobs/"+key).json(t), "cancelled", "status")
		}
	})
}
