package middleware

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"strconv"
	"strings"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/idempotency"
)

// storeHeader is how a handler says that its answer is not to be stored. It
// never reaches the client.
const storeHeader = "Idempotency-Store"

// How a capture passes on what the handler writes.
type passing int

const (
	// atTheEnd holds the answer back until the handler has returned, so that it
	// is stored before the client has it. An answer that is too large for that,
	// or is a stream, is passed on from then.
	atTheEnd passing = iota
	// afterCommit holds everything back, whatever its size.
	afterCommit
	// atOnce holds nothing back; what is left is the stripping of headers.
	atOnce
)

// capture is the ResponseWriter of a keyed handler.
type capture struct {
	w           http.ResponseWriter
	method      string
	passing     passing
	limit       int  // of the body that is held back and stored
	ignoreFlush bool // a flush makes no stream

	header http.Header // the handler's, until the answer is a stream
	status int         // 0 until the handler has decided
	sent   http.Header // header as it was then
	body   bytes.Buffer
	stream bool // the answer has been begun and is passed on as it comes
	// endless is called when what has begun has no end of its own; may be nil.
	endless  func()
	hijacked bool
}

// Flusher and ReaderFrom are asked for by type; everything else that the server
// can do is reached through Unwrap.
var (
	_ http.Flusher  = (*capture)(nil)
	_ http.Hijacker = (*capture)(nil)
	_ io.ReaderFrom = (*capture)(nil)
)

func newCapture(w http.ResponseWriter, r *http.Request, p passing, limit int) *capture {
	return &capture{w: w, method: r.Method, passing: p, limit: limit, header: http.Header{}}
}

// Unwrap is for http.ResponseController: deadlines are the connection's.
func (c *capture) Unwrap() http.ResponseWriter { return c.w }

// Header implements http.ResponseWriter. Once the answer has begun it is the
// connection's, for trailers.
func (c *capture) Header() http.Header {
	if c.stream {
		return c.w.Header()
	}
	return c.header
}

// WriteHeader implements http.ResponseWriter. Informational answers are left
// out: they mean nothing by the time the answer is sent.
func (c *capture) WriteHeader(status int) {
	if status < 100 || status > 999 {
		panic(fmt.Sprintf("middleware: invalid status %d", status)) // as net/http does
	}
	informational := status < http.StatusOK && status != http.StatusSwitchingProtocols
	if c.status != 0 || informational {
		return
	}
	c.status, c.sent = status, c.header.Clone()
	if c.isStream() {
		c.begin()
	}
}

// isStream reports whether the answer cannot be held back, by what the handler
// says of it.
func (c *capture) isStream() bool {
	switch c.passing {
	case atOnce:
		return true
	case afterCommit:
		return false
	case atTheEnd:
	}
	return c.isEventStream() || c.status == http.StatusSwitchingProtocols || c.declared() > int64(c.limit)
}

func (c *capture) isEventStream() bool {
	mediaType, _, _ := mime.ParseMediaType(c.header.Get("Content-Type"))
	return mediaType == "text/event-stream"
}

// declared is the length that the handler promised, or -1.
func (c *capture) declared() int64 {
	length, err := strconv.ParseInt(c.sent.Get("Content-Length"), 10, 64)
	if err != nil {
		return -1
	}
	return length
}

// begin starts the answer and passes on what was held back.
func (c *capture) begin() {
	if c.endless != nil && (c.isEventStream() || c.status == http.StatusSwitchingProtocols) {
		c.endless()
	}
	c.stream = true
	c.writeHeader()
	_, _ = c.body.WriteTo(c.w) // the next write meets the same broken connection
	c.body = bytes.Buffer{}
}

// Write implements http.ResponseWriter.
func (c *capture) Write(p []byte) (int, error) {
	if c.hijacked {
		return 0, http.ErrHijacked
	}
	if c.status == 0 {
		c.WriteHeader(http.StatusOK)
	}
	if !bodyAllowed(c.status) {
		return 0, http.ErrBodyNotAllowed
	}
	if c.passing == atTheEnd && !c.stream && c.body.Len()+len(p) > c.limit {
		c.begin()
	}
	if c.stream {
		return c.w.Write(p)
	}
	return c.body.Write(p)
}

