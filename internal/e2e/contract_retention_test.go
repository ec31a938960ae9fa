package e2e_test

import (
	"crypto/rand"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/testenv"
)

const echoed = `{"type":"echo","payload":{"n":1}}`

// expire submits a job and waits until its key has expired, which on a busy machine
// may be before anybody has seen the job finished.
func expire(t *testing.T, g *gateway, key string, status int) {
	t.Helper()
	g.submit(key, echoed).want(t, http.StatusAccepted, "Idempotent-Replayed: false")
	testenv.Eventually(t, 60*time.Second, "the expiry of "+key, func() bool {
		a := g.get("/jobs/" + key)
		if a.StatusCode == http.StatusOK && a.json(t)["status"] == "failed" {
			t.Fatalf("it failed: %s", a.body)
		}
		return a.StatusCode == status
	})
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
		// Held back, so that it does not expire before anybody has looked.
		g.switchType("echo", "pause").want(t, http.StatusOK)
		g.submit("k", `{"type":"echo","payload":{"n":2}}`).want(t, http.StatusAccepted, "Idempotent-Replayed: false")
		if payload := g.get("/jobs/k").want(t, http.StatusOK).json(t)["payload"].(map[string]any); fmt.Sprint(payload["n"]) != "2" {
			t.Errorf("payload %v", payload)
		}
		g.switchType("echo", "resume").want(t, http.StatusOK)
		until(t, g, "k", http.StatusNotFound)
	})
}

