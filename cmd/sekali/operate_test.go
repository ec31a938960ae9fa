package main_test

import (
	"fmt"
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
		{[]string{"resolve", "k", "--key", "op", "--status", "failed"}, "POST /jobs/k/resolve", 400, problem("validation-failed", `,"errors":[{"pointer":"/status","rule":"r","detail":"must be"}]`), []string{"/status must be", "correct what is named above"}, 1},
		{[]string{"retry", "k", "--key", "op"}, "POST /jobs/k/retry", 409, problem("business-key-conflict", `,"retryable":true,"job":"/jobs/other"`), []string{"/jobs/other", "same --key"}, 1},
		{[]string{"cancel", "k"}, "POST /jobs/k/cancel", 404, problem("job-not-found", `,"job":"/jobs/holder"`), []string{"/jobs/holder", "the key of that job instead"}, 1},
		{[]string{"cancel", "k"}, "POST /jobs/k/cancel", 404, problem("job-not-found", ""), []string{"check the key"}, 1},
		{[]string{"executors"}, "GET /executors", 401, problem("unauthenticated", ""), []string{"--token or SEKALI_TOKEN"}, 1},
		{[]string{"pause", "x"}, "POST /executors/x/pause", 404, problem("executor-not-found", ""), []string{"sekali executors lists"}, 1},
		{[]string{"cancel", "k"}, "POST /jobs/k/cancel", 503, problem("shutting-down", `,"retryable":true`), []string{"try again in a moment"}, 4},
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

// strangers are refusals without an advice of their own: those of workers, which no
// command meets, and those that say when to come again.
var strangers = map[string]bool{
	"lease-lost": true, "execution-not-found": true, "execution-already-finished": true,
	"rate-limited": true, "idempotency-key-in-use": true,
}

// No advice is a bare address, whatever the gateway refuses: each code that has a page
// is told in words, and what nobody knows is not told.
func TestClient_AdviceIsASentence(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob("../../docs/problems/*.md")
	if err != nil || len(pages) < 30 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		code, status := strings.TrimSuffix(filepath.Base(page), ".md"), 0
		if _, err := fmt.Sscanf(string(text), "# "+code+"\n\n**%d**", &status); err != nil {
			continue // no page of a problem
		}
		for _, about := range []string{"https://x/" + code, "about:blank", ""} {
			d := once(t, "POST /jobs/k/cancel", status, fmt.Sprintf(`{"type":%q,"title":"t","detail":"d","code":%q}`, about, code))
			_, notes, exit := run("cancel", "k", "--url", d.URL)
			_, advice, told := strings.Cut(notes, "What to do:")
			if exit != 3 || told && len(strings.Fields(advice)) < 3 || strings.Contains(notes, "about:blank") {
				t.Errorf("%s: exit code %d: %s", code, exit, notes)
			}
			if ours := !strangers[code] && status < 500; ours && (!told || strings.Contains(advice, "read what")) {
				t.Errorf("%s has no advice of its own: %s", code, notes)
			}
		}
	}
	for code, want := range map[string]string{
		"route-not-found":   "What to do: check the path in --url or SEKALI_URL",
		"request-too-large": "What to do: send less",
		"of-a-later-one":    "What to do: read what https://x/page says about it.",
	} {
		d := once(t, "POST /jobs/k/cancel", 422, fmt.Sprintf(`{"type":"https://x/page","title":"t","detail":"d","code":%q}`, code))
		_, notes, _ := run("cancel", "k", "--url", d.URL)
		has(t, notes, want)
	}
	d := once(t, "POST /jobs/k/cancel", 500, `{"title":"t","detail":"d","code":"internal","instance":"urn:uuid:1"}`)
	_, notes, _ := run("cancel", "k", "--url", d.URL)
	has(t, notes, "look into the gateway's log: it names the cause, under urn:uuid:1.")
}

