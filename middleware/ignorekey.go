package middleware

import (
	"net/http"
	"slices"
)

// IgnoreKey tells clients that send an Idempotency-Key where it does nothing
// (contract rows 17 and 18). With methods it speaks for these alone.
func IgnoreKey(methods ...string) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			concerned := len(methods) == 0 || slices.Contains(methods, r.Method)
			if concerned && len(r.Header.Values(keyHeader)) > 0 {
				w.Header().Set("Idempotency-Status", "ignored")
			}
			next.ServeHTTP(w, r)
		})
	}
}
