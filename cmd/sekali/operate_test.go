package main_test

import (
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestCancel(t *testing.T) {
	t.Parallel()
	d := once(t, "POST /jobs/a%2Fb%20%C3%A4/cancel", 200, strings.ReplaceAll(pending, `"pending"`, `"cancelled"`))
	out, notes, code := run("cancel", "a/b ä", "--url", d.URL+"/", "--token", "sk_1")
	if code != 0 || notes != "" {
		t.Fatalf("%d %s", code, notes)
	}
	has(t, out, "KEY", "STATUS", "order-42", "cancelled", "4 of 8", "timeout")
	if r := d.asked[0]; r.key != "" || r.token != "Bearer sk_1" || r.body != "" || r.mediaType != "" {
		t.Errorf("asked %+v", r)
	}
	d = once(t, "POST /jobs/k/cancel", 202, strings.ReplaceAll(pending, `"pending"`, `"processing"`))
	out, notes, code = run("cancel", "k", "--url", d.URL, "-o", "json")
	if code != 0 {
		t.Errorf("%d %s", code, notes)
	}
	has(t, notes, "whoever runs it learns of this within a heartbeat")
	has(t, out, `"n": 1.50`, `"status": "processing"`)
}

func TestContract_Row75_RetrySendsOneKeyHoweverOftenItTries(t *testing.T) {
	t.Parallel()
	line := "POST /jobs/order-42/retry"
	d := newDouble(t, map[string][]answerOf{line: {
		{}, // the connection breaks
		{503, `{"code":"idempotency-outcome-unknown-retry","title":"t","detail":"d","retryable":true}`, []string{"Retry-After", "0"}},
		{409, `{"code":"idempotency-key-in-use","title":"t","detail":"d","retryable":true}`, []string{"Retry-After", "0"}},
		{202, pending, []string{"Idempotent-Replayed", "true", "Job-Status", "processing"}},
	}})
	out, notes, code := run("retry", "order-42", "--url", d.URL)
	if code != 0 {
		t.Fatalf("%d %s", code, notes)
	}
	has(t, out, "order-42", "pending")
	key := regexp.MustCompile(`--key (cli-[A-Z2-7]{26})\n`).FindStringSubmatch(notes)
	if key == nil {
		t.Fatalf("no key in %s", notes)
	}
	has(t, notes, "had been made before", "The job is processing by now")
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.asked) < 4 {
		t.Errorf("asked %d times", len(d.asked))
	}
	for _, r := range d.asked {
		if r.key != `"`+key[1]+`"` || r.body != "" || r.mediaType != "" {
			t.Errorf("asked %+v", r)
		}
	}
}