func TestClient_TextsOfOthersDoNotSteerTheTerminal(t *testing.T) {
	t.Parallel()
	d := once(t, "POST /jobs/k/cancel", 422, `{"code":"x","title":"a\u001b[2Jb","detail":"c\rd","job":"\u0007"}`)
	_, notes, _ := run("cancel", "k", "--url", d.URL)
	if strings.ContainsAny(notes, "\x1b\r\x07") {
		t.Errorf("%q", notes)
	}
	d = once(t, "POST /jobs/k/cancel", 200, `{"id":"1","key":"k\u001b[2J","type":"t\n","status":"cancelled"}`)
	if out, _, _ := run("cancel", "k", "--url", d.URL); strings.ContainsRune(out, '\x1b') || strings.Count(out, "\n") != 2 {
		t.Errorf("%q", out)
	}
}

// Nor do they look like something else; letters of any script stay.
func TestClient_TextsOfOthersAreNotTurnedAround(t *testing.T) {
	t.Parallel()
	d := once(t, "POST /jobs/k/cancel", 200, `{"id":"1","key":"a\u202eb\u2066c\u200fd\u200be\u00a0f","type":"שלום é 漢","status":"cancelled"}`)
	out, _, code := run("cancel", "k", "--url", d.URL)
	if code != 0 {
		t.Errorf("exit code %d", code)
	}
	has(t, out, "a b c d e f", "שלום é 漢")
}

func TestClient_NoPasswordIsPrinted(t *testing.T) {
	t.Parallel()
	for _, body := range []string{"<html>", `{"key":`, `[]`} {
		d := once(t, "GET /jobs/k", 200, body)
		_, notes, code := run("status", "k", "--url", strings.Replace(d.URL, "//", "//user:secret@", 1))
		if code != 4 || strings.Contains(notes, "secret") {
			t.Errorf("exit code %d: %s", code, notes)
		}
		has(t, notes, "Is http://user:xxxxx@127.0.0.1")
	}
}

// Who looks on is told at once for how long to wait.
func TestClient_ALongPauseIsTold(t *testing.T) {
	t.Parallel()
	d := once(t, "POST /jobs/k/retry", 429, `{"code":"rate-limited","title":"t","detail":"d","retryable":true}`, "Retry-After", "3580")
	_, notes, code := run("retry", "k", "--key", "op", "--url", d.URL)
	if code != 3 || len(d.requests()) != 1 {
		t.Errorf("exit code %d after %d requests", code, len(d.asked))
	}
	has(t, notes, "try again after 59m40s")
}

func TestClient_RefusedTellsTheLimit(t *testing.T) {
	t.Parallel()
	d := once(t, "GET /jobs/k", 400, `{"code":"idempotency-key-invalid","title":"t","detail":"The key is too long.","limit":255}`)
	_, notes, _ := run("status", "k", "--url", d.URL)
	has(t, notes, "The key is too long. The limit is 255.")
}

func TestClient_Unreachable(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"cancel", "k"}, {"executors"}, {"inspect", "k"}, {"resolve", "k", "--status", "failed", "--key", "x"}} {
		t.Run(args[0], func(t *testing.T) {
			t.Parallel()
			out, notes, code := run(append(args, "--url", nowhere)...)
			if code != 4 || out != "" {
				t.Errorf("exit code %d: %s", code, out)
			}
			has(t, notes, "cannot be reached", nowhere, "SEKALI_URL")
		})
	}
	_, notes, code := run("submit", "pay", "--key", "k", "--url", nowhere)
	if code != 4 {
		t.Errorf("submit: exit code %d", code)
	}
	has(t, notes, "the same command makes no second one: give it again")
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
	for _, d := range []*double{once(t, "GET /jobs/k", 418, "I am a teapot"), once(t, "GET /jobs/k", 200, `{"key":`), once(t, "GET /jobs/k", 302, "", "Location", "http://elsewhere/")} {
		if out, notes, code := run("status", "k", "--url", d.URL); code != 4 || out != "" || !strings.Contains(notes, d.URL) {
			t.Errorf("exit code %d: %s%s", code, out, notes)
		}
	}
	for _, format := range []string{"table", "json"} {
		d := once(t, "GET /executors", http.StatusOK, "<html>")
		out, notes, code := run("executors", "--url", d.URL, "-o", format)
		if code != 4 || out != "" {
			t.Errorf("%s: exit code %d: %s", format, code, out)
		}
		has(t, notes, "not a Sekali gateway", "<html>", "--url or SEKALI_URL")
	}
}
