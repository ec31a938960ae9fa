package middleware

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/sekali/sekali/api"
)

const (
	defaultBodyLimit = 1 << 20
	// defaultBodyTimeout lets 1 MiB through at 1 Mbit/s, and lets go of a client
	// that sends a byte a second.
	defaultBodyTimeout = 10 * time.Second
)

// BodyPolicy says which bodies a route takes.
type BodyPolicy struct {
	Limit      int64         // bytes as they arrive; 0 means 1 MiB
	Timeout    time.Duration // for all of the body; 0 means 10 s
	MediaTypes []string      // without parameters; none means any
}

// Body reads the body before the handler runs, for routes without Key. What is
// too large, too slow or of another media type is refused.
func Body(p BodyPolicy) func(http.Handler) http.Handler {
	p = p.withDefaults()
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, err := p.mediaType(r)
			if err != nil {
				api.WriteError(w, r, err)
				return
			}
			body, err := p.read(w, r)
			if err != nil {
				api.WriteError(w, r, err)
				return
			}
			next.ServeHTTP(w, withBody(r, body))
		})
	}
}

func (p BodyPolicy) withDefaults() BodyPolicy {
	p.Limit = cmp.Or(p.Limit, defaultBodyLimit)
	p.Timeout = cmp.Or(p.Timeout, defaultBodyTimeout)
	return p
}

// withBody gives the body on, for whoever reads it next.
func withBody(r *http.Request, body []byte) *http.Request {
	r = r.WithContext(r.Context())
	r.Body = io.NopCloser(bytes.NewReader(body))
	r.ContentLength = int64(len(body))
	return r
}

// mediaType is the body's, without parameters; a request without a body needs
// none.
func (p BodyPolicy) mediaType(r *http.Request) (string, error) {
	if coding := r.Header.Get("Content-Encoding"); coding != "" && !strings.EqualFold(coding, "identity") {
		return "", &api.MediaTypeError{Detail: "Send the body as it is, without Content-Encoding."}
	}
	lines := r.Header.Values("Content-Type")
	if len(lines) == 0 && (r.ContentLength == 0 || r.Body == http.NoBody) {
		return "", nil
	}
	refused := &api.MediaTypeError{Detail: "Send the header Content-Type with the type of the body."}
	if len(p.MediaTypes) > 0 {
		refused.Detail = fmt.Sprintf("Send %s in UTF-8, with its Content-Type. With curl: curl --json '{…}'.", strings.Join(p.MediaTypes, " or "))
	}
	if len(lines) != 1 {
		return "", refused
	}
	mediaType, parameters, err := mime.ParseMediaType(lines[0])
	if err != nil || len(p.MediaTypes) > 0 && !slices.Contains(p.MediaTypes, mediaType) {
		return "", refused
	}
	if charset := parameters["charset"]; api.IsJSON(mediaType) && charset != "" && !strings.EqualFold(charset, "utf-8") {
		return "", refused
	}
	return mediaType, nil
}

// read reads the whole body, counting the bytes that really come.
func (p BodyPolicy) read(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if r.ContentLength > p.Limit {
		return nil, &api.TooLargeError{Limit: p.Limit}
	}
	stop := limitReading(w, p.Timeout)
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, p.Limit))
	inTime := stop()
	tooLarge := (*http.MaxBytesError)(nil)
	switch {
	case errors.As(err, &tooLarge):
		return nil, &api.TooLargeError{Limit: p.Limit}
	case !inTime || isTimeout(err):
		return nil, fmt.Errorf("%w: %w", api.ErrRequestTimeout, cmp.Or(err, os.ErrDeadlineExceeded))
	case err != nil:
		return nil, fmt.Errorf("%w: %w", api.ErrBodyUnreadable, err)
	}
	return body, nil
}

func isTimeout(err error) bool {
	var e net.Error
	return errors.As(err, &e) && e.Timeout()
}

// limitReading makes reads of the connection fail after a while, for good,
// unless stop comes first and reports true. The server's ReadTimeout would do
// so too, but it goes on counting while the handler works, and would take a
// client that waits for one that has left.
func limitReading(w http.ResponseWriter, after time.Duration) (stop func() bool) {
	connection := http.NewResponseController(w)
	timer := time.AfterFunc(after, func() {
		_ = connection.SetReadDeadline(time.Unix(1, 0)) // at once; not every connection can
	})
	return timer.Stop
}
