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
	jobText = `{"id":"0198","key":"k","type":"pay","status":"%s","attempts":2,"max_attempts":10,"business_key":"42","run_at":"2026-03-01T13:00:00Z","created_at":"2026-03-01T12:00:00Z"%s,"worker_id":"w-2"%s}`
	attempt = `{"number":%d,"outcome":%s,"worker_id":"w-%d","started_at":"2026-03-01T12:00:01Z","finished_at":"2026-03-01T12:00:31Z","duration_ms":30000,"error":%s,"lease_expires_at":"2026-03-01T12:00:40Z"}`
	timeout = `{"code":"timeout","detail":"the attempt took too long","attempt":1}`
)

// jobOf is a job with a status, and with more members.
func jobOf(status, more string) string {
	finished := ""
	if status == "succeeded" || status == "failed" || status == "cancelled" {
		finished = `,"finished_at":"2026-03-01T12:01:00Z"`
	}
	return fmt.Sprintf(jobText, status, finished, more)
}

// failedFrom is a failed attempt between two times of one day.
func failedFrom(number int, from, to string) string {
	return fmt.Sprintf(`{"number":%d,"outcome":"failed","worker_id":"w","started_at":"2026-03-01T%sZ","finished_at":"2026-03-01T%sZ","duration_ms":1,"error":%s}`, number, from, to, timeout)
}

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
				job:      jobOf("succeeded", ""),
				attempts: fmt.Sprintf(attempt, 1, `"lost"`, 1, timeout) + "," + fmt.Sprintf(attempt, 2, `"succeeded"`, 2, "null"),
				events: []string{
					"accepted null", `replayed null {"count":1500000}`, `replayed null {"count":2,"last_sender":"shop/1.2"}`, `mismatch_refused null {"count":1}`, `lock_refused 1`, `lock_refused 1`, "lock_lost 1",
					`heartbeat_lost 1`, `stale_completion_refused 1 {"worker_id":"w-1"}`, `operation_busy 1`, `reconciled 2 {"answer":"not_done"}`, "cancel_requested 2", "cancel_too_late 2",
				},
			},
			[]string{
				"The job succeeded at 2026-03-01T12:01:00Z, in attempt 2 of 10.", "Attempt 1 on w-1 was lost after 30s: timeout: the attempt took too long.", "Nobody knows what it did, unless its type knows no such doubt: sql,",
				"again 1500002 times, until about 2026-03-01T12:00:02Z, the last one from shop/1.2, and got", "another request with this key once", "lock was held by somebody else 2 times, last at 2026-03-01T12:00:05Z",
				"lost its lock to somebody else once", "The lease ended before the attempt did once", "after its lease was gone once", "same operation once", "answered: not_done",
				"asked to cancel the running attempt", "but its work was done first", "count=1500000",
			},
			[]string{"What to do", "e+06"},
		},
		{
			"failed",
			story{job: jobOf("failed", `,"error":`+timeout), attempts: fmt.Sprintf(attempt, 1, `"failed"`, 1, timeout)},
			[]string{"failed at 2026-03-01T12:01:00Z after 2 of 10 attempts", "Its last error: timeout", "Attempt 1 on w-1 failed after 30s: timeout", "sekali retry k brings it back"},
			[]string{"Nobody knows"},
		},
		{
			"failed in doubt",
			story{job: jobOf("failed", `,"outcome":"outcome_unknown"`)},
			[]string{"Nobody knows whether its last attempt did its work", "by its id 0198", "sekali resolve --status succeeded k (or --status failed)"},
			[]string{"sekali retry"},
		},
		{
			"done by another",
			story{job: jobOf("succeeded", `,"outcome":"duplicate_ignored","duplicate_of":"first","operation_key":"evt_1"`)},
			[]string{"the job first had done its operation evt_1 before", "refused a second effect was the operation key evt_1"},
			[]string{"in attempt"},
		},
		{
			"operators",
			story{
				job:    jobOf("cancelled", ""),
				events: []string{`retried 2 {"key":"op-1","generation":2}`, `resolved 2 {"status":"failed","key":"op-2"}`},
			},
			[]string{"cancelled at", "brought the job back (key op-1)", "resolved the job as failed (key op-2)"},
			nil,
		},
		{
			"it runs",
			story{job: jobOf("processing", ""), attempts: fmt.Sprintf(attempt, 2, "null", 2, "null"), executor: payExecutor},
			[]string{"Attempt 2 of 10 is running on w-2", "holds its lease until 2026-03-01T12:00:40Z"},
			[]string{"paused", "same business key"},
		},
		{
			"behind another job",
			story{
				job: jobOf("pending", ""), executor: payExecutor,
				list: `{"jobs":[` + strings.ReplaceAll(jobOf("processing", ""), `"0198","key":"k"`, `"0197","key":"holder"`) + `,` + jobOf("pending", "") + `,` +
					strings.ReplaceAll(jobOf("succeeded", ""), `"0198","key":"k"`, `"0196","key":"ended"`) + `,` +
					strings.ReplaceAll(jobOf("pending", ""), `"0198","key":"k"`, `"0199","key":"behind"`) + `]}`,
			},
			[]string{"The job waits for the job holder (processing), which has the same business key 42"},
			[]string{"may start now", "job ended", "job k (", "job behind"},
		},
		{
			"paused",
			story{job: jobOf("scheduled", ""), executor: strings.ReplaceAll(payExecutor, `"paused_at":null`, `"paused_at":"2026-03-01T11:00:00Z"`)},
			[]string{"waits for its time, 2026-03-01T13:00:00Z", "paused since 2026-03-01T11:00:00Z; sekali resume pay"},
			nil,
		},
		{
			"no process",
			story{job: jobOf("pending", ""), executor: `{"name":"pay","configured":true}`},
			[]string{"waits for a process that runs the type pay, and there is none"},
			[]string{"may start now"},
		},
		{
			"no worker",
			story{job: jobOf("pending", ""), executor: `{"name":"pay","executor":"remote","configured":true,"busy":2}`},
			[]string{"waits for a worker to claim it", "2 jobs of the type run"},
			[]string{"may start now", "waits for a process"},
		},
		{
			"at its limit",
			story{job: jobOf("pending", ""), executor: strings.ReplaceAll(payExecutor, `"waits_for":null`, `"waits_for":"concurrency"`)},
			[]string{"waits for the limit of the type pay: 5 at once"},
			[]string{"may start now"},
		},
		{
			"at its rate",
			story{job: jobOf("pending", ""), executor: strings.ReplaceAll(payExecutor, `"waits_for":null`, `"waits_for":"rate"`)},
			[]string{"waits for the limit of the type pay: 20/s"},
			[]string{"may start now"},
		},
		{
			"all slots",
			story{job: jobOf("pending", ""), executor: strings.ReplaceAll(payExecutor, `"free":3`, `"free":0`)},
			[]string{"waits for a slot: all 4"},
			[]string{"may start now"},
		},
		{
			"a key like a flag",
			story{job: strings.ReplaceAll(jobOf("failed", ""), `"key":"k"`, `"key":"-it's"`), attempts: fmt.Sprintf(attempt, 1, `"failed"`, 1, timeout)},
			[]string{`sekali retry -- '-it'\''s' brings it back`},
			nil,
		},
		{
			"too fast",
			story{
				job:      strings.ReplaceAll(jobOf("failed", ""), `"attempts":2,"max_attempts":10`, `"attempts":3,"max_attempts":3`),
				attempts: failedFrom(1, "12:00:00", "12:00:40") + "," + failedFrom(2, "12:00:41", "12:01:30") + "," + failedFrom(3, "12:01:32.5", "12:01:33"),
			},
			[]string{"Retries come too fast: there were only 3.5s between 3 failed attempts, and 3 of 3 are used", "Looked for and not found: a duplicate", "ended before its attempt; a unique constraint"},
			nil,
		},
		{
			"slow enough",
			story{
				job:      strings.ReplaceAll(jobOf("failed", ""), `"attempts":2,"max_attempts":10`, `"attempts":3,"max_attempts":3`),
				attempts: failedFrom(1, "12:00:00", "12:00:01") + "," + failedFrom(2, "12:00:41", "12:00:42") + "," + failedFrom(3, "12:01:32", "12:01:33"),
			},
			[]string{"not found: a duplicate of the request", "; retries that came too fast"},
			[]string{"Retries come too fast"},
		},
		{
			"a unique violation",
			story{job: jobOf("failed", `,"error":{"code":"unique-violation","detail":"another row holds the same unique value","attempt":1}`)},
			[]string{"A unique constraint of your database refused the row", "job_types.pay.sql.existing"},
			[]string{"; a unique constraint"},
		},
		{
			"its row was there",
			story{job: jobOf("succeeded", `,"outcome":"duplicate_ignored"`)},
			[]string{"was there already", "refused a second effect was a unique constraint"},
			[]string{"; a unique constraint"},
		},
		{
			"nothing known around it",
			story{job: jobOf("retrying", `,"next_attempt_at":"2026-03-01T12:30:00Z"`)},
			[]string{"next attempt, at 2026-03-01T12:30:00Z; 2 of 10 attempts are used"},
			nil,
		},
		{
			"a word of a later version", story{job: jobOf("sleeping", "")}, []string{"The job is sleeping."}, nil,
		},
		{
			"a later version's word for an end",
			story{job: strings.ReplaceAll(jobOf("succeeded", ""), `"succeeded"`, `"archived"`), executor: strings.ReplaceAll(payExecutor, `"paused_at":null`, `"paused_at":"2026-03-01T11:00:00Z"`)},
			[]string{"The job is archived."},
			nil,
		},
		{
			"an alias",
			story{job: strings.ReplaceAll(jobOf("succeeded", ""), `"key":"k"`, `"key":"holder"`)},
			[]string{"The key k is bound to the job holder", "refused a second job was the business key 42"},
			nil,
		},
		{
			"the key of an operator's call",
			story{job: strings.ReplaceAll(jobOf("succeeded", ""), `"key":"k"`, `"key":"holder"`), events: []string{`retried 2 {"key":"k"}`}},
			[]string{"The key k is bound to the job holder"},
			[]string{"refused a second job"},
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
	s := story{job: jobOf("failed", `,"payload":{"n": 1.50}`), attempts: fmt.Sprintf(attempt, 1, `"failed"`, 1, timeout), events: []string{"accepted null"}}
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
