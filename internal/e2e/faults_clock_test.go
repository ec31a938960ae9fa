package e2e_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/testenv"
)

// The database's clock and the gateways' are ten minutes apart, whoever is ahead:
// leases, delays and all times that are stored are the database's, so that nobody
// takes a lease that is held, or leaves one that is over.
func TestFailure_BR60_ClocksTenMinutesApart(t *testing.T) {
	t.Parallel()
	for name, ahead := range map[string]time.Duration{"the database is ahead": 10 * time.Minute, "the database is behind": -10 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, err := testenv.StartPostgres(testenv.WithClock(ahead))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = server.Stop() })
			clocksApart(t, server.Database(t), ahead)
		})
	}
}

func clocksApart(t *testing.T, database string, ahead time.Duration) {
	db := beside(t, database)
	near := func(what string, at time.Time, most time.Duration) {
		t.Helper()
		if off := at.Sub(time.Now().Add(ahead)).Abs(); off > most {
			t.Errorf("%s is %v, which is %v away from the database's clock", what, at, off)
		}
	}
	near("now", instant(t, text(t, db, `select to_char(clock_timestamp() at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')`)), time.Minute)

	s, r := newSink(t), newHeldReceiver(t)
	// The first attempts are to keep their leases through any slow moment; the other
	// types, with a shorter one, let the rescuers look often.
	config := both(t, fmt.Sprintf("job_types: {call: {executor: http, http: {url: %q}}, slow: {lease: 10s}}", r.URL),
		s.types(map[string]string{"slow": "/slow?ms=2500", "flaky": "/flaky?fail=1", "ok": "/ok"}))
	a, b := start(t, database, config), start(t, database, config)
	submitted := time.Now()
	a.submit("delayed", `{"type":"ok","delay_seconds":2}`).want(t, http.StatusAccepted, "Job-Status: scheduled")
	b.submit("flaky", `{"type":"flaky"}`).want(t, http.StatusAccepted)
	const jobs = 50
	persistAll(t, jobs, func(i int) (string, string) { return fmt.Sprint("slow-", i), `{"type":"slow"}` }, a, b)
	testenv.Eventually(t, 0, "leases are held by the database's clock", func() bool {
		return count(t, db, `select count(*) from jobs where state = 'processing'
			and locked_until between clock_timestamp() and clock_timestamp() + interval '10 seconds'`) >= 16
	})
	testenv.Eventually(t, 60*time.Second, "all jobs ended", func() bool { return count(t, db, `select count(*) from jobs`) == 0 })
	if n := count(t, db, `select count(*) from finished_jobs where type = 'slow' and state = 'succeeded' and attempt = 1 and token = 1`); n != jobs {
		t.Errorf("%d jobs succeeded with their first attempt, want %d", n, jobs)
	}
	for i := range jobs {
		if n := len(s.of(fmt.Sprint("slow-", i))); n != 1 {
			t.Errorf("job %d: %d calls", i, n)
		}
	}
	if late := s.of("delayed")[0].at.Sub(submitted); late < 1900*time.Millisecond {
		t.Errorf("the delayed job ran after %v", late)
	}
	is(t, a.finished("flaky"), "succeeded 2", "status", "attempts")
	j := b.get("/jobs/slow-0").json(t)
	for _, member := range []string{"created_at", "started_at", "finished_at"} {
		near(member, instant(t, j[member]), 2*time.Minute)
	}
	near("expires_at, less its retention", instant(t, j["expires_at"]).Add(-7*24*time.Hour), 2*time.Minute)
	for _, e := range b.events(t, "slow-0") {
		near(fmt.Sprint(e["event"]), instant(t, e["time"]), 2*time.Minute)
	}

	// And a lease that is over is over: soon, not in ten minutes.
	a.submit("killed", `{"type":"call"}`).want(t, http.StatusAccepted)
	next(t, r.begun, 1, "begun")
	for _, g := range []*gateway{a, b} {
		if g.measured("sekali_jobs_running", `type="call"`) > 0 {
			g.kill()
			break
		}
	}
	next(t, r.begun, 2, "begun")
	close(r.let[2])
	testenv.Eventually(t, 0, "the job of the killed gateway ended", func() bool {
		return count(t, db, `select count(*) from finished_jobs where key = 'killed' and state = 'succeeded' and attempt = 2`) == 1
	})
	sound(t, db)
}
