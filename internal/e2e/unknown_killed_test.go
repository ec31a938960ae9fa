package e2e_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/testenv"
)

// killed are what becomes of calls whose gateway dies in their midst.
var killed = map[string]doubt{
	"retry":     {"retry", 3, "/done/hold", "", "succeeded <nil> 2", "lost succeeded", "lost", "", "2 0 2", `{"work": 2}`},
	"done":      {"reconcile", 3, "/done/hold", "truth", "succeeded <nil> 2", "lost succeeded", "lost", "done", "1 1 1", `{ "receipt": 1.0 }`},
	"undone":    {"reconcile", 3, "/undone/hold", "truth", "succeeded <nil> 2", "lost succeeded", "lost", "not_done", "2 1 1", `{"work": 2}`},
	"done-once": {"reconcile", 1, "/done/hold", "truth", "succeeded <nil> 2", "lost succeeded", "lost", "done", "1 1 1", `{ "receipt": 1.0 }`},
	"park":      {"park", 3, "/done/hold", "", "failed outcome_unknown 1", "lost", "lost", "", "1 0 1", ""},
}

// stopped are what becomes of them when it is told to stop: they are handed
// back, and were no attempts, unless somebody must look.
var stopped = map[string]doubt{
	"retry":     {"retry", 3, "/done/hold", "", "succeeded <nil> 1", "released succeeded", "", "", "2 0 2", `{"work": 2}`},
	"done":      {"reconcile", 3, "/done/hold", "truth", "succeeded <nil> 1", "released succeeded", "", "done", "1 1 1", `{ "receipt": 1.0 }`},
	"undone":    {"reconcile", 3, "/undone/hold", "truth", "succeeded <nil> 1", "released succeeded", "", "not_done", "2 1 1", `{"work": 2}`},
	"done-once": {"reconcile", 1, "/done/hold", "truth", "succeeded <nil> 1", "released succeeded", "", "done", "1 1 1", `{ "receipt": 1.0 }`},
	"park":      {"park", 3, "/done/hold", "", "failed outcome_unknown 1", "lost", "", "", "1 0 1", ""},
}

// programs run longer the first time. One whose gateway is killed leaves its
// outcome unknown; one that was stopped with it was stopped, and is known.
const programs = `
job_types:
  program:
    executor: command
    on_unknown_outcome: park
    command:
      argv: [sh, -c, 'echo run >> "$RUNS"; test "$(wc -l < "$RUNS")" -gt 1 || sleep 60']
      env: {RUNS: %q}
`

// endInTheMidst ends a gateway in the midst of everything, and looks at what the next
// one makes of it.
func endInTheMidst(t *testing.T, database string, s syscall.Signal, cases map[string]doubt, program doubt) {
	l, runs := newLedger(t), filepath.Join(t.TempDir(), "runs")
	config := both(t, fastTry, l.config(t, cases), fmt.Sprintf(programs, runs), longerLease, "dispatcher: {shutdown_grace: 1s}")
	g := start(t, database, config)
	for name := range cases {
		g.submit(name, fmt.Sprintf(`{"type":%q}`, name)).want(t, http.StatusAccepted)
	}
	g.submit("program", `{"type":"program"}`).want(t, http.StatusAccepted)
	for range cases {
		select {
		case <-l.begun:
		case <-time.After(60 * time.Second):
			t.Fatal("not all calls have begun")
		}
	}
	ran := func() int {
		text, _ := os.ReadFile(runs)
		return strings.Count(string(text), "\n")
	}
	testenv.Eventually(t, 20*time.Second, "the program runs", func() bool { return ran() == 1 })
	g.signal(s)
	g.wait(20 * time.Second)

	g = start(t, database, config)
	for name, d := range cases {
		l.settled(t, g, name, d)
	}
	is(t, g.finished("program"), program.job, "status", "outcome", "attempts")
	if got := fmt.Sprint(column(g.attempts(t, "program"), "outcome"), " ", ran()); got != program.attempts {
		t.Errorf("attempts and runs of the program: %s, want %s", got, program.attempts)
	}
	g.resolve("park", "op", `{"status":"succeeded","result":[1.0]}`).want(t, http.StatusOK)
	if got := g.get("/jobs/park/result").want(t, http.StatusOK); string(got.body) != "[1.0]" {
		t.Errorf("the resolved result is %s", got.body)
	}
	sound(t, beside(t, database))
}

