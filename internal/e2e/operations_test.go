package e2e_test

import (
	"database/sql"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/testenv"
)

// operations are a type of each kind whose payload names the operation. None of
// them keeps itself from being done twice; a job without a value for its effect
// fails for good.
const operations = fastKept + `
job_types:
  write:
    executor: sql
    operation_key: "{{ .payload.event }}"
    sql:
      setup: create table if not exists effects (job text not null)
      statement: insert into effects (job) values ({{ .payload.effect }}) returning job
  rewrite:
    executor: sql
    operation_key: "{{ .payload.event }}"
    sql: {statement: "insert into effects (job) values ({{ .payload.effect }}) returning job"}
  program:
    executor: command
    operation_key: "{{ .payload.event }}"
    command:
      argv: [sh, -c, 'cat >> "$RUNS"; echo >> "$RUNS"; printf "{ \"ran\" : 1.0 }"']
      env: {RUNS: %q}
  call:
    executor: http
    operation_key: "{{ .payload.event }}"
    http: {url: "%[2]s/done/ok"}
  page:
    executor: http
    operation_key: "{{ .payload.event }}"
    http: {url: "%[3]s/bytes?mode=html"}
  nothing:
    executor: http
    operation_key: "{{ .payload.event }}"
    http: {url: "%[3]s/bytes?mode=none"}
`

// operation is a submission of the type for the event.
func operation(kind, event string) string {
	return fmt.Sprintf(`{"type":%q,"payload":{"event":%q,"effect":%q}}`, kind, event, kind+" "+event)
}

// isDuplicate fails unless the job found the operation done by the other one,
// and shows what that one gave, byte for byte.
func isDuplicate(t testing.TB, g *gateway, key, of string) {
	t.Helper()
	j := g.finished(key)
	is(t, j, "succeeded duplicate_ignored "+of+" <nil>", "status", "outcome", "duplicate_of", "error")
	first, second := g.get("/jobs/"+of+"/result"), g.get("/jobs/"+key+"/result")
	if first.StatusCode != second.StatusCode {
		t.Fatalf("the results of %s and %s: %d and %d", of, key, first.StatusCode, second.StatusCode)
	}
	if first.StatusCode != http.StatusOK {
		second.problem(t, http.StatusNotFound, "job-has-no-result")
		return
	}
	second.want(t, http.StatusOK, "Content-Type: "+first.Header.Get("Content-Type"), "ETag: "+first.Header.Get("ETag"))
	if string(first.body) != string(second.body) {
		t.Errorf("the results of %s and %s:\n%s\n%s", of, key, first.body, second.body)
	}
	events := column(g.events(t, key), "event")
	if !strings.Contains(events, "attempt_succeeded duplicate_ignored succeeded") {
		t.Errorf("%s tells %s", key, events)
	}
}

// operationDone fails unless the one row of the operation says that it was done.
func operationDone(t testing.TB, db *sql.DB, kind, event, by string) {
	t.Helper()
	const query = `select state || ' ' || job_key from processed_operations where operation_type = $1 and operation_key = $2`
	if got := text(t, db, query, kind, event); got != "done "+by {
		t.Errorf("the operation %s of %s is %q, want done by %s", event, kind, got, by)
	}
}

