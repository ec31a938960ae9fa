package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/sekali/sekali/internal/testenv"
)

// cli is the command line with a gateway to ask.
type cli struct {
	t    testing.TB
	url  string
	more []string // NAME=value
}

// run fails unless the command ends with the code; what it says is text for
// people.
func (c cli) run(code int, args ...string) (out, notes string) {
	c.t.Helper()
	out, notes, got := sekali(c.t, "", append(append([]string{"SEKALI_URL=" + c.url}, c.more...), args...)...)
	if got != code {
		c.t.Errorf("sekali %q: exit code %d, want %d\n%s%s", args, got, code, out, notes)
	}
	if code != 0 && (out != "" || notes == "") {
		c.t.Errorf("sekali %q: a failure says %q to programs and %q to people", args, out, notes)
	}
	return out, notes
}

// document runs the command with -o json and decodes what it prints.
func (c cli) document(args ...string) map[string]any {
	c.t.Helper()
	out, _ := c.run(0, append(args, "-o", "json")...)
	decoder := json.NewDecoder(strings.NewReader(out))
	decoder.UseNumber()
	var decoded map[string]any
	if err := decoder.Decode(&decoded); err != nil {
		c.t.Fatalf("sekali %q: %v in\n%s", args, err, out)
	}
	return decoded
}

// tells fails unless the text has all the words.
func tells(t testing.TB, text string, words ...string) {
	t.Helper()
	for _, word := range words {
		if !strings.Contains(text, word) {
			t.Errorf("nothing of %q in:\n%s", word, text)
		}
	}
}

var keyTold = regexp.MustCompile(`the key of this call is (cli-[A-Z0-9]+); repeat it with --key (cli-[A-Z0-9]+)`)

func TestCLI_Row102_Row75_Row75a_OperatingJobs(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		d := newDoubtful(t)
		g := start(t, database, d.config())
		c := cli{t: t, url: g.url}

		// Cancel.
		g.submit("later/1", `{"type":"wrong","delay_seconds":3600}`).want(t, http.StatusAccepted)
		out, _ := c.run(0, "cancel", "later/1")
		tells(t, out, "KEY", "STATUS", "later/1", "cancelled", "0 of 10")
		is(t, c.document("cancel", "later/1"), "later/1 cancelled", "key", "status") // again: done
		g.submit("wrong", `{"type":"wrong"}`)
		g.finished("wrong")
		_, notes := c.run(3, "cancel", "wrong")
		tells(t, notes, "job-already-finished", "422", "/jobs/wrong", "failed")
		_, notes = c.run(3, "cancel", "unknown")
		tells(t, notes, "job-not-found", "404")

		// Retry.
		out, notes = c.run(0, "retry", "wrong")
		told := keyTold.FindStringSubmatch(notes)
		if told == nil || told[1] != told[2] {
			t.Fatalf("the call's key is not told: %s", notes)
		}
		tells(t, out, "wrong", "pending", "1 of 11")
		is(t, g.finished("wrong"), "failed 2 2", "status", "attempts", "generation")
		replay, notes := c.run(0, "retry", "wrong", "--key", told[1])
		tells(t, notes, "had been made before", "failed by now")
		if replay != out {
			t.Errorf("the first answer was\n%s\nand is\n%s", out, replay)
		}
		is(t, c.document("retry", "wrong", "--key", told[1]), "wrong 2 pending", "key", "generation", "status")
		is(t, g.finished("wrong"), "failed 2 2", "status", "attempts", "generation")
		is(t, c.document("retry", "later/1", "--key", `op "quoted" \ 1`), "later/1 2", "key", "generation")
		g.finished("later%2F1")
		_, notes = c.run(3, "retry", "later/1", "--key", told[1])
		tells(t, notes, "idempotency-key-reused", "another --key")
		_, notes = c.run(3, "retry", "unknown")
		tells(t, notes, "job-not-found")
		g.submit("done", `{"type":"echo"}`)
		g.finished("done")
		_, notes = c.run(3, "retry", "done")
		tells(t, notes, "job-not-retryable")

		// Resolve.
		g.park(t, "doubt", `{"type":"pay"}`)
		_, notes = c.run(3, "resolve", "done", "--status", "failed")
		tells(t, notes, "job-not-resolvable")
		is(t, g.finished("doubt"), "failed outcome_unknown", "status", "outcome")
		file := written(t, `{ "capture" : "c_1", "n": 1.50 }`+"\n")
		out, _ = c.run(0, "resolve", "doubt", "--status", "succeeded", "--result", "@"+file, "--key", "r-1")
		tells(t, out, "doubt", "succeeded")
		if r := g.get("/jobs/doubt/result"); string(r.body) != `{ "capture" : "c_1", "n": 1.50 }` {
			t.Errorf("the result is %s", r.body)
		}
		_, notes = c.run(0, "resolve", "doubt", "--status", "succeeded", "--result", "@"+file, "--key", "r-1")
		tells(t, notes, "had been made before")
		_, notes = c.run(3, "resolve", "doubt", "--status", "failed", "--key", "r-1")
		tells(t, notes, "idempotency-key-reused")
		id := g.park(t, "doubt-2", `{"type":"pay"}`)
		is(t, c.document("resolve", "doubt-2", "--status", "failed"), "doubt-2 failed <nil>", "key", "status", "outcome")
		is(t, g.finished("compensate:"+id), "succeeded", "status")

		// Nobody there, and somebody else.
		c.url = "http://127.0.0.1:1"
		_, notes = c.run(4, "cancel", "doubt")
		tells(t, notes, "cannot be reached", "http://127.0.0.1:1", "SEKALI_URL")
		other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") }))
		t.Cleanup(other.Close)
		c.url = other.URL
		_, notes = c.run(4, "cancel", "doubt")
		tells(t, notes, "not a Sekali gateway", "<html>", "SEKALI_URL")
	})
}

