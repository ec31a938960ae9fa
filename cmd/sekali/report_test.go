package main_test

import (
	"io/fs"
	"net"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	sekali "github.com/sekali/sekali/cmd/sekali"
)

// A database that cannot be used is told of in words for people, with what to do, by
// every command that opens one.
func TestDatabase_ThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	garbage := filepath.Join(folder, "garbage.db")
	if err := os.WriteFile(garbage, []byte(strings.Repeat("no database ", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	missing := filepath.Join(folder, "no", "such.db")
	for _, command := range []string{"serve", "migrate", "migrate status", "token list", "token create --tenant acme", "token revoke x"} {
		for _, tt := range []struct{ database, wrong, advice string }{
			{"sqlite:" + missing, missing + ": no such file or directory", "set database_url (DATABASE_URL, --database-url) right; relative paths"},
			{"sqlite:" + garbage, garbage + ": file is not a database", "names a file of Sekali, or one that is not there yet"},
			{"sqlite:" + folder, folder, "names a file of Sekali"},
			{"postgres://me:canary@127.0.0.1:1/x", "me:xxxxx@127.0.0.1:1/x cannot be used: ", "look whether the server runs there"},
		} {
			if command == "serve" && strings.HasPrefix(tt.database, "postgres:") {
				continue // it waits
			}
			out, notes, code := run(append(strings.Split(command, " "), "--listen", "127.0.0.1:0", "--database-url", tt.database)...)
			if code != 1 || out != "" || strings.Contains(notes, "canary") {
				t.Errorf("%s, %s: exit code %d: %s%s", command, tt.database, code, out, notes)
			}
			has(t, notes, "sekali: the database "+tt.database[:7], tt.wrong, "\n  What to do: ", tt.advice)
			if text := strings.TrimPrefix(notes, "sekali: "); sekali.Unpackaged(text) != text {
				t.Errorf("%s, %s: names of packages are for those who read the code: %s", command, tt.database, notes)
			}
		}
	}
}

func TestToken_WrongUse(t *testing.T) {
	t.Parallel()
	database := "sqlite:" + filepath.Join(t.TempDir(), "x.db")
	for _, tt := range []struct {
		line string
		code int
		want []string
	}{
		{"token create --tenant acme --permissions foo", 2, []string{`sekali: token create: "foo" is no permission; there are: submit,read`, "; type: sekali token create --tenant TENANT"}}, // and makes the file
		{"token revoke zz", 1, []string{"sekali: no token of this id\n  What to do: give the id as sekali token list shows it"}},
		{"token create --tenant a/b", 2, []string{`sekali: token create: tenant "a/b": takes 1 to 100 letters`, "; type: sekali token create"}},
		{"token create --tenant acme --expires=-1h", 2, []string{"sekali: token create: --expires must not be negative", "; type: sekali token create"}},
	} {
		out, notes, code := run(append(strings.Split(tt.line, " "), "--database-url", database)...)
		if code != tt.code || out != "" {
			t.Errorf("%s: exit code %d: %s", tt.line, code, out)
		}
		has(t, notes, tt.want...)
	}
	_, notes, _ := run("token", "revoke", "sekali_abc_canary", "--database-url", database)
	if strings.Contains(notes, "canary") {
		t.Errorf("a secret in %s", notes)
	}
	// What the shell offers is what can be given.
	out, _, _ := run("__complete", "token", "create", "--permissions", "")
	var words []string
	for line := range strings.Lines(out) {
		word, _, _ := strings.Cut(line, "\t")
		words = append(words, word)
	}
	if _, notes, code := run("token", "create", "--tenant", "acme", "--permissions", strings.Join(words, ","), "--database-url", database); code != 0 {
		t.Errorf("%q: %s", words, notes)
	}
}

func TestServe_PortInUseSaysWhatToDo(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	_, notes, code := run("serve", "--listen", listener.Addr().String(), "--database-url", "sqlite:"+filepath.Join(t.TempDir(), "x.db"))
	if code != 1 {
		t.Errorf("exit code %d", code)
	}
	has(t, notes, "sekali: listen on "+listener.Addr().String()+": ", "What to do: stop what listens there")
}

// The rule knows each package of the project whose errors people may see.
func TestUnpackaged(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"gateway: repository: open x: no such file":  "open x: no such file",
		"repository: migrate: job: unavailable: eof": "migrate: unavailable: eof",
		"gateway: x\nrepository: close: pq: y":       "x\nclose: y",
		"configuration: 1\n  dispatcher: must be":    "configuration: 1\n  dispatcher: must be",
		"--file: open job: no such file":             "--file: open job: no such file",
	} {
		if got := sekali.Unpackaged(text); got != want {
			t.Errorf("%q is told as %q, want %q", text, got, want)
		}
	}
	// What others said stays as they said it.
	quoting := once(t, "GET /jobs/k", 200, jobOf("failed", `,"error":{"code":"status","detail":"client: the receiver answered 500: api: quota exceeded","attempt":2}`))
	if _, notes, _ := run("result", "k", "--url", quoting.URL); !strings.Contains(notes, "status: client: the receiver answered 500: api: quota exceeded") {
		t.Errorf("a receiver's words: %s", notes)
	}
	begins := regexp.MustCompile(`(?:errors\.New|fmt\.Errorf)\("([a-z]+): `)
	sources, err := fs.Glob(os.DirFS("../.."), "*/*.go")
	if err != nil || len(sources) < 100 {
		t.Fatalf("%d files, %v", len(sources), err)
	}
	for _, source := range sources {
		text, err := os.ReadFile(filepath.Join("../..", source))
		if err != nil {
			t.Fatal(err)
		}
		folder := path.Dir(source)
		for _, found := range begins.FindAllStringSubmatch(string(text), -1) {
			if found[1] == folder && sekali.Unpackaged(folder+": x") != "x" {
				t.Errorf("%s: %q is told to people", source, folder+": ")
			}
		}
	}
}
