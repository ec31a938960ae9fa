package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"sync/atomic"
)

// longestLine is far above what a gateway takes as one job, as delivered.
const longestLine = 64 << 20

// line is one job of a file.
type line struct {
	number int64 // the first is 1
	key    string
	text   []byte
	wrong  string // why it cannot be sent

	tries    int // in which it was put off
	accepted int // lines that were accepted by the last of them
}

// batch is what is sent in one request.
type batch struct {
	lines []line
	wrong []line // that cannot be sent
	bytes int64  // of the file, with what is not sent
}

// lineReader cuts a file into batches, and holds no more of it than one.
type lineReader struct {
	in     *bufio.Reader
	number atomic.Int64 // of the last line that was read
	held   *line        // read, and too much for the batch before
	bytes  int64        // of held
}

func newLineReader(in io.Reader) *lineReader {
	return &lineReader{in: bufio.NewReaderSize(in, 64<<10)}
}

// next returns the next batch; with the last one comes io.EOF.
func (r *lineReader) next() (batch, error) {
	var b batch
	size := 0
	for len(b.lines) < batchLines && len(b.wrong) < batchLines {
		l, n, err := r.take()
		if err != nil && l == nil {
			return b, err
		}
		if len(b.lines) > 0 && size+len(l.text) > batchBytes {
			r.held, r.bytes = l, n
			return b, nil
		}
		b.bytes += n
		switch {
		case l.wrong != "":
			b.wrong = append(b.wrong, *l)
		case len(l.text) > 0:
			b.lines = append(b.lines, *l)
			size += len(l.text)
		}
	}
	return b, nil
}

// take returns the next line, and how many bytes of the file it is.
func (r *lineReader) take() (*line, int64, error) {
	if l := r.held; l != nil {
		r.held = nil
		return l, r.bytes, nil
	}
	text, n, err := r.readLine()
	if n == 0 {
		return nil, 0, err
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, 0, err
	}
	number := r.number.Add(1)
	if number == 1 {
		text = bytes.TrimPrefix(text, []byte("\ufeff")) // some editors begin files so
	}
	l := &line{number: number, text: bytes.Trim(text, " \t\r\n")}
	l.check(n)
	return l, n, nil
}

// readLine reads to the end of a line. What is longer than longestLine is read and
// not kept.
func (r *lineReader) readLine() (text []byte, n int64, err error) {
	for {
		part, err := r.in.ReadSlice('\n')
		n += int64(len(part))
		if n <= longestLine {
			text = append(text, part...)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return text, n, err
		}
	}
}

// check finds what no gateway need be asked about: whoever has no key could not
// repeat the command, and a line that is no JSON has none.
func (l *line) check(n int64) {
	switch {
	case n > longestLine:
		l.wrong = "the line is longer than 64 MiB"
	case len(l.text) == 0: // nothing to send
	case !json.Valid(l.text):
		l.wrong = "the line is not one JSON value"
	case l.text[0] != '{':
		l.wrong = `the line is not a JSON object such as {"key": "order-42", "type": "invoice_generate"}`
	default:
		var item struct{ Key any }
		if json.Unmarshal(l.text, &item) != nil || item.Key == nil || item.Key == "" {
			l.wrong = "the line has no key, which makes it safe to repeat the command"
		}
		l.key, _ = item.Key.(string)
	}
}