func TestContract_SectionI_AnOperationIsDoneOnce(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		l, s, runs := newLedger(t), newSink(t), filepath.Join(t.TempDir(), "runs")
		g := start(t, database, fmt.Sprintf(operations, runs, l.URL, s.URL))
		db := beside(t, database)
		kinds := []string{"write", "rewrite", "program", "call", "page", "nothing"} // the same event is another operation of another type
		for _, kind := range kinds {
			is(t, g.ended(t, kind+"-1", operation(kind, "e")), "succeeded <nil> <nil>", "status", "outcome", "duplicate_of")
		}
		for _, kind := range kinds {
			for n := 2; n <= 3; n++ { // the third one is a duplicate of the first, not of the second
				key := fmt.Sprint(kind, "-", n)
				g.submit(key, operation(kind, "e")).want(t, http.StatusAccepted)
				isDuplicate(t, g, key, kind+"-1")
			}
			operationDone(t, db, kind, "e", kind+"-1")
			// Another event, and one whose text only looks like it, are other operations.
			is(t, g.ended(t, kind+"-other", operation(kind, "E")), "succeeded <nil>", "status", "outcome")
			g.submit(kind+"-1", operation(kind, "e")).want(t, http.StatusAccepted, "Idempotent-Replayed: true", "Job-Status: succeeded")
		}
		if n := count(t, db, `select count(*) from effects where job in ('write e', 'rewrite e')`); n != 2 {
			t.Errorf("%d effects of the operation of two types", n)
		}
		ran, err := os.ReadFile(runs)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(ran), `"e"`); n != 1 {
			t.Errorf("the program ran %d times", n)
		}
		for key, counts := range map[string]string{"call-1": "1 0 1", "call-2": "0 0 0", "call-3": "0 0 0", "call-other": "1 0 1"} {
			if got := l.counts(key); got != counts {
				t.Errorf("%s: calls, questions and work %s, want %s", key, got, counts)
			}
		}
		if n := len(s.of("page-1")) + len(s.of("page-2")) + len(s.of("nothing-1")) + len(s.of("nothing-2")); n != 2 {
			t.Errorf("%d calls for two operations", n)
		}
		if n := g.measured("sekali_duplicates_ignored_total"); n != float64(2*len(kinds)) {
			t.Errorf("%v duplicates counted", n)
		}
		sound(t, db)
	})
}

func TestContract_SectionI_OperationsOfTwoTenantsAreTwo(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		l, s := newLedger(t), newSink(t)
		_, one := token(t, database, "--tenant", "one")
		_, two := token(t, database, "--tenant", "two")
		g := start(t, database, both(t, fmt.Sprintf(operations, "/dev/null", l.URL, s.URL), withKeys))
		done := func(key, kind, who string) map[string]any {
			g.submit(key, operation(kind, "e"), bearer(who)).want(t, http.StatusAccepted)
			return g.get("/jobs/"+key+"?wait=30", bearer(who)).json(t)
		}
		for _, kind := range []string{"write", "call"} {
			is(t, done(kind+"-1", kind, one), "succeeded <nil>", "status", "outcome")
			is(t, done(kind+"-1", kind, two), "succeeded <nil>", "status", "outcome")
			is(t, done(kind+"-2", kind, two), "succeeded duplicate_ignored", "status", "outcome")
		}
		if n := count(t, beside(t, database), `select count(*) from effects`); n != 2 {
			t.Errorf("%d effects of two tenants", n)
		}
		if got := l.counts("call-1") + " " + l.counts("call-2"); got != "2 0 2 0 0 0" {
			t.Errorf("calls of two tenants and of a duplicate: %s", got)
		}
	})
}

