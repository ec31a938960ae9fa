package api

import (
	"net/http"
	"strconv"
	"time"

	"github.com/sekali/sekali/idempotency"
)

// replayed lists the headers that belong to a stored answer. Any other one is
// of the moment (Date, Retry-After, a request id) or of one client (cookies,
// credentials, CORS), and is never replayed.
var replayed = []string{
	"Content-Type", "Content-Language", "Content-Encoding", "Content-Disposition", "Content-Location",
	"Location", "ETag", "Last-Modified", "Link",
}

// WriteRecord answers a keyed request with the response of its record: its
// status, its headers as far as they may be replayed, its bytes, and the
// markers that tell the client which it is. With minimal the bytes are left out
// (Prefer: return=minimal); headers that move are the caller's to set before.
func WriteRecord(w http.ResponseWriter, req idempotency.Request, rec idempotency.Record, minimal bool) {
	h := w.Header()
	for _, name := range replayed {
		name = http.CanonicalHeaderKey(name)
		if values := rec.Response.Header[name]; len(values) > 0 {
			h[name] = values
		}
	}
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
