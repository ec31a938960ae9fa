package e2e_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/testenv"
)

// doubtful takes calls and closes their connections without an answer, until
// it is mended. What compensates, it answers always.
type doubtful struct {
	*receiver
	mended atomic.Bool
}

func newDoubtful(t testing.TB) *doubtful {
	d := &doubtful{}
	d.receiver = newReceiver(t, func(w http.ResponseWriter, c call, _ int) {
		switch {
		case c.URL.Path == "/wrong":
			w.WriteHeader(http.StatusBadRequest)
		case c.URL.Path == "/undo" || d.mended.Load():
		default:
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			conn.Close()
		}
	})
	return d
}

func (d *doubtful) config() string {
	return fastTry + fmt.Sprintf(`
job_types:
  pay: {executor: http, on_unknown_outcome: park, compensate: undo, http: {url: "%[1]s/pay"}}
  once: {executor: http, on_unknown_outcome: park, operation_key: "{{ .payload.n }}", http: {url: "%[1]s/once"}}
  wrong: {executor: http, http: {url: "%[1]s/wrong"}}
  undo: {executor: http, http: {url: "%[1]s/undo"}}
`, d.URL)
}

// park submits a job whose outcome nobody knows, and returns its id.
func (g *gateway) park(t testing.TB, key, body string) string {
	t.Helper()
	j := g.ended(t, key, body)
	is(t, j, "failed outcome_unknown 1", "status", "outcome", "attempts")
	id, _ := j["id"].(string)
	return id
}

func TestContract_Row75a_AResolutionAsSucceeded(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		d := newDoubtful(t)
		g := start(t, database, d.config())
		const submitted = `{"type":"pay","payload":{"a": 1}}`
		id := g.park(t, "k", submitted)

		// What is no resolution changes nothing and consumes no key.
		for _, wrong := range []string{
			`{}`, `{"status":null}`, `{"status":"cancelled"}`, `{"status":"Succeeded"}`, `{"status":["failed"]}`, `{"status":"failed","result":1}`,
			`{"status":"succeeded","why":"x"}`, `{"status":"failed","status":"succeeded"}`, `[]`, `null`, `{"status":"succeeded"`, `{"status":"failed"} {}`,
		} {
			if a := g.resolve("k", "op", wrong).want(t, http.StatusBadRequest, "Content-Type: application/problem+json"); a.json(t)["retryable"] != false {
				t.Errorf("%s: %s", wrong, a.body)
			}
		}
		g.do(http.MethodPost, "/jobs/k/resolve", `{"status":"failed"}`, jsonType).refused(t, http.StatusBadRequest, "idempotency-key-missing", false)
		g.do(http.MethodPost, "/jobs/k/resolve", `{"status":"failed"}`, "Content-Type: text/plain", "Idempotency-Key: op").refused(t, http.StatusUnsupportedMediaType, "unsupported-media-type", false)
		is(t, g.finished("k"), "failed outcome_unknown 1", "status", "outcome", "generation")

		const result = `{ "capture" : "c_1",  "n": 1.50, "big":9007199254740993, "é":"\u0000x" }`
		const body = `{"result":` + result + `, "status":"succeeded"}`
		a := g.resolve("k", "op", body).keyed(t, "op", false).want(t, http.StatusOK, "Location: /jobs/k", "Job-Status: succeeded", "Retry-After:", "Idempotency-Expires: *")
		if now := g.get("/jobs/k").want(t, http.StatusOK, "ETag: *"); !bytes.Equal(now.body, a.body) {
			t.Errorf("the answer was\n%s\nand the job is\n%s", a.body, now.body)
		}
		is(t, a.json(t), "k succeeded <nil> <nil> 1 1", "key", "status", "outcome", "error", "attempts", "generation")
		if !strings.Contains(string(a.body), `"result":`+result+`,`) {
			t.Errorf("the result is not shown byte for byte: %s", a.body)
		}
		if r := g.get("/jobs/k/result").want(t, http.StatusOK, "Content-Type: application/json", "ETag: *"); string(r.body) != result {
			t.Errorf("the result is %s", r.body)
		}

		// Once more, and with something else.
		if again := g.resolve("k", "op", body).keyed(t, "op", true).want(t, http.StatusOK, "Job-Status: succeeded"); !bytes.Equal(again.body, a.body) {
			t.Errorf("the replay differs:\n%s\n%s", again.body, a.body)
		}
		g.isMismatch(t, "op", "body", g.resolve("k", "op", `{"status":"failed"}`))
		g.resolve("k", "op-2", `{"status":"failed"}`).refused(t, http.StatusUnprocessableEntity, "job-not-resolvable", false)
		g.retry("k", "op-2").refused(t, http.StatusUnprocessableEntity, "job-not-retryable", false)
		g.cancel("k").problem(t, http.StatusUnprocessableEntity, "job-already-finished")
		g.submit("k", submitted).want(t, http.StatusAccepted, "Idempotent-Replayed: true", "Job-Status: succeeded")
		if events := g.events(t, "k"); !strings.HasPrefix(column(events, "event"), "accepted claimed attempt_lost failed resolved succeeded") {
			t.Errorf("events %s", column(events, "event"))
		}
		// What has succeeded, or may have, is not undone.
		g.get("/jobs/compensate:"+id).problem(t, http.StatusNotFound, "job-not-found")

		// An operation that was resolved as succeeded is done.
		g.park(t, "first", `{"type":"once","payload":{"n":7}}`)
		g.resolve("first", "op-first", `{"status":"succeeded","result":[1.0]}`).want(t, http.StatusOK)
		j := g.ended(t, "second", `{"type":"once","payload":{"n":7}}`)
		is(t, j, "succeeded duplicate_ignored first [1.0]", "status", "outcome", "duplicate_of", "result")
		if n := len(d.of("second")); n != 0 {
			t.Errorf("%d calls for an operation that is done", n)
		}
		// Without a result there is none.
		g.park(t, "none", `{"type":"pay"}`)
		is(t, g.resolve("none", "op-none", `{"status":"succeeded"}`).want(t, http.StatusOK).json(t), "succeeded <nil>", "status", "result")
		g.get("/jobs/none/result").problem(t, http.StatusNotFound, "job-has-no-result")
		// They count as succeeded without an attempt that did, and so for once the tables say it.
		db := beside(t, database)
		change(t, db, `update finished_jobs set state = 'failed' where key in ('k', 'first', 'none')`)
		sound(t, db)
	})
}

