package main

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"
)

// parser reads command lines.
type parser struct {
	kong   *kong.Kong
	helped bool // --help was asked for, and is printed
}

func newParser(t terminal) *parser {
	p := &parser{}
	var err error
	p.kong, err = kong.New(&cli{}, kong.Name("sekali"),
		kong.Description("HTTP gateway for background jobs: submit a job with a key as often as you like, its effect happens once."),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true, WrapUpperBound: helpWidth}),
		kong.TypeMapper(reflect.TypeFor[*time.Time](), kong.MapperFunc(readTime)),
		kong.TypeMapper(reflect.TypeFor[time.Duration](), kong.MapperFunc(readSpan)), kong.Writers(t.out, t.notes), kong.Exit(func(int) { p.helped = true }), groups)
	if err != nil {
		panic(err) // the struct of the command line is wrong
	}
	// The groups are for the list of all commands; what stands below one of them
	// would be headed by its group again.
	for _, command := range p.kong.Model.Children {
		for _, below := range command.Children {
			below.Group = &kong.Group{Key: "commands", Title: "Commands:"}
		}
	}
	return p
}

// readTime reads the value of a flag that is a time.
func readTime(from *kong.DecodeContext, to reflect.Value) error {
	var text string
	if err := from.Scan.PopValueInto("time", &text); err != nil {
		return err
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return &usageError{"must be an RFC 3339 time such as " + exampleTime}
	}
	to.Set(reflect.ValueOf(&at))
	return nil
}

// readSpan reads the value of a flag that is a length of time.
func readSpan(from *kong.DecodeContext, to reflect.Value) error {
	var text string
	if err := from.Scan.PopValueInto("duration", &text); err != nil {
		return err
	}
	span, err := time.ParseDuration(text)
	switch {
	case err != nil:
		return &usageError{fmt.Sprintf("must be a length of time such as 30s, 10m or 720h, at most 2562047h, and is %q", text)}
	case span < 0:
		return &usageError{notNegative}
	}
	to.SetInt(int64(span))
	return nil
}

const notNegative = "must not be negative"

const exampleTime = "2026-01-02T03:04:05Z"

// forms are the ways to type a command. A flag whose tag form:"…" shows a way of its
// own stands for that way where it was given.
func forms(command *kong.Node) []string {
	list := []string{synopsis(command)}
	for _, flag := range flagsOf(command) {
		form := flag.Tag.Get("form")
		if form == "" {
			continue
		}
		form = command.FullPath() + " " + form
		if flag.Set {
			return []string{form}
		}
		list = append(list, form)
	}
	return list
}

// synopsis is how a command is typed: with what it needs, and with those flags
// that their tag usage:"…" shows as what people type most.
func synopsis(command *kong.Node) string {
	words := []string{command.FullPath()}
	if children := names(command); command.Parent == nil {
		words = append(words, "COMMAND")
	} else if len(children) > 0 && command.DefaultCmd != nil {
		words = append(words, "["+strings.Join(children, "|")+"]")
	} else if len(children) > 0 {
		words = append(words, strings.Join(children, "|"))
	}
	for _, argument := range command.Positional {
		word := cmp.Or(strings.Join(argument.EnumSlice(), "|"), placeholder(argument.Name))
		if !argument.Required {
			word = "[" + word + "]"
		}
		words = append(words, word)
	}
	var more []string
	for _, flag := range flagsOf(command) {
		switch shown := flag.Tag.Get("usage"); {
		case shown != "":
			more = append(more, shown)
		case flag.Required:
			words = append(words, "--"+flag.Name+" "+valueOf(flag))
		}
	}
	return strings.Join(append(words, more...), " ")
}

// valueOf is what stands for the value of a flag.
func valueOf(flag *kong.Flag) string {
	if flag.Enum != "" && flag.PlaceHolder == "" {
		return strings.Join(flag.EnumSlice(), "|")
	}
	return cmp.Or(flag.PlaceHolder, placeholder(flag.Name))
}

func placeholder(name string) string {
	return strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

// names are the commands below a command.
func names(command *kong.Node) []string {
	var list []string
	for _, child := range command.Children {
		if !child.Hidden {
			list = append(list, child.Name)
		}
	}
	return list
}

// flagsOf are the flags that may follow a command, its own first.
func flagsOf(command *kong.Node) []*kong.Flag {
	var list []*kong.Flag
	for _, level := range slices.Backward(command.AllFlags(true)) {
		list = append(list, level...)
	}
	return list
}
