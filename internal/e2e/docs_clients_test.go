package e2e_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/testenv"
)

const clientsGuide = "docs/clients.md"

// newcomer types the commands of docs/clients.md into one terminal, in an empty
// folder: what is generated comes from the document that the gateway serves.
type newcomer struct {
	t       *testing.T
	gateway string
	folder  string // where the last command left the terminal
}

// A newcomer gets clients for Go and TypeScript from the served document, and has
// each of them submit, replay, wait, read, list and cancel.
func TestDocs_TheClientsGuideGeneratesClientsThatWork(t *testing.T) {
	t.Parallel()
	g := start(t, testenv.SQLite(t), invoices)
	n := &newcomer{t: t, gateway: g.url, folder: t.TempDir()}
	var printed string
	programs, compared := 0, 0
	for _, block := range docBlocks(t, clientsGuide) {
		at := fmt.Sprintf("%s:%d", clientsGuide, block.line)
		block.text = strings.ReplaceAll(block.text, "http://127.0.0.1:8080", n.gateway)
		switch block.language {
		case "sh":
			printed = n.types(at, block.text)
		case "go":
			programs++
			printed = n.runs(at, block.text)
		case "text":
			compared++
			if wrong := unlike(block, printed); wrong != "" {
				t.Errorf("%s: %s", at, wrong)
			}
		}
	}
	if programs != 1 || compared != 3 {
		t.Errorf("%d programs of the Go client and %d comparisons: the guide has lost a part", programs, compared)
	}
	for _, key := range []string{"go-2001", "ts-3001", "invoice:1001"} {
		is(t, g.finished(key), "succeeded 1", "status", "attempts")
	}
}

// types gives the block to a shell that stands where the one before it ended.
func (n *newcomer) types(at, text string) string {
	n.t.Helper()
	if strings.HasPrefix(text, "go get github.com/sekali/sekali/") {
		return "" // the package of this checkout is used instead
	}
	stood := filepath.Join(n.t.TempDir(), "pwd")
	shell := command(n.t, n.folder, "bash", "-euo", "pipefail", "-c", text+"\npwd >"+stood)
	out := printedBy(n.t, at, shell)
	n.folder = strings.TrimSpace(read(n.t, stood))
	return out
}

// runs runs a Go program that uses the packages of this repository.
func (n *newcomer) runs(at, program string) string {
	n.t.Helper()
	file := filepath.Join(n.t.TempDir(), "main.go")
	if err := os.WriteFile(file, []byte(program), 0o600); err != nil {
		n.t.Fatal(err)
	}
	return printedBy(n.t, at, command(n.t, "../..", "go", "run", file))
}

// command is a program that ends with the test, or in time. What it makes itself
// at home with (caches of modules and packages) is that of who runs the test.
func command(t *testing.T, folder, name string, arguments ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	t.Cleanup(cancel)
	c := exec.CommandContext(ctx, name, arguments...)
	c.Dir, c.WaitDelay = folder, time.Minute // for what it has started itself to end too
	return c
}

func printedBy(t *testing.T, at string, c *exec.Cmd) string {
	t.Helper()
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s\nprinted:\n%s", at, err, c, out)
	}
	return string(out)
}
