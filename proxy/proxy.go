// Package proxy sends a request on to an API behind the gateway and brings its
// answer back. With middleware.Once around it, that API has idempotency that it
// never had to know of.
//
// What it promises:
//
//   - One request is at most one request to the upstream, whatever happens to the
//     connection. Only GET and HEAD may be sent again, on one that was kept.
//   - An answer that is not whole is never passed on as if it were, as long as
//     it is one that can be stored: the client gets 502 or 504.
//   - An error that came before anything was sent releases the key, whatever the
//     policy for 5xx says; for any other nobody knows what the upstream has done.
//   - The upstream learns the key, the tenant, and where the request came from;
//     never the token of the gateway.
//
// It passes neither informational answers (1xx) nor trailers on.
package proxy

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"time"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/idempotency"
)

const (
	defaultTimeout   = 30 * time.Second
	defaultBodyLimit = 1 << 20
	tenantHeader     = "Sekali-Tenant"
)

// Config says where requests go, and how.
type Config struct {
	// Upstream is the base of the API: http or https, a host, and a path that
	// is put before that of the request. User and password become basic
	// authentication.
	Upstream *url.URL
	// Timeout bounds the whole exchange, or for a stream its beginning; 0 means
	// 30 s.
	Timeout time.Duration
	// BodyLimit bounds the body of a request without a key; one with a key has
	// been read before. 0 means 1 MiB.
	BodyLimit int64
	// ResponseLimit is up to which size the answer to a keyed request is read
	// before it is passed on; 0 means 1 MiB.
	ResponseLimit int64
	// Repeatable says that a keyed request whose answer is a 5xx may be sent
	// again under the same key (on_5xx: release).
	Repeatable bool
	// HideAuthorization keeps the header Authorization from the upstream: it
	// holds a token of the gateway.
	HideAuthorization bool
	// HideCORS drops CORS headers of the upstream: the gateway makes its own.
	HideCORS bool
}

// Proxy is an http.Handler. It is safe for concurrent use.
type Proxy struct {
	Config
	transport *transport
	reverse   *httputil.ReverseProxy
}

// New makes a proxy with connections of its own.
func New(c Config) *Proxy {
	c.Timeout = cmp.Or(c.Timeout, defaultTimeout)
	c.BodyLimit = cmp.Or(c.BodyLimit, defaultBodyLimit)
	c.ResponseLimit = cmp.Or(c.ResponseLimit, defaultBodyLimit)
	p := &Proxy{Config: c, transport: newTransport()}
	p.reverse = &httputil.ReverseProxy{
		Rewrite:        p.rewrite,
		Transport:      p.transport,
		ModifyResponse: p.receive,
		ErrorHandler:   p.fail,
		ErrorLog:       slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug), // what it would say, the access log says
	}
	return p
}

// Close gives up the connections that are kept. Running requests go on.
func (p *Proxy) Close() { p.transport.CloseIdleConnections() }

var errTimeout = errors.New("proxy: upstream did not answer in time")

type timerContextKey struct{}

// ServeHTTP sends the request on and answers with what comes back.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !keyed(r) {
		if r.ContentLength > p.BodyLimit {
			api.WriteError(w, r, &api.TooLargeError{Limit: p.BodyLimit})
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, p.BodyLimit)
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	timer := time.AfterFunc(p.Timeout, func() { cancel(errTimeout) })
	defer timer.Stop()
	p.reverse.ServeHTTP(w, r.WithContext(context.WithValue(ctx, timerContextKey{}, timer)))
}

