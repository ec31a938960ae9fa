package middleware_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/sekali/sekali/middleware"
)

func TestContract_Row21_Row23_BodyOfARouteWithoutKey(t *testing.T) {
	t.Parallel()
	body := middleware.Body(middleware.BodyPolicy{Limit: 5, MediaTypes: []string{"application/json"}})
	json := http.Header{"Content-Type": {"application/json; charset=utf-8"}}
	got := ""
	w := through(body, func(_ http.ResponseWriter, r *http.Request) {
		read, _ := io.ReadAll(r.Body)
		got = string(read)
	}, post("12345", json))
	if w.Code != http.StatusOK || got != "12345" {
		t.Errorf("%d, the handler read %q", w.Code, got)
	}
	tests := map[string]struct {
		body   string
		header http.Header
		status int
		code   string
	}{
		"too large":      {"123456", json, http.StatusRequestEntityTooLarge, "request-too-large"},
		"no media type":  {"1", nil, http.StatusUnsupportedMediaType, "unsupported-media-type"},
		"another one":    {"1", http.Header{"Content-Type": {"text/plain"}}, http.StatusUnsupportedMediaType, "unsupported-media-type"},
		"a coded body":   {"1", http.Header{"Content-Type": {"application/json"}, "Content-Encoding": {"gzip"}}, http.StatusUnsupportedMediaType, "unsupported-media-type"},
		"two of a type":  {"1", http.Header{"Content-Type": {"application/json", "application/json"}}, http.StatusUnsupportedMediaType, "unsupported-media-type"},
		"chunked beyond": {strings.Repeat("1", 10), json, http.StatusRequestEntityTooLarge, "request-too-large"},
	}
	for name, tt := range tests {
		r := post(tt.body, tt.header)
		if name == "chunked beyond" {
			r.ContentLength = -1
		}
		w := through(body, unreachable(t), r)
		if p := problem(t, w); w.Code != tt.status || p.Code != tt.code {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
	}
}
