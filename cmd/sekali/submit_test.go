package main_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	accepted  = `{"id":"0198","key":"k","type":"pay","status":"pending","attempts":0,"max_attempts":10}`
	succeeded = `{"id":"0198","key":"k","type":"pay","status":"succeeded","attempts":1,"max_attempts":10,"result":{"n": 1.50}}`
	noJSON    = `{"id":"0198","key":"k","type":"pay","status":"succeeded","attempts":1,"max_attempts":10,"result":null}`
	failed    = `{"id":"0198","key":"k","type":"pay","status":"failed","attempts":3,"max_attempts":3,"outcome":"outcome_unknown","error":{"code":"timeout","detail":"too long","attempt":3}}`
)

func TestSubmit_SendsThePayloadsBytesAndEachMember(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "payload.json")
	if err := os.WriteFile(file, []byte("{\"a\" : 1.0}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args []string
		in   string
		body string
	}{
		{nil, "", `{"type":"pay"}`},
		{[]string{"--data", `{"n": 1.50, "big": 9007199254740993}`}, "", `{"type":"pay","payload":{"n": 1.50, "big": 9007199254740993}}`},
		{[]string{"--data", "@" + file}, "", `{"type":"pay","payload":{"a" : 1.0}}`},
		{[]string{"--data", "-"}, " \"<ä>\" \n", `{"type":"pay","payload":"<ä>"}`},
		{[]string{"--data", "null"}, "", `{"type":"pay","payload":null}`},
		{
			[]string{"--business-key", "42", "--delay", "90s", "--expires-in", "2h", "--priority=-5", "--max-attempts", "3", "--timeout", "1m", "--data=1"},
			"",
			`{"type":"pay","business_key":"42","delay_seconds":90,"expires_in_seconds":7200,"priority":-5,"max_attempts":3,"timeout_seconds":60,"payload":1}`,
		},
		{[]string{"--run-at", "2026-03-01T12:00:00+07:00", "--priority", "0"}, "", `{"type":"pay","run_at":"2026-03-01T12:00:00+07:00","priority":0}`},
	} {
		d := once(t, "POST /jobs", 202, accepted)
		out, notes, code := runWith(tt.in, append([]string{"submit", "pay", "--key", `k "1"`, "--url", d.URL}, tt.args...)...)
		if code != 0 || notes != "" {
			t.Errorf("%q: %d %s", tt.args, code, notes)
			continue
		}
		has(t, out, "KEY", "pay", "pending")
		if r := d.asked[0]; len(d.asked) != 1 || r.body != tt.body || r.key != `"k \"1\""` || r.mediaType != "application/json" || r.prefer != "" {
			t.Errorf("%q: asked %+v", tt.args, d.asked)
		}
	}
}

func TestContract_Row77_SubmitWaitsAndPrintsTheResultAlone(t *testing.T) {
	t.Parallel()
	held := []string{"Preference-Applied", "wait=30", "Job-Status", "processing"}
	for _, tt := range []struct {
		name    string
		answers map[string][]answerOf
		args    []string
		code    int
		out     string
		notes   string
	}{
		{"at once", map[string][]answerOf{"POST /jobs": {{200, succeeded, held}}}, nil, 0, `{"n": 1.50}`, ""},
		{"later", map[string][]answerOf{"POST /jobs": {{202, accepted, held}}, "GET /jobs/k": {{200, accepted, held}, {200, succeeded, held}}}, nil, 0, `{"n": 1.50}`, ""},
		{"a gateway that holds no answers now", map[string][]answerOf{"POST /jobs": {{202, accepted, []string{"Retry-After", "1"}}}, "GET /jobs/k": {{200, succeeded, nil}}}, nil, 0, `{"n": 1.50}`, ""},
		{"no JSON", map[string][]answerOf{"POST /jobs": {{200, noJSON, held}}, "GET /jobs/k/result": {{200, "hello\n", nil}}}, nil, 0, "hello\n", ""},
		{"no result", map[string][]answerOf{"POST /jobs": {{200, noJSON, held}}, "GET /jobs/k/result": {{404, `{"code":"job-has-no-result","title":"t","detail":"d"}`, nil}}}, nil, 0, "", "left no result"},
		{"result gone", map[string][]answerOf{"POST /jobs": {{200, noJSON, held}}, "GET /jobs/k/result": {{410, `{"code":"result-expired","title":"The result is gone","detail":"d"}`, nil}}}, nil, 3, "", "The result is gone"},
		{"failed", map[string][]answerOf{"POST /jobs": {{200, failed, held}}}, nil, 1, "", "the job k failed after 3 of 3 attempts: timeout: too long; nobody knows"},
		{"cancelled", map[string][]answerOf{"POST /jobs": {{200, strings.ReplaceAll(accepted, "pending", "cancelled"), held}}}, nil, 1, "", "the job k was cancelled"},
		{"not in time", map[string][]answerOf{"POST /jobs": {{202, accepted, held}}, "GET /jobs/k": {{200, accepted, held}}}, []string{"--wait", "10ms"}, 5, "", "has not finished: it is processing"},
		{"a word of a later gateway", map[string][]answerOf{"POST /jobs": {{202, accepted, held}}, "GET /jobs/k": {{200, strings.ReplaceAll(accepted, "pending", "archived"), nil}}}, []string{"--wait", "1s"}, 5, "", "it is archived"},
		{"replayed", map[string][]answerOf{"POST /jobs": {{200, succeeded, append(held, "Idempotent-Replayed", "true", "Job-Status", "succeeded")}}}, nil, 0, `{"n": 1.50}`, "replayed: this was submitted before"},
		{
			"bound to another job",
			map[string][]answerOf{"POST /jobs": {{200, strings.ReplaceAll(succeeded, `"key":"k"`, `"key":"holder"`), append(held, "Idempotency-Status", "duplicate_ignored")}}},
			nil, 0, `{"n": 1.50}`, "duplicate_ignored: the job holder has this business key",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := newDouble(t, tt.answers)
			out, notes, code := run(append([]string{"submit", "pay", "--key", "k", "--wait", "30s", "--url", d.URL}, tt.args...)...)
			if code != tt.code || out != tt.out || tt.notes == "" && notes != "" || !strings.Contains(notes, tt.notes) {
				t.Errorf("exit code %d: %q, and %s", code, out, notes)
			}
			if asked := d.requests(); tt.args == nil && asked[0].prefer != "wait=30" {
				t.Errorf("asked %+v", asked)
			}
		})
	}
	d := once(t, "POST /jobs", 200, failed, held...)
	if out, notes, code := run("submit", "pay", "--key", "k", "--wait", "30s", "--url", d.URL, "-o", "json"); code != 1 || !strings.Contains(out, `"status": "failed"`) || notes == "" {
		t.Errorf("exit code %d: %s%s", code, out, notes)
	}
}