func TestContract_Row75a_AResolutionAsFailed(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		d := newDoubtful(t)
		g := start(t, database, d.config())
		id := g.park(t, "k", `{"type":"pay"}`)
		g.get("/jobs/compensate:"+id).problem(t, http.StatusNotFound, "job-not-found") // not before somebody knows
		a := g.resolve("k", "op-1", `{"status":"failed"}`).keyed(t, "op-1", false).want(t, http.StatusOK, "Job-Status: failed")
		if now := g.get("/jobs/k"); !bytes.Equal(now.body, a.body) {
			t.Errorf("the answer was\n%s\nand the job is\n%s", a.body, now.body)
		}
		is(t, a.json(t), "failed <nil> 1", "status", "outcome", "attempts")
		is(t, g.finished("compensate:"+id), "succeeded undo", "status", "type")
		calls := d.of("compensate:" + id)
		var failed map[string]any
		if len(calls) != 1 || json.Unmarshal(calls[0].body, &failed) != nil || failed["key"] != "k" || failed["status"] != "failed" || failed["id"] != id {
			t.Errorf("what compensates was called %d times with %v", len(calls), failed)
		}

		// From here it is a failed job as any other.
		g.resolve("k", "op-2", `{"status":"failed"}`).refused(t, http.StatusUnprocessableEntity, "job-not-resolvable", false)
		g.retry("k", "op-2").want(t, http.StatusAccepted, "Idempotent-Replayed: false")
		is(t, g.finished("k"), "failed outcome_unknown 2 2", "status", "outcome", "attempts", "generation")
		g.resolve("k", "op-3", `{"status":"failed","result":null}`).want(t, http.StatusOK)
		is(t, g.finished("compensate:"+id+":2"), "succeeded undo", "status", "type")
		g.resolve("k", "op-1", `{"status":"failed"}`).keyed(t, "op-1", true)
		d.mended.Store(true)
		g.retry("k", "op-4").want(t, http.StatusAccepted)
		is(t, g.finished("k"), "succeeded <nil> 3 3", "status", "outcome", "attempts", "generation")
		if n := len(d.of("compensate:"+id)) + len(d.of("compensate:"+id+":2")); n != 2 {
			t.Errorf("%d compensations", n)
		}

		// A doubt can be given up by trying again, too.
		d.mended.Store(false)
		g.park(t, "again", `{"type":"pay"}`)
		d.mended.Store(true)
		is(t, g.retry("again", "op-5", "Prefer: wait=30").want(t, http.StatusOK).json(t), "succeeded <nil> 2", "status", "outcome", "attempts")
		g.resolve("again", "op-6", `{"status":"failed"}`).refused(t, http.StatusUnprocessableEntity, "job-not-resolvable", false)
		// And one that never was cannot be resolved.
		g.ended(t, "wrong", `{"type":"wrong"}`)
		g.resolve("wrong", "op-6", `{"status":"succeeded"}`).refused(t, http.StatusUnprocessableEntity, "job-not-resolvable", false)
		is(t, g.finished("wrong"), "failed 1", "status", "attempts")
		sound(t, beside(t, database))
	})
}