// Contain refuses paths with dot segments, written out or escaped: an upstream
// that resolves them would be reached outside the path that its rule names.
func Contain(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for segment := range strings.FieldsFuncSeq(r.URL.Path, isSlash) {
			// Some servers drop what follows a semicolon before they resolve.
			segment, _, _ = strings.Cut(segment, ";")
			if segment == "." || segment == ".." {
				api.WriteError(w, r, api.ErrRouteNotFound)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

func isSlash(r rune) bool { return r == '/' || r == '\\' }

// keyed reports whether the request has a key that is enforced.
func keyed(r *http.Request) bool {
	req, ok := idempotency.FromContext(r.Context())
	return ok && req.Key != ""
}

// rewrite makes the request to the upstream from the client's. Hop-by-hop
// headers and the client's own X-Forwarded-* are gone by now.
func (p *Proxy) rewrite(pr *httputil.ProxyRequest) {
	pr.SetURL(p.Upstream)
	pr.SetXForwarded()
	h := pr.Out.Header
	h.Set("Accept-Encoding", "identity")
	h.Del("Expect") // the body is sent in any case
	for name := range h {
		// CGI and its heirs take Sekali_Tenant for Sekali-Tenant.
		if strings.Contains(name, "_") {
			h.Del(name)
			delete(h, name)
		}
	}
	h.Del(tenantHeader)
	if tenant := idempotency.TenantOf(pr.In.Context()); tenant != "" {
		h.Set(tenantHeader, string(tenant))
	}
	if p.HideAuthorization {
		h.Del("Authorization")
	}
	if user := p.Upstream.User; user != nil {
		password, _ := user.Password()
		pr.Out.SetBasicAuth(user.Username(), password)
	}
	if req, ok := idempotency.FromContext(pr.In.Context()); ok && req.Key != "" {
		h.Set("Idempotency-Key", req.Key.Header())
	}
	hideFromTransport(h)
}

// markers are headers of the gateway, which an upstream must not set for it.
var markers = []string{
	"Idempotency-Key", "Idempotent-Replayed", "Idempotency-Status", "Idempotency-Expires", "Error-Source", "X-Request-Id",
}

// receive looks at the upstream's answer before any of it is passed on.
func (p *Proxy) receive(resp *http.Response) error {
	h := resp.Header
	dropTrailers(resp)
	for _, name := range markers {
		h.Del(name)
	}
	if p.HideCORS {
		for name := range h {
			if strings.HasPrefix(name, "Access-Control-") {
				h.Del(name)
			}
		}
	}
	if resp.StatusCode >= http.StatusBadRequest {
		h.Set("Error-Source", "handler")
	}
	if isStream(resp) {
		// Only its beginning is bounded. One that began too late is none: it would
		// break off in the middle.
		if timer, ok := resp.Request.Context().Value(timerContextKey{}).(*time.Timer); ok && !timer.Stop() {
			return &failure{err: errTimeout, sent: true}
		}
		return nil
	}
	if !keyed(resp.Request) {
		h.Del("Idempotency-Store") // meant for the gateway, which stores nothing here
		return nil
	}
	return p.readAhead(resp)
}

func isStream(resp *http.Response) bool {
	mediaType, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	return resp.StatusCode == http.StatusSwitchingProtocols || mediaType == "text/event-stream"
}

// readAhead reads an answer that can be stored to its end, so that one that
// breaks off can still become an error. Of a larger one it reads the beginning.
func (p *Proxy) readAhead(resp *http.Response) error {
	head, err := io.ReadAll(io.LimitReader(resp.Body, p.ResponseLimit+1))
	if err != nil {
		return &failure{err: err, sent: true}
	}
	if int64(len(head)) > p.ResponseLimit {
		resp.Body = &joined{Reader: io.MultiReader(bytes.NewReader(head), resp.Body), Closer: resp.Body}
		return nil
	}
	resp.Body = &joined{Reader: bytes.NewReader(head), Closer: resp.Body}
	resp.ContentLength = int64(len(head)) // known now: no chunks, no flushes
	return nil
}

// dropTrailers keeps headers that come after the body from being passed on: an
// upstream could set the gateway's markers with them. Those that were not
// announced appear when the body has been read.
func dropTrailers(resp *http.Response) {
	resp.Trailer = nil
	if resp.StatusCode != http.StatusSwitchingProtocols {
		resp.Body = &withoutTrailers{ReadCloser: resp.Body, resp: resp}
	}
}

type withoutTrailers struct {
	io.ReadCloser
	resp *http.Response
}

func (b *withoutTrailers) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.resp.Trailer = nil
	return n, err
}

// joined reads from one place and closes another.
type joined struct {
	io.Reader
	io.Closer
}

// fail answers in place of an upstream that has not.
func (p *Proxy) fail(w http.ResponseWriter, r *http.Request, err error) {
	tooLarge := (*http.MaxBytesError)(nil)
	e := &api.UpstreamError{Timeout: errors.Is(context.Cause(r.Context()), errTimeout), Sent: true, Err: err}
	switch broken := (*failure)(nil); {
	case errors.As(err, &tooLarge):
		api.WriteError(w, r, &api.TooLargeError{Limit: tooLarge.Limit})
		return
	case !e.Timeout && r.Context().Err() != nil:
		api.WriteError(w, r, context.Cause(r.Context())) // the client has left
		return
	case errors.As(err, &broken):
		e.Sent = broken.sent
	}
	e.Repeatable = p.Repeatable || !e.Sent
	if !e.Sent && keyed(r) {
		w.Header().Set("Idempotency-Store", "no")
	}
	api.WriteError(w, r, e)
}