// ReadFrom implements io.ReaderFrom, so that a file that is larger than what is
// held back can still be sent by the kernel.
func (c *capture) ReadFrom(src io.Reader) (int64, error) {
	var n int64
	if !c.stream {
		var err error
		most := int64(c.limit) + 1
		if c.passing == afterCommit {
			most = 1<<63 - 1
		}
		n, err = io.CopyN(struct{ io.Writer }{c}, src, most)
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil || !c.stream {
			return n, err
		}
	}
	rest, err := io.Copy(c.w, src)
	return n + rest, err
}

// Flush implements http.Flusher.
func (c *capture) Flush() { _ = c.FlushError() }

// FlushError is what http.ResponseController calls. A handler that flushes
// wants its client to have what there is: the answer becomes a stream.
func (c *capture) FlushError() error {
	if c.passing == afterCommit || c.ignoreFlush && !c.stream && !c.isEventStream() {
		return nil
	}
	if c.status == 0 {
		c.WriteHeader(http.StatusOK)
	}
	if !c.stream {
		c.begin()
	}
	return http.NewResponseController(c.w).Flush()
}

// Hijack implements http.Hijacker. What is said on the connection from then on
// is not seen here.
func (c *capture) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	if c.passing == afterCommit {
		return nil, nil, http.ErrNotSupported
	}
	conn, buffered, err := http.NewResponseController(c.w).Hijack()
	if err == nil {
		c.hijacked, c.stream = true, true
		if c.status == 0 {
			c.status, c.sent = http.StatusSwitchingProtocols, c.header.Clone()
		}
	}
	return conn, buffered, err
}

// seal fixes the answer when the handler has returned.
func (c *capture) seal() {
	if c.status == 0 {
		c.WriteHeader(http.StatusOK)
	}
	_, typed := c.sent["Content-Type"]
	coded := c.sent.Get("Content-Encoding") != ""
	if !c.stream && !typed && !coded && c.body.Len() > 0 {
		// What the server would do, done here so that a replay has it too.
		c.sent.Set("Content-Type", http.DetectContentType(c.body.Bytes()))
	}
}

// short reports an answer that ended before the length that it promised: it must
// be neither stored nor taken for a whole one.
func (c *capture) short() bool {
	return !c.stream && bodyAllowed(c.status) && c.method != http.MethodHead && c.declared() > int64(c.body.Len())
}

func (c *capture) optedOut() bool {
	return strings.EqualFold(strings.TrimSpace(c.sent.Get(storeHeader)), "no")
}

// response is what is stored of the answer.
func (c *capture) response(also []string) idempotency.Response {
	response := idempotency.Response{Status: c.status, Header: api.Replayable(c.sent, also...)}
	if c.stream || c.body.Len() > c.limit {
		response.NotRetained = true
		return response
	}
	response.Body = c.body.Bytes()
	return response
}

// deliver sends what was held back.
func (c *capture) deliver() {
	if c.stream {
		return
	}
	if bodyAllowed(c.status) && c.method != http.MethodHead && !c.short() {
		c.sent.Set("Content-Length", strconv.Itoa(c.body.Len()))
	}
	c.writeHeader()
	_, _ = c.w.Write(c.body.Bytes())
}

func (c *capture) writeHeader() {
	if c.status >= http.StatusBadRequest && c.sent.Get("Error-Source") == "" {
		c.sent.Set("Error-Source", "handler")
	}
	merge(c.w.Header(), c.sent)
	c.w.WriteHeader(c.status)
}

// merge puts the handler's headers over those that were set around it, except
// where it is not the handler's to say.
func merge(dst, src http.Header) {
	cors := dst.Get("Access-Control-Allow-Origin") != ""
	for name, values := range src {
		switch {
		case isMarker(name):
		case cors && strings.HasPrefix(name, "Access-Control-"):
		case isOurs(name) && len(dst[name]) > 0:
		case name == "Vary":
			dst[name] = append(dst[name], values...)
		default:
			dst[name] = values
		}
	}
}

// isMarker names the headers that tell a client about its key.
func isMarker(name string) bool {
	return name == keyHeader || name == "Idempotent-Replayed" || strings.HasPrefix(name, "Idempotency-")
}

// isOurs names the headers that hold for every answer to a keyed request.
func isOurs(name string) bool { return name == "Cache-Control" || name == requestIDHeader }

func bodyAllowed(status int) bool {
	return status >= http.StatusOK && status != http.StatusNoContent && status != http.StatusNotModified
}
