package e2e_test

import (
	"database/sql"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/testenv"
)

// tablesAway takes all tables away under a running gateway: no statement works
// any more, for a reason that nobody has thought of.
func tablesAway(t testing.TB, db *sql.DB) {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), `select name from sqlite_master where type = 'table' and name not like 'sqlite_%'`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var names []string
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		change(t, db, fmt.Sprintf(`alter table "%[1]s" rename to "away_%[1]s"`, name))
	}
}

func refusedByDefect(t *testing.T) {
	g := start(t, testenv.SQLite(t), remote)
	g.submit("op", `{"type":"echo"}`).want(t, http.StatusAccepted)
	g.finished("op")
	db := g.beside(t)
	change(t, db, `update idempotency_keys set fingerprint = x'09'`)
	g.refuses(t, http.StatusInternalServerError, "idempotency-record-corrupt")
	tablesAway(t, db)
	g.refuses(t, http.StatusInternalServerError, "internal", "submitBatch") // which says so of each item

	database := testenv.SQLite(t)
	_, text := token(t, database, "--tenant", "one")
	closed := start(t, database, withKeys)
	tablesAway(t, closed.beside(t))
	closed.do(http.MethodPost, "/jobs/batch", bodies["submitBatch"], jsonType, bearer(text)).refused(t, http.StatusInternalServerError, "internal", false)
}

// head is the beginning of a request for the operation, up to what is said of the
// body.
func (op *apiOperation) head() string {
	return op.method + " " + op.sample() + " HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nIdempotency-Key: op\r\n"
}

func refusedBodies(t *testing.T) {
	g := start(t, testenv.SQLite(t), "limits: {body: 1KiB, batch: 1KiB, result: 1KiB}")
	for _, op := range documented(t, http.StatusRequestEntityTooLarge, "request-too-large") {
		large := `{"x":"` + strings.Repeat("x", 1<<17) + `"}`
		g.do(op.method, op.sample(), large, jsonType, "Idempotency-Key: op").refused(t, http.StatusRequestEntityTooLarge, "request-too-large", false)
	}
	for _, op := range documented(t, http.StatusUnsupportedMediaType, "unsupported-media-type") {
		g.do(op.method, op.sample(), "x=1", "Content-Type: text/plain", "Idempotency-Key: op").refused(t, http.StatusUnsupportedMediaType, "unsupported-media-type", false)
	}
	for _, op := range documented(t, http.StatusBadRequest, "body-unreadable") {
		g.raw(op.head()+"Transfer-Encoding: chunked\r\n\r\nzz\r\n").refused(t, http.StatusBadRequest, "body-unreadable", false)
	}
}

// refusedStalledBodies waits for all at once: a batch is given a minute.
func refusedStalledBodies(t *testing.T) {
	g := start(t, testenv.SQLite(t), "")
	answers := map[*apiOperation]<-chan answer{}
	for _, op := range documented(t, http.StatusRequestTimeout, "request-timeout") {
		answers[op] = stalled(t, g, op.head()+"Content-Length: 100\r\n\r\n{")
	}
	for op, c := range answers {
		a := fromSlow(t, c)
		a.refused(t, http.StatusRequestTimeout, "request-timeout", true)
		g.compareRaw(op.head(), a)
	}
}

// stalled sends a request that does not go on, and waits longer for the answer
// than the gateway waits for the rest.
func stalled(t testing.TB, g *gateway, request string) <-chan answer {
	t.Helper()
	conn, answers := g.dial(t), make(chan answer, 1)
	_ = conn.SetDeadline(time.Now().Add(2 * time.Minute))
	fmt.Fprint(conn, request)
	go func() {
		a, err := receive(conn)
		if err != nil {
			a = answer{}
		}
		answers <- a
	}()
	return answers
}

func refusedAsWrong(t *testing.T) {
	g := start(t, testenv.SQLite(t), "")
	wrong := map[string]string{"submitJob": `{}`, "submitBatch": `{}`, "retryJob": `{"x":1}`, "resolveJob": `{}`}
	queries := map[string]string{"listJobs": "?limit=0", "getJob": "?wait=x"}
	for _, op := range documented(t, http.StatusBadRequest, "validation-failed") {
		a := g.do(op.method, op.sample()+queries[op.id], wrong[op.id], jsonType, "Idempotency-Key: op")
		a.refused(t, http.StatusBadRequest, "validation-failed", false)
	}
	for code, headers := range map[string][]string{
		"idempotency-key-missing": nil, "idempotency-key-invalid": {`Idempotency-Key: "`},
	} {
		for _, op := range documented(t, http.StatusBadRequest, code) {
			g.do(op.method, op.sample(), bodies[op.id], append(headers, jsonType)...).refused(t, http.StatusBadRequest, code, false)
		}
	}
	g.submit("k", `{"type":"none"}`).refused(t, http.StatusBadRequest, "unknown-job-type", false)
}
