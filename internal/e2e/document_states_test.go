package e2e_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/internal/testenv"
	"github.com/sekali/sekali/job"
)

func refusedAsUnknown(t *testing.T) {
	g := start(t, testenv.SQLite(t), "")
	g.refuses(t, http.StatusNotFound, "job-not-found")
	g.refuses(t, http.StatusNotFound, "execution-not-found")
	for _, op := range documented(t, http.StatusNotFound, "executor-not-found") {
		g.do(op.method, strings.ReplaceAll(op.sample(), "echo", "nobody"), "").refused(t, http.StatusNotFound, "executor-not-found", false)
	}
}

// refusedAsExpired lets keys of all kinds expire.
func refusedAsExpired(t *testing.T) {
	d := newDoubtful(t)
	g := start(t, testenv.SQLite(t), both(t, d.config(), "idempotency: {retention: 4s, result_retention: 2s}"))
	g.ended(t, "wrong", `{"type":"wrong"}`)
	g.retry("wrong", "op-1").want(t, http.StatusAccepted)
	g.park(t, "doubt", `{"type":"pay"}`)
	g.resolve("doubt", "op-2", `{"status":"failed"}`).want(t, http.StatusOK)
	g.ended(t, "k", `{"type":"echo"}`)
	testenv.Eventually(t, 0, "the expiry of the result", func() bool {
		return g.get("/jobs/k/result").StatusCode == http.StatusGone
	})
	if a := g.get("/jobs/k/result"); a.code() != "job-expired" {
		a.refused(t, http.StatusGone, "result-expired", false)
	}
	for _, key := range []string{"k", "wrong", "doubt"} {
		until(t, g, key, http.StatusGone)
	}
	g.refuses(t, http.StatusGone, "job-expired")
	g.submit("k", `{"type":"echo"}`).refused(t, http.StatusUnprocessableEntity, "idempotency-key-retired", false)
	g.retry("wrong", "op-1").refused(t, http.StatusUnprocessableEntity, "idempotency-key-retired", false)
	g.resolve("doubt", "op-2", `{"status":"failed"}`).refused(t, http.StatusUnprocessableEntity, "idempotency-key-retired", false)
}

func refusedByState(t *testing.T) {
	g := start(t, testenv.SQLite(t), "job_types: {only: {executor: echo, on_business_key_conflict: reject}}")
	g.submit("waits", `{"type":"only","business_key":"42","delay_seconds":3600}`).want(t, http.StatusAccepted)
	g.get("/jobs/waits/result").refused(t, http.StatusConflict, "job-not-finished", true)
	g.cancel("waits").want(t, http.StatusOK)
	g.get("/jobs/waits/result").refused(t, http.StatusNotFound, "job-has-no-result", false)
	g.submit("holds", `{"type":"only","business_key":"42","delay_seconds":3600}`).want(t, http.StatusAccepted)
	g.submit("other", `{"type":"only","business_key":"42"}`).refused(t, http.StatusConflict, "business-key-conflict", true)
	g.retry("waits", "op").refused(t, http.StatusConflict, "business-key-conflict", true)

	g.ended(t, "k", `{"type":"echo"}`)
	g.refuses(t, http.StatusUnprocessableEntity, "job-already-finished")
	g.refuses(t, http.StatusUnprocessableEntity, "job-not-retryable")
	g.refuses(t, http.StatusUnprocessableEntity, "job-not-resolvable")
	g.submit("op", `{"type":"echo","payload":"other"}`).want(t, http.StatusAccepted)
	g.refuses(t, http.StatusUnprocessableEntity, "idempotency-key-reused")
}

// refusedAsInUse keeps the keys in a transaction that does not end.
func refusedAsInUse(t *testing.T) {
	d := newDoubtful(t)
	g := start(t, testenv.Postgres(t), d.config())
	g.ended(t, "wrong", `{"type":"wrong"}`)
	g.park(t, "doubt", `{"type":"pay"}`)
	tx, err := g.beside(t).BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	for _, key := range []string{"new", "op-1", "op-2"} {
		const insert = `insert into idempotency_keys (slot, tenant, key, fingerprint, state, response_status, created_at)
			values ($1, 'default', $2, '\x00', 'completed', 202, now())`
		if _, err := tx.ExecContext(t.Context(), insert, int(job.KeySlot("default", idempotency.Key(key))), key); err != nil {
			t.Fatal(err)
		}
	}
	g.submit("new", `{"type":"echo"}`).refused(t, http.StatusConflict, "idempotency-key-in-use", true)
	g.retry("wrong", "op-1").refused(t, http.StatusConflict, "idempotency-key-in-use", true)
	g.resolve("doubt", "op-2", `{"status":"failed"}`).refused(t, http.StatusConflict, "idempotency-key-in-use", true)
}

// Headers that the other tests have no reason to look for.
func TestContract_Document_HeadersOfRareAnswers(t *testing.T) {
	t.Parallel()
	d, receiver := newDoubtful(t), newHeld(t)
	g := start(t, testenv.SQLite(t), both(t, d.config(), receiver.config("held")))
	g.submit("holder", `{"type":"held","business_key":"42"}`).want(t, http.StatusAccepted)
	g.submit("alias", `{"type":"held","business_key":"42"}`).want(t, http.StatusOK, "Idempotency-Status: duplicate_ignored")
	receiver.release("holder") // not before the alias is there
	g.finished("holder")
	for _, path := range []string{"/jobs/alias", "/jobs/alias/result"} {
		tag := g.get(path).want(t, http.StatusOK, "ETag: *").Header.Get("ETag")
		g.get(path, "If-None-Match: "+tag).want(t, http.StatusNotModified, "Content-Location: "+strings.Replace(path, "alias", "holder", 1))
	}
	g.submit("later", `{"type":"echo","delay_seconds":3600}`).want(t, http.StatusAccepted)
	g.cancel("later").want(t, http.StatusOK)
	g.retry("later", "op-1", "Prefer: respond-async").want(t, http.StatusAccepted, "Preference-Applied: respond-async")
	g.park(t, "doubt", `{"type":"pay"}`)
	a := g.resolve("doubt", "op-2", `{"status":"succeeded"}`, "Prefer: return=minimal").want(t, http.StatusOK, "Preference-Applied: return=minimal")
	if len(a.body) > 0 {
		t.Errorf("return=minimal: %s", a.body)
	}
}
