package e2e_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/testenv"
)

// undone are types that fail in every way, each followed by a job that tells in
// its result what it got.
const undone = fastKept + `
job_types:
  copy: {executor: echo}
  fails: {executor: http, compensate: copy, http: {url: "%[1]s/status/400"}}
  retries: {executor: http, compensate: copy, max_attempts: 2, http: {url: "%[1]s/status/503"}}
  works: {executor: http, compensate: copy, http: {url: "%[1]s/ok"}}
  slow: {executor: http, compensate: copy, http: {url: "%[1]s/slow?ms=60000"}}
  parks: {executor: http, compensate: copy, on_unknown_outcome: park, http: {url: "%[2]s/done/reset"}}
`

// compensated returns the documents that the compensations of the job got, in
// the order of its failures.
func compensated(t testing.TB, g *gateway, j map[string]any, times int) []answer {
	t.Helper()
	var got []answer
	for n := 1; n <= times; n++ {
		key := fmt.Sprint("compensate:", j["id"])
		if n > 1 {
			key += fmt.Sprint(":", n)
		}
		testenv.Eventually(t, 0, key+" is there", func() bool { return g.get("/jobs/"+key).StatusCode == http.StatusOK })
		is(t, g.finished(key), "succeeded copy", "status", "type")
		got = append(got, g.get("/jobs/"+key+"/result").want(t, http.StatusOK))
	}
	return got
}

func TestCompensation_BR73_FollowsEachFailureAndNothingElse(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		l, s := newLedger(t), newSink(t)
		g := start(t, database, fmt.Sprintf(undone, s.URL, l.URL))
		const payload = `{ "order" : 1.0, "text":"\u0000 ,\"error\": é" }`
		submit := func(key, kind, more string) {
			g.submit(key, fmt.Sprintf(`{"type":%q,"payload":%s%s}`, kind, payload, more)).want(t, http.StatusAccepted)
		}
		submit("fails", "fails", `,"business_key":"b","priority":3`)
		submit("retries", "retries", "")
		submit("works", "works", "")
		submit("later", "fails", `,"delay_seconds":3600`)
		submit("late", "fails", `,"delay_seconds":3600,"expires_in_seconds":0`)
		submit("slow", "slow", "")
		submit("yes", "parks", "")
		submit("no", "parks", "")

		g.cancel("later").want(t, http.StatusOK)
		testenv.Eventually(t, 0, "the slow one runs", func() bool { return len(s.of("slow")) == 1 })
		g.cancel("slow").want(t, http.StatusAccepted)
		for key, end := range map[string]string{
			"works": "succeeded <nil> 1", "later": "cancelled <nil> 0", "slow": "cancelled <nil> 1",
			"late": "failed <nil> 0", "yes": "failed outcome_unknown 1", "no": "failed outcome_unknown 1",
		} {
			is(t, g.finished(key), end, "status", "outcome", "attempts")
		}
		expected := 0
		for key, attempts := range map[string]string{"fails": "1", "retries": "2"} {
			j := g.finished(key)
			is(t, j, "failed "+attempts, "status", "attempts")
			got := compensated(t, g, j, 1)[0]
			expected++
			document := got.json(t)
			for _, member := range []string{
				"id", "key", "type", "status", "attempts", "max_attempts", "generation", "version", "business_key",
				"priority", "payload", "error", "outcome", "created_at", "started_at", "worker_id",
			} {
				if !reflect.DeepEqual(document[member], j[member]) {
					t.Errorf("the compensation of %s got %s: %v, the job has %v", key, member, document[member], j[member])
				}
			}
			if !strings.Contains(string(got.body), `"payload":`+payload+`,"result":null`) {
				t.Errorf("the payload is not there byte for byte: %s", got.body)
			}
			for _, where := range []string{"", "/attempts", "/events"} { // a receiver's words stay with us
				if told := g.get("/jobs/" + key + where); strings.Contains(string(told.body)+string(got.body), "INTERNAL-TOKEN-42") {
					t.Errorf("the receiver's answer is shown: %s %s", told.body, got.body)
				}
			}
		}
		db := beside(t, database)
		inAll := func(when string) {
			t.Helper()
			if n := count(t, db, `select count(*) from jobs where type = 'copy'`) + count(t, db, `select count(*) from finished_jobs where type = 'copy'`); n != expected {
				t.Errorf("%d compensations %s, want %d", n, when, expected)
			}
		}
		inAll("of two failures")

		// What may not have happened is not undone before somebody has looked.
		g.resolve("yes", "op-1", `{"status":"succeeded"}`).want(t, http.StatusOK)
		g.resolve("no", "op-2", `{"status":"failed"}`).want(t, http.StatusOK)
		g.resolve("no", "op-2", `{"status":"failed"}`).want(t, http.StatusOK, "Idempotent-Replayed: true")
		expected++
		is(t, compensated(t, g, g.finished("no"), 1)[0].json(t), "no failed <nil>", "key", "status", "outcome")
		inAll("after the resolutions")

		// Another failure after an operator's retry is another compensation.
		g.retry("fails", "op-3").want(t, http.StatusAccepted)
		g.retry("fails", "op-3").want(t, http.StatusAccepted)
		g.became(t, "fails", "failed")
		expected++
		both := compensated(t, g, g.finished("fails"), 2)
		is(t, both[0].json(t), "1 1", "generation", "attempts")
		is(t, both[1].json(t), "2 2", "generation", "attempts")
		inAll("after a retry")
		sound(t, db)
	})
}

