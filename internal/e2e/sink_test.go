package e2e_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// sink is a receiver that stores every call and answers as its path says:
//
//	/ok  /slow?ms=  /status/{code}  /flaky?fail=n  /bytes?mode=
type sink struct {
	*httptest.Server
	mu   sync.Mutex
	hits []hit
}

// hit is one call as it arrived.
type hit struct {
	path   string
	header http.Header
	body   string
	at     time.Time
}

// count is how many calls there were.
func (s *sink) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.hits)
}

func newSink(t testing.TB) *sink {
	s := &sink{}
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

func (s *sink) serve(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	s.mu.Lock()
	s.hits = append(s.hits, hit{path: r.URL.Path, header: r.Header.Clone(), body: string(body), at: time.Now()})
	s.mu.Unlock()
	number := func(name string) int { n, _ := strconv.Atoi(r.URL.Query().Get(name)); return n }
	switch {
	case r.URL.Path == "/slow":
		select {
		case <-time.After(time.Duration(number("ms")) * time.Millisecond):
		case <-r.Context().Done():
			return
		}
	case strings.HasPrefix(r.URL.Path, "/status/"):
		if after := r.URL.Query().Get("retry_after"); after != "" {
			w.Header().Set("Retry-After", after)
		}
		code, _ := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/status/"))
		w.WriteHeader(code)
		_, _ = io.WriteString(w, "INTERNAL-TOKEN-42")
		return
	case r.URL.Path == "/flaky" && len(s.of(r.Header.Get("Sekali-Key"))) <= number("fail"):
		w.WriteHeader(http.StatusInternalServerError)
		return
	case r.URL.Path == "/bytes":
		s.bytes(w, r.URL.Query().Get("mode"))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"received":%q}`, r.Header.Get("Sekali-Key"))
}

func (s *sink) bytes(w http.ResponseWriter, mode string) {
	w.Header().Set("Content-Type", "application/json")
	switch mode {
	case "nuljson":
		_, _ = io.WriteString(w, `{"r":"x\u0000y"}`)
	case "empty":
	case "none":
		w.WriteHeader(http.StatusNoContent)
	case "unsuccessful":
		_, _ = io.WriteString(w, `{"success":false}`)
	case "html":
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = io.WriteString(w, "<p>done</p>")
	}
}

// of returns the calls made for the key.
func (s *sink) of(key string) []hit {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []hit
	for _, h := range s.hits {
		if h.header.Get("Sekali-Key") == key {
			found = append(found, h)
		}
	}
	return found
}

// types is configuration for job types that call the sink: name → path.
func (s *sink) types(paths map[string]string) string {
	var b strings.Builder
	b.WriteString("job_types:\n")
	for name, path := range paths {
		fmt.Fprintf(&b, "  %s: {executor: http, http: {url: %q}}\n", name, s.URL+path)
	}
	return b.String()
}
