package e2e_test

import (
	"bytes"
	"database/sql"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/testenv"
)

// typed is one run of the command line with what it printed.
type typed struct {
	t          testing.TB
	args       []string
	out, notes string
	code       int
}

// types runs the command, and judges nothing.
func (c cli) types(args ...string) typed {
	c.t.Helper()
	out, notes, code := sekali(c.t, "", append(append([]string{"SEKALI_URL=" + c.url}, c.more...), args...)...)
	return typed{c.t, args, out, notes, code}
}

// want fails unless the command ended with the code and printed exactly out; notes
// are parts of what it said to people, and none means that it said nothing.
func (r typed) want(code int, out string, notes ...string) {
	r.t.Helper()
	if r.code != code || r.out != out || len(notes) == 0 && r.notes != "" {
		r.t.Errorf("sekali %q: exit code %d, want %d; printed %q, want %q; and\n%s", r.args, r.code, code, r.out, out, r.notes)
	}
	tells(r.t, r.notes, notes...)
}

// background is a command that runs beside the test.
type background struct {
	t     testing.TB
	cmd   *exec.Cmd
	ended chan struct{}

	mu         sync.Mutex
	out, notes bytes.Buffer
}

// begin starts a command; its standard input is in.
func (c cli) begin(in io.Reader, args ...string) *background {
	c.t.Helper()
	b := &background{t: c.t, cmd: exec.Command(program, args...), ended: make(chan struct{})}
	b.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "SEKALI_URL=" + c.url, "GORACE=exitcode=66 halt_on_error=1 atexit_sleep_ms=0"}
	b.cmd.Stdout, b.cmd.Stderr = b.writer(&b.out), b.writer(&b.notes)
	if in != nil {
		b.cmd.Stdin = in
	}
	if err := b.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	go func() {
		_ = b.cmd.Wait()
		close(b.ended)
	}()
	c.t.Cleanup(func() {
		_ = b.cmd.Process.Kill()
		<-b.ended
	})
	return b
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func (b *background) writer(to *bytes.Buffer) io.Writer {
	return writerFunc(func(p []byte) (int, error) {
		b.mu.Lock()
		defer b.mu.Unlock()
		return to.Write(p)
	})
}

func (b *background) printed() (out, notes string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.out.String(), b.notes.String()
}

// end waits for the command and returns its exit code; -1 if a signal ended it.
func (b *background) end() int {
	b.t.Helper()
	select {
	case <-b.ended:
	case <-time.After(5 * time.Minute):
		out, notes := b.printed()
		b.t.Fatalf("sekali %q still runs\n%s%s", b.cmd.Args[1:], out, notes)
	}
	return b.cmd.ProcessState.ExitCode()
}

func (b *background) signal(s syscall.Signal) {
	b.t.Helper()
	if err := b.cmd.Process.Signal(s); err != nil {
		b.t.Fatal(err)
	}
}

// piped is an input of a command that the test writes; it stays open with the test.
func piped(t testing.TB) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close(); _ = w.Close() })
	return r, w
}

const cliTypes = `
job_types:
  text: {executor: command, command: {argv: [printf, "two\nlines"]}}
  nothing: {executor: command, command: {argv: ["true"]}}
  wrong: {executor: command, max_attempts: 1, command: {argv: ["false"]}}
  once: {executor: echo, business_key: "{{ .payload.order }}"}
`

