package e2e_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/testenv"
)

const echoed = `{"type":"echo","payload":{"n":1}}`

// expire submits a job and waits until its key has expired.
func expire(t *testing.T, g *gateway, key string, status int) {
	t.Helper()
	g.submit(key, echoed).want(t, http.StatusAccepted)
	g.finished(key)
	until(t, g, key, status)
}

// until waits for GET /jobs/{key} to answer with the status.
func until(t *testing.T, g *gateway, key string, status int) {
	t.Helper()
	testenv.Eventually(t, 30*time.Second, "the expiry of "+key, func() bool {
		return g.get("/jobs/"+key).StatusCode == status
	})
}

// metric reports whether /metrics has the line.
func metric(g *gateway, line string) bool {
	return strings.Contains("\n"+string(g.get("/metrics").body), "\n"+line+"\n")
}

// refused checks what an expired key gets while its tombstone is kept.
func refused(t *testing.T, g *gateway) {
	t.Helper()
	p := g.submit("k", echoed).problem(t, http.StatusUnprocessableEntity, "idempotency-key-retired")
	if at, err := time.Parse(time.RFC3339, p["expired_at"].(string)); err != nil || time.Since(at) < 0 || time.Since(at) > time.Minute {
		t.Errorf("expired_at %v, %v", p["expired_at"], err)
	}
	if p["retryable"] != false {
		t.Errorf("retryable %v", p["retryable"])
	}
	g.submit("k", `{"type":"echo","payload":{"n":2}}`).problem(t, http.StatusUnprocessableEntity, "idempotency-key-reused")
	for _, path := range []string{"/jobs/k", "/jobs/k/result"} {
		p := g.get(path).problem(t, http.StatusGone, "job-expired")
		if p["job_status"] != "succeeded" || p["expired_at"] == nil {
			t.Errorf("%s: %v", path, p)
		}
	}
}

// The reaper's first look is at the start, so that the second one, after ten
// seconds, is the one that finds the job.
func TestContract_Row57_Row59_Row64a_Row92_Row103_ExpiredKeys(t *testing.T) {
	onGateway(t, `idempotency: {retention: 1s}`, func(t *testing.T, g *gateway) {
		expire(t, g, "k", http.StatusGone)
		refused(t, g)
		testenv.Eventually(t, 40*time.Second, "the reaper", func() bool { return metric(g, `sekali_reaped_total{what="jobs"} 1`) })
		refused(t, g)
		if list := g.get("/jobs").json(t)["jobs"].([]any); len(list) != 0 {
			t.Errorf("jobs %v", list)
		}
	})
}

func TestContract_Row58_Row93_ForgottenKeys(t *testing.T) {
	onGateway(t, `idempotency: {retention: 1s, tombstone: 0s}`, func(t *testing.T, g *gateway) {
		expire(t, g, "k", http.StatusNotFound)
		g.get("/jobs/k").problem(t, http.StatusNotFound, "job-not-found")
		g.submit("k", `{"type":"echo","payload":{"n":2}}`).want(t, http.StatusAccepted, "Idempotent-Replayed: false")
		if payload := g.finished("k")["payload"].(map[string]any); payload["n"] == nil {
			t.Errorf("payload %v", payload)
		}
	})
}

func TestContract_Row57_AfterExpiryExecute(t *testing.T) {
	onGateway(t, `idempotency: {retention: 2s, after_expiry: execute}`, func(t *testing.T, g *gateway) {
		expire(t, g, "k", http.StatusGone)
		g.submit("k", `{"type":"none"}`).problem(t, http.StatusBadRequest, "unknown-job-type")
		first := g.submit("k", echoed).want(t, http.StatusAccepted, "Idempotent-Replayed: false")
		again := g.submit("k", echoed).want(t, http.StatusAccepted, "Idempotent-Replayed: true")
		if string(first.body) != string(again.body) {
			t.Errorf("%s\n%s", first.body, again.body)
		}
	})
}

func TestContract_Row98_ResultExpired(t *testing.T) {
	onGateway(t, `idempotency: {result_retention: 2s}`, func(t *testing.T, g *gateway) {
		g.submit("k", echoed).want(t, http.StatusAccepted)
		g.finished("k")
		testenv.Eventually(t, 30*time.Second, "the expiry of the result", func() bool {
			return g.get("/jobs/k/result").StatusCode == http.StatusGone
		})
		p := g.get("/jobs/k/result").problem(t, http.StatusGone, "result-expired")
		if p["job"] != "/jobs/k" || p["retryable"] != false {
			t.Errorf("%v", p)
		}
		if j := g.get("/jobs/k").want(t, http.StatusOK).json(t); j["status"] != "succeeded" || j["result"] != nil {
			t.Errorf("%v", j)
		}
	})
}
