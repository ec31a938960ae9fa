package main_test

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	sekali "github.com/sekali/sekali/cmd/sekali"
)

// failedPages are two pages of failed jobs, and what becomes of a retry of each.
func failedPages(more map[string][]answerOf) map[string][]answerOf {
	page := "GET /jobs?limit=200&status=failed&type=pay"
	answers := map[string][]answerOf{
		page: {listOf("c1", "failed", "a", "b", "c/1")}, strings.ReplaceAll(page, "?", "?cursor=c1&"): {listOf("", "failed", "d", "e")},
		"POST /jobs/a/retry": {{202, pending, nil}}, "POST /jobs/b/retry": {{202, pending, []string{"Idempotent-Replayed", "true"}}},
		"POST /jobs/c%2F1/retry": {{422, `{"code":"job-not-retryable","title":"t","detail":"d"}`, nil}},
		"POST /jobs/d/retry":     {{404, `{"code":"job-not-found","title":"t","detail":"d"}`, nil}},
		"POST /jobs/e/retry":     {{202, pending, nil}},
	}
	for line, list := range more {
		answers[line] = list
	}
	return answers
}

func TestRetry_ManyByFilter(t *testing.T) {
	t.Parallel()
	d := newDouble(t, failedPages(nil))
	out, notes, code := run("retry", "--type", "pay", "--key", "run 1", "--url", d.URL)
	if code != 0 || out != "" {
		t.Errorf("exit code %d: %s", code, out)
	}
	has(t, notes, "2 brought back, 1 brought back before by this run, 2 changed meanwhile, 0 refused")
	var keys []string
	for _, r := range d.requests() {
		if strings.HasPrefix(r.line, "POST") {
			keys = append(keys, r.key)
		}
	}
	slices.Sort(keys)
	if fmt.Sprint(keys) != `["run 1:id-a" "run 1:id-b" "run 1:id-c/1" "run 1:id-d" "run 1:id-e"]` {
		t.Errorf("keys %v", keys)
	}
}

func TestRetry_ManyTellsItsKeyAndHowToGoOn(t *testing.T) {
	t.Parallel()
	d := newDouble(t, failedPages(map[string][]answerOf{"POST /jobs/e/retry": {{409, `{"code":"business-key-conflict","title":"t","detail":"The detail.","retryable":true}`, nil}}}))
	out, notes, code := run("retry", "--status", "failed", "--type", "pay", "--url", d.URL, "-o", "json")
	if code != 3 {
		t.Errorf("exit code %d", code)
	}
	told := regexp.MustCompile(`The key of this run is (cli-[A-Z2-7]{26})\. To go on: sekali retry --status=failed --type=pay --key=(cli-[A-Z2-7]{26}) --url=http://127\.0\.0\.1:\d+\n`).FindStringSubmatch(notes)
	if told == nil || told[1] != told[2] {
		t.Errorf("no key in %s", notes)
	}
	_, limited, _ := run("retry", "--type", "pay", "--limit", "1", "--url", newDouble(t, failedPages(nil)).URL)
	has(t, limited, "sekali retry --status=failed --type=pay --limit=1 --key=cli-")
	has(t, notes, "key e: business-key-conflict: The detail.", "1 refused", "1 call was refused")
	statuses := map[string]int{}
	for text := range strings.Lines(out) {
		var result struct {
			Key    string
			Status int
		}
		if err := json.Unmarshal([]byte(text), &result); err != nil {
			t.Fatal(err)
		}
		statuses[result.Key] = result.Status
	}
	if fmt.Sprint(statuses) != fmt.Sprint(map[string]int{"a": 202, "b": 202, "c/1": 422, "d": 404, "e": 409}) {
		t.Errorf("told %v", statuses)
	}
}

func TestRetry_ManyEndsWhereAllWouldBeRefused(t *testing.T) {
	t.Parallel()
	forbidden := []answerOf{{403, `{"code":"forbidden","title":"t","detail":"d"}`, nil}}
	d := newDouble(t, failedPages(map[string][]answerOf{"POST /jobs/a/retry": forbidden, "POST /jobs/b/retry": forbidden, "POST /jobs/c%2F1/retry": forbidden, "POST /jobs/d/retry": forbidden, "POST /jobs/e/retry": forbidden}))
	_, notes, code := run("retry", "--type", "pay", "--key=-r", "--url", d.URL)
	if code != 3 {
		t.Errorf("exit code %d", code)
	}
	has(t, notes, "forbidden", "To go on: sekali retry --status=failed --type=pay --key=-r")
}

// A long pause is kept, and told once, whoever asks for it.
func TestBulk_WaitsAsLongAsTheGatewaySays(t *testing.T) {
	t.Parallel()
	full := answerOf{429, `{"code":"rate-limited","title":"t","detail":"d","retryable":true}`, []string{"Retry-After", "6"}}
	answers := failedPages(nil)
	for _, line := range []string{"POST /jobs/a/retry", "POST /jobs/b/retry", "POST /jobs/d/retry"} {
		answers[line] = append([]answerOf{full}, answers[line]...)
	}
	d := newDouble(t, answers)
	_, notes, code := run("retry", "--type", "pay", "--key", "r", "--url", d.URL)
	if code != 0 || len(d.asked) != 10 {
		t.Errorf("exit code %d, asked %+v", code, d.asked)
	}
	has(t, notes, "2 brought back, 1 brought back before by this run, 2 changed meanwhile, 0 refused")
}

