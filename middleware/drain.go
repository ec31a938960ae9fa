package middleware

import (
	"net/http"

	"github.com/sekali/sekali/api"
)

// Drain refuses requests while draining says so (contract row 84): the process
// is about to end, and closes each connection with the answer so that clients
// connect to another one.
func Drain(draining func() bool) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if draining() {
				api.WriteError(w, r, api.ErrShuttingDown)
				return
			}
			next.ServeHTTP(w, r)
		})
	}
}
