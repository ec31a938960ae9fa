package middleware

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/sekali/sekali/access"
	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/idempotency"
)

// checker is what Auth needs of access.Checker.
type checker interface {
	Check(ctx context.Context, token string) (access.Caller, error)
}

var _ checker = (*access.Checker)(nil)

// Auth lets requests in that carry a valid token, and gives them to its tenant.
// It stands before everything that looks at a key, so that a replay is refused
// like a first request once the token has ended (contract rows 19 and 91). A
// database that cannot be asked refuses with 503: nobody is let in unseen, and
// nobody is told that a good token is bad.
func Auth(c checker) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			caller, err := Authenticate(r, c)
			if err != nil {
				api.WriteError(w, r, err)
				return
			}
			next.ServeHTTP(w, r.WithContext(withCaller(r.Context(), caller)))
		})
	}
}

// Authenticate returns who the request comes from. Errors: api.ErrUnauthenticated,
// and those of the checker's store.
func Authenticate(r *http.Request, c checker) (access.Caller, error) {
	token, ok := bearer(r.Header.Values("Authorization"))
	if !ok {
		return access.Caller{}, api.ErrUnauthenticated
	}
	caller, err := c.Check(r.Context(), token)
	if errors.Is(err, access.ErrUnauthenticated) {
		return access.Caller{}, fmt.Errorf("%w: %w", api.ErrUnauthenticated, err)
	}
	return caller, err
}

// bearer reads the token from the one Authorization header that there may be.
// Of two, another program in the chain might look at the other one.
func bearer(lines []string) (token string, ok bool) {
	if len(lines) != 1 {
		return "", false
	}
	scheme, token, ok := strings.Cut(lines[0], " ")
	return strings.Trim(token, " "), ok && strings.EqualFold(scheme, "Bearer")
}

// Tenant stands in for Auth where authentication is off: everybody is the one
// tenant that there is, and may do everything.
func Tenant(next http.Handler) http.Handler {
	everybody := access.Caller{Tenant: string(idempotency.DefaultTenant), Permissions: access.Permissions{access.All}}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(withCaller(r.Context(), everybody)))
	})
}

func withCaller(ctx context.Context, caller access.Caller) context.Context {
	tenant := idempotency.Tenant(caller.Tenant)
	api.ReportOf(ctx).Request.Tenant = tenant
	return idempotency.WithTenant(access.WithCaller(ctx, caller), tenant)
}

// Permit lets those callers through who have the permission. Without Auth
// before it, it lets nobody through.
func Permit(needed access.Permission) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !access.CallerOf(r.Context()).Permissions.Allow(needed) {
				api.WriteError(w, r, &api.ForbiddenError{Permission: string(needed)})
				return
			}
			next.ServeHTTP(w, r)
		})
	}
}
