package main_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestComplete(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		words []string
		want  string // the words that are offered
	}{
		{[]string{"tok"}, "token"},
		{[]string{"token", ""}, "create list revoke"},
		{[]string{"token", "c"}, "create"},
		{[]string{"token", "create", "--ten"}, "--tenant"},
		{[]string{"pause", "-o", ""}, "json table"},
		{[]string{"pause", "--output", "t"}, "table"},
		{[]string{"pause", "--output=t"}, "--output=table"},
		{[]string{"pause", "--output", "=", "t"}, "table"},
		{[]string{"pause", "--output", "="}, "json table"},
		{[]string{"pause", "--output", "json", "--outp"}, "--output"},
		{[]string{"pause", "--url", "token", ""}, ""},
		{[]string{"pause", "--url", ""}, ""},
		{[]string{"pause", "--bogus=x"}, ""},
		{[]string{"resolve", "key", "--status", "s"}, "succeeded"},
		{[]string{"list", "--status", ""}, "cancelled failed pending processing retrying scheduled succeeded"},
		{[]string{"list", "--status=f"}, "--status=failed"},
		{[]string{"cancel", "--status", ""}, "pending processing retrying scheduled"},
		{[]string{"retry", "--status", ""}, "cancelled failed"},
		{[]string{"token", "create", "--permissions", ""}, "manage operate proxy read submit work work_all"},
		{[]string{"token", "create", "--permissions", "submit,re"}, "submit,read"},
		{[]string{"token", "create", "--permissions", "read,submit,"}, "read,submit,manage read,submit,operate read,submit,proxy read,submit,work read,submit,work_all"},
		{[]string{"token", "create", "--permissions=submit,wo"}, "--permissions=submit,work --permissions=submit,work_all"},
		{[]string{"serve", "--log-level", ""}, "debug error info warn"},
		{[]string{"list", "--status", "failed,"}, ""},
		{[]string{"openapi", "-o", ""}, "json yaml"},
		{[]string{"completion", ""}, "bash fish zsh"},
		{[]string{"completion", "zsh", ""}, ""},
		{[]string{"serve", "--conf"}, "--config"},
		{[]string{"serve", ""}, ""},
		{[]string{"bogus", ""}, ""},
	} {
		out, notes, code := run(append([]string{"__complete"}, tt.words...)...)
		var words []string
		for line := range strings.Lines(out) {
			word, means, ok := strings.Cut(line, "\t")
			if !ok || means == "\n" {
				t.Errorf("%q: nothing is said of %q", tt.words, word)
			}
			words = append(words, word)
		}
		got := strings.Join(words, " ")
		if code != 0 || notes != "" || got != tt.want {
			t.Errorf("%q: %d %q, want %q: %s", tt.words, code, got, tt.want, notes)
		}
	}
	all, _, _ := run("__complete")
	has(t, all, "serve\t", "doctor\t", "completion\t")
}

// TestCompletion_Bash lets bash run the script, and asks it as a tab does.
func TestCompletion_Bash(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	program := filepath.Join(folder, "sekali")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	const asks = `
source <(sekali completion bash)
complete -p sekali
tab() { COMP_WORDS=("$@"); COMP_CWORD=$((${#COMP_WORDS[@]}-1)); _sekali "$1"; echo "${COMPREPLY[*]}"; }
tab sekali tok
tab sekali token ""
tab sekali pause "a b" --out
tab sekali pause --output = js
tab sekali serve --config ""
cd "$FOLDER"; touch "ab	means"; shopt -s nullglob
tab "$FOLDER/other" ""
`
	cmd := exec.CommandContext(t.Context(), "bash", "--norc", "-c", asks)
	// What is offered is no pattern of file names.
	if err := os.WriteFile(filepath.Join(folder, "other"), []byte("#!/bin/sh\nprintf 'a*\\tmeans\\n?x\\tmeans\\n'\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	cmd.Env = []string{"FOLDER=" + folder, "PATH=" + folder + ":" + os.Getenv("PATH")}
	out, err := cmd.CombinedOutput()
	const want = "complete -o default -F _sekali sekali\ntoken\ncreate\nlist\nrevoke\n--output\njson\n\na* ?x\n"
	if got := strings.ReplaceAll(string(out), " list revoke", "\nlist\nrevoke"); err != nil || got != want {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestCompletion_Scripts(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"bash", "zsh", "fish"} {
		out, notes, code := run("completion", shell)
		if code != 0 || notes != "" {
			t.Errorf("%s: %d %s", shell, code, notes)
		}
		has(t, out, "__complete", "sekali")
		// Where the shell is there, it has to understand its script.
		path, err := exec.LookPath(shell)
		if err != nil {
			continue
		}
		file := filepath.Join(t.TempDir(), "script")
		if err := os.WriteFile(file, []byte(out), 0o600); err != nil {
			t.Fatal(err)
		}
		if said, err := exec.CommandContext(t.Context(), path, "-n", file).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", shell, err, said)
		}
	}
}
