package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/sekali/sekali/gateway"
)

// usageError reports arguments that cannot be meant. It is told in one line,
// with what to type.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

// report tells an error of a command, or of the words that should name one, and
// returns the exit code.
func (p *parser) report(t terminal, command *kong.Node, err error) int {
	if !isUsage(err) {
		fmt.Fprintln(t.notes, "sekali:", told(err))
		return codeOf(err)
	}
	switch {
	case command == nil:
		command = p.kong.Model.Node
	case command.Parent != nil && command.Parent.DefaultCmd == command:
		command = command.Parent // which names the others too
	}
	who, where := "sekali", "has examples"
	if command.Parent != nil {
		who = "sekali: " + command.Path()
	} else {
		where = "lists the commands"
	}
	t.note("%s: %s; type: %s  (%s --help %s)", who, wrong(command, err), strings.Join(forms(command), " or "), command.FullPath(), where)
	return exitUsage
}

func isUsage(err error) bool {
	var parse *kong.ParseError
	var usage *usageError
	var draft *gateway.DraftError
	return errors.As(err, &parse) || errors.As(err, &usage) || errors.As(err, &draft)
}

func codeOf(err error) int {
	var wrong *gateway.ConfigError
	var coded interface{ exitCode() int }
	switch {
	case errors.As(err, &wrong):
		return exitUsage
	case errors.As(err, &coded):
		return coded.exitCode()
	case errors.Is(err, context.Canceled):
		return exitInterrupted
	}
	return exitFailed
}

// told is an error as people are told of it: with what to do, where that is known.
// What other programs have put into it does not steer the terminal.
func told(err error) string {
	text := ownText(err)
	if !isForeign(err) {
		text = unpackaged(text)
	}
	if advice := adviceOn(err); advice != "" {
		text += "\n  What to do: " + advice + "."
	}
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = plain(line)
	}
	return strings.Join(lines, "\n")
}

func adviceOn(err error) string {
	var advised *gateway.AdvisedError
	switch {
	case errors.As(err, &advised):
		return advised.Do
	case errors.Is(err, syscall.EADDRINUSE):
		return "stop what listens there, or name another address with --listen (listen)"
	}
	return ""
}

// isForeign reports an error that may quote others in its midst: a gateway, what a
// receiver said, a value of the configuration.
func isForeign(err error) bool {
	var wrong *gateway.ConfigError
	var coded interface{ exitCode() int }
	return errors.As(err, &wrong) || errors.As(err, &coded)
}

// The names that errors begin with, and those of the layers below them: they are for
// those who read the code.
const packageNames = `(?:(?:access|api|client|dispatcher|executor|gateway|handlers|idempotency|job|lock|middleware|migrations|pq|proxy|repository): )+`

var (
	packagesFirst = regexp.MustCompile(`^` + packageNames)
	packagesAll   = regexp.MustCompile(`(?m)(^|: )` + packageNames)
)

// ownText is an error without the names of packages that it begins with.
func ownText(err error) string { return packagesFirst.ReplaceAllString(err.Error(), "") }

// unpackaged is a text that is all our own without the names of packages in it.
func unpackaged(text string) string { return packagesAll.ReplaceAllString(text, "$1") }

// nodeOf is the command that a wrong line had come to; nil for none.
func nodeOf(err error) *kong.Node {
	var parse *kong.ParseError
	if !errors.As(err, &parse) || parse.Context == nil {
		return nil
	}
	var last *kong.Node
	for _, step := range parse.Context.Path {
		if step.Command != nil {
			last = step.Command
		}
	}
	return last
}

var (
	missingWords = regexp.MustCompile(`^(missing flags|missing positional|expected ("|one of))`)
	nearMiss     = regexp.MustCompile(`, did you mean .*\?$`)
	noValue      = regexp.MustCompile(`^(--[a-z-]+): .*\((?:<EOL>\)$|long flag\))`)
	noNumber     = regexp.MustCompile(`^(--[a-z-]+): expected a valid 64 bit int but got (".*")$`)
	dashFirst    = regexp.MustCompile(`^(--[a-z-]+): expected (\w+) value but got "(-.*)" \(short flag\)`)
	mustBe       = regexp.MustCompile(`^(--[a-z-]+): (must )`)
	noneOf       = regexp.MustCompile(`^(\S+) must be one of "(.*)" but got (".*")$`)
)

// wrong says what is wrong in our words: the parser's own name no flags as people
// type them.
func wrong(command *kong.Node, err error) string {
	text := ownText(err)
	if missingWords.MatchString(text) {
		return missing(command)
	}
	if found := noValue.FindStringSubmatch(text); found != nil {
		return found[1] + " needs a value"
	}
	if found := noNumber.FindStringSubmatch(text); found != nil {
		return found[1] + " must be a whole number, and is " + found[2]
	}
	if found := dashFirst.FindStringSubmatch(text); found != nil {
		if found[2] == "duration" {
			return found[1] + " " + notNegative
		}
		return fmt.Sprintf("%s: write a value that begins with - as %s=%s", found[1], found[1], shellWord(found[3]))
	}
	text = mustBe.ReplaceAllString(text, "$1 $2")
	if found := noneOf.FindStringSubmatch(text); found != nil {
		name := found[1]
		if !strings.HasPrefix(name, "-") {
			name = placeholder(strings.Trim(name, "<>[]"))
		}
		return fmt.Sprintf("%s must be %s, and is %s", name, oneOf(strings.Split(found[2], `","`)), found[3])
	}
	return nearMiss.ReplaceAllStringFunc(text, func(found string) string {
		return " (did you mean " + strings.ReplaceAll(strings.TrimPrefix(found, ", did you mean "), `"`, "") + ")"
	})
}

// oneOf lists words to choose from; what may be left out is none.
func oneOf(words []string) string {
	if last := len(words) - 1; words[last] == "" {
		words = words[:last]
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// missing names what a command needs and was not given.
func missing(command *kong.Node) string {
	var names []string
	for _, argument := range command.Positional {
		if argument.Required && !argument.Set {
			names = append(names, placeholder(argument.Name))
		}
	}
	for _, flag := range flagsOf(command) {
		if flag.Required && !flag.Set {
			names = append(names, "--"+flag.Name)
		}
	}
	if len(names) > 0 {
		return "missing " + strings.Join(names, ", ")
	}
	return "missing a command"
}
