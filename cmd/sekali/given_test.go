package main_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// An empty filter, key or payload comes of a variable that is not set. It must
// mean neither all jobs nor none.
func TestWrongUse_WhatWasGivenIsEmpty(t *testing.T) {
	t.Parallel()
	d := newDouble(t, nil)
	for want, lines := range map[string][][]string{
		"--type is empty":                          {{"cancel", "--type", "", "--status", "pending"}, {"retry", "--status=failed", "--type="}, {"list", "--type", ""}},
		"--key-prefix is empty":                    {{"cancel", "--key-prefix", "", "--type", "x"}},
		"KEY is empty":                             {{"cancel", "", "--type", "slow"}, {"retry", "", "--type", "slow"}, {"status", ""}, {"result", ""}, {"inspect", ""}, {"resolve", "", "--status", "failed"}, {"cancel", "--", ""}},
		"TYPE is empty":                            {{"pause", ""}, {"resume", ""}, {"submit", "", "--key", "k"}},
		"--key is empty":                           {{"submit", "x", "--key", ""}, {"retry", "--type", "x", "--key", ""}, {"retry", "k", "--key", ""}},
		"--data is empty":                          {{"submit", "x", "--key", "k", "--data", ""}, {"submit", "x", "--key", "k", "--data="}},
		"--file is empty":                          {{"submit", "--file", ""}},
		"--result is empty":                        {{"resolve", "k", "--status", "succeeded", "--result", ""}},
		"--business-key is empty":                  {{"submit", "x", "--key", "k", "--business-key", ""}},
		"--created-after must be an RFC 3339 time": {{"cancel", "--created-after", ""}},
	} {
		for _, line := range lines {
			out, notes, code := run(append([]string{line[0], "--url", d.URL}, line[1:]...)...)
			if code != 2 || out != "" || strings.Count(notes, "\n") != 1 {
				t.Errorf("%q: exit code %d: %s%s", line, code, out, notes)
			}
			has(t, notes, want, "; type: sekali "+line[0])
		}
	}
	for want, line := range map[string][]string{
		"--config is empty": {"serve", "--config", ""}, "--listen is empty": {"serve", "--listen="}, "ID is empty": {"token", "revoke", ""},
		"--tenant is empty": {"token", "create", "--tenant", ""}, "--database-url is empty": {"token", "list", "--database-url", ""},
	} {
		out, notes, code := run(line...)
		if code != 2 || out != "" || strings.Count(notes, "\n") != 1 {
			t.Errorf("%q: exit code %d: %s%s", line, code, out, notes)
		}
		has(t, notes, want, "; type: sekali "+line[0])
	}
	if _, notes, code := run("cancel", "--url", d.URL, "--created-before=-24h"); code != 2 || !strings.Contains(notes, "must not be negative") {
		t.Errorf("all jobs that are: exit code %d: %s", code, notes)
	}
	if asked := d.requests(); len(asked) != 0 {
		t.Errorf("asked %+v", asked)
	}
	d = once(t, "GET /jobs/k", 200, pending)
	if _, notes, code := run("status", "k", "--token", "", "--url", d.URL); code != 0 {
		t.Errorf("a gateway that asks for no token: exit code %d: %s", code, notes)
	}
}

// What is wrong is named as it was given: as a flag, or as a variable.
func TestWrongUse_NamesTheVariable(t *testing.T) {
	t.Setenv("SEKALI_URL", "me:canary@host")
	t.Setenv("SEKALI_TOKEN", "a canary")
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"executors"}, "sekali: executors: SEKALI_URL must be an http:// or https:// address"},
		{[]string{"list"}, "sekali: list: SEKALI_URL must be"},
		{[]string{"executors", "--url", "http://127.0.0.1:99999"}, "with a port from 1 to 65535"},
		{[]string{"executors", "--url", "foo"}, "sekali: executors: --url must be an http:// or https:// address"},
		{[]string{"executors", "--url", nowhere}, "sekali: executors: SEKALI_TOKEN: a token has printable ASCII"},
		{[]string{"executors", "--url", nowhere, "--token", "b canary"}, "sekali: executors: --token: a token has printable ASCII"},
	} {
		_, notes, code := run(tt.args...)
		if code != 2 || strings.Count(notes, "\n") != 1 || strings.Contains(notes, "canary") {
			t.Errorf("%q: exit code %d: %s", tt.args, code, notes)
		}
		has(t, notes, tt.want)
	}
	t.Setenv("SEKALI_URL", "")
	_, notes, _ := run("executors")
	has(t, notes, "SEKALI_URL is empty: leave it unset")
}

func TestWrongUse_WordsOfOtherPrograms(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{"--version": "sekali version prints", "-v": "sekali version prints", "help": "sekali --help lists", "help submit": "sekali COMMAND --help"} {
		out, notes, code := run(strings.Split(line, " ")...)
		if code != 2 || out != "" || strings.Count(notes, "\n") != 1 {
			t.Errorf("%s: exit code %d: %s%s", line, code, out, notes)
		}
		has(t, notes, want, "type: sekali COMMAND")
	}
}

func TestSubmit_SaysWhereJSONIsWrong(t *testing.T) {
	t.Parallel()
	file := func(name, text string) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	d := once(t, "POST /jobs", 202, accepted)
	if _, notes, code := run("submit", "pay", "--key", "k", "--data", "@"+file("bom.json", "\ufeff{\"n\": 1.0}\n"), "--url", d.URL); code != 0 || d.asked[0].body != `{"type":"pay","payload":{"n": 1.0}}` {
		t.Errorf("exit code %d: %s%+v", code, notes, d.asked)
	}
	for _, tt := range []struct{ data, in, want string }{
		{"-", "", "--data: standard input is empty"},
		{"-", " \n", "--data: standard input is empty"},
		{"-", "{\n \"a\": }", "(line 2, at byte 9)"},
		{"@" + file("empty.json", "\ufeff\n"), "", "empty.json is empty"},
		{"@" + file("wrong.json", "\ufeff[1,\n2,\n]"), "", "wrong.json is not one JSON value: invalid character ']' looking for beginning of value (line 3, at byte 11)"},
		{"@", "", "--data: no file is named after @"},
		{"hello", "", `written in quotes: --data '"text"'`},
	} {
		_, notes, code := runWith(tt.in, "submit", "pay", "--key", "k", "--data", tt.data, "--url", "http://127.0.0.1:1")
		if code != 2 || tt.data != "hello" && strings.Contains(notes, "in quotes") {
			t.Errorf("%q: exit code %d: %s", tt.data, code, notes)
		}
		has(t, notes, tt.want)
	}
	_, notes, _ := run("submit", "pay", "--key", "k", "--run-at", "tomorrow")
	has(t, notes, "--run-at must be an RFC 3339 time such as")
}
