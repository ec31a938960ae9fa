package middleware

import (
	"net/http"
	"strings"

	"github.com/go-chi/cors"
)

// preflightAge is how long a browser may go without asking again, in seconds:
// the most that Chromium takes.
const preflightAge = 7200

var (
	allowedHeaders = []string{keyHeader, "Prefer", "If-None-Match", "Content-Type", "Authorization"}
	allowedMethods = []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}
	exposedHeaders = []string{
		keyHeader, "Idempotent-Replayed", "Idempotency-Expires", "Idempotency-Status", "Job-Status", "Error-Source",
		"Location", "Content-Location", "Retry-After", "ETag", "Preference-Applied", "Link", requestIDHeader,
	}
)

// CORS lets pages of the origins call this service, with their keys, and read
// what stands in the headers (contract row 63). It stands outside
// authentication and Key: a browser's preflight has no credentials and no key.
// Without origins it does nothing; * allows any. Cookies are never allowed.
func CORS(origins []string) func(http.Handler) http.Handler {
	if len(origins) == 0 {
		return func(next http.Handler) http.Handler { return next }
	}
	rules := cors.Handler(cors.Options{
		AllowedOrigins: origins, AllowedMethods: allowedMethods, AllowedHeaders: allowedHeaders,
		ExposedHeaders: exposedHeaders, MaxAge: preflightAge, OptionsPassthrough: true,
	})
	return func(next http.Handler) http.Handler { return rules(preflight(next)) }
}

// preflight ends the requests by which browsers ask for permission.
func preflight(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asks := r.Method == http.MethodOptions && r.Header.Get("Origin") != "" && r.Header.Get("Access-Control-Request-Method") != ""
		if !asks {
			next.ServeHTTP(w, r)
			return
		}
		if h := w.Header(); h.Get("Access-Control-Allow-Origin") != "" {
			// All that is allowed, so that one answer serves every request of the page.
			h.Set("Access-Control-Allow-Headers", strings.Join(allowedHeaders, ", "))
			h.Set("Access-Control-Allow-Methods", strings.Join(allowedMethods, ", "))
		}
		w.WriteHeader(http.StatusNoContent)
	})
}