func TestRetry_TheKeyOfTheCallCanBeGiven(t *testing.T) {
	t.Parallel()
	d := once(t, "POST /jobs/k/retry", 202, pending)
	if _, notes, code := run("retry", "k", "--key", `a "b" \`, "--url", d.URL); code != 0 || notes != "" {
		t.Errorf("%d %s", code, notes)
	}
	if d.asked[0].key != `"a \"b\" \\"` {
		t.Errorf("asked %+v", d.asked[0])
	}
}

func TestContract_Row75a_Resolve(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "result.json")
	if err := os.WriteFile(file, []byte(" {\"n\": 1.50}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args []string
		in   string
		body string
	}{
		{[]string{"--status", "failed"}, "", `{"status":"failed"}`},
		{[]string{"--status", "succeeded"}, "", `{"status":"succeeded"}`},
		{[]string{"--status", "succeeded", "--result", `{"a": [1,2.0]}`}, "", `{"status":"succeeded","result":{"a": [1,2.0]}}`},
		{[]string{"--status", "succeeded", "--result", "@" + file}, "", `{"status":"succeeded","result":{"n": 1.50}}`},
		{[]string{"--status", "succeeded", "--result", "-"}, "\"text\"\n", `{"status":"succeeded","result":"text"}`},
	} {
		d := once(t, "POST /jobs/k/resolve", 200, pending)
		_, notes, code := runWith(tt.in, append([]string{"resolve", "k", "--key", "op", "--url", d.URL}, tt.args...)...)
		if code != 0 || len(d.asked) != 1 {
			t.Errorf("%q: %d %s", tt.args, code, notes)
			continue
		}
		if r := d.asked[0]; r.body != tt.body || r.key != `"op"` || r.mediaType != "application/json" {
			t.Errorf("%q: asked %+v", tt.args, r)
		}
	}
	for _, args := range [][]string{
		{},
		{"--status", "cancelled"},
		{"--status", "failed", "--result", "1"},
		{"--status", "succeeded", "--result", "{"},
		{"--status", "succeeded", "--result", "@/no/such/file"},
		{"--status", "succeeded", "--result", "-"},
	} {
		if _, notes, code := run(append([]string{"resolve", "k", "--url", "http://127.0.0.1:1"}, args...)...); code != 2 || notes == "" {
			t.Errorf("%q: %d %s", args, code, notes)
		}
	}
}

func TestClient_RefusedSaysWhatToDo(t *testing.T) {
	t.Parallel()
	problem := func(code string, more string) string {
		return `{"type":"https://x/` + code + `","title":"The title","detail":"The detail.","code":"` + code + `"` + more + `}`
	}
	for _, tt := range []struct {
		args   []string
		line   string
		status int
		body   string
		wants  []string
		calls  int
	}{
		{[]string{"retry", "k", "--key", "op"}, "POST /jobs/k/retry", 422, problem("job-not-retryable", `,"job":"/jobs/k"`), []string{"The title (422 job-not-retryable)", "The detail.", "/jobs/k", "sekali inspect"}, 1},
		{[]string{"cancel", "k"}, "POST /jobs/k/cancel", 422, problem("job-already-finished", `,"job":"/jobs/k","job_status":"succeeded"`), []string{"(succeeded)", "no more to cancel"}, 1},
		{[]string{"resolve", "k", "--key", "op", "--status", "failed"}, "POST /jobs/k/resolve", 400, problem("validation-failed", `,"errors":[{"pointer":"/status","rule":"r","detail":"must be"}]`), []string{"/status must be", "https://x/validation-failed"}, 1},
		{[]string{"retry", "k", "--key", "op"}, "POST /jobs/k/retry", 409, problem("business-key-conflict", `,"retryable":true,"job":"/jobs/other"`), []string{"/jobs/other", "same --key"}, 1},
		{[]string{"cancel", "k"}, "POST /jobs/k/cancel", 404, problem("job-not-found", `,"job":"/jobs/holder"`), []string{"/jobs/holder", "the key of that job instead"}, 1},
		{[]string{"cancel", "k"}, "POST /jobs/k/cancel", 404, problem("job-not-found", ""), []string{"check the key"}, 1},
		{[]string{"executors"}, "GET /executors", 401, problem("unauthenticated", ""), []string{"--token or SEKALI_TOKEN"}, 1},
		{[]string{"pause", "x"}, "POST /executors/x/pause", 404, problem("executor-not-found", ""), []string{"sekali executors lists"}, 1},
		{[]string{"cancel", "k"}, "POST /jobs/k/cancel", 503, problem("shutting-down", `,"retryable":true`), []string{"try again in a moment"}, 4},
		{[]string{"executors"}, "GET /executors", 418, "I am no gateway", []string{"418", "is the address right"}, 1},
		{[]string{"executors"}, "GET /executors", 403, problem("forbidden", `,"reason":"\u001b[2J"`), []string{"permission"}, 1},
	} {
		d := once(t, tt.line, tt.status, tt.body)
		out, notes, code := run(append(tt.args, "--url", d.URL)...)
		if code != 3 || out != "" || len(d.asked) != tt.calls {
			t.Errorf("%q: exit code %d after %d calls: %s", tt.args, code, len(d.asked), out)
		}
		has(t, notes, append(tt.wants, "What to do:")...)
	}
}

func TestClient_TextsOfOthersDoNotSteerTheTerminal(t *testing.T) {
	t.Parallel()
	d := once(t, "POST /jobs/k/cancel", 422, `{"code":"x","title":"a\u001b[2Jb","detail":"c\rd","job":"\u0007"}`)
	_, notes, _ := run("cancel", "k", "--url", d.URL)
	if strings.ContainsAny(notes, "\x1b\r\x07") {
		t.Errorf("%q", notes)
	}
	d = once(t, "POST /jobs/k/cancel", 200, `{"key":"k\u001b[2J","type":"t\n","status":"cancelled"}`)
	if out, _, _ := run("cancel", "k", "--url", d.URL); strings.ContainsRune(out, '\x1b') || strings.Count(out, "\n") != 2 {
		t.Errorf("%q", out)
	}
}

func TestClient_Unreachable(t *testing.T) {
	t.Parallel()
	d := once(t, "", 200, "")
	d.Close()
	for _, args := range [][]string{{"cancel", "k"}, {"executors"}, {"inspect", "k"}, {"resolve", "k", "--status", "failed", "--key", "x"}} {
		t.Run(args[0], func(t *testing.T) {
			t.Parallel()
			out, notes, code := run(append(args, "--url", d.URL)...)
			if code != 4 || out != "" {
				t.Errorf("exit code %d: %s", code, out)
			}
			has(t, notes, "cannot be reached", d.URL, "SEKALI_URL")
		})
	}
}

func TestClient_WrongUse(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"cancel"},
		{"retry"},
		{"cancel", "a", "b"},
		{"pause"},
		{"executors", "x"},
		{"inspect", "k", "-o", "xml"},
		{"cancel", "k", "--url", "127.0.0.1:8080"},
		{"cancel", "k", "--url", "http://"},
		{"cancel", "k", "--url", "http://a b"},
	} {
		if _, notes, code := run(args...); code != 2 || notes == "" {
			t.Errorf("%q: exit code %d: %s", args, code, notes)
		}
	}
}

func TestClient_AnAnswerThatIsNone(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"text", "json"} {
		d := once(t, "GET /executors", http.StatusOK, "<html>")
		if out, notes, code := run("executors", "--url", d.URL, "-o", format); code != 1 || out != "" || notes == "" {
			t.Errorf("%s: exit code %d: %s%s", format, code, out, notes)
		}
	}
}