func TestContract_Row75a_OfManyResolutionsAndRetriesOneCounts(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		d := newDoubtful(t)
		gateways := []*gateway{start(t, database, d.config())}
		if !onSQLite(database) {
			gateways = append(gateways, start(t, database, d.config()))
		}
		g := gateways[0]
		for round := range 4 {
			key := fmt.Sprint("k-", round)
			id := g.park(t, key, `{"type":"pay"}`)
			g.do(http.MethodPost, "/executors/pay/pause", "").want(t, http.StatusOK) // a retry that wins stays pending
			answers := make([]answer, 12)
			var wg sync.WaitGroup
			for i := range answers {
				wg.Go(func() {
					act, body := "resolve", `{"status":"succeeded","result":`+fmt.Sprint(i)+`}`
					switch i % 3 {
					case 1:
						body = `{"status":"failed"}`
					case 2:
						act, body = "retry", "{}"
					}
					answers[i], _ = gateways[i/3%len(gateways)].try(http.MethodPost, "/jobs/"+key+"/"+act, body, jsonType, fmt.Sprintf("Idempotency-Key: %s-%d", key, i))
				})
			}
			wg.Wait()
			var won []int
			for i, a := range answers {
				if a.Response == nil {
					t.Fatal("no answer")
				}
				switch a.StatusCode {
				case http.StatusOK, http.StatusAccepted:
					won = append(won, i)
				default:
					if code := a.want(t, http.StatusUnprocessableEntity).json(t)["code"]; code != "job-not-resolvable" && code != "job-not-retryable" {
						t.Errorf("%s", a.body)
					}
				}
			}
			j := g.get("/jobs/" + key).json(t)
			compensated := g.get("/jobs/compensate:"+id).StatusCode == http.StatusOK
			told := strings.Count(column(g.events(t, key), "event"), "resolved") + strings.Count(column(g.events(t, key), "event"), "retried")
			// A job that was resolved as failed may be retried after that.
			both := len(won) == 2 && j["status"] == "pending" && compensated && told == 2
			if len(won) != 1 && !both || !both && told != 1 {
				t.Fatalf("the calls %v were accepted, %d are told of; the job is %v", won, told, j)
			}
			switch {
			case both:
			case won[0]%3 == 0:
				is(t, j, fmt.Sprint("succeeded ", won[0]), "status", "result")
			case won[0]%3 == 1:
				is(t, j, "failed <nil>", "status", "outcome")
			default:
				is(t, j, "pending 2", "status", "generation")
			}
			if failed := !both && won[0]%3 == 1; compensated != (failed || both) {
				t.Errorf("compensated: %v after the calls %v", compensated, won)
			}
			g.do(http.MethodPost, "/executors/pay/resume", "").want(t, http.StatusOK)
			testenv.Eventually(t, 60*time.Second, "the job ended", func() bool { return g.get("/jobs/" + key).json(t)["status"] != "pending" })
		}
	})
}
