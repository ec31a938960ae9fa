package middleware_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sekali/sekali/middleware"
)

// served puts a protected handler on a real connection.
func served(t *testing.T, o middleware.Options, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(protect(newStore(), o, h))
	t.Cleanup(func() {
		s.Client().CloseIdleConnections()
		s.Close()
	})
	return s
}

// fetched is an answer that has been read.
type fetched struct {
	status int
	header http.Header
	body   string
}

func fetch(t *testing.T, s *httptest.Server, key string, prefer ...string) fetched {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL, strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	r.Header = header("Content-Type", "application/json", "Idempotency-Key", key)
	r.Header["Prefer"] = prefer
	response, err := s.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return fetched{response.StatusCode, response.Header, string(body)}
}

// C25: an event arrives when it is flushed, not when the handler has returned.
func TestContract_Row52_FlushReachesTheClient(t *testing.T) {
	t.Parallel()
	seen := make(chan struct{})
	s := served(t, middleware.Options{}, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "first\n")
		if err := http.NewResponseController(w).Flush(); err != nil {
			t.Errorf("flush: %v", err)
		}
		<-seen
		fmt.Fprint(w, "last\n")
	})
	r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL, strings.NewReader("{}"))
	r.Header = header("Content-Type", "application/json", "Idempotency-Key", "k")
	response, err := s.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	lines := bufio.NewReader(response.Body)
	if line, err := lines.ReadString('\n'); line != "first\n" || err != nil {
		t.Errorf("got %q, %v", line, err)
	}
	close(seen)
	if line, err := lines.ReadString('\n'); line != "last\n" || err != nil {
		t.Errorf("got %q, %v", line, err)
	}
}

func TestContract_Row52_Hijack(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	s := served(t, middleware.Options{}, counted(&runs, func(w http.ResponseWriter, _ *http.Request) {
		conn, buffered, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Errorf("hijack: %v", err)
			return
		}
		defer conn.Close()
		if _, err := w.Write(nil); err == nil {
			t.Error("a write after the hijack succeeds")
		}
		fmt.Fprint(buffered, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\nhello")
		_ = buffered.Flush()
	}))
	conn, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "POST / HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nContent-Type: application/json\r\nContent-Length: 2\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n{}")
	if all, err := io.ReadAll(conn); err != nil || !strings.HasSuffix(string(all), "hello") {
		t.Errorf("got %q, %v", all, err)
	}
	// The connection ends before the handler does.
	if got := fetch(t, s, "k", "wait=10"); got.status != 422 || !strings.Contains(got.body, `"original_status":101`) || runs.Load() != 1 {
		t.Errorf("got %+v after %d runs", got, runs.Load())
	}
}

func TestCapture_ControllerAndReaderFrom(t *testing.T) {
	t.Parallel()
	const large = 1 << 20
	path := filepath.Join(t.TempDir(), "large")
	if err := os.WriteFile(path, make([]byte, large), 0o600); err != nil {
		t.Fatal(err)
	}
	s := served(t, middleware.Options{ResponseLimit: 1000}, func(w http.ResponseWriter, _ *http.Request) {
		controller := http.NewResponseController(w)
		if err := controller.SetWriteDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Errorf("write deadline: %v", err)
		}
		file, err := os.Open(path)
		if err != nil {
			t.Error(err)
			return
		}
		defer file.Close()
		if n, err := io.Copy(w, file); n != large || err != nil {
			t.Errorf("copied %d, %v", n, err)
		}
	})
	if got := fetch(t, s, "k"); got.status != 200 || len(got.body) != large {
		t.Errorf("got %d with %d bytes", got.status, len(got.body))
	}
	if got := fetch(t, s, "k"); got.status != 422 {
		t.Errorf("the replay is %d", got.status)
	}
}

func TestCapture_BehavesLikeTheServer(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		h      http.HandlerFunc
		status int
		body   string
		header map[string]string
	}{
		{"nothing written", func(http.ResponseWriter, *http.Request) {}, 200, "", map[string]string{"Content-Length": "0"}},
		{"second status", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(202); w.WriteHeader(500) }, 202, "", nil},
		{"early hints", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(103); w.WriteHeader(201) }, 201, "", nil},
		{"headers after the status", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(200); w.Header().Set("X-Late", "x") }, 200, "", map[string]string{"X-Late": ""}},
		{"no content", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(204)
			if _, err := fmt.Fprint(w, "x"); err == nil {
				t.Error("a body of 204 is taken")
			}
		}, 204, "", map[string]string{"Content-Length": "", "Content-Type": ""}},
		{"type is found out", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") }, 200, "<html>", map[string]string{"Content-Type": "text/html; charset=utf-8", "Content-Length": "6"}},
		{"wrong length", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1")
			fmt.Fprint(w, "abc")
		}, 200, "abc", map[string]string{"Content-Length": "3"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := served(t, middleware.Options{}, tt.h)
			for _, replayed := range []string{"false", "true"} {
				got := fetch(t, s, "k")
				if got.status != tt.status || got.body != tt.body || got.header.Get("Idempotent-Replayed") != replayed {
					t.Errorf("got %+v", got)
				}
				for name, want := range tt.header {
					if value := got.header.Get(name); value != want {
						t.Errorf("replayed %s: %s is %q, want %q", replayed, name, value, want)
					}
				}
			}
		})
	}
	t.Run("impossible status", func(t *testing.T) {
		t.Parallel()
		if _, value := panics(protect(newStore(), middleware.Options{}, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(0) }), keyedAs("k", "{}")); value == nil {
			t.Error("it is taken")
		}
	})
}
