package main_test

import (
	"strings"
	"testing"
)

const payExecutor = `{"name":"pay","executor":"http","types":["pay"],"configured":true,"paused_at":null,"slots":4,"free":3,"busy":1,"limits":{"concurrency":5,"rate":"20/s","waits_for":null,"next_at":null},
 "running":[{"id":"1","key":"order-42","attempt":2,"worker_id":"w-1","started_at":"2026-03-01T12:00:00Z","lease_expires_at":"2026-03-01T12:00:30Z"}],
 "waiting":{"pending":2,"scheduled":1,"retrying":0,"blocked":0,"why":"2 to be claimed"},"workers":[{"worker_id":"w-1","slots":4,"last_heartbeat_at":"2026-03-01T12:00:01Z"}],
 "last_heartbeat_at":"2026-03-01T12:00:01Z","window_seconds":3600,"succeeded":7,"failed":1,"lost":0,"released":0,"cancelled":0,"mean_ms":1500,"p95_ms":null}`

func TestContract_Row114_Executors(t *testing.T) {
	t.Parallel()
	gone := `{"name":"gone","executor":null,"configured":false,"waiting":{"pending":1},"running":[]}`
	d := once(t, "GET /executors", 200, `{"executors":[`+gone+`,`+payExecutor+`],"capped":true}`)
	out, notes, code := run("executors", "--url", d.URL)
	if code != 0 {
		t.Fatalf("%d %s", code, notes)
	}
	has(t, notes, "lower bounds")
	lines := strings.Split(out, "\n")
	for i, want := range []string{
		"NAME EXECUTOR STATE BUSY FREE LIMITS WAITING SUCCEEDED FAILED LOST MEAN P95 HEARTBEAT WHY",
		"gone - not configured 0 0 of 0 - 1 0 0 0 - - - -",
		"pay http active 1 3 of 4 5 at once, 20/s 3 7 1 0 1.5s - 2026-03-01T12:00:01Z 2 to be claimed",
		"", "RUNNING KEY ATTEMPT WORKER SINCE LEASE UNTIL", "pay order-42 2 w-1 2026-03-01T12:00:00Z 2026-03-01T12:00:30Z",
	} {
		if got := strings.Join(strings.Fields(lines[i]), " "); got != want {
			t.Errorf("line %d is %q, want %q", i, got, want)
		}
	}
	if out, _, code = run("executors", "--url", d.URL, "-o", "json"); code != 0 {
		t.Error(code)
	}
	has(t, out, `"capped": true`, `"lease_expires_at": "2026-03-01T12:00:30Z"`)
}

func TestContract_Row114a_PauseAndResume(t *testing.T) {
	t.Parallel()
	paused := strings.ReplaceAll(payExecutor, `"paused_at":null`, `"paused_at":"2026-03-01T12:00:00Z"`)
	d := newDouble(t, map[string][]answerOf{
		"POST /executors/pay/pause":    {{200, paused, nil}},
		"POST /executors/a%2Fb/resume": {{200, payExecutor, nil}},
		"POST /executors/pay/resume":   {{200, payExecutor, nil}},
	})
	out, notes, code := run("pause", "pay", "--url", d.URL)
	if code != 0 {
		t.Errorf("%d %s", code, notes)
	}
	has(t, out, "paused", "order-42")
	has(t, notes, "what runs already runs on")
	if out, notes, code = run("resume", "a/b", "--url", d.URL, "-o", "json"); code != 0 || notes != "" {
		t.Errorf("%d %s", code, notes)
	}
	has(t, out, `"name": "pay"`)
	if out, _, code = run("resume", "pay", "--url", d.URL); code != 0 {
		t.Error(code)
	}
	has(t, out, "active")
}
