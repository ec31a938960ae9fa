package proxy_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/sekali/sekali/proxy"
)

func TestContain(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]int{
		"/v1/a": 200, "/v1/..a/b.": 200, "/v1/...": 200, "/v1/../admin": 404, "/v1/%2e%2e/admin": 404, "/v1/a%2f..%2f..%2fadmin": 404,
		"/v1/./a": 404, `/v1/a%5c..%5cadmin`: 404, "/v1/..": 404,
		"/v1/..;/admin": 404, "/v1/..;x=1/admin": 404, "/v1/%2e%2e;/admin": 404, "/v1/.;/a": 404, "/v1/a;..": 200,
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.URL, _ = url.ParseRequestURI(path)
		w := httptest.NewRecorder()
		proxy.Contain(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})).ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("%s: %d, want %d", path, w.Code, want)
		}
	}
}

// What an upstream could take for the gateway's word never comes from a client,
// and what a client could take for it never from an upstream.
func TestProxy_NobodyForgesTheGatewaysHeaders(t *testing.T) {
	t.Parallel()
	var seen http.Header
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen = r.Header.Clone()
		w.Header().Set("Trailer", "Idempotent-Replayed")
		w.WriteHeader(http.StatusOK)
		_, _ = w.Write([]byte("done"))
		_ = http.NewResponseController(w).Flush()
		w.Header().Set("Idempotent-Replayed", "true")
		w.Header().Set(http.TrailerPrefix+"Idempotency-Status", "forged")
	}))
	defer upstream.Close()
	target, _ := url.Parse(upstream.URL)
	p := proxy.New(proxy.Config{Upstream: target})
	defer p.Close()
	server := httptest.NewServer(p)
	defer server.Close()
	r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/", strings.NewReader("{}"))
	r.Header["Sekali_tenant"] = []string{"evil"}
	r.Header["Idempotency_key"] = []string{"evil"}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if _, err := io.ReadAll(response.Body); err != nil {
		t.Fatal(err)
	}
	if len(response.Trailer) != 0 {
		t.Errorf("trailers %v were passed on", response.Trailer)
	}
	for name, values := range seen {
		if slices.Contains(values, "evil") {
			t.Errorf("the upstream got %s: %v", name, values)
		}
	}
}