func TestResult(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		args   []string
		status int
		body   string
		code   int
		out    string
		notes  string
	}{
		{nil, 200, succeeded, 0, `{"n": 1.50}`, ""},
		{nil, 200, accepted, 5, "", "it is pending"},
		{nil, 200, failed, 1, "", "failed after 3 of 3 attempts"},
		{[]string{"--wait", "2m"}, 200, succeeded, 0, `{"n": 1.50}`, ""},
		{nil, 404, `{"code":"job-not-found","title":"There is no such job","detail":"d"}`, 3, "", "check the key"},
		{[]string{"--wait=-1s"}, 200, succeeded, 2, "", "--wait must not be negative"},
	} {
		d := once(t, "GET /jobs/a%2F-b", tt.status, tt.body)
		out, notes, code := run(append([]string{"result", "a/-b", "--url", d.URL}, tt.args...)...)
		if code != tt.code || out != tt.out || !strings.Contains(notes, tt.notes) {
			t.Errorf("%q: exit code %d: %q, and %s", tt.args, code, out, notes)
		}
	}
	d := once(t, "GET /jobs/-k", 200, accepted)
	_, notes, _ := run("result", "--url", d.URL, "--", "-k")
	has(t, notes, "sekali result --wait 60s -- -k")
}

func TestSubmit_WrongUseIsToldBeforeAnythingIsSent(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		args []string
		want string
	}{
		{nil, "missing TYPE, or --file"},
		{[]string{"pay"}, "missing --key"},
		{[]string{"pay", "--key", "k", "--data", "{"}, "--data is not one JSON value"},
		{[]string{"pay", "--key", "k", "--data", "1 2"}, "--data is not one JSON value"},
		{[]string{"pay", "--key", "k", "--data", "@/no/such/file"}, "/no/such/file"},
		{[]string{"pay", "--key", "k", "--delay", "1500ms"}, "whole seconds"},
		{[]string{"pay", "--key", "k", "--delay", "1s", "--run-at", "2026-03-01T12:00:00Z"}, "--delay"},
		{[]string{"pay", "--key", "k", "--wait", "soon"}, "--wait"},
		{[]string{"pay", "--key", "k", "--wait=-1s"}, "--wait must not be negative"},
		{[]string{"pay", "--key", "ä"}, "printable ASCII"},
		{[]string{"--file", "x", "--key", "k"}, "--file goes alone"},
		{[]string{"pay", "--file", "x"}, "of its own; type: sekali submit --file FILE|-  ("},
		{[]string{"--file", "x", "--priority", "0"}, "--file goes alone"},
		{[]string{"--file", "/no/such/file"}, "/no/such/file: no such file or directory; type: sekali submit --file FILE|-  ("},
	} {
		out, notes, code := run(append([]string{"submit", "--url", "http://127.0.0.1:1"}, tt.args...)...)
		if code != 2 || out != "" || strings.Count(notes, "\n") != 1 {
			t.Errorf("%q: exit code %d: %s%s", tt.args, code, out, notes)
		}
		has(t, notes, tt.want, "sekali submit")
	}
}
