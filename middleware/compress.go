package middleware

import (
	"bufio"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/klauspost/compress/gzhttp"
)

// compressFrom is the size from which an answer is coded. A smaller one fits
// into what a server sends at once, so that nobody would have it any sooner.
const compressFrom = 4 << 10

// codings are those that Compress knows, as they stand in an entity tag.
var codings = []string{"gzip", "zstd"}

// Compress codes large answers for clients that take it. It stands outside Once:
// what is stored and replayed is not coded (contract row 55). A coded answer has
// other bytes, and so an entity tag of its own, which If-None-Match may name.
func Compress(next http.Handler) http.Handler {
	wrap, err := gzhttp.NewWrapper(
		gzhttp.MinSize(compressFrom), gzhttp.SuffixETag("-gzip"), gzhttp.ContentTypeFilter(compressible))
	if err != nil {
		panic(err) // the options are constants
	}
	return wrap(negotiated(next))
}

// compressible leaves out, besides what is coded already, streams of events:
// each is to arrive when it happens.
func compressible(contentType string) bool {
	return gzhttp.DefaultContentTypeFilter(contentType) && !strings.HasPrefix(contentType, "text/event-stream")
}

// negotiated keeps the coding from the handlers. It translates the entity tags of
// coded answers for them, and a 304 back; what the client sent stays in the
// list, since such a tag may be a handler's own.
func negotiated(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// The library says so at once, of every answer; see WriteHeader below.
		if h := w.Header(); len(h["Vary"]) > 0 {
			h["Vary"] = slices.DeleteFunc(h["Vary"], func(name string) bool { return name == "Accept-Encoding" })
		}
		asked := strings.Join(r.Header.Values("If-None-Match"), ", ")
		plain := asked
		for _, coding := range codings {
			plain = strings.ReplaceAll(plain, "-"+coding+`"`, `"`)
		}
		if plain != asked {
			r = r.Clone(r.Context())
			r.Header.Set("If-None-Match", asked+", "+plain)
		}
		next.ServeHTTP(&negotiatedWriter{ResponseWriter: w, asked: asked}, r)
	})
}

// negotiatedWriter completes the headers of an answer that may be coded.
type negotiatedWriter struct {
	http.ResponseWriter
	asked string // If-None-Match
	begun bool
}

// Unwrap is for http.ResponseController.
func (n *negotiatedWriter) Unwrap() http.ResponseWriter { return n.ResponseWriter }

// Flush implements http.Flusher.
func (n *negotiatedWriter) Flush() { _ = http.NewResponseController(n.ResponseWriter).Flush() }

// Hijack implements http.Hijacker.
func (n *negotiatedWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return http.NewResponseController(n.ResponseWriter).Hijack()
}

// Write implements http.ResponseWriter.
func (n *negotiatedWriter) Write(p []byte) (int, error) {
	if !n.begun {
		n.WriteHeader(http.StatusOK)
	}
	return n.ResponseWriter.Write(p)
}

// WriteHeader implements http.ResponseWriter.
func (n *negotiatedWriter) WriteHeader(status int) {
	n.begun = n.begun || status >= http.StatusOK
	h := n.Header()
	// The same for GET with and without a coding, and for HEAD.
	length, err := strconv.Atoi(h.Get("Content-Length"))
	if err == nil && length >= compressFrom && h.Get("Content-Encoding") == "" && compressible(h.Get("Content-Type")) {
		h.Add("Vary", "Accept-Encoding")
	}
	if status == http.StatusNotModified {
		n.tagCoded(h)
	}
	n.ResponseWriter.WriteHeader(status)
}

// tagCoded gives a 304 the entity tag of the coded answer that the client has.
func (n *negotiatedWriter) tagCoded(h http.Header) {
	for _, coding := range codings {
		coded := strings.TrimSuffix(h.Get("ETag"), `"`) + "-" + coding + `"`
		if strings.Contains(n.asked, coded) {
			h.Set("ETag", coded)
			return
		}
	}
}
