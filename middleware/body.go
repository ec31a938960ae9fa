package middleware

import (
	"cmp"
	"context"
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
	// TooLarge is what a larger body gets; nil says what the limit is.
	TooLarge *api.TooLargeError
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
			next.ServeHTTP(w, withBody(r.Context(), r, body))
		})
	}
}

func (p BodyPolicy) withDefaults() BodyPolicy {
	p.Limit = cmp.Or(p.Limit, defaultBodyLimit)
	p.Timeout = cmp.Or(p.Timeout, defaultBodyTimeout)
	p.TooLarge = cmp.Or(p.TooLarge, &api.TooLargeError{Limit: p.Limit})
	return p
}

// withBody gives the body on, for whoever reads it next.
func withBody(ctx context.Context, r *http.Request, body []byte) *http.Request {
	r = r.WithContext(ctx)
	api.SetBody(r, body)
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
	if len(lines) != 1 {
		return "", p.refusedType()
	}
	if slices.Contains(p.MediaTypes, lines[0]) {
		return lines[0], nil // to the letter, as most send it
	}
	mediaType, parameters, err := mime.ParseMediaType(lines[0])
	if err != nil || len(p.MediaTypes) > 0 && !slices.Contains(p.MediaTypes, mediaType) {
		return "", p.refusedType()
	}
	if charset := parameters["charset"]; api.IsJSON(mediaType) && charset != "" && !strings.EqualFold(charset, "utf-8") {
		return "", p.refusedType()
	}
	return mediaType, nil
}

func (p BodyPolicy) refusedType() error {
	if len(p.MediaTypes) == 0 {
		return &api.MediaTypeError{Detail: "Send the header Content-Type with the type of the body."}
	}
	types := strings.Join(p.MediaTypes, " or ")
	return &api.MediaTypeError{
		Detail: fmt.Sprintf("Send %s in UTF-8, with its Content-Type. With curl: curl --json '{…}'.", types),
	}
}

// read reads the whole body, counting the bytes that really come.
func (p BodyPolicy) read(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if r.ContentLength > p.Limit {
		return nil, p.TooLarge
	}
	stop := limitReading(w, p.Timeout)
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, p.Limit))
	inTime := stop()
	tooLarge := (*http.MaxBytesError)(nil)
	switch {
	case errors.As(err, &tooLarge):
		return nil, p.TooLarge
	case !inTime || isTimeout(err):
		return nil, fmt.Errorf("%w: %w", api.ErrRequestTimeout, cmp.Or(err, os.ErrDeadlineExceeded))
	case err != nil:
		return nil, fmt.Errorf("%w: %w", api.ErrBodyUnreadable, err)
	}
	return body, nil
}

func isTimeout(err error) bool {
	if err == nil {
		return false
	}
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
