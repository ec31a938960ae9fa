package middleware_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sekali/sekali/api"
)

// through sends a request through a middleware to a handler.
func through(mw func(http.Handler) http.Handler, h http.HandlerFunc, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	mw(h).ServeHTTP(w, r)
	return w
}

func post(body string, header http.Header) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/jobs", strings.NewReader(body))
	for name, values := range header {
		r.Header[name] = values
	}
	return r
}

func problem(t *testing.T, w *httptest.ResponseRecorder) api.Problem {
	t.Helper()
	var p api.Problem
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil {
		t.Fatalf("%d %s: %v", w.Code, w.Body, err)
	}
	return p
}

func unreachable(t *testing.T) http.HandlerFunc {
	return func(http.ResponseWriter, *http.Request) { t.Error("the handler was reached") }
}

func nothing(http.ResponseWriter, *http.Request) {}
