package middleware

import (
	"net/http"

	"github.com/sekali/sekali/idempotency"
)

// Tenant gives every request to the one tenant that there is without
// authentication.
func Tenant(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(idempotency.WithTenant(r.Context(), idempotency.DefaultTenant)))
	})
}