func TestContract_Row57_AfterExpiryExecute(t *testing.T) {
	onGateway(t, `idempotency: {retention: 1s, after_expiry: execute}`, func(t *testing.T, g *gateway) {
		expire(t, g, "k", http.StatusGone)
		g.submit("k", `{"type":"none"}`).problem(t, http.StatusBadRequest, "unknown-job-type")
		// Held back, so that the second job does not expire before its replay is asked for.
		g.switchType("echo", "pause").want(t, http.StatusOK)
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

// lapse waits until the charge's record has expired, as its database sees it,
// and fails if the record had been taken away by then.
func lapse(t *testing.T, g *gateway, key string) {
	t.Helper()
	db := g.beside(t)
	past := `expires_at <= now()`
	if onSQLite(g.database) {
		past = `julianday(expires_at) <= julianday('now')`
	}
	testenv.Eventually(t, 0, "the expiry of "+key, func() bool {
		return count(t, db, `select count(*) from idempotency_keys where key = $1 and state = 'completed' and `+past, key) == 1
	})
}

func TestContract_Row57_Row58_Row59_C31_ExpiredAnswersOfAProxiedRoute(t *testing.T) {
	for name, more := range map[string]string{"refuse": "", "no tombstone": "tombstone: 0s", "execute": "after_expiry: execute"} {
		t.Run(name, func(t *testing.T) {
			onProxy(t, "", fmt.Sprintf("idempotency: {response_retention: 3s, %s}", more), charged, func(t *testing.T, g *gateway, u *upstream) {
				key := rand.Text()
				first := g.charge(key).want(t, http.StatusCreated, "Idempotency-Expires: *")
				asked := time.Now()
				// Three seconds are left for this: a moment of a machine that is busy.
				if again := g.charge(key); again.StatusCode == http.StatusCreated {
					again.isReplayOf(t, key, first)
					until, err := time.Parse(time.RFC3339Nano, again.Header.Get("Idempotency-Expires"))
					if left := until.Sub(asked); err != nil || left > 3*time.Second+100*time.Millisecond || left < -20*time.Second {
						t.Errorf("Idempotency-Expires %v is %v away, %v", until, left, err)
					}
				}
				lapse(t, g, key)
				a := g.charge(key)
				if name != "refuse" {
					a.want(t, http.StatusCreated, "Location: /v1/charges/2").keyed(t, key, false)
					u.ran(t, key, 2)
					return
				}
				p := a.refused(t, http.StatusUnprocessableEntity, "idempotency-key-retired", false)
				if at, err := time.Parse(time.RFC3339, fmt.Sprint(p["expired_at"])); err != nil || time.Since(at) < 0 {
					t.Errorf("expired_at %v: %v", p["expired_at"], err)
				}
				u.ran(t, key, 1)
				reapedProxied(t, g, u, key)
			})
		})
	}
}

// reapedProxied waits for the reaper, which takes the answer of the key, and
// neither its tombstone nor a claim that somebody holds.
func reapedProxied(t *testing.T, g *gateway, u *upstream, key string) {
	t.Helper()
	db := g.beside(t)
	change(t, db, `insert into idempotency_keys (slot, tenant, key, fingerprint, state, owner, claimed_until, expires_at, created_at)
		select slot, tenant, 'held', fingerprint, 'in_progress', owner, $1, expires_at, created_at from idempotency_keys where key = $2`,
		time.Now().Add(time.Hour).UTC().Format("2006-01-02T15:04:05.000Z"), key)
	testenv.Eventually(t, 40*time.Second, "the reaper", func() bool { return metric(g, `sekali_reaped_total{what="responses"} 1`) })
	if state := text(t, db, `select state from idempotency_keys where key = $1 and response_body is null`, key); state != "retired" {
		t.Errorf("what is left of the answer is %q", state)
	}
	if n := count(t, db, `select count(*) from idempotency_keys where key = 'held' and state = 'in_progress'`); n != 1 {
		t.Errorf("C31: %d claims are left", n)
	}
	g.charge(key).refused(t, http.StatusUnprocessableEntity, "idempotency-key-retired", false)
	u.ran(t, key, 1)
}

// How long a job is kept counts from its end, is told, and is the type's.
func TestContract_Row103_C37_BR24_UnfinishedJobsNeverExpire(t *testing.T) {
	config := `
idempotency: {retention: 1s, tombstone: 0s}
job_types: {kept: {executor: echo, retention: 720h}}`
	onGateway(t, config, func(t *testing.T, g *gateway) {
		const later = `{"type":"echo","delay_seconds":3600}`
		waits := g.submit("waits", later).want(t, http.StatusAccepted, "Idempotency-Expires:")
		g.submit("kept", `{"type":"kept"}`).want(t, http.StatusAccepted)
		change(t, g.beside(t), `update jobs set created_at = $1 where key = 'waits'`, "2020-01-01T00:00:00.000Z")
		change(t, g.beside(t), `update idempotency_keys set created_at = $1 where key = 'waits'`, "2020-01-01T00:00:00.000Z")
		expire(t, g, "gone", http.StatusNotFound)
		if j := g.get("/jobs/waits").want(t, http.StatusOK, "Idempotency-Expires:").json(t); j["status"] != "scheduled" || j["expires_at"] != nil {
			t.Errorf("%v", j)
		}
		if again := g.submit("waits", later).want(t, http.StatusAccepted, "Idempotent-Replayed: true", "Idempotency-Expires:"); string(again.body) != string(waits.body) {
			t.Errorf("%s", again.body)
		}
		g.keptFor(t, "kept", `{"type":"kept"}`, 720*time.Hour)
		if len(g.logLines("idempotency.retention is under an hour: a client that retries later than that runs the job again")) == 0 {
			t.Error("nobody is warned that a retention of a second is short")
		}
	})
	t.Run("default", func(t *testing.T) {
		onGateway(t, "", func(t *testing.T, g *gateway) {
			g.submit("k", echoed)
			g.keptFor(t, "k", echoed, 168*time.Hour)
		})
	})
}

// keptFor fails unless the finished job says everywhere that it is kept so long.
func (g *gateway) keptFor(t testing.TB, key, body string, keep time.Duration) {
	t.Helper()
	j := g.finished(key)
	until := instant(t, j["expires_at"])
	if kept := until.Sub(instant(t, j["finished_at"])); kept != keep {
		t.Errorf("%s is kept for %v after its end, want %v", key, kept, keep)
	}
	for _, a := range []answer{g.get("/jobs/" + key), g.get("/jobs/" + key + "/result"), g.submit(key, body)} {
		if told, err := time.Parse(time.RFC3339Nano, a.Header.Get("Idempotency-Expires")); err != nil || !told.Equal(until) {
			t.Errorf("Idempotency-Expires %q, expires_at %v", a.Header.Get("Idempotency-Expires"), until)
		}
	}
}