func TestCLI_Row64_Row65_Row77_SubmitWaitResult(t *testing.T) {
	onGateway(t, both(t, invoices, cliTypes), func(t *testing.T, g *gateway) {
		c := cli{t: t, url: g.url}
		invoice := written(t, `{"order_id": "42", "total": 4200}`+"\n")
		submit := []string{"submit", "invoice_generate", "--key", "order-42", "--data", "@" + invoice}
		c.types(append(submit, "--wait", "50s")...).want(0, `{"order_id":"42","total":4200}`)
		c.types(append(submit, "--wait", "50s")...).want(0, `{"order_id":"42","total":4200}`, "replayed:", "The job is succeeded by now")
		again := c.types(submit...)
		again.want(0, again.out, "replayed:")
		tells(t, again.out, "order-42", "pending") // the first answer
		c.types("result", "order-42").want(0, `{"order_id":"42","total":4200}`)
		c.types("submit", "invoice_generate", "--key", "order-42", "--data", "{}").want(3, "", "422 idempotency-key-reused", "another --key")

		const data = `{"big": 9007199254740993, "text" : "<ä>", "n": 1e400}`
		c.types("submit", "echo", "--key", "-a/b c", "--data", data, "--wait", "50s").want(2, "", "--key=")
		c.types("submit", "echo", "--key=-a/b c", "--data", data, "--wait", "50s").want(0, data)
		c.types("result", "--", "-a/b c").want(0, data)
		c.types("submit", "echo", "--key", "null", "--data", "null", "--wait", "50s").want(0, "null")
		c.types("submit", "text", "--key", "text", "--wait", "50s").want(0, "two\nlines")
		c.types("submit", "nothing", "--key", "nothing", "--wait", "50s").want(0, "", "left no result")

		c.types("submit", "wrong", "--key", "wrong", "--wait", "50s").want(1, "", "the job wrong failed after 1 of 1 attempts: exit-code", "sekali inspect wrong")
		c.types("result", "wrong").want(1, "", "failed after")
		status := c.types("status", "wrong")
		status.want(0, status.out)
		tells(t, status.out, "wrong", "failed", "1 of 1", "exit-code")
		c.types("submit", "echo", "--key", "later", "--delay", "1h", "--priority=-5", "--max-attempts", "7", "--timeout", "90s", "--business-key", "b", "--expires-in", "2h", "--wait", "1s").
			want(5, "", "the job later has not finished: it is scheduled", "sekali result --wait 60s later")
		is(t, c.document("status", "later"), "scheduled -5 7 b", "status", "priority", "max_attempts", "business_key")
		c.types("result", "later", "--wait", "1s").want(5, "", "it is scheduled")
		is(t, c.document("submit", "echo", "--key", "doc", "--data", "1", "--wait", "50s"), "doc succeeded 1", "key", "status", "result")

		first := c.types("submit", "once", "--key", "one", "--data", `{"order": "7"}`, "--delay", "1h")
		first.want(0, first.out)
		second := c.types("submit", "once", "--key", "two", "--data", `{"order": "7"}`, "--delay", "1h")
		second.want(0, second.out, "duplicate_ignored: the job one has this business key", "The key two stands for that job")
		tells(t, second.out, "one", "scheduled")
		tells(t, c.types("inspect", "two").out, "The key two is bound to the job one", "What refused a second job was the business key 7")

		c.types("submit", "unknown", "--key", "x").want(3, "", "400 unknown-job-type", "sekali executors")
		c.types("status", "x").want(3, "", "job-not-found")
		c.types("submit", "echo").want(2, "", "missing --key", "sekali submit [TYPE] --key KEY")
		c.url = "http://127.0.0.1:1"
		c.types("status", "x").want(4, "", "cannot be reached", "http://127.0.0.1:1")
	})
}

func TestCLI_SomethingElseAnswers(t *testing.T) {
	t.Parallel()
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>hello") }))
	t.Cleanup(other.Close)
	c := cli{t: t, url: other.URL}
	file := written(t, `{"key":"a","type":"echo"}`)
	for _, args := range []string{"status k", "list", "list -o json", "result k", "submit echo --key k", "submit --file " + file, "cancel k", "retry --type x", "inspect k", "executors", "pause x"} {
		c.types(strings.Fields(args)...).want(4, "", "is not a Sekali gateway", "SEKALI_URL")
	}
}

func TestCLI_Row89_Watch(t *testing.T) {
	t.Parallel()
	held := newHeldReceiver(t)
	g := start(t, testenv.SQLite(t), both(t, held.config(), cliTypes))
	c := cli{t: t, url: g.url}
	g.switchType("wrong", "pause").want(t, http.StatusOK)
	g.submit("w", `{"type":"wrong"}`).want(t, http.StatusAccepted)
	watch := c.begin(nil, "status", "w", "--watch")
	testenv.Eventually(t, 0, "it tells how the job stands", func() bool { out, _ := watch.printed(); return strings.Contains(out, "pending") })
	g.switchType("wrong", "resume").want(t, http.StatusOK)
	if code := watch.end(); code != 1 {
		t.Errorf("exit code %d", code)
	}
	out, notes := watch.printed()
	if lines := strings.Split(strings.TrimSpace(out), "\n"); !strings.Contains(lines[len(lines)-1], "failed") {
		t.Errorf("printed %s", out)
	}
	tells(t, notes, "the job w failed")

	g.submit("s", `{"type":"echo","delay_seconds":3600}`).want(t, http.StatusAccepted)
	watch = c.begin(nil, "status", "s", "--watch", "-o", "json")
	testenv.Eventually(t, 0, "it tells how the job stands", func() bool { out, _ := watch.printed(); return strings.Contains(out, "scheduled") })
	watch.signal(syscall.SIGINT)
	if code := watch.end(); code != 130 {
		t.Errorf("exit code %d", code)
	}
	if _, notes := watch.printed(); notes != "sekali: interrupted\n" {
		t.Errorf("said %q", notes)
	}
}

