package main_test

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	sekali "github.com/sekali/sekali/cmd/sekali"
)

const batchLine = "POST /jobs/batch"

// results is the answer to a batch: one result for each of the texts, which are
// "accepted", "replayed" or "status code [retryable]".
func results(keysAndTexts ...string) answerOf {
	var list []string
	for i := 0; i < len(keysAndTexts); i += 2 {
		key, text := keysAndTexts[i], keysAndTexts[i+1]
		switch text {
		case "accepted", "replayed":
			list = append(list, fmt.Sprintf(`{"key":"%s","status":202,"replayed":%t,"job_status":"pending","job":{"key":"%s"}}`, key, text == "replayed", key))
		case "bound":
			list = append(list, fmt.Sprintf(`{"key":"%s","status":200,"replayed":false,"job":{"key":"holder"}}`, key))
		default:
			var status int
			var code string
			_, _ = fmt.Sscanf(text, "%d %s", &status, &code)
			list = append(list, fmt.Sprintf(`{"key":"%s","status":%d,"replayed":false,"problem":{"code":%q,"status":%d,"detail":"The detail.","retryable":%t,"errors":[{"pointer":"/type","rule":"r","detail":"must be so"}]}}`,
				key, status, code, status, strings.HasSuffix(text, "retryable")))
		}
	}
	return answerOf{207, `{"results":[` + strings.Join(list, ",") + "]}\n", nil}
}

func item(key string) string { return `{"key":"` + key + `","type":"echo","payload":{"n": 1.50}}` }

func submitFile(t *testing.T, in string, d *double, args ...string) (out, notes string, code int) {
	t.Helper()
	return runWith(in, append([]string{"submit", "--file", "-", "--url", d.URL}, args...)...)
}

func TestContract_Row81_SubmitFile(t *testing.T) {
	t.Parallel()
	d := newDouble(t, map[string][]answerOf{batchLine: {results("a", "accepted", "b", "replayed", "c", "bound")}})
	out, notes, code := submitFile(t, "\ufeff"+item("a")+"\r\n\n  "+item("b")+"\n"+item("c"), d)
	if code != 0 || out != "" {
		t.Errorf("exit code %d: %s", code, out)
	}
	has(t, notes, "2 accepted, 1 replayed, 0 refused (1 of the accepted stand for another job")
	if r := d.asked[0]; len(d.asked) != 1 || r.body != item("a")+"\n"+item("b")+"\n"+item("c")+"\n" || r.mediaType != "application/x-ndjson" || r.key != "" {
		t.Errorf("asked %+v", d.asked)
	}
	if _, notes, code := submitFile(t, "", d); code != 0 || !strings.Contains(notes, "0 accepted") || len(d.asked) != 1 {
		t.Errorf("nothing to do: exit code %d: %s", code, notes)
	}
}

// Lines that are wrong keep no others from being submitted, and are told with
// their numbers.
func TestSubmitFile_WrongLines(t *testing.T) {
	t.Parallel()
	d := newDouble(t, map[string][]answerOf{batchLine: {results("a", "accepted", `b\u001b`, "400 unknown-job-type", "c", "422 idempotency-key-reused")}})
	in := strings.Join([]string{item("a"), `{"type":"echo"}`, "nonsense", item(`b\u001b`), `{"key":""}`, `{"key":null}`, "[1]", item("c"), item("d")[:20]}, "\n")
	out, notes, code := submitFile(t, in, d, "-o", "json")
	if code != 3 {
		t.Errorf("exit code %d", code)
	}
	has(t, notes, "line 2: the line has no key", "line 3: the line is not one JSON value", "line 4: key b : unknown-job-type: The detail. /type must be so.", "line 5: the line has no key", "line 6: the line has no key",
		"line 7: the line is not a JSON object", "line 8: key c: idempotency-key-reused", "line 9: the line is not one JSON value", "1 accepted, 0 replayed, 8 refused", "8 lines were refused")
	if strings.ContainsRune(notes, '\x1b') {
		t.Errorf("%q steers the terminal", notes)
	}
	told := map[int]int{}
	for text := range strings.Lines(out) {
		var result struct{ Line, Status int }
		if err := json.Unmarshal([]byte(text), &result); err != nil {
			t.Fatalf("%v in %s", err, text)
		}
		told[result.Line] = result.Status
	}
	if want := map[int]int{1: 202, 2: 400, 3: 400, 4: 400, 5: 400, 6: 400, 7: 400, 8: 422, 9: 400}; fmt.Sprint(told) != fmt.Sprint(want) {
		t.Errorf("told %v, want %v", told, want)
	}
}

