package e2e_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// visitor is a page that uses the example's page in a frame: it clicks twice,
// reloads in the midst of it and once more later, has the job finished, sends it
// again, and at last makes a mistake. It reports what it saw to this test.
const visitor = `<!doctype html><iframe></iframe><script type="module">
const frame = document.querySelector("iframe");
const report = (what) => fetch("/report", { method: "POST", body: JSON.stringify(what) });
addEventListener("error", (event) => report({ error: event.message }));
addEventListener("unhandledrejection", (event) => report({ error: String(event.reason) }));

const at = (id) => frame.contentDocument.getElementById(id);
const field = (name) => at("form").elements.namedItem(name);
const loads = () => new Promise((done) => frame.addEventListener("load", done, { once: true }));
const shows = (id, text) => new Promise((done) => {
  const look = () => {
    if (at(id).hidden || !at(id).textContent.includes(text)) return;
    watcher.disconnect();
    done();
  };
  const watcher = new MutationObserver(look);
  watcher.observe(frame.contentDocument.body, { subtree: true, childList: true, characterData: true, attributes: true });
  look();
});
const reload = () => {
  const loaded = loads();
  frame.contentWindow.location.reload();
  return loaded;
};

const first = loads();
frame.src = "/index.html?gateway=" + new URLSearchParams(location.search).get("gateway");
await first;
field("order").value = "page-7";
field("delay").value = "0";
at("submit").click();
at("submit").click();
const key = at("key").textContent;
await reload();
await shows("timeline", "dreaming");
await reload();
await shows("timeline", "dreaming");
await fetch("/release?key=" + key, { method: "POST" });
await shows("result", "held");
const seen = {
  key, keyAfter: at("key").textContent, order: field("order").value,
  status: at("status").textContent, answer: at("answer").textContent, timeline: at("timeline").textContent,
};
at("again").click();
await shows("timeline", "succeeded");
await shows("result", "held");
seen.again = at("answer").textContent;
at("another").click();
seen.kept = sessionStorage.length;
field("delay").max = "";
field("delay").value = "99999999";
at("submit").click();
await shows("problem", " ");
seen.problem = at("problem").textContent;
seen.keptAfter = sessionStorage.length;
await report(seen);
</script>`

// pageReport is what the visitor saw.
type pageReport struct {
	Error                    string
	Key, KeyAfter, Order     string
	Status, Answer, Timeline string
	Again, Problem           string
	Kept, KeptAfter          int
}

// pageServer serves the built page from an origin of its own, and the visitor.
func (ts typeScript) pageServer(t *testing.T, h *held) (origin string, reports <-chan pageReport) {
	t.Helper()
	reported := make(chan pageReport, 10)
	mux := http.NewServeMux()
	mux.Handle("GET /", http.FileServer(http.Dir(ts.folder)))
	mux.HandleFunc("GET /visitor", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write([]byte(visitor))
	})
	mux.HandleFunc("POST /release", func(_ http.ResponseWriter, r *http.Request) { h.release(r.URL.Query().Get("key")) })
	mux.HandleFunc("POST /report", func(_ http.ResponseWriter, r *http.Request) {
		var report pageReport
		if err := json.NewDecoder(r.Body).Decode(&report); err != nil {
			report.Error = err.Error()
		}
		reported <- report
	})
	server := httptest.NewServer(mux)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return server.URL, reported
}

func (ts typeScript) showPage(t *testing.T) {
	h := newHeld(t)
	origin, reports := ts.pageServer(t, h)
	g := start(t, engines["SQLite"](t), both(t, h.config("invoice_generate"), "cors: {allowed_origins: ["+origin+"]}"))
	u := newUnreliable(t, g)
	browsed := browse(t, origin+"/visitor?gateway="+u.server.URL)
	var seen pageReport
	select {
	case seen = <-reports:
	case <-time.After(2 * time.Minute):
		t.Fatalf("the page has not got to its end; it sent %v\n%s", u.sent(), read(t, browsed))
	}
	want := pageReport{
		Key: seen.Key, KeyAfter: seen.Key, Order: "page-7", Status: "succeeded", Answer: "the first one, replayed", Timeline: seen.Timeline,
		Again: "the first one, replayed", Problem: seen.Problem,
	}
	if seen != want || !strings.HasSuffix(seen.Timeline, "succeeded") || !strings.HasPrefix(seen.Problem, "400 validation-failed: ") {
		t.Fatalf("seen %+v\nwant %+v\nsent %v\n%s", seen, want, u.sent(), read(t, browsed))
	}
	u.sameEachTime(t, `"`+seen.Key+`"`, 1)
	if n := len(g.get("/jobs").json(t)["jobs"].([]any)); n != 1 || h.callsOf(seen.Key) != 1 {
		t.Errorf("%d jobs and %d calls, want one of each", n, h.callsOf(seen.Key))
	}
}

// browse opens the address in a browser without a window, until the test ends,
// and returns the file that the browser complains into.
func browse(t *testing.T, address string) string {
	t.Helper()
	log, err := os.CreateTemp(t.TempDir(), "browser")
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	// Not of the test: a browser that is killed leaves files behind for a moment.
	profile, err := os.MkdirTemp("", "sekali-browser-")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	browser := exec.CommandContext(ctx, chromium(t), "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--user-data-dir="+profile, address)
	browser.Stdout, browser.Stderr = log, log
	browser.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	browser.Cancel = func() error { return syscall.Kill(-browser.Process.Pid, syscall.SIGKILL) }
	if err := browser.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = browser.Wait()
		_ = os.RemoveAll(profile)
	})
	return log.Name()
}

func chromium(t testing.TB) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Fatal("Chromium was not found: scripts/test-deps.sh installs it")
	return ""
}