// eachTime is a table with a row for each time that a job did its work.
const eachTime = `
job_types:
  effect:
    executor: sql
    sql:
      setup: create table if not exists effects (name text not null)
      statement: insert into effects (name) values ({{ .key }})
`

// lines are 2,000 lines, seven of them wrong.
func lines() (all []string, good int) {
	for i := range 2000 {
		switch i {
		case 10, 1500:
			all = append(all, "nonsense")
		case 11, 1501:
			all = append(all, `{"type":"effect"}`)
		case 12, 1502:
			all = append(all, fmt.Sprintf(`{"key":"wrong-%d","type":"unknown"}`, i))
		case 13:
			all = append(all, `{"key":"job-0","type":"effect","payload":"another"}`)
		case 14:
			all = append(all, "")
		default:
			all = append(all, fmt.Sprintf(`{"key":"job-%d","type":"effect","payload":{"n":%d}}`, i, i))
			good++
		}
	}
	return all, good
}

// counted asks the database beside the gateway: the command under test has the
// gateway for itself.
func counted(t testing.TB, db *sql.DB, from string) (n int) {
	t.Helper()
	if err := db.QueryRow("select count(*) from " + from).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestCLI_Row81_AFileIsKilledInterruptedAndGivenAgain(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		g := start(t, database, eachTime)
		c := cli{t: t, url: g.url}
		db := beside(t, database)
		// One statement: between two a job moves from one table to the other.
		jobs := func() int {
			return counted(t, db, "(select id from jobs union all select id from finished_jobs) as accepted")
		}
		all, good := lines()
		half := strings.Join(all[:1000], "\n") + "\n"

		// kill -9 in the middle.
		in, feed := piped(t)
		killed := c.begin(in, "submit", "--file", "-")
		if _, err := io.WriteString(feed, half); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, 5*time.Minute, "some are accepted", func() bool { return jobs() >= 200 })
		_ = killed.cmd.Process.Kill()
		killed.end()
		if n := jobs(); n >= good {
			t.Errorf("%d jobs before the file was read", n)
		}

		// An interruption ends it, though its input stays open, with what is on its way.
		in, feed = piped(t)
		interrupted := c.begin(in, "submit", "--file", "-")
		if _, err := io.WriteString(feed, half); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, 5*time.Minute, "it tells of a wrong line", func() bool { _, notes := interrupted.printed(); return strings.Contains(notes, "line 12:") })
		interrupted.signal(syscall.SIGINT)
		if code := interrupted.end(); code != 130 {
			t.Errorf("exit code %d", code)
		}
		_, notes := interrupted.printed()
		tells(t, notes, "accepted", "interrupted", "Give the same command again to go on")

		file := written(t, strings.Join(all, "\n"))
		run := c.types("submit", "--file", file)
		run.want(3, "", "line 11: the line is not one JSON value", "line 12: the line has no key", "line 13: key wrong-12: unknown-job-type", "line 14: key job-0: idempotency-key-reused",
			"line 1501:", "line 1502:", "line 1503:", "7 refused", "7 lines were refused")
		if n := jobs(); n != good {
			t.Errorf("%d jobs of %d lines", n, good)
		}
		c.types("submit", "--file", file).want(3, "", fmt.Sprintf("0 accepted, %d replayed, 7 refused", good))

		testenv.Eventually(t, 5*time.Minute, "all have ended", func() bool { return counted(t, db, "jobs") == 0 })
		var rows, names int
		if err := db.QueryRow("select count(*), count(distinct name) from effects").Scan(&rows, &names); err != nil || rows != good || names != good {
			t.Errorf("%d effects of %d jobs, want %d: %v", rows, names, good, err)
		}
		if out := c.types("list", "--status", "succeeded", "--key-prefix", "job-", "--all", "-o", "json").out; strings.Count(out, `"key"`) != good {
			t.Errorf("%d of %d jobs are listed", strings.Count(out, `"key"`), good)
		}
	})
}

