package e2e_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/sekali/sekali/internal/testenv"
)

// program is the binary under test, built once with the race detector.
var program string

func TestMain(m *testing.M) {
	// Most tests wait, for leases, backoffs and restarts: one for each processor
	// at a time would leave the processors idle.
	flag.Parse()
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == parallel.DefValue {
		parallel.Value.Set("3")
	}
	if flag.Lookup("test.fuzzworker").Value.String() == "true" {
		os.Exit(m.Run()) // fuzzers run no program
	}
	os.Exit(buildAndRun(m))
}

func buildAndRun(m *testing.M) int {
	folder, err := os.MkdirTemp("", "sekali-e2e-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(folder)
	program = filepath.Join(folder, "sekali")
	build := exec.Command("go", "build", "-race", "-o", program, "github.com/sekali/sekali/cmd/sekali")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build the program: %v\n%s", err, out)
		return 1
	}
	return covered(m.Run())
}

// engines are what every contract row must hold on.
var engines = map[string]func(testing.TB) string{"SQLite": testenv.SQLite, "Postgres": testenv.Postgres}

// onEngines runs the test on each engine, with a new database.
func onEngines(t *testing.T, test func(t *testing.T, database string)) {
	t.Helper()
	t.Parallel()
	for name, database := range engines {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, database(t))
		})
	}
}

// onGateway is onEngines with a gateway running, configured by config over the
// test defaults.
func onGateway(t *testing.T, config string, test func(t *testing.T, g *gateway)) {
	t.Helper()
	onEngines(t, func(t *testing.T, database string) { test(t, start(t, database, config)) })
}

// Timings for tests: short leases and backoffs, so that what is waited for
// comes soon. Everything else is as delivered.
const testDefaults = `
listen: 127.0.0.1:0
log: {level: debug, format: json}
dispatcher: {slots: 16, poll_interval: 200ms, shutdown_grace: 3s}
defaults:
  lease: 3s
  heartbeat: 500ms
  backoff: {base: 200ms, cap: 2s}
`

// gateway is one running process of the program.
type gateway struct {
	t        testing.TB
	url      string
	cmd      *exec.Cmd
	exited   chan struct{}
	exit     error
	database string

	log string // file that the process writes its log into
}

// start runs `sekali serve` and returns once it serves. The process is ended
// with the test, and a data race in it fails the test. config is YAML over
// testDefaults.
func start(t testing.TB, database, config string) *gateway {
	t.Helper()
	g := launch(t, database, config)
	select {
	case <-g.exited:
		t.Fatalf("the gateway ended at once: %v\n%s", g.exit, g.logged())
	case <-time.After(60 * time.Second):
		t.Fatalf("the gateway does not serve\n%s", g.logged())
	case <-g.serving():
	}
	return g
}

// launch starts the process and returns at once.
func launch(t testing.TB, database, config string) *gateway {
	t.Helper()
	file := filepath.Join(t.TempDir(), "sekali.yaml")
	if err := os.WriteFile(file, merge(t, testDefaults, config), 0o600); err != nil {
		t.Fatal(err)
	}
	g := &gateway{t: t, exited: make(chan struct{}), database: database, log: filepath.Join(t.TempDir(), "log")}
	g.cmd = exec.Command(program, "serve", "--config", file)
	g.cmd.Dir = t.TempDir()
	g.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + g.cmd.Dir, "DATABASE_URL=" + database, "GORACE=exitcode=66 halt_on_error=1 atexit_sleep_ms=0"}
	// A file and not a pipe: what is logged before an answer can be read after it.
	log, err := os.Create(g.log)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	g.cmd.Stdout, g.cmd.Stderr = os.Stdout, log
	if err := g.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		g.exit = g.cmd.Wait()
		close(g.exited)
	}()
	t.Cleanup(func() {
		g.kill()
		if strings.Contains(g.logged(), "WARNING: DATA RACE") {
			t.Errorf("data race in the gateway:\n%s", g.logged())
		}
		if t.Failed() {
			t.Logf("log of the gateway:\n%s", g.logged())
		}
	})
	return g
}

// serving is closed once the log says where the gateway serves.
func (g *gateway) serving() <-chan struct{} {
	c := make(chan struct{})
	go func() {
		ticker := time.NewTicker(5 * time.Millisecond)
		defer ticker.Stop()
		for {
			for _, line := range g.logLines("sekali serves") {
				g.url, _ = line["url"].(string)
				close(c)
				return
			}
			select {
			case <-g.exited:
				return
			case <-ticker.C:
			}
		}
	}()
	return c
}

// logged returns what the gateway has written to its log.
func (g *gateway) logged() string {
	text, err := os.ReadFile(g.log)
	if err != nil {
		g.t.Errorf("read the log of the gateway: %v", err)
	}
	return string(text)
}

// logLines returns the log lines with the message, decoded.
func (g *gateway) logLines(message string) []map[string]any {
	var found []map[string]any
	for line := range strings.Lines(g.logged()) {
		var decoded map[string]any
		if json.Unmarshal([]byte(line), &decoded) == nil && decoded["msg"] == message {
			found = append(found, decoded)
		}
	}
	return found
}

// kill is kill -9, and waits for the end.
func (g *gateway) kill() {
	_ = g.cmd.Process.Kill()
	<-g.exited
}

// signal sends a signal.
func (g *gateway) signal(s syscall.Signal) {
	g.t.Helper()
	if err := g.cmd.Process.Signal(s); err != nil {
		g.t.Fatal(err)
	}
}

