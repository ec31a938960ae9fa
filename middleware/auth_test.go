package middleware_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/sekali/sekali/access"
	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
	"github.com/sekali/sekali/middleware"
)

// checker knows the token "good".
type checker struct{ err error }

func (c checker) Check(_ context.Context, token string) (access.Caller, error) {
	switch {
	case c.err != nil:
		return access.Caller{}, c.err
	case token == "good":
		return access.Caller{Token: "t1", Tenant: "acme", Permissions: access.Permissions{access.Read}}, nil
	}
	return access.Caller{}, access.ErrUnauthenticated
}

func authorized(lines ...string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/jobs", nil)
	if len(lines) > 0 {
		r.Header["Authorization"] = lines
	}
	return r
}

func TestAuth_GivesTheRequestToTheTokensTenant(t *testing.T) {
	t.Parallel()
	for _, line := range []string{"Bearer good", "bearer good", "BEARER  good "} {
		tenant, caller := idempotency.Tenant(""), access.Caller{}
		w := through(middleware.Auth(checker{}), func(_ http.ResponseWriter, r *http.Request) {
			tenant, caller = idempotency.TenantOf(r.Context()), access.CallerOf(r.Context())
		}, authorized(line))
		if w.Code != http.StatusOK || tenant != "acme" || caller.Token != "t1" {
			t.Errorf("%q: %d, tenant %q, %+v", line, w.Code, tenant, caller)
		}
	}
}

func TestContract_Row19_UnauthenticatedIsRefusedBeforeAnythingElse(t *testing.T) {
	t.Parallel()
	tests := map[string][]string{
		"nothing":         nil,
		"empty":           {""},
		"no token":        {"Bearer"},
		"an empty token":  {"Bearer "},
		"a wrong token":   {"Bearer bad"},
		"another scheme":  {"Basic good"},
		"no scheme":       {"good"},
		"two headers":     {"Bearer good", "Bearer good"},
		"a list":          {"Bearer good, Bearer good"},
		"a tab for blank": {"Bearer\tgood"},
	}
	var first api.Problem
	for name, lines := range tests {
		w := through(middleware.Auth(checker{}), unreachable(t), authorized(lines...))
		p := problem(t, w)
		if w.Code != http.StatusUnauthorized || p.Code != "unauthenticated" || p.Retryable {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
		if got := w.Header().Get("WWW-Authenticate"); got != `Bearer realm="sekali"` {
			t.Errorf("%s: WWW-Authenticate %q", name, got)
		}
		p.Instance = ""
		if first.Code == "" {
			first = p
		}
		if fmt.Sprint(p) != fmt.Sprint(first) {
			t.Errorf("%s: %+v can be told from %+v", name, p, first)
		}
	}
}

func TestFailure_BR28_AStoreThatIsAwayIsNeither401NorLetIn(t *testing.T) {
	t.Parallel()
	away := checker{err: fmt.Errorf("find: %w", job.ErrUnavailable)}
	w := through(middleware.Auth(away), unreachable(t), authorized("Bearer good"))
	if p := problem(t, w); w.Code != http.StatusServiceUnavailable || !p.Retryable || w.Header().Get("Retry-After") == "" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	broken := checker{err: fmt.Errorf("who knows")}
	if w := through(middleware.Auth(broken), unreachable(t), authorized("Bearer good")); w.Code != http.StatusInternalServerError {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

func TestPermit(t *testing.T) {
	t.Parallel()
	chain := func(needed access.Permission) func(http.Handler) http.Handler {
		return func(next http.Handler) http.Handler {
			return middleware.Auth(checker{})(middleware.Permit(needed)(next))
		}
	}
	if w := through(chain(access.Read), nothing, authorized("Bearer good")); w.Code != http.StatusOK {
		t.Errorf("permitted: %d", w.Code)
	}
	w := through(chain(access.Submit), unreachable(t), authorized("Bearer good"))
	if p := problem(t, w); w.Code != http.StatusForbidden || p.Code != "forbidden" || p.Retryable {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := through(middleware.Permit(access.Read), unreachable(t), authorized("Bearer good")); w.Code != http.StatusForbidden {
		t.Errorf("without Auth: %d", w.Code)
	}
	everybody := func(next http.Handler) http.Handler { return middleware.Tenant(middleware.Permit(access.Submit)(next)) }
	if w := through(everybody, nothing, authorized()); w.Code != http.StatusOK {
		t.Errorf("authentication off: %d", w.Code)
	}
}
