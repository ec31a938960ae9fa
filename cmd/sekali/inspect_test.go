package main_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

const event = `{"id":"%d","time":"2026-03-01T12:00:%02dZ","event":"%s","attempt":%s,"data":%s}`

// story is a job with its attempts and events.
type story struct {
	job      string
	attempts string
	events   []string // name attempt data
	executor string
	list     string
}

func (s story) double(t *testing.T) *double {
	t.Helper()
	var events []string
	for i, text := range s.events {
		name, rest, _ := strings.Cut(text, " ")
		attempt, data, _ := strings.Cut(rest, " ")
		if data == "" {
			data = "{}"
		}
		events = append(events, fmt.Sprintf(event, i, i, name, attempt, data))
	}
	answers := map[string][]answerOf{
		"GET /jobs/k":          {{200, s.job, nil}},
		"GET /jobs/k/attempts": {{200, `{"attempts":[` + s.attempts + `]}`, nil}},
		"GET /jobs/k/events":   {{200, `{"events":[` + strings.Join(events, ",") + `]}`, nil}},
	}
	if s.executor != "" {
		answers["GET /executors/pay"] = []answerOf{{200, s.executor, nil}}
	}
	if s.list != "" {
		answers["GET /jobs?business_key=42&limit=200&type=pay"] = []answerOf{{200, s.list, nil}}
	}
	return newDouble(t, answers)
}

const (
	jobOf   = `{"id":"0198","key":"k","type":"pay","status":"%s","attempts":2,"max_attempts":10,"business_key":"42","run_at":"2026-03-01T13:00:00Z","created_at":"2026-03-01T12:00:00Z","finished_at":"2026-03-01T12:01:00Z","worker_id":"w-2"%s}`
	attempt = `{"number":%d,"outcome":%s,"worker_id":"w-%d","started_at":"2026-03-01T12:00:01Z","finished_at":"2026-03-01T12:00:31Z","duration_ms":30000,"error":%s,"lease_expires_at":"2026-03-01T12:00:40Z"}`
	timeout = `{"code":"timeout","detail":"the attempt took too long","attempt":1}`
)

