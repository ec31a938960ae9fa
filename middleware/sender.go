package middleware

import (
	"net/http"
	"strings"

	"github.com/sekali/sekali/idempotency"
)

// maxSender keeps a client from filling the timelines of jobs.
const maxSender = 80

// Sender tells the domain what the client calls itself, for the timeline of a
// job whose key comes again: its User-Agent, shortened, in plain characters.
func Sender(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := strings.Map(func(c rune) rune {
			if c < ' ' || c > '~' {
				return '?'
			}
			return c
		}, r.UserAgent())
		name = name[:min(len(name), maxSender)]
		next.ServeHTTP(w, r.WithContext(idempotency.WithSender(r.Context(), name)))
	})
}
