package e2e_test

import (
	"database/sql"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/testenv"
)

// Schedules of one per second, of which none may be passed over.
const secondly = `
schedules:
  secondly: {type: echo, cron: "* * * * * *", timezone: Europe/Berlin, missed: run_all, payload: {n: 1}}
  yearly: {type: echo, cron: "@yearly", missed: skip}
`

// firingTimes are the times in the keys of the schedule's jobs, in their order.
func firingTimes(t testing.TB, db *sql.DB) []time.Time {
	t.Helper()
	rows, err := db.Query(`select key from idempotency_keys where key like 'schedule:secondly:%' order by key`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var times []time.Time
	for rows.Next() {
		var key string
		if err := rows.Scan(&key); err != nil {
			t.Fatal(err)
		}
		at, err := time.Parse(time.RFC3339, key[len("schedule:secondly:"):])
		if err != nil {
			t.Fatal(err)
		}
		times = append(times, at)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return times
}

// everySecondOnce fails unless the seconds follow one another without a gap, and
// each has exactly one job.
func everySecondOnce(t *testing.T, db *sql.DB, atLeast int) {
	t.Helper()
	testenv.Eventually(t, 60*time.Second, "all firings", func() bool { return len(firingTimes(t, db)) >= atLeast })
	testenv.Eventually(t, 60*time.Second, "the jobs ended", func() bool { return count(t, db, `select count(*) from jobs`) < 3 })
	times := firingTimes(t, db)
	for i := range times[1:] {
		if times[i+1].Sub(times[i]) != time.Second {
			t.Errorf("after %v comes %v", times[i], times[i+1])
		}
	}
	double := `select count(*) from (select key from (select key from jobs union all select key from finished_jobs) as j group by key having count(*) > 1) as d`
	if n := count(t, db, double); n != 0 {
		t.Errorf("%d firings have more than one job", n)
	}
}

// fired waits for so many more firings.
func fired(t testing.TB, db *sql.DB, more int) {
	t.Helper()
	before := len(firingTimes(t, db))
	testenv.Eventually(t, 60*time.Second, "more firings", func() bool { return len(firingTimes(t, db)) >= before+more })
}

func TestDoneWhen_Q22_ThreeReplicasFireEachSecondOnce(t *testing.T) {
	t.Parallel()
	database := testenv.Postgres(t)
	replicas := []*gateway{start(t, database, secondly), start(t, database, secondly), start(t, database, secondly)}
	db := beside(t, database)
	fired(t, db, 2)
	for i := range replicas { // one after the other is killed and comes back
		replicas[i].kill()
		fired(t, db, 1)
		replicas[i] = start(t, database, secondly)
	}
	for _, g := range replicas { // and then all of them at once, longer than a firing may be late
		g.kill()
	}
	<-time.After(6 * time.Second)
	for i := range replicas {
		replicas[i] = start(t, database, secondly)
	}
	fired(t, db, 2)
	everySecondOnce(t, db, 12) // also those that a slow database made fail at first
	quiet(t, db)
}

func TestSchedules_ARestartOnSQLiteMissesNothing(t *testing.T) {
	t.Parallel()
	database := testenv.SQLite(t)
	g := start(t, database, secondly)
	db := beside(t, database)
	fired(t, db, 2)
	g.kill()
	<-time.After(7 * time.Second)
	g = start(t, database, secondly)
	fired(t, db, 2)
	everySecondOnce(t, db, 10)
	yearly := g.get("/schedules").want(t, 200).json(t)["schedules"].([]any)[1].(map[string]any)
	if yearly["last_time"] != nil || yearly["last_job"] != nil || yearly["next_time"] == nil || yearly["last_error"] != nil {
		t.Errorf("a schedule that has not fired: %v", yearly)
	}
}

// GET /schedules and the command say whether schedules fire, and why not.
func TestSchedules_ShowWhetherTheyFired(t *testing.T) {
	onGateway(t, `
limits: {pending: 1}
schedules:
  often: {type: echo, cron: "@every 1s", payload: {total: 3}}
`, func(t *testing.T, g *gateway) {
		schedule := func() map[string]any {
			return g.get("/schedules").want(t, 200).json(t)["schedules"].([]any)[0].(map[string]any)
		}
		var s map[string]any // a second later it tells of another job
		testenv.Eventually(t, 60*time.Second, "a firing whose job has succeeded", func() bool {
			s = schedule()
			last, _ := s["last_job"].(map[string]any)
			return last != nil && last["status"] == "succeeded"
		})
		key := s["last_job"].(map[string]any)["key"].(string)
		if s["type"] != "echo" || s["timezone"] != "UTC" || s["missed"] != "run_last" || s["next_time"] == nil || key[:15] != "schedule:often:" {
			t.Errorf("schedule %v", s)
		}
		if result := g.get("/jobs/"+key+"/result").want(t, 200); string(result.body) != `{"total":3}` {
			t.Errorf("payload %s", result.body)
		}
		testenv.Eventually(t, 60*time.Second, "room for a job that fills the quota", func() bool {
			return g.submit("fills-the-quota", `{"type":"echo","delay_seconds":3600}`).StatusCode == 202
		})
		testenv.Eventually(t, 60*time.Second, "an error", func() bool { return schedule()["last_error"] != nil })
		g.do("POST", "/jobs/fills-the-quota/cancel", "").want(t, 200)
		testenv.Eventually(t, 60*time.Second, "it fires again", func() bool { return schedule()["last_error"] == nil })
		if g.measured("sekali_schedule_firings_total", `result="failed",schedule="often"`) == 0 || g.measured("sekali_schedule_last_fired_timestamp_seconds", `schedule="often"`) == 0 {
			t.Error("the metrics say nothing")
		}
	})
}

// The firing's key is the client's to take, if it wants to: that is shown, and
// nothing else is held up.
func TestSchedules_AKeyThatWasTaken(t *testing.T) {
	t.Parallel()
	g := start(t, testenv.Postgres(t), `{schedules: {hourly: {type: echo, cron: "@every 5s"}}}`)
	next := time.Now().UTC().Truncate(5 * time.Second)
	for i := range 4 {
		g.submit("schedule:hourly:"+next.Add(time.Duration(i)*5*time.Second).Format(time.RFC3339), `{"type":"echo"}`)
	}
	testenv.Eventually(t, 60*time.Second, "the error", func() bool {
		return g.get("/schedules").json(t)["schedules"].([]any)[0].(map[string]any)["last_error"] != nil
	})
	testenv.Eventually(t, 60*time.Second, "it fires", func() bool {
		return g.get("/schedules").json(t)["schedules"].([]any)[0].(map[string]any)["last_job"] != nil
	})
}