func TestInspect_Diagnosis(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		story story
		wants []string
		lacks []string
	}{
		{
			"a life with near misses",
			story{
				job:      fmt.Sprintf(jobOf, "succeeded", ""),
				attempts: fmt.Sprintf(attempt, 1, `"lost"`, 1, timeout) + "," + fmt.Sprintf(attempt, 2, `"succeeded"`, 2, "null"),
				events: []string{
					"accepted null", `replayed null {"count":1500000}`, `replayed null {"count":2}`, `mismatch_refused null {"count":1}`, `lock_refused 1`, `lock_refused 1`, "lock_lost 1",
					`heartbeat_lost 1`, `stale_completion_refused 1 {"worker_id":"w-1"}`, `operation_busy 1`, `reconciled 2 {"answer":"not_done"}`, "cancel_requested 2", "cancel_too_late 2",
				},
			},
			[]string{
				"The job succeeded at 2026-03-01T12:01:00Z, in attempt 2 of 10.", "Attempt 1 on w-1 was lost after 30s: timeout: the attempt took too long.",
				"again 1500002 times, until about 2026-03-01T12:00:02Z", "another request with this key once", "lock was held by somebody else 2 times, last at 2026-03-01T12:00:05Z",
				"lost its lock to somebody else once", "lease of its attempt was gone", "after its lease was gone once", "same operation once", "answered: not_done",
				"asked to cancel the running attempt", "but its work was done first", "count=1500000",
			},
			[]string{"What to do", "e+06"},
		},
		{
			"failed",
			story{job: fmt.Sprintf(jobOf, "failed", `,"error":`+timeout), attempts: fmt.Sprintf(attempt, 1, `"failed"`, 1, timeout)},
			[]string{"failed at 2026-03-01T12:01:00Z after 2 of 10 attempts", "Its last error: timeout", "Attempt 1 on w-1 failed after 30s: timeout", "sekali retry k brings it back"},
			[]string{"Nobody knows"},
		},
		{
			"failed in doubt",
			story{job: fmt.Sprintf(jobOf, "failed", `,"outcome":"outcome_unknown"`)},
			[]string{"Nobody knows whether its last attempt did its work", "by its id 0198", "sekali resolve k --status succeeded (or failed)"},
			[]string{"sekali retry"},
		},
		{
			"done by another",
			story{job: fmt.Sprintf(jobOf, "succeeded", `,"outcome":"duplicate_ignored","duplicate_of":"first","operation_key":"evt_1"`)},
			[]string{"the job first had done its operation evt_1 before"},
			[]string{"in attempt"},
		},
		{
			"operators",
			story{
				job:    fmt.Sprintf(jobOf, "cancelled", ""),
				events: []string{`retried 2 {"key":"op-1","generation":2}`, `resolved 2 {"status":"failed","key":"op-2"}`},
			},
			[]string{"cancelled at", "brought the job back (key op-1)", "resolved the job as failed (key op-2)"},
			nil,
		},
		{
			"it runs",
			story{job: fmt.Sprintf(jobOf, "processing", ""), attempts: fmt.Sprintf(attempt, 2, "null", 2, "null"), executor: payExecutor},
			[]string{"Attempt 2 of 10 is running on w-2", "holds its lease until 2026-03-01T12:00:40Z"},
			[]string{"paused", "same business key"},
		},
		{
			"behind another job",
			story{
				job: fmt.Sprintf(jobOf, "pending", ""), executor: payExecutor,
				list: `{"jobs":[` + strings.ReplaceAll(fmt.Sprintf(jobOf, "processing", ""), `"0198","key":"k"`, `"0197","key":"holder"`) + `,` + fmt.Sprintf(jobOf, "pending", "") + `,` +
					strings.ReplaceAll(fmt.Sprintf(jobOf, "succeeded", ""), `"0198","key":"k"`, `"0196","key":"ended"`) + `]}`,
			},
			[]string{"may start now", "The job holder (processing) has the same business key 42"},
			[]string{"The job ended", "The job k ("},
		},
		{
			"paused",
			story{job: fmt.Sprintf(jobOf, "scheduled", ""), executor: strings.ReplaceAll(payExecutor, `"paused_at":null`, `"paused_at":"2026-03-01T11:00:00Z"`)},
			[]string{"waits for its time, 2026-03-01T13:00:00Z", "paused since 2026-03-01T11:00:00Z; sekali resume pay"},
			nil,
		},
		{
			"no process",
			story{job: fmt.Sprintf(jobOf, "pending", ""), executor: `{"name":"pay","configured":true}`},
			[]string{"No process runs the type pay"},
			nil,
		},
		{
			"all slots",
			story{job: fmt.Sprintf(jobOf, "pending", ""), executor: strings.ReplaceAll(payExecutor, `"free":3`, `"free":0`)},
			[]string{"All 4 slots"},
			nil,
		},
		{
			"nothing known around it",
			story{job: fmt.Sprintf(jobOf, "retrying", `,"next_attempt_at":"2026-03-01T12:30:00Z"`)},
			[]string{"next attempt, at 2026-03-01T12:30:00Z; 2 of 10 attempts are used"},
			nil,
		},
		{
			"a word of a later version", story{job: fmt.Sprintf(jobOf, "sleeping", "")}, []string{"The job is sleeping."}, nil,
		},
		{
			"an alias",
			story{job: strings.ReplaceAll(fmt.Sprintf(jobOf, "succeeded", ""), `"key":"k"`, `"key":"holder"`)},
			[]string{"The key k is bound to the job holder"},
			nil,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			out, notes, code := run("inspect", "k", "--url", tt.story.double(t).URL)
			if code != 0 || notes != "" {
				t.Fatalf("%d %s", code, notes)
			}
			has(t, out, append(tt.wants, "TIME", "EVENT")...)
			for _, text := range tt.lacks {
				if strings.Contains(out, text) {
					t.Errorf("%q is in\n%s", text, out)
				}
			}
		})
	}
}

func TestInspect_JSON(t *testing.T) {
	t.Parallel()
	s := story{job: fmt.Sprintf(jobOf, "failed", `,"payload":{"n": 1.50}`), attempts: fmt.Sprintf(attempt, 1, `"failed"`, 1, timeout), events: []string{"accepted null"}}
	out, notes, code := run("inspect", "k", "--url", s.double(t).URL, "-o", "json")
	if code != 0 {
		t.Fatalf("%d %s", code, notes)
	}
	var doc struct {
		Job       struct{ Key string }
		Attempts  []struct{ Number int }
		Events    []struct{ Event string }
		Diagnosis []string
	}
	if err := json.Unmarshal([]byte(out), &doc); err != nil || doc.Job.Key != "k" || len(doc.Attempts) != 1 || doc.Events[0].Event != "accepted" || len(doc.Diagnosis) < 2 {
		t.Errorf("%v: %s", err, out)
	}
	has(t, out, `"n": 1.50`)
	d := once(t, "GET /jobs/k", 404, `{"code":"job-not-found","title":"There is no such job","detail":"No job has this key."}`)
	if _, notes, code := run("inspect", "k", "--url", d.URL); code != 3 || !strings.Contains(notes, "There is no such job") {
		t.Errorf("%d %s", code, notes)
	}
}