// wait returns the exit code once the process has ended by itself.
func (g *gateway) wait(within time.Duration) int {
	g.t.Helper()
	select {
	case <-g.exited:
	case <-time.After(within):
		g.t.Fatalf("the gateway still runs after %v", within)
	}
	var failed *exec.ExitError
	if errors.As(g.exit, &failed) {
		return failed.ExitCode()
	}
	return 0
}

// merge lays YAML over YAML.
func merge(t testing.TB, texts ...string) []byte {
	t.Helper()
	var all map[string]any
	for _, text := range texts {
		var one map[string]any
		if err := yaml.Unmarshal([]byte(text), &one); err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		all = overlay(all, one)
	}
	merged, err := yaml.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	return merged
}

func overlay(under, over map[string]any) map[string]any {
	if under == nil {
		under = map[string]any{}
	}
	for key, value := range over {
		below, both := under[key].(map[string]any)
		above, isMap := value.(map[string]any)
		if both && isMap {
			value = overlay(below, above)
		}
		under[key] = value
	}
	return under
}

// answer is a response with its body read.
type answer struct {
	*http.Response
	body []byte
}

// client never repeats a request by itself: with a key, Go's transport would.
var client = &http.Client{
	Transport: &http.Transport{DisableKeepAlives: true},
	// What a redirect leads to is a request of its own.
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	Timeout:       90 * time.Second,
}

// do sends one request with the body's bytes and "Name: value" headers.
func (g *gateway) do(method, path, body string, headers ...string) answer {
	g.t.Helper()
	a, err := g.try(method, path, body, headers...)
	if err != nil {
		g.t.Fatalf("%s %s: %v", method, path, err)
	}
	return a
}

// try is do for requests that may fail on the way.
func (g *gateway) try(method, path, body string, headers ...string) (answer, error) {
	var reader io.Reader
	if body != "" {
		reader = struct{ io.Reader }{strings.NewReader(body)} // no GetBody
	}
	request, err := http.NewRequest(method, g.url+path, reader)
	if err != nil {
		return answer{}, err
	}
	if body != "" {
		request.ContentLength = int64(len(body))
	}
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ":")
		request.Header[http.CanonicalHeaderKey(name)] = append(request.Header[http.CanonicalHeaderKey(name)], strings.TrimPrefix(value, " "))
	}
	response, err := client.Do(request)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	read, err := io.ReadAll(response.Body)
	if err == nil {
		g.compare(exchangeOf(request, body, answer{response, read}))
	}
	return answer{response, read}, err
}

// raw sends bytes as they are over a connection of their own and returns the
// first response; for what no HTTP client would send.
func (g *gateway) raw(request string) answer {
	g.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(g.url, "http://"))
	if err != nil {
		g.t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(60 * time.Second))
	if _, err := io.WriteString(conn, request); err != nil {
		g.t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		g.t.Fatalf("%q: %v", request, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		g.t.Fatal(err)
	}
	g.compareRaw(request, answer{response, body})
	return answer{response, body}
}

const jsonType = "Content-Type: application/json"

// submit POSTs a job under the key.
func (g *gateway) submit(key, body string, headers ...string) answer {
	g.t.Helper()
	return g.do(http.MethodPost, "/jobs", body, append([]string{jsonType, "Idempotency-Key: " + key}, headers...)...)
}

// get reads a path.
func (g *gateway) get(path string, headers ...string) answer {
	g.t.Helper()
	return g.do(http.MethodGet, path, "", headers...)
}

// finished waits for the job of the key to end and returns it.
func (g *gateway) finished(key string) map[string]any {
	g.t.Helper()
	deadline := time.Now().Add(60 * time.Second)
	for time.Now().Before(deadline) {
		a := g.get("/jobs/"+key, "Prefer: wait=20")
		switch j := a.json(g.t); j["status"] {
		case "succeeded", "failed", "cancelled":
			return j
		}
		if a.StatusCode != http.StatusOK {
			g.t.Fatalf("GET /jobs/%s: %d %s", key, a.StatusCode, a.body)
		}
	}
	g.t.Fatalf("job %s has not ended", key)
	return nil
}

// json decodes the body; numbers keep their text.
func (a answer) json(t testing.TB) map[string]any {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(a.body))
	decoder.UseNumber()
	var decoded map[string]any
	if err := decoder.Decode(&decoded); err != nil {
		t.Fatalf("%d %q: %v", a.StatusCode, a.body, err)
	}
	return decoded
}

// want fails unless the status and the "Name: value" headers are as given; a
// value of "" means that the header is absent, "*" that it is there.
func (a answer) want(t testing.TB, status int, headers ...string) answer {
	t.Helper()
	if a.StatusCode != status {
		t.Errorf("status %d, want %d: %s", a.StatusCode, status, a.body)
	}
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ":")
		value = strings.TrimPrefix(value, " ")
		got := a.Header.Values(name)
		switch {
		case value == "" && len(got) > 0:
			t.Errorf("%s: %q, want none", name, got)
		case value == "*" && len(got) == 0:
			t.Errorf("%s is missing", name)
		case value != "" && value != "*" && (len(got) != 1 || got[0] != value):
			t.Errorf("%s: %q, want %q", name, got, value)
		}
	}
	return a
}

// problem fails unless the answer is a problem document of that status and code.
func (a answer) problem(t testing.TB, status int, code string) map[string]any {
	t.Helper()
	a.want(t, status, "Content-Type: application/problem+json", "Error-Source: gateway")
	p := a.json(t)
	if p["code"] != code {
		t.Errorf("code %v, want %s: %s", p["code"], code, a.body)
	}
	return p
}
