package main_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

// listOf is a page of jobs with these keys; next is its cursor.
func listOf(next string, status string, keys ...string) answerOf {
	var jobs []string
	for _, key := range keys {
		jobs = append(jobs, fmt.Sprintf(`{"id":"id-%s","key":%q,"type":"pay","status":%q,"attempts":3,"max_attempts":3,"business_key":"42","created_at":"2026-03-01T12:00:00Z","large":9007199254740993}`, key, key, status))
	}
	cursor := "null"
	if next != "" {
		cursor = `"` + next + `"`
	}
	return answerOf{200, `{"jobs":[` + strings.Join(jobs, ",") + `],"next_cursor":` + cursor + `}`, nil}
}

func keysFrom(first, n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("k%d", first+i)
	}
	return keys
}

func TestContract_Row111_ListWalksPages(t *testing.T) {
	t.Parallel()
	filters := []string{"--status", "failed", "--type", "pay", "--business-key", "a b", "--key-prefix", "k", "--created-after", "2026-03-01T07:00:00+07:00", "--created-before", "2026-03-02T00:00:00Z"}
	first := "GET /jobs?business_key=a+b&created_after=2026-03-01T00%3A00%3A00Z&created_before=2026-03-02T00%3A00%3A00Z&key_prefix=k&limit=200&status=failed&type=pay"
	d := newDouble(t, map[string][]answerOf{
		first: {listOf("c1", "failed", keysFrom(0, 200)...)},
		strings.ReplaceAll(first, "&key_prefix", "&cursor=c1&key_prefix"): {listOf("", "failed", "last")},
	})
	out, notes, code := run(append([]string{"list", "--all", "-o", "json", "--url", d.URL}, filters...)...)
	var document struct{ Jobs []struct{ Key string } }
	if err := json.Unmarshal([]byte(out), &document); err != nil || code != 0 || notes != "" || len(document.Jobs) != 201 || document.Jobs[200].Key != "last" {
		t.Errorf("exit code %d: %d jobs, %v, %s", code, len(document.Jobs), err, notes)
	}
	has(t, out, "9007199254740993")

	out, notes, code = run(append([]string{"list", "--limit", "201", "--url", d.URL}, filters...)...)
	if code != 3 { // the double has no page of one
		t.Errorf("exit code %d: %s%s", code, out, notes)
	}
	d = newDouble(t, map[string][]answerOf{"GET /jobs?limit=50": {listOf("c1", "failed", "a", "b")}, "GET /jobs?cursor=c1&limit=48": {listOf("", "failed")}})
	out, notes, code = run("list", "--url", d.URL)
	if code != 0 || notes != "" || strings.Count(out, "\n") != 3 {
		t.Errorf("exit code %d: %s%s", code, out, notes)
	}
	has(t, out, "KEY", "BUSINESS KEY", "CREATED", "2026-03-01T12:00:00Z", "failed")
	d = newDouble(t, map[string][]answerOf{"GET /jobs?limit=2": {listOf("c1", "failed", "a", "b")}})
	if out, notes, code = run("list", "--limit", "2", "--url", d.URL); code != 0 || strings.Count(out, "\n") != 3 || !strings.Contains(notes, "there are more jobs") {
		t.Errorf("exit code %d: %s%s", code, out, notes)
	}
}

func TestList_NoJobs(t *testing.T) {
	t.Parallel()
	d := newDouble(t, map[string][]answerOf{"GET /jobs?limit=50": {listOf("", "")}})
	if out, _, code := run("list", "--url", d.URL); code != 0 || strings.Count(out, "\n") != 1 {
		t.Errorf("%d %q", code, out)
	}
	if out, _, code := run("list", "--url", d.URL, "-o", "json"); code != 0 || strings.Join(strings.Fields(out), "") != `{"jobs":[]}` {
		t.Errorf("%d %q", code, out)
	}
}

func TestList_TimesMayBeSpans(t *testing.T) {
	t.Parallel()
	d := once(t, "", 200, "")
	run("list", "--created-after", "24h", "--url", d.URL)
	_, text, _ := strings.Cut(d.asked[0].line, "created_after=")
	text, _, _ = strings.Cut(strings.ReplaceAll(text, "%3A", ":"), "&")
	at, err := time.Parse(time.RFC3339, text)
	if ago := time.Since(at) - 24*time.Hour; err != nil || ago < 0 || ago > time.Minute {
		t.Errorf("asked %s", d.asked[0].line)
	}
	for _, wrong := range [][]string{{"--created-after", "yesterday"}, {"--limit", "0"}, {"--limit", "x"}} {
		if _, notes, code := run(append([]string{"list", "--url", d.URL}, wrong...)...); code != 2 || strings.Count(notes, "\n") != 1 {
			t.Errorf("%q: %d %s", wrong, code, notes)
		}
	}
}

func TestContract_Row89_StatusWatch(t *testing.T) {
	t.Parallel()
	held := func(version string) []string { return []string{"ETag", version, "Preference-Applied", "wait=60"} }
	answers := func(last string) map[string][]answerOf {
		return map[string][]answerOf{"GET /jobs/k": {
			{200, accepted, []string{"ETag", `"1"`}},
			{200, strings.ReplaceAll(accepted, "pending", "processing"), held(`"2"`)},
			{304, "", held(`"2"`)},
			{200, strings.ReplaceAll(pending, `"status":"pending"`, `"status":"retrying","next_attempt_at":"2026-03-01T13:00:00Z"`), held(`"3"`)},
			{200, last, held(`"4"`)},
		}}
	}
	d := newDouble(t, answers(succeeded))
	out, notes, code := run("status", "k", "--watch", "--url", d.URL)
	if code != 0 || notes != "" || strings.Count(out, "\n") != 4 {
		t.Errorf("exit code %d: %s%s", code, out, notes)
	}
	has(t, out, "pending     0 of 10 attempts", "processing", "retrying    4 of 8 attempts  next at 2026-03-01T13:00:00Z  timeout: d", "succeeded")
	var asked []string
	for _, r := range d.requests() {
		asked = append(asked, strings.TrimSpace(r.prefer+" "+r.match))
	}
	if got := strings.Join(asked, "|"); got != `|wait=60 "1"|wait=60 "2"|wait=60 "2"|wait=60 "3"` {
		t.Errorf("asked %s", got)
	}
	d = newDouble(t, answers(failed))
	out, notes, code = run("status", "k", "--watch", "--url", d.URL, "-o", "json")
	if code != 1 || strings.Count(out, "\n") != 4 {
		t.Errorf("exit code %d: %s", code, out)
	}
	has(t, notes, "the job k failed", "sekali inspect k")
	has(t, out, `"status":"failed"`)
	d = once(t, "GET /jobs/k", 200, failed)
	if out, _, code = run("status", "k", "--url", d.URL); code != 0 || !strings.Contains(out, "outcome_unknown") {
		t.Errorf("without --watch: exit code %d: %s", code, out)
	}
}
