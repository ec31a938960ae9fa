package callbacks_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// check is one way to check a signature: a snippet of docs/callbacks.md, what is
// written around it, and how that is run.
type check struct {
	file, before, after string
	command             []string
}

// checks by the language of their snippets. Each gets the headers and the secret in
// variables, and the body in the file named body; it prints the id.
var checks = map[string]check{
	"go": {file: "verify.go", command: []string{"go", "run", "verify.go", "main.go"}},
	"python": {file: "verify.py", command: []string{"python3", "verify.py"}, after: `
import os
headers = {"webhook-id": os.environ["id"], "webhook-timestamp": os.environ["sent"], "webhook-signature": os.environ["signature"]}
print(verify(os.environ["secret"], headers, open("body", "rb").read()))
`},
	"js": {file: "verify.mjs", command: []string{"node", "verify.mjs"}, after: `
import { readFileSync } from "node:fs";
const e = process.env;
console.log(verify(e.secret, { "webhook-id": e.id, "webhook-timestamp": e.sent, "webhook-signature": e.signature }, readFileSync("body")));
`},
	"sh": {file: "verify.sh", command: []string{"sh", "verify.sh"}, before: "set -eu\n"},
}

const goMain = `package main

import (
	"fmt"
	"net/http"
	"os"
)

func main() {
	body, err := os.ReadFile("body")
	if err != nil {
		panic(err)
	}
	h := http.Header{}
	h.Set("webhook-id", os.Getenv("id"))
	h.Set("webhook-timestamp", os.Getenv("sent"))
	h.Set("webhook-signature", os.Getenv("signature"))
	id, err := verify(os.Getenv("secret"), h, body)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(id)
}
`

// The snippets of docs/callbacks.md take what the gateway signs, and nothing else.
func TestSnippets(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/callbacks.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "## Checking the signature")
	for language, c := range checks {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			if _, err := exec.LookPath(c.command[0]); err != nil {
				t.Fatalf("%v: scripts/test-deps.sh installs it", err)
			}
			_, snippet, found := strings.Cut(section, "\n```"+language+"\n")
			snippet, _, ended := strings.Cut(snippet, "\n```")
			if !found || !ended {
				t.Fatalf("docs/callbacks.md has no snippet in %s", language)
			}
			folder := t.TempDir()
			write(t, folder, c.file, c.before+snippet+"\n"+c.after)
			write(t, folder, "main.go", goMain)
			c.all(t, folder)
		})
	}
}

// all runs the check with what it must take and what it must not.
func (c check) all(t *testing.T, folder string) {
	t.Helper()
	const body = "{\"type\":\"job.succeeded\",\"data\":{\"result\":\"é \\u0000 \xff\"}}"
	now := time.Now()
	signed := sign(t, now, body)
	for name, tt := range map[string]struct {
		sent            time.Time
		signature, body string
		taken           bool
	}{
		"signed":                {now, signed, body, true},
		"one of two signatures": {now, "v1,bm90IHRoaXMgb25l " + signed, body, true},
		"another body":          {now, signed, body + " ", false},
		"another time":          {now.Add(time.Second), signed, body, false},
		"no signature":          {now, "", body, false},
		"part of a signature":   {now, signed[:len(signed)-2], body, false},
		"another version":       {now, "v2" + signed[2:], body, false},
	} {
		if got, ok := c.run(t, folder, tt.sent, tt.signature, tt.body); ok != tt.taken || tt.taken && got != "msg-1" {
			t.Errorf("%s: %q, taken: %v", name, got, ok)
		}
	}
	if c.file == "verify.sh" {
		return // who checks by hand may look at an old one
	}
	old := now.Add(-time.Hour)
	if got, ok := c.run(t, folder, old, sign(t, old, body), body); ok {
		t.Errorf("an hour old: %q", got)
	}
}

func sign(t *testing.T, at time.Time, body string) string {
	t.Helper()
	webhook, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		t.Fatal(err)
	}
	signature, err := webhook.Sign("msg-1", at, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	return signature
}

func (c check) run(t *testing.T, folder string, sent time.Time, signature, body string) (id string, taken bool) {
	t.Helper()
	write(t, folder, "body", body)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.command[0], c.command[1:]...)
	cmd.Dir = folder
	cmd.Env = append(os.Environ(), "secret="+secret, "id=msg-1", "sent="+strconv.FormatInt(sent.Unix(), 10), "signature="+signature)
	out, err := cmd.Output()
	return strings.TrimSpace(string(out)), err == nil
}

func write(t *testing.T, folder, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
