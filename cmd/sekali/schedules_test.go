package main_test

import (
	"strings"
	"testing"
)

func TestSchedules(t *testing.T) {
	t.Parallel()
	const list = `{"schedules":[
 {"name":"hourly","type":"echo","cron":"@hourly","timezone":"UTC","missed":"skip","last_time":null,"next_time":"2026-03-01T13:00:00Z","last_job":null,"last_error":null},
 {"name":"nightly","type":"report","cron":"0 2 * * *","timezone":"Asia/Jakarta","missed":"run_last","last_time":"2026-02-28T19:00:00Z","next_time":"2026-03-01T19:00:00Z",
  "last_job":{"key":"schedule:nightly:2026-02-28T19:00:00Z","status":"failed"},"last_error":"the database does not answer"}]}`
	d := once(t, "GET /schedules", 200, list)
	out, notes, code := run("schedules", "--url", d.URL)
	if code != 0 || notes != "" {
		t.Fatalf("%d %s", code, notes)
	}
	lines := strings.Split(out, "\n")
	for i, want := range []string{
		"NAME TYPE CRON TIMEZONE LAST STATUS NEXT JOB ERROR",
		"hourly echo @hourly UTC - - 2026-03-01T13:00:00Z - -",
		"nightly report 0 2 * * * Asia/Jakarta 2026-02-28T19:00:00Z failed 2026-03-01T19:00:00Z schedule:nightly:2026-02-28T19:00:00Z the database does not answer",
	} {
		if got := strings.Join(strings.Fields(lines[i]), " "); got != want {
			t.Errorf("line %d is %q, want %q", i, got, want)
		}
	}
	if out, _, code = run("schedules", "--url", d.URL, "-o", "json"); code != 0 {
		t.Error(code)
	}
	has(t, out, `"status": "failed"`)
}

func TestSchedules_None(t *testing.T) {
	t.Parallel()
	d := once(t, "GET /schedules", 200, `{"schedules":[]}`)
	out, notes, code := run("schedules", "--url", d.URL)
	if code != 0 || out != "" {
		t.Errorf("%d %q", code, out)
	}
	has(t, notes, "no schedules")
}