// What cannot be meant is refused before anybody is asked.
func TestCLI_WrongUseOfOperatorsCommands(t *testing.T) {
	t.Parallel()
	c := cli{t: t, url: "http://127.0.0.1:1"}
	for _, wrong := range []string{
		"cancel", "retry a b", "pause", "resolve k", "resolve k --status cancelled", "resolve k --status failed --result 1", "resolve --status failed",
		"resolve k --status succeeded --result {", "resolve k --status succeeded --result @/does/not/exist",
		"cancel k -o xml", "cancel k --url nonsense", "inspect k --nonsense", "executors k",
	} {
		c.run(2, strings.Fields(wrong)...)
	}
}

func TestCLI_Row113_Inspect(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		d := newDoubtful(t)
		g := start(t, database, both(t, d.config(), "job_types: {wrong: {on_business_key_conflict: queue}}"))
		c := cli{t: t, url: g.url}
		g.park(t, "doubt", `{"type":"pay","payload":{"big":9007199254740993}}`)
		out, _ := c.run(0, "inspect", "doubt")
		tells(t, out, "doubt", "outcome_unknown", "accepted", "claimed", "attempt_lost", "Nobody knows", "sekali resolve --status succeeded doubt")
		doc := c.document("inspect", "doubt")
		job, _ := doc["job"].(map[string]any)
		attempts, _ := doc["attempts"].([]any)
		events, _ := doc["events"].([]any)
		sentences, _ := doc["diagnosis"].([]any)
		if job["key"] != "doubt" || fmt.Sprint(job["payload"]) != "map[big:9007199254740993]" || len(attempts) != 1 || len(events) < 4 || len(sentences) < 2 {
			t.Errorf("%v", doc)
		}
		g.resolve("doubt", "op", `{"status":"succeeded"}`).want(t, http.StatusOK)
		out, _ = c.run(0, "inspect", "doubt")
		tells(t, out, "an operator resolved it", "succeeded", "key op")
		out, _ = c.run(0, "inspect", "op") // through the key of the call
		tells(t, out, "The key op is bound to the job doubt")

		g.ended(t, "wrong", `{"type":"wrong"}`)
		g.ended(t, "other", `{"type":"wrong"}`)
		g.submit("wrong", `{"type":"wrong"}`)
		g.submit("other", `{"type":"wrong","payload":1}`)
		testenv.Eventually(t, 0, "the repetitions are told", func() bool {
			return len(told(g.events(t, "wrong"), "replayed"))+len(told(g.events(t, "other"), "mismatch_refused")) == 2
		})
		out, _ = c.run(0, "inspect", "wrong")
		tells(t, out, "http-status", "same request with this key again once", "sekali retry wrong")
		out, _ = c.run(0, "inspect", "other")
		tells(t, out, "another request with this key once")

		g.switchType("wrong", "pause").want(t, http.StatusOK)
		g.submit("first", `{"type":"wrong","business_key":"42"}`)
		g.submit("second", `{"type":"wrong","business_key":"42"}`).want(t, http.StatusAccepted)
		out, _ = c.run(0, "inspect", "second")
		tells(t, out, "pending", "The job waits for the job first (pending), which has the same business key 42", "has been paused since", "sekali resume wrong")
		_, notes := c.run(3, "inspect", "unknown")
		tells(t, notes, "job-not-found")
		g.kill()
		_, notes = c.run(4, "inspect", "doubt")
		tells(t, notes, "cannot be reached")
	})
}

