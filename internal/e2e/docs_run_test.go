package e2e_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/testenv"
)

// The pages for users are run as a reader would run them: each block of the
// language sh in a shell of its own, one after the other, in one folder; what it leaves running ends with it. A block
// of the language text, json or http right after it is what it must print. In
// there "…" stands for anything, and a line of its own for any lines; lines of
// JSON may be broken; of the headers of an answer only those that are shown are
// compared. Blocks of the language console are steps in another terminal, which
// the test of the page takes itself.

// docBlock is a fenced block of a page.
type docBlock struct {
	line           int
	language, text string
}

var fence = regexp.MustCompile("(?ms)^```([a-z]*)[^\n]*\n(.*?)^```$")

// repositoryFile returns the text of a file of the repository.
func repositoryFile(t testing.TB, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", file))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func docBlocks(t testing.TB, file string) []docBlock {
	t.Helper()
	text := repositoryFile(t, file)
	var blocks []docBlock
	for _, at := range fence.FindAllStringSubmatchIndex(text, -1) {
		blocks = append(blocks, docBlock{
			line: strings.Count(text[:at[0]], "\n") + 1, language: text[at[2]:at[3]], text: text[at[4]:at[5]],
		})
	}
	return blocks
}

// docReader follows a page with a gateway that serves the quick start.
type docReader struct {
	t        *testing.T
	folder   string
	g        *gateway
	database string
	config   string
	ports    map[string]string // of the page, and those of this test in their place
	steps    map[string]func() // by how a console block begins
	ran      int               // blocks of the language sh
	// variables of the shell that a block leaves to those after it: for pages that
	// are typed into one terminal.
	variables []string
	checked   int // expectations
}

// follow sets a reader up. Its gateway has yet to be started.
func follow(t *testing.T, database string) *docReader {
	t.Helper()
	d := &docReader{t: t, folder: t.TempDir(), database: database, ports: map[string]string{}, steps: map[string]func(){}}
	for _, port := range []string{"8080", "9090", "9091"} {
		d.ports[port] = freePort(t)
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	// The reader stands in the repository; the gateways of tests do not.
	config := strings.ReplaceAll(d.here(repositoryFile(t, "examples/quickstart/sekali.yaml")), "./examples/", filepath.Join(root, "examples")+"/")
	d.config = string(merge(t, config, "listen: 127.0.0.1:"+d.ports["8080"]))
	d.furnish(root)
	return d
}

// furnish makes the folder look like the repository after make build.
func (d *docReader) furnish(root string) {
	for path, target := range map[string]string{"bin/sekali": program, "examples": filepath.Join(root, "examples")} {
		link := filepath.Join(d.folder, path)
		if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
			d.t.Fatal(err)
		}
		if err := os.Symlink(target, link); err != nil {
			d.t.Fatal(err)
		}
	}
	// A terminal shows no progress of curl where there is nothing to wait for.
	if err := os.WriteFile(filepath.Join(d.folder, ".curlrc"), []byte("silent\nshow-error\n"), 0o600); err != nil {
		d.t.Fatal(err)
	}
}

// freePort is testenv.FreePort: a process may start on it, and start there again.
func freePort(t testing.TB) string {
	t.Helper()
	port, err := testenv.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return strconv.Itoa(port)
}

// serve starts the gateway of the page, or starts it again: not before the port of
// the one that the page has killed is free.
func (d *docReader) serve() {
	if d.g != nil {
		d.g.wait(time.Minute)
	}
	d.g = start(d.t, d.database, d.config)
}

var docPort = regexp.MustCompile(`\b(?:8080|9090|9091)\b`)

// here puts this test's ports and process in the place of the page's.
func (d *docReader) here(text string) string {
	text = docPort.ReplaceAllStringFunc(text, func(port string) string { return d.ports[port] })
	if d.g != nil {
		text = strings.ReplaceAll(text, "$(pgrep -x sekali)", strconv.Itoa(d.g.cmd.Process.Pid))
	}
	return text
}

