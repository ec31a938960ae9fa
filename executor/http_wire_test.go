package executor_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sekali/sekali/executor"
	"github.com/sekali/sekali/job"
)

// wire is a receiver on bare TCP: it answers the n-th request of a connection
// as answer says, and counts all requests.
type wire struct {
	url      string
	requests atomic.Int64
}

func newWire(t *testing.T, answer func(conn *net.TCPConn, n int) (keep bool)) *wire {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	w := &wire{url: "http://" + listener.Addr().String()}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go w.serve(conn.(*net.TCPConn), answer)
		}
	}()
	return w
}

func (w *wire) serve(conn *net.TCPConn, answer func(*net.TCPConn, int) bool) {
	defer conn.Close()
	reader := bufio.NewReader(conn)
	for n := 1; ; n++ {
		request, err := http.ReadRequest(reader)
		if err != nil {
			return
		}
		if _, err := io.Copy(io.Discard, request.Body); err != nil {
			return
		}
		w.requests.Add(1)
		if !answer(conn, n) {
			return
		}
	}
}

const wireOK = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

// The transport of net/http sends a request that carries an Idempotency-Key
// again when the kept connection on which it sent it breaks. One attempt must
// stay one call (contract section H).
func TestContract_SectionH_AnAttemptIsOneCallOnTheWire(t *testing.T) {
	t.Parallel()
	ends := map[string]func(*net.TCPConn){
		"closed": func(*net.TCPConn) {},
		"reset":  func(conn *net.TCPConn) { _ = conn.SetLinger(0) },
	}
	for name, end := range ends {
		for _, payload := range []string{`{"a":1}`, "null", ""} {
			t.Run(fmt.Sprintf("%s/payload %q", name, payload), func(t *testing.T) {
				t.Parallel()
				w := newWire(t, func(conn *net.TCPConn, n int) bool {
					if n == 1 {
						_, _ = io.WriteString(conn, wireOK)
						return true
					}
					end(conn)
					return false
				})
				h := newHTTP(t, executor.HTTPConfig{URL: w.url})
				for range 4 { // two connections: each answers once and breaks once
					if _, err := h.Execute(t.Context(), claimed(payload)); err != nil {
						wantFailure(t, err, executor.CodeConnection, false)
					}
				}
				if n := w.requests.Load(); n != 4 {
					t.Errorf("the receiver read %d requests of 4 attempts", n)
				}
			})
		}
	}
}

func TestHTTP_BrokenAndHostileAnswers(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		answer    string
		code      string
		permanent bool
	}{
		"no answer":              {"", executor.CodeConnection, false},
		"not HTTP":               {"hello\r\n\r\n", executor.CodeConnection, false},
		"half an answer":         {"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", executor.CodeConnection, false},
		"half a chunk":           {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nha", executor.CodeConnection, false},
		"two lengths":            {"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", executor.CodeConnection, false},
		"huge headers":           {"HTTP/1.1 200 OK\r\n" + strings.Repeat("X-A: "+strings.Repeat("a", 1000)+"\r\n", 2000), executor.CodeConnection, false},
		"headers over the limit": {"HTTP/1.1 200 OK\r\nX-A: " + strings.Repeat("a", 100<<10) + "\r\nContent-Length: 0\r\n\r\n", executor.CodeConnection, false},
		"endless interim":        {strings.Repeat("HTTP/1.1 103 Early Hints\r\nX-A: a\r\n\r\n", 5000), executor.CodeConnection, false},
		"an announced terabyte":  {"HTTP/1.1 200 OK\r\nContent-Length: 1099511627776\r\n\r\n", executor.CodeResultTooLarge, true},
		"an unknown status":      {"HTTP/1.1 999 Whatever <b>\r\nContent-Length: 0\r\n\r\n", executor.CodeHTTPStatus, false},
		"refusal with half body": {"HTTP/1.1 503 No\r\nContent-Length: 10\r\n\r\nhalf", executor.CodeHTTPStatus, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWire(t, func(conn *net.TCPConn, _ int) bool {
				_, _ = io.WriteString(conn, test.answer)
				return false
			})
			_, err := newHTTP(t, executor.HTTPConfig{URL: w.url}).Execute(t.Context(), claimed("{}"))
			e := wantFailure(t, err, test.code, test.permanent)
			if strings.Contains(e.Detail, "<b>") {
				t.Errorf("detail = %q shows the receiver's own words", e.Detail)
			}
			if n := w.requests.Load(); n != 1 {
				t.Errorf("the receiver read %d requests, want 1", n)
			}
		})
	}
}

// After a 101 the body is the bare connection, which no context ends.
func TestHTTP_ASwitchOfProtocolsDoesNotHang(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	w := newWire(t, func(conn *net.TCPConn, _ int) bool {
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
		<-release
		return false
	})
	_, err := newHTTP(t, executor.HTTPConfig{URL: w.url, ErrorBody: true}).Execute(t.Context(), claimed("{}"))
	wantFailure(t, err, executor.CodeHTTPStatus, true)
}

func TestHTTP_ADrippingAnswerEndsWithTheAttempt(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	w := newWire(t, func(conn *net.TCPConn, _ int) bool {
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
		for drop := 0; ; drop++ {
			if drop == 100 {
				cancel(job.ErrTimeout)
			}
			if _, err := io.WriteString(conn, "1\r\nx\r\n"); err != nil {
				return false
			}
		}
	})
	_, err := newHTTP(t, executor.HTTPConfig{URL: w.url, ResultLimit: 1 << 40}).Execute(ctx, claimed("{}"))
	wantFailure(t, err, executor.CodeTimeout, false)
}