// What is busy or full is sent again, and nothing else.
func TestSubmitFile_PutOff(t *testing.T) {
	t.Parallel()
	d := newDouble(t, map[string][]answerOf{batchLine: {
		results("a", "accepted", "b", "429 rate-limited retryable", "c", "409 idempotency-key-in-use retryable", "d", "500 internal", "e", "503 queue-full retryable"),
		results("b", "accepted", "c", "409 idempotency-key-in-use retryable", "e", "replayed"),
		results("c", "accepted"),
	}})
	_, notes, code := submitFile(t, item("a")+"\n"+item("b")+"\n"+item("c")+"\n"+item("d")+"\n"+item("e"), d)
	if code != 3 || len(d.asked) != 3 || d.asked[1].body != item("b")+"\n"+item("c")+"\n"+item("e")+"\n" || d.asked[2].body != item("c")+"\n" {
		t.Errorf("exit code %d, asked %+v", code, d.asked)
	}
	has(t, notes, "line 4: key d: internal", "3 accepted, 1 replayed, 1 refused")

	busy := newDouble(t, map[string][]answerOf{batchLine: {results("a", "409 business-key-conflict retryable")}})
	if _, notes, code := submitFile(t, item("a"), busy); code != 3 || len(busy.asked) != 6 || !strings.Contains(notes, "business-key-conflict") {
		t.Errorf("exit code %d after %d tries: %s", code, len(busy.asked), notes)
	}
}

// The pauses between tries are bounded, but not what the gateway asks for.
func TestSubmitFile_WaitsAsLongAsTheGatewaySays(t *testing.T) {
	t.Parallel()
	later := results("a", "429 rate-limited retryable")
	later.body = strings.Replace(later.body, `"retryable":true`, `"retryable":true,"retry_after_ms":5400`, 1)
	d := newDouble(t, map[string][]answerOf{batchLine: {later, results("a", "accepted")}})
	began := time.Now()
	_, notes, code := submitFile(t, item("a"), d)
	if spent := time.Since(began); code != 0 || spent < 5400*time.Millisecond {
		t.Errorf("exit code %d after %s", code, spent)
	}
	has(t, notes, "the gateway asks to wait 5.4s: waiting", "1 accepted, 0 replayed, 0 refused")
}

func TestSubmitFile_ResultsThatCannotBePrinted(t *testing.T) {
	t.Parallel()
	for _, in := range []string{item("a"), "nonsense"} {
		d := newDouble(t, map[string][]answerOf{batchLine: {results("a", "accepted")}})
		var notes strings.Builder
		if code := sekali.Run(strings.NewReader(in), full{}, &notes, "submit", "--file", "-", "-o", "json", "--url", d.URL); code != 1 {
			t.Errorf("exit code %d", code)
		}
		has(t, notes.String(), "no space left", "Give the same command again")
	}
}

func TestSubmitFile_ABatchThatIsTooLargeIsHalved(t *testing.T) {
	t.Parallel()
	tooLarge := answerOf{413, `{"code":"request-too-large","title":"t","detail":"The detail."}`, nil}
	d := newDouble(t, map[string][]answerOf{batchLine: {tooLarge, tooLarge, results("b", "accepted", "c", "accepted")}})
	_, notes, code := submitFile(t, item("a")+"\n"+item("b")+"\n"+item("c"), d)
	if code != 3 || len(d.asked) != 3 || d.asked[1].body != item("a")+"\n" || d.asked[2].body != item("b")+"\n"+item("c")+"\n" {
		t.Errorf("exit code %d, asked %+v", code, d.asked)
	}
	has(t, notes, "line 1: key a: request-too-large", "2 accepted, 0 replayed, 1 refused")
}

// What concerns all lines ends the command, and says how to go on.
func TestSubmitFile_EndsEarly(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		answer answerOf
		code   int
		want   string
	}{
		{"no permission", answerOf{403, `{"code":"forbidden","title":"t","detail":"d"}`, nil}, 3, "forbidden"},
		{"no gateway", answerOf{200, "<html>", nil}, 4, "not a Sekali gateway"},
		{"results of others", results("a", "accepted", "b", "accepted"), 4, "2 results for 1 line"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := newDouble(t, map[string][]answerOf{batchLine: {tt.answer}})
			out, notes, code := submitFile(t, item("a"), d)
			if code != tt.code || out != "" {
				t.Errorf("exit code %d: %s", code, out)
			}
			has(t, notes, tt.want, "Give the same command again")
		})
	}
}

func TestSubmitFile_Unreachable(t *testing.T) {
	t.Parallel()
	_, notes, code := runWith(item("a"), "submit", "--file", "-", "--url", nowhere)
	if code != 4 {
		t.Errorf("exit code %d", code)
	}
	has(t, notes, "cannot be reached", "line 1 was the last one that was read", "0 accepted")
}

// A line that no gateway takes is not held in memory as a whole, and the next one
// is read where it begins.
func TestSubmitFile_EndlessLine(t *testing.T) {
	t.Parallel()
	d := newDouble(t, map[string][]answerOf{batchLine: {results("a", "accepted")}})
	var out, notes strings.Builder
	in := io.MultiReader(io.LimitReader(endless{}, 70<<20), strings.NewReader("\n"+item("a")+"\n"))
	if code := sekali.Run(in, &out, &notes, "submit", "--file", "-", "--url", d.URL); code != 3 || len(d.asked) != 1 {
		t.Errorf("exit code %d, asked %d times", code, len(d.asked))
	}
	has(t, notes.String(), "line 1: the line is longer than 64 MiB", "1 accepted, 0 replayed, 1 refused")
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}