// A payload from which the type cannot make its key is no submission: the answer
// names the place, and the key stays free.
func TestContract_SectionI_Row69_PayloadsWithoutAnOperation(t *testing.T) {
	l, s := newLedger(t), newSink(t)
	onGateway(t, fmt.Sprintf(operations, "/dev/null", l.URL, s.URL)+`
  deep:
    executor: echo
    operation_key: "{{ .payload.lines[1].sku }}:{{ .payload.n }}"
`, func(t *testing.T, g *gateway) {
		for payload, pointer := range map[string]string{
			`{}`: "/payload/event", `{"event":null}`: "/payload/event", `{"event":""}`: "/payload/event", `{"event":{}}`: "/payload/event",
			`{"event":[1]}`: "/payload/event", `{"event":"a\u0000b"}`: "/payload/event", `[]`: "/payload/event", `null`: "/payload/event", `"event"`: "/payload/event",
			`{"event":"` + strings.Repeat("e", 513) + `"}`: "/payload/event",
		} {
			a := g.submit("k", fmt.Sprintf(`{"type":"write","payload":%s}`, payload))
			problem := a.problem(t, http.StatusBadRequest, "validation-failed")
			errors, _ := problem["errors"].([]any)
			if len(errors) != 1 {
				t.Errorf("%s: %s", payload, a.body)
				continue
			}
			if e := errors[0].(map[string]any); e["pointer"] != pointer || e["rule"] != "operation_key" || problem["retryable"] != false {
				t.Errorf("%s: %s", payload, a.body)
			}
		}
		a := g.submit("k", `{"type":"deep","payload":{"lines":[{},{"sku":true}],"n":[]}}`).problem(t, http.StatusBadRequest, "validation-failed")
		if e := a["errors"].([]any)[0].(map[string]any); e["pointer"] != "/payload/n" {
			t.Errorf("the place is %v", e)
		}
		is(t, g.ended(t, "k", `{"type":"write","payload":{"event":"e","effect":"x"}}`), "succeeded e", "status", "operation_key")
		// Numbers are told digit by digit, and no value runs into the next one.
		for key, payload := range map[string]string{
			"d1": `{"lines":[{},{"sku":"a:1"}],"n":2}`, "d2": `{"lines":[{},{"sku":"a"}],"n":"1:2"}`,
			"d3": `{"lines":[{},{"sku":"a:1"}],"n":2.0}`, "d4": `{"lines":[{},{"sku":"a%3A1"}],"n":2}`,
		} {
			is(t, g.ended(t, key, fmt.Sprintf(`{"type":"deep","payload":%s}`, payload)), "succeeded <nil>", "status", "outcome")
		}
		is(t, g.ended(t, "d5", `{"type":"deep","payload":{"lines":[{},{"sku":"a:1"}],"n":"2"}}`), "succeeded duplicate_ignored d1", "status", "outcome", "duplicate_of")
	})
}

// Many jobs of each operation at two replicas at once: one of them does it.
func TestContract_SectionI_JobsOfOneOperationAtOnceOnTwoReplicas(t *testing.T) {
	t.Parallel()
	database := testenv.Postgres(t)
	l, s, runs := newLedger(t), newSink(t), filepath.Join(t.TempDir(), "runs")
	config := fmt.Sprintf(operations, runs, l.URL, s.URL)
	a, b := start(t, database, config), start(t, database, config)
	kinds := []string{"write", "program", "call"}
	const events, each = 8, 4
	jobs := events * each * len(kinds)
	persistAll(t, jobs, func(i int) (string, string) {
		kind, event := kinds[i%len(kinds)], fmt.Sprint("e", i/len(kinds)/each)
		return fmt.Sprint("k", i), operation(kind, event)
	}, a, b)
	db := beside(t, database)
	testenv.Eventually(t, 60*time.Second, "all jobs ended", func() bool { return count(t, db, `select count(*) from jobs`) == 0 })
	for what, want := range map[string]int{
		`select count(*) from finished_jobs where state = 'succeeded'`:                     jobs,
		`select count(*) from finished_jobs where outcome is null`:                         events * len(kinds),
		`select count(*) from finished_jobs where outcome = 'duplicate_ignored'`:           jobs - events*len(kinds),
		`select count(*) from processed_operations where state = 'done'`:                   events * len(kinds),
		`select count(*) from effects`:                                                     events,
		`select count(distinct job) from effects`:                                          events,
		`select count(*) from finished_jobs where attempt <> 1`:                            0,
		`select count(*) from job_attempts where outcome not in ('succeeded', 'released')`: 0,
		`select count(*) from finished_jobs d join finished_jobs f on f.key = d.duplicate_of
			and f.type = d.type and f.operation_key = d.operation_key and f.outcome is null and f.result is not distinct from d.result
			and f.result_hash = d.result_hash`: jobs - events*len(kinds),
	} {
		if got := count(t, db, what); got != want {
			t.Errorf("%d and not %d: %s", got, want, what)
		}
	}
	ran, err := os.ReadFile(runs)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(ran), "\n"); n != events {
		t.Errorf("programs ran %d times, want %d", n, events)
	}
	if n := l.workers("/done/ok"); n != events {
		t.Errorf("%d jobs called, want %d", n, events)
	}
	sound(t, db)
	quiet(t, db)
}