func TestBulk_APauseIsToldAndEndsWithTheCommand(t *testing.T) {
	t.Parallel()
	full := answerOf{429, `{"code":"rate-limited","title":"t","detail":"d","retryable":true}`, []string{"Retry-After", "3580"}}
	d := newDouble(t, failedPages(map[string][]answerOf{"POST /jobs/a/retry": {full}, "POST /jobs/b/retry": {full}}))
	ctx, cancel := context.WithCancel(t.Context())
	notes := &watched{text: "the gateway asks to wait 59m40s", seen: cancel}
	if err := sekali.RetryMany(ctx, notes, d.URL, "pay"); err == nil || !strings.Contains(err.Error(), "interrupted\n  To go on: sekali retry") {
		t.Errorf("%v: %s", err, notes.String())
	}
	if n := strings.Count(notes.String(), notes.text); n != 1 {
		t.Errorf("told %d times in %s", n, notes.String())
	}
}

// watched calls seen when a text was written.
type watched struct {
	strings.Builder
	text string
	seen func()
}

func (w *watched) Write(p []byte) (int, error) {
	n, err := w.Builder.Write(p)
	if strings.Contains(w.String(), w.text) {
		w.seen()
	}
	return n, err
}

func TestBulk_ResultsThatCannotBePrinted(t *testing.T) {
	t.Parallel()
	var notes strings.Builder
	code := sekali.Run(strings.NewReader(""), full{}, &notes, "retry", "--type", "pay", "-o", "json", "--url", newDouble(t, failedPages(nil)).URL)
	if code != 1 {
		t.Errorf("exit code %d", code)
	}
	has(t, notes.String(), "no space left", "To go on: sekali retry")
}

// full is a disk that is.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

func TestBulk_DryRunChangesNothing(t *testing.T) {
	t.Parallel()
	d := newDouble(t, failedPages(nil))
	out, notes, code := run("retry", "--type", "pay", "--dry-run", "--url", d.URL)
	if code != 0 || len(d.asked) != 2 {
		t.Errorf("exit code %d, asked %+v", code, d.asked)
	}
	has(t, out, "c/1", "failed")
	has(t, notes, "5 jobs; nothing was changed")
	out, _, code = run("retry", "--type", "pay", "--limit", "4", "--dry-run", "--url", newDouble(t, failedPages(nil)).URL, "-o", "json")
	var document struct{ Jobs []struct{ Key string } }
	if err := json.Unmarshal([]byte(out), &document); err != nil || code != 0 || len(document.Jobs) != 4 || document.Jobs[3].Key != "d" {
		t.Errorf("%d %v %s", code, err, out)
	}
}

func TestCancel_ManyLeavesFinishedJobsOut(t *testing.T) {
	t.Parallel()
	page := listOf("", "pending", "a", "b", "c")
	page.body = strings.Replace(page.body, "pending", "succeeded", 1) // of a
	d := newDouble(t, map[string][]answerOf{
		"GET /jobs?key_prefix=x&limit=200": {page},
		"POST /jobs/b/cancel":              {{200, pending, nil}},
		"POST /jobs/c/cancel":              {{422, `{"code":"job-already-finished","title":"t","detail":"d"}`, nil}},
	})
	_, notes, code := run("cancel", "--key-prefix", "x", "--url", d.URL)
	if code != 0 || len(d.asked) != 3 {
		t.Errorf("exit code %d, asked %+v", code, d.asked)
	}
	has(t, notes, "1 cancelled or asked to stop, 1 finished meanwhile, 0 refused")
}

// Who goes on means the same gateway, and no more jobs than were wanted at first.
func TestBulk_GoesOnWithTheRestThere(t *testing.T) {
	t.Parallel()
	d := newDouble(t, failedPages(map[string][]answerOf{"POST /jobs/d/retry": {{403, `{"code":"forbidden","title":"t","detail":"d"}`, nil}}}))
	var others sync.WaitGroup // whose calls are on their way, and so are counted
	others.Add(3)
	d.before = func(line string) {
		switch line {
		case "POST /jobs/a/retry", "POST /jobs/b/retry", "POST /jobs/c%2F1/retry":
			others.Done()
		case "POST /jobs/d/retry":
			others.Wait()
		}
	}
	address := strings.Replace(d.URL, "http://", "http://me:secret@", 1)
	_, notes, code := run("retry", "--type", "pay", "--key", "r", "--limit", "4", "--url", address, "--token", "hidden")
	if code != 3 {
		t.Errorf("exit code %d", code)
	}
	has(t, notes, "stopped. To go on: sekali retry --status=failed --type=pay --limit=1 --key=r --url=http://me:xxxxx@127.0.0.1:")
	if strings.Contains(notes, "secret") || strings.Contains(notes, "hidden") {
		t.Errorf("a secret in %s", notes)
	}
	_, notes, _ = run("cancel", "--type", "no such", "--limit", "7", "--url", d.URL)
	has(t, notes, "stopped. To go on: sekali cancel --type='no such' --limit=7 --url="+d.URL)
}

func TestBulk_WrongUse(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"cancel"},
		{"retry"},
		{"retry", "--key", "r"},
		{"retry", "--dry-run"},
		{"cancel", "k", "--type", "pay"},
		{"cancel", "k", "--dry-run"},
		{"retry", "k", "--limit", "1"},
		{"retry", "--type", "pay", "--limit=-1"},
		{"cancel", "--type", "pay", "--limit", "0"},
		{"retry", "--type", "pay", "--status", "pending"},
		{"retry", "--type", "pay", "--status", "broken"},
		{"cancel", "--type", "pay", "--status", "failed"},
		{"cancel", "--type", "pay", "--status", "canceled"},
		{"retry", "--type", "pay", "--key", strings.Repeat("k", 201)},
	} {
		if _, notes, code := run(append(args, "--url", "http://127.0.0.1:1")...); code != 2 || strings.Count(notes, "\n") != 1 {
			t.Errorf("%q: exit code %d: %s", args, code, notes)
		}
	}
}
