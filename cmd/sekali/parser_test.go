package main_test

import (
	"bytes"
	"strings"
	"testing"

	sekali "github.com/sekali/sekali/cmd/sekali"
	"github.com/sekali/sekali/docs/openapi"
)

// Wrong use is told in one line that says what to type.
func TestWrongUse_OneLineSaysWhatToType(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"bogus":                                `sekali: unexpected argument bogus; type: sekali COMMAND  (sekali --help lists the commands)`,
		"serv":                                 `sekali: unexpected argument serv (did you mean serve?); type: sekali COMMAND`,
		"tokn list":                            `(did you mean token?)`,
		"--bogus":                              `sekali: serve: unknown flag --bogus; type: sekali serve [--config FILE]  (sekali serve --help has examples)`,
		"serve --confg x":                      `unknown flag --confg (did you mean --config?)`,
		"serve bogus":                          `sekali: serve: unexpected argument bogus; type: sekali serve`,
		"serve --config":                       `--config needs a value`,
		"token":                                `sekali: token: missing a command; type: sekali token create|list|revoke  (sekali token --help has examples)`,
		"token crate":                          `sekali: token: unexpected argument crate (did you mean create?); type: sekali token create|list|revoke`,
		"token create":                         `sekali: token create: missing --tenant; type: sekali token create --tenant TENANT`,
		"token revoke":                         `sekali: token revoke: missing ID; type: sekali token revoke ID`,
		"migrate down":                         `sekali: migrate: unexpected argument down; type: sekali migrate [up|status]`,
		"resolve k":                            `sekali: resolve: missing --status; type: sekali resolve KEY --status succeeded|failed`,
		"resolve":                              `missing KEY, --status`,
		"pause":                                `sekali: pause: missing TYPE; type: sekali pause TYPE`,
		"executors -o xml":                     `sekali: executors: --output must be table or json, and is "xml"; type: sekali executors`,
		"executors -o text":                    `and is "text"`,
		"completion":                           `sekali: completion: missing SHELL; type: sekali completion bash|zsh|fish`,
		"completion tcsh":                      `sekali: completion: SHELL must be bash, zsh or fish, and is "tcsh"; type: sekali completion bash|zsh|fish`,
		"executors --url x":                    `sekali: executors: --url must be an http:// or https:// address without ? and #, with a port from 1 to 65535, such as http://127.0.0.1:8080; type: sekali executors`,
		"executors --url me:s@h":               `sekali: executors: --url must be`,
		"list --url http://h/?a":               `sekali: list: --url must be`,
		"submit --file jobs -o x":              `--output must be table or json, and is "x"; type: sekali submit --file FILE|-  (`,
		"submit --url http://x":                `type: sekali submit [TYPE] --key KEY [--data JSON|@FILE|-] [--wait 30s] or sekali submit --file FILE|-  (`,
		"submit --file":                        `--file needs a value; type: sekali submit [TYPE] --key KEY [--data JSON|@FILE|-] [--wait 30s] or sekali submit --file FILE|-  (`,
		"list --status x":                      `--status must be scheduled, pending, processing, retrying, succeeded, failed or cancelled, and is "x"`,
		"cancel --status failed":               `--status must be scheduled, pending, processing or retrying, and is "failed"`,
		"retry --status pending":               `--status must be failed or cancelled, and is "pending"`,
		"health --url x":                       `sekali: health: --url must be an http:// or https:// address`,
		"doctor it":                            `sekali: doctor: unexpected argument it; type: sekali doctor`,
		"health --listen":                      `--listen needs a value`,
		"config":                               `type: sekali config check|print`,
		"cancel k \x1b[2J":                     `type: sekali cancel`,
		"submit a --delay -1m":                 `--delay must not be negative; type:`,
		"submit a --wait=-1m":                  `--wait must not be negative; type:`,
		"submit a --wait 5":                    `--wait must be a length of time such as 30s, 10m or 720h, at most 2562047h, and is "5"; type:`,
		"submit a --priority -5":               `--priority: write a value that begins with - as --priority=-5; type:`,
		"submit a --wait --key k":              `--wait needs a value; type:`,
		"list --created-after=-24h":            `--created-after must not be negative: 24h is 24 hours ago; type:`,
		"list --created-before -24h":           `--created-before`,
		"list --limit x":                       `--limit must be a whole number, and is "x"; type:`,
		"token create --tenant t --expires 0s": `--expires must be longer than 0s`,
		"submit --file /":                      `--file: / is a folder; type: sekali submit --file FILE|-  (`,
		"token create --expires":               `--expires needs a value`,
	} {
		out, notes, code := run(strings.Split(line, " ")...)
		if code != 2 || out != "" || strings.Count(notes, "\n") != 1 || strings.ContainsRune(notes, '\x1b') {
			t.Errorf("%s: exit code %d: %q %q", line, code, out, notes)
		}
		has(t, notes, want, "sekali: ", "; type: sekali ", " --help ")
	}
}

func TestOpenAPI_IsTheDocumentThatIsServed(t *testing.T) {
	t.Parallel()
	for format, want := range map[string][]byte{"yaml": openapi.YAML(), "json": openapi.JSON()} {
		if out, notes, code := run("openapi", "-o", format); code != 0 || notes != "" || out != string(want) || out == "" {
			t.Errorf("%s: exit code %d, %d bytes: %s", format, code, len(out), notes)
		}
	}
	if out, _, _ := run("openapi"); out != string(openapi.YAML()) {
		t.Error("the default is YAML")
	}
}

func TestTable_ColoursWordsOfStateAlone(t *testing.T) {
	t.Parallel()
	head, rows := []string{"KEY", "STATUS", "TYPE"}, func() [][]string {
		return [][]string{{"a", "succeeded", "failed"}, {"ä-long", "failed", "x"}, {"c", "else", "\x1b[2J"}}
	}
	var b bytes.Buffer
	if err := sekali.Painted(&b, head, rows()); err != nil {
		t.Fatal(err)
	}
	const want = "KEY     STATUS     TYPE\n" +
		"a       \x1b[32msucceeded\x1b[0m  failed\n" +
		"ä-long  \x1b[31mfailed\x1b[0m     x\n" +
		"c       else        [2J\n"
	if b.String() != want {
		t.Errorf("got\n%q, want\n%q", b.String(), want)
	}
	out, _, _ := run("version")
	if out != "dev\n" {
		t.Errorf("version: %q", out)
	}
	if out, _, _ = run("version", "-o", "json"); out != "{\n  \"version\": \"dev\"\n}\n" {
		t.Errorf("version: %q", out)
	}
}
