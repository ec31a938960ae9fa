package middleware_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sekali/sekali/middleware"
)

// unreadServer refuses everything without reading.
func unreadServer(t *testing.T, closing bool) *httptest.Server {
	s := httptest.NewServer(middleware.Unread(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if closing {
			w.Header().Set("Connection", "close")
		}
		w.WriteHeader(http.StatusTeapot)
	})))
	t.Cleanup(s.Close)
	return s
}

// A client that is still sending when it is refused gets to read the answer.
func TestUnread_TheAnswerIsNotLost(t *testing.T) {
	t.Parallel()
	for _, closing := range []bool{true, false} {
		s := unreadServer(t, closing)
		for range 20 {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL, io.LimitReader(strings.NewReader(strings.Repeat("x", 4<<20)), 4<<20))
			if err != nil {
				t.Fatal(err)
			}
			r.ContentLength, r.Close = 4<<20, closing
			response, err := s.Client().Do(r)
			if err != nil {
				t.Fatalf("closing %t: %v", closing, err)
			}
			response.Body.Close()
			if response.StatusCode != http.StatusTeapot {
				t.Errorf("status %d", response.StatusCode)
			}
		}
	}
}

// A client that never sends what it has announced is answered all the same.
func TestUnread_NobodyWaitsForABodyWithoutEnd(t *testing.T) {
	t.Parallel()
	for _, closing := range []bool{true, false} {
		s := unreadServer(t, closing)
		conn, err := net.Dial("tcp", s.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nx")
		received := bufio.NewReader(conn)
		response, err := http.ReadResponse(received, nil)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if _, err := io.ReadAll(received); err != nil || response.StatusCode != http.StatusTeapot {
			t.Errorf("status %d, %v", response.StatusCode, err)
		}
		conn.Close()
	}
}
