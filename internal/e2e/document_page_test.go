package e2e_test

import (
	"bytes"
	"context"
	"net/http"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sekali/sekali/docs/openapi"
	"github.com/sekali/sekali/internal/testenv"
)

func TestContract_SectionH_TheDocumentIsServed(t *testing.T) {
	t.Parallel()
	g := start(t, testenv.SQLite(t), withKeys) // nobody is asked for a token
	for path, served := range map[string]struct {
		mediaType string
		text      []byte
	}{
		"/openapi.json": {"application/json", openapi.JSON()},
		"/openapi.yaml": {"application/yaml", openapi.YAML()},
	} {
		a := g.get(path).want(t, http.StatusOK, "Content-Type: "+served.mediaType, "Cache-Control: no-cache", "ETag: *")
		if !bytes.Equal(a.body, served.text) {
			t.Errorf("%s: %d bytes, want %d", path, len(a.body), len(served.text))
		}
		tag := g.get(path, "Accept-Encoding: identity").Header.Get("ETag")
		g.do(http.MethodHead, path, "", "Accept-Encoding: identity").want(t, http.StatusOK, "Content-Length: "+strconv.Itoa(len(served.text)), "ETag: "+tag)
		g.get(path, "Accept-Encoding: identity", "If-None-Match: "+tag).want(t, http.StatusNotModified, "ETag: "+tag, "Cache-Control: no-cache", "Content-Type:")
		zipped := g.get(path, "Accept-Encoding: gzip").want(t, http.StatusOK, "Content-Encoding: gzip", "Vary: Accept-Encoding")
		if text := unzipped(t, zipped.body); text != string(served.text) || len(zipped.body) > len(text)/4 {
			t.Errorf("%s: %d bytes zipped, %d not", path, len(zipped.body), len(text))
		}
		coded := zipped.Header.Get("ETag")
		g.get(path, "Accept-Encoding: gzip", "If-None-Match: "+coded).want(t, http.StatusNotModified, "ETag: "+coded)
		g.do(http.MethodPost, path, "").problem(t, http.StatusMethodNotAllowed, "method-not-allowed")
	}
}

func TestContract_SectionH_ThePageMayLoadNothingFromElsewhere(t *testing.T) {
	t.Parallel()
	g := start(t, testenv.SQLite(t), withKeys)
	const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; " +
		"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
	page := g.get("/docs").want(t, http.StatusOK, "Content-Type: text/html; charset=utf-8", "Content-Security-Policy: "+policy,
		"X-Content-Type-Options: nosniff", "Referrer-Policy: no-referrer", "Cache-Control: no-cache")
	g.get("/docs", "If-None-Match: "+page.Header.Get("ETag")).want(t, http.StatusNotModified)
	if bytes.Contains(page.body, []byte("//")) {
		t.Errorf("the page names another host: %s", page.body)
	}
	for path, mediaType := range map[string]string{
		"/docs/page.js": "text/javascript; charset=utf-8", "/docs/page.css": "text/css; charset=utf-8",
		"/docs/swagger-ui-bundle.js": "text/javascript; charset=utf-8", "/docs/swagger-ui.css": "text/css; charset=utf-8",
	} {
		g.get(path).want(t, http.StatusOK, "Content-Type: "+mediaType, "Content-Security-Policy: "+policy, "X-Content-Type-Options: nosniff")
	}
	for _, path := range []string{"/docs/", "/docs/LICENSE.swagger-ui", "/docs/nothing.js", "/docs/..%2fpage.go", "/docs/%2e%2e/openapi.yaml"} {
		g.get(path).problem(t, http.StatusNotFound, "route-not-found")
	}
}

// browser returns the browser that is installed.
func browser(t testing.TB) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Fatal("no Chromium was found: scripts/test-deps.sh installs it")
	return ""
}

// rendered is the page as a browser shows it that can reach the gateway and
// nothing else, with what the browser has logged.
func rendered(t testing.TB, url string) (page, log string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, browser(t), "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--user-data-dir="+t.TempDir(),
		"--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--enable-logging=stderr", "--virtual-time-budget=20000", "--dump-dom", url)
	cmd.WaitDelay = time.Minute // its helpers hold the output, and the folder of its profile, until they end
	var out, errors bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errors
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, errors.String())
	}
	return out.String(), errors.String()
}

// What a page asks for in vain, what its policy forbids and what its scripts trip
// over stands on the console.
func TestContract_SectionH_ThePageShowsEveryOperation(t *testing.T) {
	t.Parallel()
	g := start(t, testenv.SQLite(t), "")
	overview, log := rendered(t, g.url+"/docs")
	opened, more := rendered(t, g.url+"/docs#/jobs/submitJob")
	for line := range strings.Lines(log + more) {
		if strings.Contains(line, "CONSOLE") {
			t.Error(line)
		}
	}
	c, err := document()
	if err != nil {
		t.Fatal(err)
	}
	for _, op := range c.operations {
		if !strings.Contains(overview, op.summary) {
			t.Errorf("the page does not show %q", op.summary)
		}
	}
	for _, text := range []string{"Names the operation", "idempotency-key-reused", "invoice_generate", "Job-Status", "Try it out"} {
		if !strings.Contains(opened, text) {
			t.Errorf("the open operation does not show %q", text)
		}
	}
	var asked []string
	for _, line := range g.logLines("request answered") {
		route, _ := line["route"].(string)
		asked = append(asked, route)
	}
	slices.Sort(asked)
	if got := strings.Join(slices.Compact(asked), " "); got != "/docs /docs/{file} /openapi.json" {
		t.Errorf("the page asked for %s", got)
	}
}