func TestCLI_Row114_Row114a_ExecutorsPauseAndResume(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		_, reader := token(t, database, "--tenant", "one", "--permissions", "read,submit")
		_, all := token(t, database, "--tenant", "one", "--permissions", "*")
		held := newHeldReceiver(t)
		g := start(t, database, both(t, withKeys, held.config()))
		c := cli{t: t, url: g.url, more: []string{"SEKALI_TOKEN=" + reader}}
		g.submit("running", `{"type":"call"}`, bearer(reader)).want(t, http.StatusAccepted)
		next(t, held.begun, 1, "begun")
		var out string
		testenv.Eventually(t, 0, "the overview has the job", func() bool {
			out, _ = c.run(0, "executors")
			return strings.Contains(out, "RUNNING")
		})
		tells(t, out, "NAME", "echo", "call", "active", "running", "1 ", g.workerID(), "15 of 16")
		list, _ := c.document("executors")["executors"].([]any)
		if len(list) != 2 {
			t.Errorf("%v", list)
		}

		_, notes := c.run(3, "pause", "echo")
		tells(t, notes, "forbidden", "403", "permission")
		_, notes = cli{t: t, url: g.url}.run(3, "executors")
		tells(t, notes, "unauthenticated", "401", "SEKALI_TOKEN")
		if strings.Contains(notes, reader) {
			t.Errorf("the token is shown: %s", notes)
		}
		out, notes = c.run(0, "pause", "echo", "--token", all)
		tells(t, out, "echo", "paused")
		tells(t, notes, "no process starts jobs of the type now")
		if e := c.document("pause", "echo", "--token", all); e["name"] != "echo" || e["paused_at"] == nil {
			t.Errorf("%v", e)
		}
		_, notes = c.run(3, "pause", "unknown", "--token", all)
		tells(t, notes, "executor-not-found", "404", "sekali executors")
		out, _ = c.run(0, "executors")
		tells(t, out, "paused")
		out, _ = c.run(0, "resume", "echo", "--token", all)
		tells(t, out, "echo", "active")
		if e := c.document("resume", "echo", "--token", all); e["paused_at"] != nil {
			t.Errorf("%v", e)
		}
		_, notes = c.run(3, "retry", "running")
		tells(t, notes, "forbidden")
		out, notes = c.run(0, "cancel", "running") // submit may
		tells(t, out, "processing")
		tells(t, notes, "within a heartbeat")
		next(t, held.left, 1, "been given up")
		c.url += "/" // people write addresses so
		testenv.Eventually(t, 0, "it is cancelled", func() bool { return c.document("cancel", "running")["status"] == "cancelled" })
	})
}
