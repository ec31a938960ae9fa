package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
)

// terminal is where a command reads and writes. What is asked for goes to out,
// so that it can be piped; what is said about it goes to notes.
type terminal struct {
	in         io.Reader
	out, notes io.Writer
}

// note says something to the person at the terminal.
func (t terminal) note(format string, args ...any) {
	fmt.Fprintln(t.notes, plain(fmt.Sprintf(format, args...)))
}

// table prints rows under a head.
func (t terminal) table(head []string, rows [][]string) error {
	w := tabwriter.NewWriter(t.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, strings.Join(head, "\t"))
	for _, row := range rows {
		for i := range row {
			row[i] = plain(row[i])
		}
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	return w.Flush()
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

// plain keeps texts of other programs from steering the terminal.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
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