// read follows the page from its first block to its last.
func (d *docReader) read(page string) {
	d.t.Helper()
	var printed *string // by the block before, if that was a command
	for _, block := range docBlocks(d.t, page) {
		block.text = d.here(block.text)
		at := fmt.Sprintf("%s:%d", page, block.line)
		switch block.language {
		case "sh", "bash":
			out := d.run(at, block.text)
			printed = &out
			continue
		case "console":
			d.step(at, block)
		case "text", "json", "http":
			if printed == nil {
				d.t.Fatalf("%s: follows no command", at)
			}
			d.checked++
			if wrong := unlike(block, *printed); wrong != "" {
				d.t.Errorf("%s: %s", at, wrong)
			}
		}
		printed = nil
	}
}

// step takes what is done in another terminal.
func (d *docReader) step(at string, block docBlock) {
	d.t.Helper()
	for begin, take := range d.steps {
		if strings.HasPrefix(block.text, begin) {
			take()
			return
		}
	}
	d.t.Fatalf("%s: the test of this page has no step for %q", at, block.text)
}

// run gives the block to a shell and returns what it printed.
func (d *docReader) run(at, text string) string {
	d.t.Helper()
	d.ran++
	// A file and not a pipe: a program that is left running holds up nobody.
	out, err := os.Create(filepath.Join(d.t.TempDir(), "out"))
	if err != nil {
		d.t.Fatal(err)
	}
	defer out.Close()
	ctx, cancel := context.WithTimeout(d.t.Context(), 2*time.Minute)
	defer cancel()
	shell := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", d.inTerminal(text))
	shell.Dir, shell.Stdout, shell.Stderr = d.folder, out, out
	shell.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	shell.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + d.folder, "SEKALI_URL=" + d.g.url, "GORACE=exitcode=66 halt_on_error=1 atexit_sleep_ms=0"}
	failure := shell.Run()
	_ = syscall.Kill(-shell.Process.Pid, syscall.SIGKILL) // what it has left running
	printed, err := os.ReadFile(out.Name())
	if err != nil {
		d.t.Fatal(err)
	}
	if failure != nil {
		d.t.Fatalf("%s: %v\n%s\nprinted:\n%s", at, failure, text, printed)
	}
	return string(printed)
}

// inTerminal is the block with what the ones before it have left in variables.
func (d *docReader) inTerminal(text string) string {
	if len(d.variables) == 0 {
		return text
	}
	kept := filepath.Join(d.folder, ".variables")
	save := fmt.Sprintf("declare -p %s >%s 2>/dev/null || true", strings.Join(d.variables, " "), kept)
	return fmt.Sprintf("[ ! -e %s ] || . %[1]s\ntrap '%s' EXIT\n%s", kept, save, text)
}

// unlike says in what the printed text is not the expected one.
func unlike(expected docBlock, printed string) string {
	printed = strings.ReplaceAll(printed, "\r\n", "\n")
	if expected.language != "http" {
		return unlikeText(expected.language == "json", expected.text, printed)
	}
	wantHead, wantBody, _ := strings.Cut(expected.text, "\n\n")
	head, body, _ := strings.Cut(printed, "\n\n")
	if wrong := unlikeHead(strings.Split(strings.TrimSuffix(wantHead, "\n"), "\n"), strings.Split(head, "\n")); wrong != "" {
		return wrong + "\nin\n" + printed
	}
	return unlikeText(strings.HasPrefix(wantBody, "{"), wantBody, body)
}

func unlikeHead(want, got []string) string {
	if got[0] != want[0] {
		return fmt.Sprintf("the answer is %q and not %q", got[0], want[0])
	}
	for _, line := range want[1:] {
		name, value, _ := strings.Cut(line, ": ")
		found := false
		for _, header := range got[1:] {
			gotName, gotValue, _ := strings.Cut(header, ": ")
			found = found || strings.EqualFold(name, gotName) && pattern(value).MatchString(gotValue)
		}
		if !found {
			return fmt.Sprintf("no header is %q", line)
		}
	}
	return ""
}

