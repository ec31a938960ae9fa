package middleware

import (
	"crypto/rand"
	"net/http"
	"strings"
)

const requestIDHeader = "X-Request-Id"

// maxRequestID keeps a client's id from filling the log.
const maxRequestID = 64

// RequestID gives each request an id, in the X-Request-Id header of request and
// response. A client's own id is kept if it is short and plain: it ends up in
// log lines.
func RequestID(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := r.Header.Get(requestIDHeader)
		if !plain(id) {
			id = rand.Text()
			r.Header.Set(requestIDHeader, id)
		}
		w.Header().Set(requestIDHeader, id)
		next.ServeHTTP(w, r)
	})
}

func plain(id string) bool {
	const marks = "-_.:/+="
	for i := range len(id) {
		c := id[i]
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && strings.IndexByte(marks, c) == -1 {
			return false
		}
	}
	return id != "" && len(id) <= maxRequestID
}
