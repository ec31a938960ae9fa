package middleware

import (
	"net/http"

	"github.com/go-chi/chi/v5"
)

// EscapedPath makes the router match the escaped path. Without it the router
// matches that only if it differs from the default escaping, so that whoever
// reads a parameter cannot know whether it has been unescaped: a%20b would come
// as "a b", a%2Fb as it is (contract row 94).
func EscapedPath(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if routed := chi.RouteContext(r.Context()); routed != nil {
			routed.RoutePath = r.URL.EscapedPath()
		}
		next.ServeHTTP(w, r)
	})
}
