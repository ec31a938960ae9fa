package main_test

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	sekali "github.com/sekali/sekali/cmd/sekali"
)

var update = flag.Bool("update", false, "write docs/command-line.md instead of comparing it")

const (
	referenceFile = "../../docs/command-line.md"
	beginning     = "<!-- begin of the commands: written by go test ./cmd/sekali -run Reference -update -->\n"
	ending        = "<!-- end of the commands -->"
)

// commands are all commands, those that only group others too, as --help has them.
func commands(node *kong.Node) []*kong.Node {
	var list []*kong.Node
	for _, child := range node.Children {
		if !child.Hidden {
			list = append(append(list, child), commands(child)...)
		}
	}
	return list
}

// docs/command-line.md is written from the command line itself.
// go test ./cmd/sekali -run Reference -update writes it.
func TestReference_IsThatOfTheCode(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(referenceFile)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), beginning)
	_, after, ended := strings.Cut(rest, ending)
	if !ok || !ended {
		t.Fatalf("%s has no marks: %s … %s", referenceFile, strings.TrimSpace(beginning), ending)
	}
	want := before + beginning + reference() + "\n" + ending + after
	if *update {
		if err := os.WriteFile(referenceFile, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if want != string(text) {
		t.Errorf("%s is not that of the code; run: go test ./cmd/sekali -run Reference -update", referenceFile)
	}
}

func reference() string {
	var b strings.Builder
	group := ""
	for _, command := range commands(sekali.Model()) {
		if g := command.ClosestGroup(); command.Depth() == 0 && g != nil && g.Title != group {
			group = g.Title
			fmt.Fprintf(&b, "\n## %s\n", strings.TrimSuffix(group, ":"))
		}
		fmt.Fprintf(&b, "\n%s sekali %s\n\n%s\n", strings.Repeat("#", 3+command.Depth()), command.Path(), command.Help)
		fmt.Fprintf(&b, "\n```\n%s\n```\n\n%s", sekali.Synopsis(command), examples(command.Detail))
		if command.Leaf() {
			flagTable(&b, command)
		}
	}
	return b.String()
}

// examples is the text of a command's help, its indented lines as code.
func examples(detail string) string {
	var b strings.Builder
	code := false
	for line := range strings.Lines(strings.TrimRight(detail, "\n") + "\n") {
		indented := strings.HasPrefix(line, "  ")
		if indented != code && strings.TrimSpace(line) != "" {
			if indented && !strings.HasSuffix(b.String(), "\n\n") {
				b.WriteByte('\n')
			}
			b.WriteString("```\n")
			code = indented
		}
		b.WriteString(strings.TrimPrefix(line, "  "))
	}
	if code {
		b.WriteString("```\n")
	}
	return b.String()
}

func flagTable(b *strings.Builder, command *kong.Node) {
	var rows []string
	for _, argument := range command.Positional {
		rows = append(rows, fmt.Sprintf("| `%s` | | %s |", strings.ToUpper(argument.Name), cell(argument.Help)))
	}
	for _, f := range sekali.FlagsOf(command) {
		if f.Name != "help" {
			rows = append(rows, flagRow(f))
		}
	}
	if len(rows) > 0 {
		fmt.Fprintf(b, "\n| argument | default | meaning |\n|---|---|---|\n%s\n", strings.Join(rows, "\n"))
	}
}

func flagRow(f *kong.Flag) string {
	name := "--" + f.Name
	if f.Short != 0 {
		name = "-" + string(f.Short) + ", " + name
	}
	switch {
	case f.Enum != "" && f.PlaceHolder == "":
		name += " " + strings.Join(f.EnumSlice(), "|")
	case !f.IsBool():
		name += " " + cmp.Or(f.PlaceHolder, strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_")))
	}
	value := ""
	if f.HasDefault && f.Default != "" {
		value = "`" + f.Default + "`"
	}
	meaning := f.Help
	for _, variable := range f.Envs {
		meaning += " Also `" + variable + "`."
	}
	return fmt.Sprintf("| `%s` | %s | %s |", cell(name), value, cell(meaning))
}

func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }

// Every command has a paragraph about it, and a line to copy.
func TestHelp_EveryCommandHasAnExample(t *testing.T) {
	t.Parallel()
	for _, command := range commands(sekali.Model()) {
		path := command.Path()
		if command.Help == "" || len(command.Help) > 90 || !strings.HasSuffix(command.Help, ".") {
			t.Errorf("%s: its one line is a short sentence, not %q", path, command.Help)
		}
		paragraph, example := false, false
		for line := range strings.Lines(command.Detail) {
			text := strings.TrimSpace(line)
			indented := strings.HasPrefix(line, "  ")
			paragraph = paragraph || !indented && text != ""
			example = example || indented && strings.Contains(line, "sekali ")
		}
		if !paragraph || !example {
			t.Errorf("%s: its help has no paragraph or no example:\n%s", path, command.Detail)
		}
		args := append(strings.Fields(path), "--help")
		out, notes, code := run(args...)
		if code != 0 || notes != "" || !strings.Contains(out, command.Help[:min(20, len(command.Help))]) || !strings.Contains(out, "sekali ") {
			t.Errorf("%q: exit code %d: %s%s", args, code, out, notes)
		}
	}
}

func TestHelp_ListsTheCommandsByWhatTheyAreFor(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"--help"}, {"-h"}} {
		out, notes, code := run(args...)
		if code != 0 || notes != "" {
			t.Fatalf("%q: exit code %d: %s", args, code, notes)
		}
		has(t, out, "Serve:\n", "Jobs:\n", "Operate:\n", "Set up and look after:\n", "\n  serve ", "\n  doctor ", "\n  token ")
		if lines := strings.Count(out, "\n"); lines > 50 || strings.Contains(out, "token create") {
			t.Errorf("%d lines are not short:\n%s", lines, out)
		}
	}
	out, _, _ := run("token", "--help")
	has(t, out, "Commands:\n", "token create", "token revoke")
}
