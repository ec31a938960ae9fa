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
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/idempotency"
)

const keyHeader = "Idempotency-Key"

const (
	defaultBodyLimit = 1 << 20
	// defaultBodyTimeout lets 1 MiB through at 1 Mbit/s, and lets go of a client
	// that sends a byte a second.
	defaultBodyTimeout = 10 * time.Second
)

// KeyPolicy says which keyed requests a route takes.
type KeyPolicy struct {
	Required    bool
	Rule        idempotency.KeyRule
	BodyLimit   int64         // bytes as they arrive; 0 means 1 MiB
	BodyTimeout time.Duration // for all of the body; 0 means 10 s
	MediaTypes  []string      // without parameters; none means any
}

// Key makes a keyed request of what the client sent and puts it into the
// context, with the body read and given on. It checks, in this order, what can
// be told without and then with the body, then the key, then the JSON; nothing
// has been claimed by then, so no refusal uses up the key. Without a key, where
// none is required, the request goes on with an empty one.
func Key(p KeyPolicy) func(http.Handler) http.Handler {
	p.BodyLimit = cmp.Or(p.BodyLimit, defaultBodyLimit)
	p.BodyTimeout = cmp.Or(p.BodyTimeout, defaultBodyTimeout)
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "no-store")
			w.Header().Set("Vary", "Prefer")
			req, body, err := p.read(w, r)
			ctx := r.Context()
			if req.Key != "" {
				w.Header().Set(keyHeader, req.Key.Header())
				w.Header().Set("Idempotent-Replayed", "false")
				ctx = idempotency.NewContext(ctx, req)
				api.ReportOf(ctx).Request = req
			}
			if err != nil {
				api.WriteError(w, r.WithContext(ctx), err)
				return
			}
			if req.Key == "" {
				w.Header().Set("Idempotency-Status", "none")
				ctx = idempotency.NewContext(ctx, req)
			}
			r = r.WithContext(ctx)
			r.Body = io.NopCloser(bytes.NewReader(body))
			r.ContentLength = int64(len(body))
			next.ServeHTTP(w, r)
		})
	}
}

// read returns the request as far as it got: with an error the key is set if
// it was parsed.
func (p KeyPolicy) read(w http.ResponseWriter, r *http.Request) (idempotency.Request, []byte, error) {
	req := idempotency.Request{Tenant: idempotency.TenantOf(r.Context())}
	mediaType, err := p.mediaType(r)
	if err != nil {
		return req, nil, err
	}
	body, err := p.body(w, r)
	if err != nil {
		return req, nil, err
	}
	req.Key, err = idempotency.ParseKey(r.Header.Values(keyHeader), p.Rule)
	if err != nil && (p.Required || !errors.Is(err, idempotency.ErrKeyMissing)) {
		return req, nil, err
	}
	req.Fingerprint, err = fingerprint(r, mediaType, body)
	return req, body, err
}

// mediaType is the body's, without parameters; a request without a body needs
// none.
func (p KeyPolicy) mediaType(r *http.Request) (string, error) {
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

// body reads the whole body, counting the bytes that really come.
func (p KeyPolicy) body(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if r.ContentLength > p.BodyLimit {
		return nil, &api.TooLargeError{Limit: p.BodyLimit}
	}
	stop := limitReading(w, p.BodyTimeout)
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, p.BodyLimit))
	inTime := stop()
	tooLarge := (*http.MaxBytesError)(nil)
	switch {
	case errors.As(err, &tooLarge):
		return nil, &api.TooLargeError{Limit: p.BodyLimit}
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

func fingerprint(r *http.Request, mediaType string, body []byte) (idempotency.Fingerprint, error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return idempotency.Fingerprint{}, &api.ValidationError{Errors: []api.FieldError{api.BadQuery}}
	}
	if api.IsJSON(mediaType) {
		if body, err = idempotency.Canonical(body); err != nil {
			return idempotency.Fingerprint{}, err
		}
	}
	return idempotency.NewFingerprint(r.Method, r.URL.EscapedPath(), query, mediaType, body), nil
}
