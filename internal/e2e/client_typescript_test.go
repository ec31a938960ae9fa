package e2e_test

import (
	"bytes"
	"context"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	face "github.com/sekali/sekali/client"
)

const typeScriptExample = "../../examples/client-typescript"

// typeScript is the example as somebody has it who has just cloned the repository
// and typed npm ci.
type typeScript struct{ folder string }

func cleanInstall(t *testing.T) typeScript {
	t.Helper()
	root := t.TempDir()
	ts := typeScript{filepath.Join(root, "examples", "client-typescript")}
	copyTree(t, typeScriptExample, ts.folder, "node_modules", "dist")
	copyTree(t, "../../docs/openapi", filepath.Join(root, "docs", "openapi"))
	ts.npm(t, "ci", "--prefer-offline")
	return ts
}

// copyTree copies a folder without those that have one of the names.
func copyTree(t *testing.T, from, to string, without ...string) {
	t.Helper()
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		target := filepath.Join(to, strings.TrimPrefix(path, from))
		switch {
		case d.IsDir() && slices.Contains(without, d.Name()):
			return fs.SkipDir
		case d.IsDir():
			return os.MkdirAll(target, 0o755)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(target, text, 0o644)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// npm runs a command of npm in the folder and returns what it printed.
func (ts typeScript) npm(t *testing.T, arguments ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	npm := exec.CommandContext(ctx, "npm", arguments...)
	npm.Dir, npm.WaitDelay = ts.folder, time.Second
	out, err := npm.CombinedOutput()
	if err != nil {
		t.Fatalf("npm %s: %v (scripts/test-deps.sh installs Node and npm)\n%s", strings.Join(arguments, " "), err, out)
	}
	return string(out)
}

// The commands are those of its README, in their order.
func TestClientTypeScript_FromACleanInstall(t *testing.T) {
	t.Parallel()
	ts := cleanInstall(t)
	t.Run("the lock file names no registry", func(t *testing.T) {
		lock, err := os.ReadFile(filepath.Join(ts.folder, "package-lock.json"))
		if err != nil || bytes.Contains(lock, []byte(`"resolved"`)) {
			t.Errorf("%v %.300s", err, lock)
		}
	})
	t.Run("the types are those of the document", func(t *testing.T) {
		types := filepath.Join(ts.folder, "src", "schema.d.ts")
		before := read(t, types)
		ts.npm(t, "run", "generate")
		if after := read(t, types); after != before {
			t.Error("src/schema.d.ts is not what npm run generate makes of docs/openapi/openapi.yaml")
		}
	})
	ts.npm(t, "run", "build") // checks the types too
	t.Run("safe retries", func(t *testing.T) {
		if out := ts.npm(t, "test"); !regexp.MustCompile(`(?m)^. pass [1-9]`).MatchString(out) {
			t.Errorf("no test ran:\n%s", out)
		}
	})
	t.Run("keys are those of the Go client", func(t *testing.T) {
		tests := read(t, filepath.Join(ts.folder, "src", "safe-retry.test.ts"))
		for _, key := range []string{face.Key("invoice", "order-42", "2026-03"), face.Key("a:b", "c d", "é%", "-._~/@+=", "!'()*")} {
			if !strings.Contains(tests, `"`+key+`"`) {
				t.Errorf("the tests in TypeScript do not expect %s", key)
			}
		}
	})
	for name, database := range engines {
		t.Run("Node/"+name, func(t *testing.T) {
			t.Parallel()
			ts.runInNode(t, database(t))
		})
	}
	t.Run("page", func(t *testing.T) {
		t.Parallel()
		ts.showPage(t)
	})
}

func read(t testing.TB, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// printedInNode is what the example prints, line by line. The answer to its first
// request was lost once, so the one that arrives is a replay.
var printedInNode = []string{
	`submit  202 invoice:ts/7, Idempotent-Replayed: true, Job-Status: \w+`,
	`repeat  202 invoice:ts/7, Idempotent-Replayed: true, Job-Status: \w+`,
	`mistake 422 idempotency-key-reused: .+`,
	`wait    succeeded: the job is done`,
	`result  order ts/7, total 4200`,
	`list    invoice:ts/7 succeeded`,
	`submit  202 reminder:ts/7, Idempotent-Replayed: true, Job-Status: scheduled`,
	`cancel  reminder:ts/7 cancelled`,
}

// However often its requests and their answers are lost: one job, one invoice.
func (ts typeScript) runInNode(t *testing.T, database string) {
	g := start(t, database, invoices)
	u := newUnreliable(t, g)
	for run := range 2 { // the second one finds everything done
		node := exec.CommandContext(t.Context(), "npm", "start", "--silent", "--", "ts/7")
		node.Dir, node.WaitDelay = ts.folder, time.Second
		node.Env = append(os.Environ(), "SEKALI_URL="+u.server.URL)
		out, err := node.Output()
		if err != nil {
			t.Fatalf("run %d: %v\n%s", run, err, out)
		}
		// What the job goes through while it is waited for depends on how fast it is.
		printed := regexp.MustCompile(`(?m)^wait +(pending|processing|dreaming): .*\n`).ReplaceAllString(string(out), "")
		lines := strings.Split(strings.TrimSpace(printed), "\n")
		for i, want := range printedInNode {
			if run == 1 {
				want = strings.Replace(want, "scheduled", "cancelled", 1)
			}
			if len(lines) != len(printedInNode) || !regexp.MustCompile("^"+want+"$").MatchString(lines[i]) {
				t.Fatalf("run %d: want %s in\n%s", run, want, out)
			}
		}
	}
	u.sameEachTime(t, `"invoice:ts/7"`, 2) // the mistake is another body
	u.sameEachTime(t, `"reminder:ts/7"`, 1)
	if n := len(g.get("/jobs").json(t)["jobs"].([]any)); n != 2 {
		t.Errorf("%d jobs, want 2", n)
	}
	is(t, g.finished("invoice:ts%2F7"), "1 succeeded", "attempts", "status")
	if n := count(t, g.beside(t), `select count(*) from invoices`); n != 1 {
		t.Errorf("%d invoices", n)
	}
}
