package gateway_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-chi/chi/v5"

	"github.com/sekali/sekali/access"
	"github.com/sekali/sekali/docs/openapi"
	"github.com/sekali/sekali/gateway"
)

// open are the routes for which nobody is asked who calls: probes have no
// credentials, and say nothing about any tenant; the document is public.
var open = []string{"/healthz", "/readyz", "/metrics", "/openapi.json", "/openapi.yaml", "/docs", "/docs/{file}"}

// Default deny: a route that is forgotten is found here. Each one must refuse a
// request without a token, one with a token of no tenant's, and one whose token
// permits something else.
func TestContract_Row19_EveryRouteNamesItsPermission(t *testing.T) {
	t.Parallel()
	cfg := gateway.Default()
	cfg.DatabaseURL = "sqlite:" + filepath.Join(t.TempDir(), "sekali.db")
	cfg.Auth.Mode, cfg.Log.Level = "api_key", "error"
	cfg.Proxy = []gateway.ProxyRule{
		{Match: "POST /v1/charges", Upstream: "http://127.0.0.1:1"},
		{Match: "GET /v1/*", Upstream: "http://127.0.0.1:1"},
		{Match: "PUT /v1/*", Upstream: "http://127.0.0.1:1", Key: "ignored"},
	}
	routes, closeAll, err := gateway.Routes(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll()
	tokens := map[access.Permission]string{}
	all := []access.Permission{access.Submit, access.Read, access.Operate, access.Manage, access.Proxy, access.Work}
	for _, without := range all {
		others := slices.DeleteFunc(slices.Clone(all), func(p access.Permission) bool { return p == without })
		_, text, err := gateway.CreateToken(t.Context(), cfg, gateway.TokenDraft{Tenant: "acme", Permissions: access.Permissions(others).String()})
		if err != nil {
			t.Fatal(err)
		}
		tokens[without] = text
	}
	answer := func(method, path, token string) int {
		r := httptest.NewRequest(method, path, nil)
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		w := httptest.NewRecorder()
		routes.ServeHTTP(w, r)
		return w.Code
	}
	walked := 0
	err = chi.Walk(routes, func(method, route string, _ http.Handler, _ ...func(http.Handler) http.Handler) error {
		walked++
		path := strings.NewReplacer("{key}", "k", "{name}", "echo", "*", "x").Replace(route)
		if slices.Contains(open, route) {
			if code := answer(method, path, ""); code == http.StatusUnauthorized || code == http.StatusForbidden {
				t.Errorf("%s %s: %d without a token", method, route, code)
			}
			return nil
		}
		unknown := strings.Replace(tokens[access.Read], tokens[access.Read][3:5], "zz", 1)
		for _, token := range []string{"", "nonsense", unknown} {
			if code := answer(method, path, token); code != http.StatusUnauthorized {
				t.Errorf("%s %s: %d with the token %q", method, route, code, token)
			}
		}
		refused := 0
		for _, token := range tokens {
			if answer(method, path, token) == http.StatusForbidden {
				refused++
			}
		}
		if refused != 1 {
			t.Errorf("%s %s is refused to %d of the tokens that lack one permission each; want one", method, route, refused)
		}
		return nil
	})
	if err != nil || walked < 34 {
		t.Errorf("%d routes, %v", walked, err)
	}
}

// The routes are those of the OpenAPI document and no others, and it says of the
// same ones that they are open. HEAD is GET without a body; /docs/{file} is part
// of the page.
func TestRoutes_AreTheDocumentsOperations(t *testing.T) {
	t.Parallel()
	cfg := gateway.Default()
	cfg.DatabaseURL = "sqlite:" + filepath.Join(t.TempDir(), "sekali.db")
	cfg.Log.Level = "error"
	routes, closeAll, err := gateway.Routes(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll()
	var served []string
	err = chi.Walk(routes, func(method, route string, _ http.Handler, _ ...func(http.Handler) http.Handler) error {
		if method != http.MethodHead && route != "/docs/{file}" {
			served = append(served, method+" "+route)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var document struct {
		Paths map[string]map[string]struct{ Security *[]any }
	}
	if err := json.Unmarshal(openapi.JSON(), &document); err != nil {
		t.Fatal(err)
	}
	var documented []string
	for path, methods := range document.Paths {
		for method, operation := range methods {
			documented = append(documented, strings.ToUpper(method)+" "+path)
			forAll := operation.Security != nil && len(*operation.Security) == 0
			if forAll != slices.Contains(open, path) {
				t.Errorf("%s is open to everybody in the document: %v", path, forAll)
			}
		}
	}
	slices.Sort(served)
	slices.Sort(documented)
	if !slices.Equal(served, documented) {
		t.Errorf("served\n%s\ndocumented\n%s", strings.Join(served, "\n"), strings.Join(documented, "\n"))
	}
}

// Which calls need a key of their own, and which ignore one.
func TestContract_Row18_Row75_KeysOfOperatorsCalls(t *testing.T) {
	t.Parallel()
	cfg := gateway.Default()
	cfg.DatabaseURL = "sqlite:" + filepath.Join(t.TempDir(), "sekali.db")
	cfg.Log.Level = "error"
	routes, closeAll, err := gateway.Routes(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll()
	answer := func(path, key, mediaType, body string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
		if key != "" {
			r.Header.Set("Idempotency-Key", key)
		}
		if mediaType != "" {
			r.Header.Set("Content-Type", mediaType)
		}
		w := httptest.NewRecorder()
		routes.ServeHTTP(w, r)
		return w
	}
	for _, tt := range []struct {
		path, key, mediaType, body string
		status                     int
		code, keyStatus            string
	}{
		{"/jobs/k/cancel", "op", "", "", 404, "job-not-found", "ignored"},
		{"/jobs/k/cancel", "", "", "", 404, "job-not-found", ""},
		{"/executors/echo/pause", "op", "", "", 200, `"name":"echo"`, "ignored"},
		{"/executors/echo/resume", "op", "", "", 200, `"executor":"echo"`, "ignored"},
		{"/jobs/k/retry", "", "", "", 400, "idempotency-key-missing", ""},
		{"/jobs/k/retry", "op", "", "", 404, "job-not-found", ""},
		{"/jobs/k/retry", "op", "application/json", "", 404, "job-not-found", ""},
		{"/jobs/k/retry", "op", "application/json", `{"x":1}`, 400, "validation-failed", ""},
		{"/jobs/k/resolve", "", "application/json", `{"status":"failed"}`, 400, "idempotency-key-missing", ""},
		{"/jobs/k/resolve", "op", "text/plain", `{"status":"failed"}`, 415, "unsupported-media-type", ""},
		{"/jobs/k/resolve", "op", "application/json", `{"status":"failed"}`, 404, "job-not-found", ""},
	} {
		w := answer(tt.path, tt.key, tt.mediaType, tt.body)
		if w.Code != tt.status || !strings.Contains(w.Body.String(), tt.code) || w.Header().Get("Idempotency-Status") != tt.keyStatus {
			t.Errorf("%s with the key %q: %d, key %q: %s", tt.path, tt.key, w.Code, w.Header().Get("Idempotency-Status"), w.Body)
		}
	}
}

func TestTokens(t *testing.T) {
	t.Parallel()
	cfg := gateway.Default()
	cfg.DatabaseURL = "sqlite:" + filepath.Join(t.TempDir(), "sekali.db")
	token, text, err := gateway.CreateToken(t.Context(), cfg, gateway.TokenDraft{Tenant: "acme", Name: "ci", Permissions: "submit,read", Expires: 3600e9})
	if err != nil || !strings.HasPrefix(text, "sk_"+token.ID+"_") || token.ExpiresAt.Sub(token.CreatedAt) != 3600e9 {
		t.Fatalf("%+v %s, %v", token, text, err)
	}
	if err := gateway.RevokeToken(t.Context(), cfg, token.ID); err != nil {
		t.Fatal(err)
	}
	if err := gateway.RevokeToken(t.Context(), cfg, "nosuchtoken"); err == nil {
		t.Error("revoked a token that is not there")
	}
	tokens, err := gateway.ListTokens(t.Context(), cfg)
	if err != nil || len(tokens) != 1 || tokens[0].ID != token.ID || tokens[0].RevokedAt == nil || strings.Join(tokens[0].Permissions, " ") != "submit read" {
		t.Errorf("%+v, %v", tokens, err)
	}
	if _, _, err := gateway.CreateToken(t.Context(), cfg, gateway.TokenDraft{Tenant: "a b", Permissions: "*"}); err == nil {
		t.Error("a tenant of two words is taken")
	}
}
