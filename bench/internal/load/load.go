// Package load makes HTTP requests as cheaply as it can: it shares the
// processors with what it measures, so each microsecond of its own is one that
// the measured program does not get. It speaks just enough HTTP/1.1 for answers
// with a Content-Length over kept connections, and takes any answer that is not
// in the 200s for a failure of the run.
package load

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"
)

// Request is what a connection sends, header and body. Whoever makes it may use
// the same memory again for the next one of the same connection.
type Request []byte

// Source makes the requests of one connection, one after the other; it reports
// false when there are no more.
type Source func() (Request, bool)

// Conn is one kept connection.
type Conn struct {
	conn   net.Conn
	reader *bufio.Reader
}

// Dial opens a connection to the address.
func Dial(ctx context.Context, address string) (*Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("load: connect: %w", err)
	}
	return &Conn{conn: conn, reader: bufio.NewReaderSize(conn, 2048)}, nil
}

// Close closes the connection.
func (c *Conn) Close() error { return c.conn.Close() }

// answerTimeout ends a run whose server does not answer.
const answerTimeout = 2 * time.Minute

// Do sends one request and reads its answer away.
func (c *Conn) Do(r Request) error {
	if err := c.Send(r); err != nil {
		return err
	}
	return c.Receive()
}

// Send sends one request and does not wait for the answer.
func (c *Conn) Send(r Request) error {
	if err := c.conn.SetDeadline(time.Now().Add(answerTimeout)); err != nil {
		return fmt.Errorf("load: deadline: %w", err)
	}
	if _, err := c.conn.Write(r); err != nil {
		return fmt.Errorf("load: send: %w", err)
	}
	return nil
}

var contentLength = []byte("content-length:")

// Receive reads one answer away.
func (c *Conn) Receive() error {
	line, err := c.reader.ReadSlice('\n')
	if err != nil {
		return fmt.Errorf("load: read the status: %w", err)
	}
	if len(line) < 12 {
		return fmt.Errorf("load: the status line is %q", line)
	}
	good, status := line[9] == '2', string(line[9:12])
	length, err := c.header()
	if err != nil {
		return err
	}
	if !good {
		body := make([]byte, min(length, 1024))
		_, _ = io.ReadFull(c.reader, body) // an incomplete text is better than none
		return fmt.Errorf("load: status %s: %s", status, body)
	}
	if _, err := c.reader.Discard(length); err != nil {
		return fmt.Errorf("load: read the body: %w", err)
	}
	return nil
}

// header reads the header away and returns the length of the body.
func (c *Conn) header() (int, error) {
	length := -1
	for {
		line, err := c.reader.ReadSlice('\n')
		if err != nil {
			return 0, fmt.Errorf("load: read the header: %w", err)
		}
		if len(line) <= 2 {
			break
		}
		if len(line) > len(contentLength) && bytes.EqualFold(line[:len(contentLength)], contentLength) {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(line[len(contentLength):]))); err != nil {
				return 0, fmt.Errorf("load: content length: %w", err)
			}
		}
	}
	if length < 0 {
		return 0, errors.New("load: an answer without Content-Length")
	}
	return length, nil
}
