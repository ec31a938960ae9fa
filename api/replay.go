package api

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sekali/sekali/idempotency"
)

// replayed lists the headers that belong to a stored answer. Any other one is
// of the moment (Date, Retry-After, a request id) or of one client (cookies,
// credentials, CORS), and is not replayed unless it is asked for. None of them is
// among neverReplayed.
var replayed = []string{
	"Content-Type", "Content-Language", "Content-Encoding", "Content-Disposition", "Content-Location",
	"Location", "Etag", "Last-Modified", "Link",
}

// neverReplayed lists what is not replayed even if it is asked for: it is about
// one client, one connection, one moment, or is made anew for each answer. Names
// that end in a hyphen stand for all that begin so.
var neverReplayed = []string{
	"Set-Cookie", "Set-Cookie2", "Authorization", "Www-Authenticate", "Proxy-",
	"Connection", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
	"Date", "Content-Length", "Server", "Ratelimit-", "X-Ratelimit-", "Retry-After",
	"X-Request-Id", "Traceparent", "Tracestate", "Access-Control-", "Vary", "Cache-Control",
	"Idempotency-", "Idempotent-", "Job-Status", "Preference-Applied", "Error-Source",
	"Ratelimit", // the draft's single field
}

// Replayable returns those headers of an answer that are stored and replayed:
// the usual ones, and also, unless they are never replayed.
func Replayable(h http.Header, also ...string) http.Header {
	kept := http.Header{}
	copyReplayable(kept, h, also)
	return kept
}

func copyReplayable(to, from http.Header, also []string) {
	for _, name := range replayed {
		if values := from[name]; len(values) > 0 {
			to[name] = values
		}
	}
	for _, name := range also {
		name = http.CanonicalHeaderKey(name)
		if values := from[name]; len(values) > 0 && !isNeverReplayed(name) {
			to[name] = values
		}
	}
}

func isNeverReplayed(name string) bool {
	return slices.ContainsFunc(neverReplayed, func(never string) bool {
		return name == never || strings.HasSuffix(never, "-") && strings.HasPrefix(name, never)
	})
}

// WriteRecord answers a keyed request with the response of its record: its
// status, its headers as far as they may be replayed, its bytes, and the
// markers that tell the client which it is. With minimal the bytes are left out
// (Prefer: return=minimal); headers that move are the caller's to set before.
// also names headers that are replayed besides the usual ones.
func WriteRecord(w http.ResponseWriter, req idempotency.Request, rec idempotency.Record, minimal bool, also ...string) {
	h := w.Header()
	copyReplayable(h, rec.Response.Header, also)
	h.Set("Idempotency-Key", req.Key.Header())
	h.Set("Idempotent-Replayed", strconv.FormatBool(!rec.Fresh))
	SetExpires(h, rec.ExpiresAt)
	if rec.Response.Status >= http.StatusBadRequest {
		h.Set("Error-Source", "handler")
	}
	body := rec.Response.Body
	if minimal {
		body = nil
	}
	writeBody(w, rec.Response.Status, body)
}

// SetExpires tells until when a key is kept, once that is known.
func SetExpires(h http.Header, at time.Time) {
	if !at.IsZero() {
		h.Set("Idempotency-Expires", at.UTC().Format(time.RFC3339Nano))
	}
}
