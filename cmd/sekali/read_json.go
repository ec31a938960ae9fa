package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// byteOrderMark begins the files of some editors, and is no part of their text.
var byteOrderMark = []byte("\ufeff")

// readJSON reads one JSON value from what a flag says: the text itself, @FILE, or -
// for standard input. The value's bytes stay as they are. ctx ends the reading.
func readJSON(ctx context.Context, flag, argument string, in io.Reader) ([]byte, error) {
	file, isFile := strings.CutPrefix(argument, "@")
	switch {
	case argument == "-":
		data, err := readAll(ctx, func() ([]byte, error) { return io.ReadAll(in) })
		return jsonIn(flag+": standard input", data, err)
	case argument == "@":
		return nil, &usageError{flag + ": no file is named after @"}
	case isFile:
		data, err := readAll(ctx, func() ([]byte, error) { return os.ReadFile(file) })
		return jsonIn(flag+": the file "+file, data, err)
	}
	data, err := jsonIn(flag, []byte(argument), nil)
	if err != nil {
		return nil, &usageError{fmt.Sprintf(`%v; a text is written in quotes: %s '"text"', and a file as %s @FILE`, err, flag, flag)}
	}
	return data, nil
}

// readAll reads to the end, unless ctx ends before: nothing interrupts the reading
// of a pipe or a terminal, so it is left behind, and the process is about to end.
func readAll(ctx context.Context, read func() ([]byte, error)) ([]byte, error) {
	type outcome struct {
		data []byte
		err  error
	}
	done := make(chan outcome, 1)
	go func() {
		data, err := read()
		done <- outcome{data, err}
	}()
	select {
	case <-ctx.Done():
		return nil, &interruptedError{}
	case o := <-done:
		return o.data, o.err
	}
}

// jsonIn is the one JSON value in data; source names where it comes from.
func jsonIn(source string, data []byte, err error) ([]byte, error) {
	var interrupted *interruptedError
	var path *os.PathError
	switch {
	case errors.As(err, &interrupted):
		return nil, err
	case errors.As(err, &path):
		return nil, &usageError{source + ": " + path.Err.Error()} // the name is told once
	case err != nil:
		return nil, &usageError{source + ": " + err.Error()}
	}
	value := bytes.TrimSpace(bytes.TrimPrefix(data, byteOrderMark))
	if len(value) == 0 {
		return nil, &usageError{source + " is empty"}
	}
	var wrong *json.SyntaxError
	if err := json.Unmarshal(value, new(json.RawMessage)); errors.As(err, &wrong) {
		at := bytes.Index(data, value) + int(wrong.Offset)
		line := 1 + bytes.Count(data[:at-1], []byte("\n"))
		return nil, &usageError{fmt.Sprintf("%s is not one JSON value: %v (line %d, at byte %d)", source, wrong, line, at)}
	}
	return value, nil
}
