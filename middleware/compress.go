package middleware

import (
	"net/http"
	"slices"
	"strings"

	"github.com/klauspost/compress/gzhttp"
)

// codings are those that Compress knows, as they stand in an entity tag.
var codings = []string{"gzip", "zstd"}

// Compress codes answers for clients that take it. It stands outside Once: what
// is stored and replayed is not coded (contract row 55). A coded answer has
// other bytes, and so an entity tag of its own, which If-None-Match may name.
func Compress(next http.Handler) http.Handler {
	wrap, err := gzhttp.NewWrapper(gzhttp.SuffixETag("-gzip"), gzhttp.ContentTypeFilter(compressible))
	if err != nil {
		panic(err) // the options are constants
	}
	return wrap(conditional(next))
}

// compressible leaves out, besides what is coded already, streams of events:
// each is to arrive when it happens.
func compressible(contentType string) bool {
	return gzhttp.DefaultContentTypeFilter(contentType) && !strings.HasPrefix(contentType, "text/event-stream")
}

// conditional translates the entity tags of coded answers for the handlers,
// which know none of codings, and a 304 back. What the client sent stays in the
// list: such a tag may be a handler's own.
func conditional(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// The library says so of every answer, and again of those that it codes. An
		// answer that is not coded is right for everybody.
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
			w = &notModified{ResponseWriter: w, asked: asked}
		}
		next.ServeHTTP(w, r)
	})
}

// notModified gives a 304 the entity tag of the coded answer that the client has.
type notModified struct {
	http.ResponseWriter
	asked string
}

// Unwrap is for http.ResponseController.
func (n *notModified) Unwrap() http.ResponseWriter { return n.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (n *notModified) WriteHeader(status int) {
	etag := n.Header().Get("ETag")
	for _, coding := range codings {
		coded := strings.TrimSuffix(etag, `"`) + "-" + coding + `"`
		if status == http.StatusNotModified && strings.Contains(n.asked, coded) {
			n.Header().Set("ETag", coded)
			break
		}
	}
	n.ResponseWriter.WriteHeader(status)
}