func TestCompensation_BelongsToTheTenantOfItsJob(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		l, s := newLedger(t), newSink(t)
		_, one := token(t, database, "--tenant", "one")
		_, two := token(t, database, "--tenant", "two")
		g := start(t, database, both(t, fmt.Sprintf(undone, s.URL, l.URL), withKeys))
		g.submit("k", `{"type":"fails"}`, bearer(one)).want(t, http.StatusAccepted)
		j := g.get("/jobs/k?wait=30", bearer(one)).want(t, http.StatusOK).json(t)
		key := fmt.Sprint("/jobs/compensate:", j["id"])
		is(t, g.get(key+"?wait=30", bearer(one)).want(t, http.StatusOK).json(t), "succeeded copy", "status", "type")
		g.get(key, bearer(two)).problem(t, http.StatusNotFound, "job-not-found")
	})
}

// undoes are types whose failures and compensations can be counted. The table has
// no unique constraint: what is in it twice was undone twice.
const undoes = `
defaults: {lease: 1s, max_attempts: 3, backoff: {base: 20ms, cap: 40ms}}
job_types:
  fails: {executor: http, compensate: undo, http: {url: "%s/status/400"}}
  undo:
    executor: sql
    max_attempts: 20 # a kill may hit one and the same attempt in each round
    sql:
      setup: create table if not exists effects (job text not null)
      statement: "insert into effects (job) values ({{ .payload.id }})"
`

// eachUndoneOnce waits until no job is left, and fails unless each of the n
// failures was undone once.
func eachUndoneOnce(t testing.TB, database string, n int) {
	t.Helper()
	db := beside(t, database)
	testenv.Eventually(t, 60*time.Second, "all jobs ended", func() bool { return count(t, db, `select count(*) from jobs`) == 0 })
	for what, query := range map[string]string{
		"jobs failed":              `select count(*) from finished_jobs where type = 'fails' and state = 'failed'`,
		"compensations succeeded":  `select count(*) from finished_jobs where type = 'undo' and state = 'succeeded'`,
		"compensations":            `select count(*) from finished_jobs where type = 'undo'`,
		"failures undone":          `select count(*) from effects`,
		"failed jobs undone":       `select count(distinct job) from effects`,
		"failures undone by name":  `select count(*) from effects e join finished_jobs f on cast(f.id as text) = e.job and f.state = 'failed'`,
		"compensations named well": `select count(*) from finished_jobs c join finished_jobs f on c.key = 'compensate:' || cast(f.id as text) where f.type = 'fails'`,
	} {
		if got := count(t, db, query); got != n {
			t.Errorf("%d %s, want %d", got, what, n)
		}
	}
	sound(t, db)
}

// Kills around the ends of jobs that fail: the failure and what follows it are
// one change.
func TestCompensation_BR20_KillsAroundTheEndCompensateEachFailureOnce(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		s := newSink(t)
		config := fmt.Sprintf(undoes, s.URL)
		const rounds, jobs = 4, 30
		body := func(round, i int) (string, string) { return fmt.Sprintf("r%d-%d", round, i), `{"type":"fails"}` }
		for round := range rounds {
			g := start(t, database, config)
			began := make(chan struct{})
			var once sync.Once
			var wg sync.WaitGroup
			for i := range jobs {
				wg.Go(func() {
					key, text := body(round, i)
					if _, err := g.try(http.MethodPost, "/jobs", text, jsonType, "Idempotency-Key: "+key); err == nil {
						once.Do(func() { close(began) })
					}
				})
			}
			select {
			case <-began:
			case <-time.After(60 * time.Second):
				t.Fatal("nothing was accepted")
			}
			<-time.After(rand.N(150 * time.Millisecond)) // the random point is what is tested
			g.kill()
			wg.Wait()
		}
		g := start(t, database, config)
		for round := range rounds {
			persistAll(t, jobs, func(i int) (string, string) { return body(round, i) }, g)
		}
		eachUndoneOnce(t, database, rounds*jobs)
	})
}

// A job whose last attempt was lost fails by the hand of another process, which
// knows its payload from the database alone.
func TestCompensation_BR64_AJobThatTheRescuerFailsIsCompensatedWhole(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		r := newHeldReceiver(t)
		config := fmt.Sprintf(`
defaults: {lease: 2s}
job_types:
  copy: {executor: echo}
  call: {executor: http, max_attempts: 1, compensate: copy, http: {url: %q}}
`, r.URL)
		holder := start(t, database, config)
		payload := `{ "text" : "` + strings.Repeat(`\u0000é<>\\`, 10_000) + `" }`
		holder.submit("lost", fmt.Sprintf(`{"type":"call","payload":%s}`, payload)).want(t, http.StatusAccepted)
		next(t, r.begun, 1, "begun")
		if !onSQLite(database) {
			start(t, database, config) // three that may rescue it, at once
			start(t, database, config)
		}
		holder.kill()
		g := start(t, database, config)
		j := g.finished("lost")
		is(t, j, "failed <nil> 1", "status", "outcome", "attempts")
		got := compensated(t, g, j, 1)[0]
		is(t, got.json(t), "lost failed 1", "key", "status", "attempts")
		if !strings.HasPrefix(failure(got.json(t)), "lost ") || !strings.Contains(string(got.body), `"payload":`+payload+`,"result":null`) {
			t.Errorf("the compensation got %.300s …", got.body)
		}
		db := beside(t, database)
		if n := count(t, db, `select count(*) from finished_jobs`) + count(t, db, `select count(*) from jobs`); n != 2 {
			t.Errorf("%d jobs, want the failed one and its compensation", n)
		}
		if len(r.seen()) != 1 {
			t.Errorf("%d calls", len(r.seen()))
		}
		sound(t, db)
	})
}
