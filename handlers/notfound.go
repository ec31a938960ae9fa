package handlers

import (
	"net/http"

	"github.com/go-chi/chi/v5"

	"github.com/sekali/sekali/api"
)

// methods that a resource may have, in the order in which Allow lists them.
var methods = []string{
	http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut,
	http.MethodPatch, http.MethodDelete, http.MethodOptions,
}

// NotFound answers what no route matches.
func NotFound(http.ResponseWriter, *http.Request) error { return api.ErrRouteNotFound }

// MethodNotAllowed answers a method that the path does not have, with those
// that it has. The router also asks here about methods that it has never heard
// of, on any path: where nothing is, the answer stays 404.
func MethodNotAllowed(_ http.ResponseWriter, r *http.Request) error {
	allow := allowed(chi.RouteContext(r.Context()), r.URL.EscapedPath())
	if len(allow) == 0 {
		return api.ErrRouteNotFound
	}
	return &api.MethodNotAllowedError{Allow: allow}
}

func allowed(routed *chi.Context, path string) []string {
	if routed == nil {
		return nil
	}
	has := func(method string) bool { return routed.Routes.Match(chi.NewRouteContext(), method, path) }
	var allow []string
	for _, method := range methods {
		if has(method) || method == http.MethodHead && has(http.MethodGet) {
			allow = append(allow, method)
		}
	}
	return allow
}
