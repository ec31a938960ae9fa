package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/mattn/go-isatty"
)

// terminal is where a command reads and writes. What is asked for goes to out,
// so that it can be piped; what is said about it goes to notes.
type terminal struct {
	in         io.Reader
	out, notes io.Writer
	colours    bool // of out
}

// standardTerminal is the process's own. It has colours where a person looks on
// who has not declined them (https://no-color.org).
func standardTerminal() terminal {
	seen := isatty.IsTerminal(os.Stdout.Fd()) || isatty.IsCygwinTerminal(os.Stdout.Fd())
	wanted := os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	return terminal{in: os.Stdin, out: os.Stdout, notes: os.Stderr, colours: seen && wanted}
}

// outputFlag chooses between a table for people and JSON for programs.
type outputFlag struct {
	Output string `short:"o" enum:"table,json" default:"table" help:"table or json."`
}

func (f outputFlag) json() bool { return f.Output == "json" }

// note says something to the person at the terminal.
func (t terminal) note(format string, args ...any) {
	fmt.Fprintln(t.notes, plain(fmt.Sprintf(format, args...)))
}

// between columns of a table.
const between = "  "

// table prints rows under a head, words of state in colour.
func (t terminal) table(head []string, rows [][]string) error {
	widths := make([]int, len(head))
	all := append([][]string{slices.Clone(head)}, rows...)
	for _, row := range all {
		for i := range row {
			row[i] = plain(row[i])
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
	}
	var b strings.Builder
	for n, row := range all {
		for i, cell := range row {
			space := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)) + between
			if i == len(row)-1 {
				space = "\n"
			}
			if n > 0 && (head[i] == "STATUS" || head[i] == "STATE") {
				cell = t.paint(cell)
			}
			b.WriteString(cell + space)
		}
	}
	_, err := io.WriteString(t.out, b.String())
	return err
}

// The colours of a terminal that say how something stands.
const (
	green, yellow, red, cyan, gray = "\x1b[32m", "\x1b[33m", "\x1b[31m", "\x1b[36m", "\x1b[90m"
	uncoloured                     = "\x1b[0m"
)

var colourOf = map[string]string{
	"succeeded": green, "ok": green, "active": green, "applied": green,
	"processing": cyan, "retrying": yellow, "warning": yellow, "paused": yellow, "not configured": yellow,
	"failed": red, "problem": red, "cancelled": gray, "revoked": gray, "expired": gray,
}

// paint colours a word of state, where the terminal has colours.
func (t terminal) paint(word string) string {
	colour, ok := colourOf[word]
	if !ok || !t.colours {
		return word
	}
	return colour + word + uncoloured
}

// print prints a document of ours.
func (t terminal) print(document any) error {
	encoder := json.NewEncoder(t.out)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(document)
}

// document prints a document of the gateway, its values as they came.
func (t terminal) document(body []byte) error {
	var b bytes.Buffer
	if err := json.Indent(&b, bytes.TrimSpace(body), "", "  "); err != nil {
		return fmt.Errorf("the gateway's answer is no JSON: %w", err)
	}
	b.WriteByte('\n')
	_, err := t.out.Write(b.Bytes())
	return err
}

// plain keeps texts of other programs from steering the terminal, and from looking
// like something else: beside control characters, those that turn the direction of
// a text or cannot be seen become spaces.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text)
}

func orNone(text *string) string {
	if text == nil || *text == "" {
		return "-"
	}
	return *text
}

func milliseconds(ms *int64) string {
	if ms == nil {
		return "-"
	}
	return (time.Duration(*ms) * time.Millisecond).String()
}