func unlikeText(isJSON bool, want, got string) string {
	if isJSON {
		want, got = oneLine(want), oneLine(got)
	}
	want, got = strings.TrimRight(want, "\n"), trimLines(got)
	if pattern(want).MatchString(got) {
		return ""
	}
	return fmt.Sprintf("expected\n%s\nand not\n%s", want, got)
}

// oneLine takes the line breaks and the indentation out.
func oneLine(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return strings.Join(lines, "")
}

// trimLines takes the white space off the end of each line, and of the text.
func trimLines(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " \t\r")
	}
	return strings.TrimRight(strings.Join(lines, "\n"), "\n")
}

// pattern matches texts that are like the expected one.
func pattern(expected string) *regexp.Regexp {
	var b strings.Builder
	b.WriteString(`\A`)
	for i, line := range strings.Split(expected, "\n") {
		switch {
		case strings.TrimSpace(line) == "…" && strings.Contains(expected, "\n"):
			b.WriteString(`(?:(?:\A|\n)[^\n]*)*?`)
			continue
		case i > 0:
			b.WriteString(`(?:\A|\n)`)
		}
		for n, part := range strings.Split(line, "…") {
			if n > 0 {
				b.WriteString(`[^\n]*?`)
			}
			b.WriteString(regexp.QuoteMeta(part))
		}
	}
	b.WriteString(`\z`)
	return regexp.MustCompile(b.String())
}

func TestDocs_WhatIsExpectedOfABlockIsCompared(t *testing.T) {
	t.Parallel()
	const answered = "HTTP/1.1 202 Accepted\r\nEtag: \"3\"\r\nDate: Mon\r\n\r\n{\"a\":1,\"b\":{\"c\":2}}"
	for _, c := range []struct {
		language, expected, printed string
		alike                       bool
	}{
		{"http", "HTTP/1.1 202 Accepted\nETag: \"3\"\n\n{\"a\":1,\n  \"b\":…}\n", answered, true},
		{"http", "HTTP/1.1 202 Accepted\nETag: \"…\"\n\n…\n", answered, true},
		{"http", "HTTP/1.1 200 OK\n\n…\n", answered, false},
		{"http", "HTTP/1.1 202 Accepted\nETag: \"4\"\n\n…\n", answered, false},
		{"http", "HTTP/1.1 202 Accepted\nRetry-After: 1\n\n…\n", answered, false},
		{"http", "HTTP/1.1 202 Accepted\n\n{\"a\":1}\n", answered, false},
		{"http", "HTTP/1.1 202 Accepted\n", answered, false},
		{"http", "HTTP/1.1 304 Not Modified\n", "HTTP/1.1 304 Not Modified\r\nVary: Prefer\r\n\r\n", true},
		{"text", "one\n…\nfour\n", "one  \ntwo\nthree\nfour\n\n", true},
		{"text", "…\nfour\n", "one\nfour\n", true},
		{"text", "…\none\n", "one\n", true},
		{"text", "one\n…\n", "one\n", true},
		{"text", "one\n…\n", "none\ntwo\n", false},
		{"text", "o…e\n", "one\ntwo\n", false},
		{"text", "a.c\n", "abc\n", false},
		{"json", "{\"a\":1,\n \"b\":…}\n", `{"a":1,"b":2}`, true},
		{"json", "{\"a\":1}\n", `{"a":1,"b":2}`, false},
	} {
		if wrong := unlike(docBlock{language: c.language, text: c.expected}, c.printed); (wrong == "") != c.alike {
			t.Errorf("%q and %q: %q", c.expected, c.printed, wrong)
		}
	}
}
