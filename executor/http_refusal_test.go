package executor_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sekali/sekali/executor"
)

func TestContract_SectionI_HTTPStatuses(t *testing.T) {
	t.Parallel()
	codes := map[int]struct {
		code      string
		permanent bool
	}{
		300: {executor.CodeHTTPStatus, true}, 304: {executor.CodeHTTPStatus, true},
		301: {executor.CodeRedirectRefused, false}, 302: {executor.CodeRedirectRefused, false},
		303: {executor.CodeRedirectRefused, false}, 307: {executor.CodeRedirectRefused, false},
		308: {executor.CodeRedirectRefused, false},
		400: {executor.CodeHTTPStatus, true}, 401: {executor.CodeHTTPStatus, true},
		404: {executor.CodeHTTPStatus, true}, 410: {executor.CodeHTTPStatus, true},
		422: {executor.CodeHTTPStatus, true},
		408: {executor.CodeHTTPStatus, false}, 409: {executor.CodeHTTPStatus, false},
		425: {executor.CodeHTTPStatus, false}, 429: {executor.CodeHTTPStatus, false},
		500: {executor.CodeHTTPStatus, false}, 502: {executor.CodeHTTPStatus, false},
		503: {executor.CodeHTTPStatus, false}, 599: {executor.CodeHTTPStatus, false},
	}
	for answered, want := range codes {
		t.Run(fmt.Sprint(answered), func(t *testing.T) {
			t.Parallel()
			s := newSink(t, func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(answered)
				if answered != http.StatusNotModified {
					_, _ = io.WriteString(w, "secret body")
				}
			})
			_, err := newHTTP(t, executor.HTTPConfig{URL: s.URL}).Execute(t.Context(), claimed("{}"))
			e := wantFailure(t, err, want.code, want.permanent)
			if !strings.Contains(e.Detail, fmt.Sprint(answered)) || strings.Contains(e.Detail, "secret") {
				t.Errorf("detail = %q, want the status and no body", e.Detail)
			}
			if len(s.all()) != 1 {
				t.Errorf("%d calls, want 1", len(s.all()))
			}
		})
	}
}

func TestFailure_BR72_ARedirectIsNotFollowed(t *testing.T) {
	t.Parallel()
	elsewhere := newSink(t, status(http.StatusOK))
	for _, location := range []string{elsewhere.URL, "::not a url"} {
		s := newSink(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", location)
			w.WriteHeader(http.StatusTemporaryRedirect)
		})
		_, err := newHTTP(t, executor.HTTPConfig{URL: s.URL}).Execute(t.Context(), claimed("{}"))
		wantFailure(t, err, executor.CodeRedirectRefused, false)
	}
	if n := len(elsewhere.all()); n != 0 {
		t.Errorf("%d calls arrived where the redirect points, want none", n)
	}
}

func TestFailure_BR68_RetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	tests := map[string]time.Duration{
		"":                               0,
		"3":                              3 * time.Second,
		"0":                              0,
		"999999":                         999999 * time.Second,
		"99999999999999999999999":        (1<<31 - 1) * time.Second,
		"-5":                             0,
		"+5":                             0,
		"1.5":                            0,
		"abc":                            0,
		"Sun, 01 Mar 2026 12:00:03 GMT":  3 * time.Second,
		"Sun, 01 Mar 2026 11:00:00 GMT":  0,
		"Sunday, 01-Mar-26 12:01:00 GMT": time.Minute,
	}
	for header, want := range tests {
		s := newSink(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", header)
			w.WriteHeader(http.StatusServiceUnavailable)
		})
		h := newHTTP(t, executor.HTTPConfig{URL: s.URL, Now: func() time.Time { return now }})
		_, err := h.Execute(t.Context(), claimed("{}"))
		if e := wantFailure(t, err, executor.CodeHTTPStatus, false); e.After != want {
			t.Errorf("Retry-After %q: After = %v, want %v", header, e.After, want)
		}
	}
}

func TestHTTP_ErrorBody(t *testing.T) {
	t.Parallel()
	long := "\x00\xff\x1b[31mno\r\nsuch order " + strings.Repeat("é", 2000)
	s := newSink(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusUnprocessableEntity)
		_, _ = io.WriteString(w, long)
	})
	_, err := newHTTP(t, executor.HTTPConfig{URL: s.URL, ErrorBody: true}).Execute(t.Context(), claimed("{}"))
	e := wantFailure(t, err, executor.CodeHTTPStatus, true)
	const prefix = "the receiver answered 422 Unprocessable Entity: "
	quoted, found := strings.CutPrefix(e.Detail, prefix+"???[31mno?\nsuch order é")
	if !found || len(quoted) > 1024 || strings.ContainsAny(e.Detail, "\x00\x1b\r") {
		t.Errorf("detail = %q, want at most 1 KiB of the body in clean UTF-8", e.Detail)
	}
}

func TestHTTP_ARefusalIsKnownBeforeItsBody(t *testing.T) {
	t.Parallel()
	s := newSink(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = io.WriteString(w, "slow")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	_, err := newHTTP(t, executor.HTTPConfig{URL: s.URL, ErrorBody: true}).Execute(t.Context(), claimed("{}"))
	if e := wantFailure(t, err, executor.CodeHTTPStatus, false); !strings.HasSuffix(e.Detail, ": slow") {
		t.Errorf("detail = %q, want what came of the body", e.Detail)
	}
}
