package proxy_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"github.com/sekali/sekali/proxy"
)

func TestContain(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]int{
		"/v1/a": 200, "/v1/..a/b.": 200, "/v1/...": 200, "/v1/../admin": 404, "/v1/%2e%2e/admin": 404, "/v1/a%2f..%2f..%2fadmin": 404,
		"/v1/./a": 404, `/v1/a%5c..%5cadmin`: 404, "/v1/..": 404,
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