func TestCLI_Row72_AFileWaitsForRoom(t *testing.T) {
	t.Parallel()
	g := start(t, testenv.SQLite(t), both(t, eachTime, "limits: {pending: 20}"))
	var items []string
	for i := range 100 {
		items = append(items, fmt.Sprintf(`{"key":"job-%d","type":"effect"}`, i))
	}
	cli{t: t, url: g.url}.types("submit", "--file", written(t, strings.Join(items, "\n"))).want(0, "", "100 accepted, 0 replayed, 0 refused")
}

// A run over many jobs brings each back once, also those that have failed again
// when it goes on.
func TestCLI_Row75_ManyRetriesAreKilledAndGivenAgain(t *testing.T) {
	onGateway(t, cliTypes, func(t *testing.T, g *gateway) {
		c := cli{t: t, url: g.url}
		db := beside(t, g.database)
		const n = 260
		var items []string
		for i := range n {
			items = append(items, fmt.Sprintf(`{"key":"job-%d","type":"wrong"}`, i))
		}
		c.types("submit", "--file", written(t, strings.Join(items, "\n"))).want(0, "", fmt.Sprintf("%d accepted", n))
		failed := func() bool { return counted(t, db, "jobs") == 0 }
		generation := func(n int) int { return counted(t, db, fmt.Sprintf("finished_jobs where generation = %d", n)) }
		testenv.Eventually(t, 5*time.Minute, "all have failed", failed)

		c.types("retry").want(2, "", "missing KEY, or a flag that says which jobs")
		dry := c.types("retry", "--type", "wrong", "--dry-run")
		dry.want(0, dry.out, fmt.Sprintf("%d jobs; nothing was changed", n))
		if strings.Count(dry.out, "job-") != n || generation(1) != n {
			t.Errorf("%s", dry.out)
		}
		retry := []string{"retry", "--status", "failed", "--type", "wrong", "--key", "after the outage"}
		killed := c.begin(nil, retry...)
		testenv.Eventually(t, 5*time.Minute, "some are brought back", func() bool { return generation(2) >= 20 })
		_ = killed.cmd.Process.Kill()
		killed.end()
		testenv.Eventually(t, 5*time.Minute, "they have failed again", failed)
		run := c.types(retry...)
		run.want(0, "", "brought back before by this run", "0 changed meanwhile, 0 refused")
		testenv.Eventually(t, 5*time.Minute, "all have failed again", failed)
		if got := generation(2); got != n {
			t.Errorf("%d of %d jobs were brought back once", got, n)
		}
		c.types(retry...).want(0, "", fmt.Sprintf("0 brought back, %d brought back before by this run", n))

		limited := c.types("retry", "--type", "wrong", "--limit", "3")
		limited.want(0, "", "3 brought back", "To go on: sekali retry --status=failed --type=wrong --limit=3 --key=cli-")
		testenv.Eventually(t, 5*time.Minute, "three have failed again", func() bool { return failed() && generation(3) == 3 })
	})
}

func TestCLI_Row102_ManyAreCancelled(t *testing.T) {
	onGateway(t, cliTypes, func(t *testing.T, g *gateway) {
		c := cli{t: t, url: g.url}
		var items []string
		for i := range 230 {
			items = append(items, fmt.Sprintf(`{"key":"job-%d","type":"echo","delay_seconds":3600}`, i))
		}
		c.types("submit", "--file", written(t, strings.Join(items, "\n"))).want(0, "", "230 accepted")
		g.ended(t, "job-done", `{"type":"echo"}`)
		c.types("cancel", "--key-prefix", "job-", "--created-before", "1h").want(0, "", "0 cancelled")
		run := c.types("cancel", "--key-prefix", "job-", "-o", "json")
		run.want(0, run.out, "230 cancelled or asked to stop, 0 finished meanwhile, 0 refused")
		if strings.Count(run.out, "\n") != 230 || strings.Count(run.out, `"status":"cancelled"`) != 230 {
			t.Errorf("printed %d lines", strings.Count(run.out, "\n"))
		}
		c.types("cancel", "--key-prefix", "job-").want(0, "", "0 cancelled")
		list := c.types("list", "--type", "echo", "--limit", "2")
		list.want(0, list.out, "there are more jobs")
		if rows := strings.Split(strings.TrimSpace(list.out), "\n"); len(rows) != 3 || !slices.ContainsFunc(rows, func(row string) bool { return strings.Contains(row, "job-done") }) {
			t.Errorf("%s", list.out)
		}
	})
}