func TestFailure_BR62_Row75a_AKillInTheMidstOfAnAttemptLeavesItsOutcomeUnknown(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		endInTheMidst(t, database, syscall.SIGKILL, killed, doubt{job: "failed outcome_unknown 1", attempts: "lost 1"})
	})
}

func TestFailure_BR63_Row75a_AStopInTheMidstOfAnAttemptLeavesItsOutcomeUnknown(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		endInTheMidst(t, database, syscall.SIGTERM, stopped, doubt{job: "succeeded <nil> 1", attempts: "released succeeded 2"})
	})
}

// A gateway that dies while it asks leaves the question open, not the work to be
// done again.
func TestFailure_BR62_AKillInTheMidstOfTheQuestionAsksAgain(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		l := newLedger(t)
		cases := map[string]doubt{
			"asked": {"reconcile", 5, "/done/reset", "hold", "succeeded <nil> 3", "lost lost succeeded", "connection", "done", "1 2 1", `{ "receipt": 1.0 }`},
		}
		config := both(t, fastTry, l.config(t, cases), longerLease)
		g := start(t, database, config)
		g.submit("asked", `{"type":"asked"}`).want(t, http.StatusAccepted)
		select {
		case <-l.begun:
		case <-time.After(60 * time.Second):
			t.Fatal("nobody asks")
		}
		g.kill()
		l.settled(t, start(t, database, config), "asked", cases["asked"])
		sound(t, beside(t, database))
	})
}

// The work of an sql job and its end are one transaction: an attempt without an
// end has done nothing, and there is nothing that somebody would not know.
func TestFailure_BR62_AnSQLJobIsNeverUnknown(t *testing.T) {
	t.Parallel()
	database := testenv.Postgres(t)
	config := both(t, fastTry, slowEffects, longerLease)
	g := start(t, database, config)
	db := beside(t, database)
	g.submit("once", `{"type":"effect","payload":{"seconds":3},"max_attempts":1}`).want(t, http.StatusAccepted)
	g.submit("thrice", `{"type":"effect","payload":{"seconds":3},"max_attempts":3}`).want(t, http.StatusAccepted)
	testenv.Eventually(t, 0, "both run", func() bool {
		return count(t, db, `select count(*) from pg_stat_activity
			where datname = current_database() and state = 'active' and query like 'insert into effects%'`) == 2
	})
	g.kill()
	g = start(t, database, config)
	j := g.finished("once")
	is(t, j, "failed <nil> 1", "status", "outcome", "attempts")
	if !strings.HasPrefix(failure(j), "lost ") {
		t.Errorf("the error is %v", j["error"])
	}
	is(t, g.finished("thrice"), "succeeded <nil> 2", "status", "outcome", "attempts")
	if n := count(t, db, `select count(*) from effects`); n != 1 {
		t.Errorf("%d effects, want that of the job that succeeded", n)
	}
	g.resolve("once", "op-1", `{"status":"succeeded"}`).problem(t, http.StatusUnprocessableEntity, "job-not-resolvable")
	g.retry("once", "op-2").want(t, http.StatusAccepted)
	is(t, g.finished("once"), "succeeded <nil> 2", "status", "outcome", "attempts")
	if n := count(t, db, `select count(distinct job) from effects`); n != 2 || count(t, db, `select count(*) from effects`) != 2 {
		t.Errorf("effects of %d jobs, want 2, one of each", n)
	}
	sound(t, db)
}
