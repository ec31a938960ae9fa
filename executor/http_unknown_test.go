package executor_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"testing"

	"github.com/sekali/sekali/executor"
	"github.com/sekali/sekali/job"
)

// wantUnknown checks whether the error says that nobody knows what happened.
func wantUnknown(t *testing.T, err error, want bool) {
	t.Helper()
	if e := attemptError(t, err); e.Unknown != want {
		t.Errorf("Unknown = %v, want %v (%v)", e.Unknown, want, err)
	}
}

func TestContract_SectionH_AnAnswerThatIsNotWholeLeavesTheOutcomeUnknown(t *testing.T) {
	t.Parallel()
	answers := map[string]string{
		"none":             "",
		"no HTTP":          "hello\r\n\r\n",
		"only a status":    "HTTP/1.1 200 OK\r\n",
		"half a body":      "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf",
		"half a chunk":     "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nha",
		"no last chunk":    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nha\r\n",
		"half of a 201":    "HTTP/1.1 201 Created\r\nContent-Length: 10\r\n\r\nhalf",
		"interim only":     "HTTP/1.1 103 Early Hints\r\n\r\n",
		"headers too long": "HTTP/1.1 200 OK\r\nX-A: " + strings.Repeat("a", 100<<10) + "\r\nContent-Length: 0\r\n\r\n",
	}
	ends := map[string]func(*net.TCPConn){
		"closed": func(*net.TCPConn) {},
		"reset":  func(conn *net.TCPConn) { _ = conn.SetLinger(0) },
	}
	for name, answer := range answers {
		for how, end := range ends {
			t.Run(name+"/"+how, func(t *testing.T) {
				t.Parallel()
				w := newWire(t, func(conn *net.TCPConn, _ int) bool {
					_, _ = io.WriteString(conn, answer)
					end(conn)
					return false
				})
				_, err := newHTTP(t, executor.HTTPConfig{URL: w.url}).Execute(t.Context(), claimed("{}"))
				wantFailure(t, err, executor.CodeConnection, false)
				wantUnknown(t, err, true)
			})
		}
	}
}

func TestContract_SectionH_AWholeAnswerIsKnown(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		answer    string
		code      string
		permanent bool
	}{
		"a 500":                  {"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n", executor.CodeHTTPStatus, false},
		"a 504":                  {"HTTP/1.1 504 No\r\nContent-Length: 0\r\n\r\n", executor.CodeHTTPStatus, false},
		"a 503 with half a body": {"HTTP/1.1 503 No\r\nContent-Length: 10\r\n\r\nhalf", executor.CodeHTTPStatus, false},
		"a 400":                  {"HTTP/1.1 400 No\r\nContent-Length: 0\r\n\r\n", executor.CodeHTTPStatus, true},
		"a redirect":             {"HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n", executor.CodeRedirectRefused, false},
		// The receiver said that it did the work: a repetition would get as much.
		"a 200 that is too large": {"HTTP/1.1 200 OK\r\nContent-Length: 1099511627776\r\n\r\n", executor.CodeResultTooLarge, true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWire(t, func(conn *net.TCPConn, _ int) bool {
				_, _ = io.WriteString(conn, test.answer)
				return false
			})
			_, err := newHTTP(t, executor.HTTPConfig{URL: w.url}).Execute(t.Context(), claimed("{}"))
			wantFailure(t, err, test.code, test.permanent)
			wantUnknown(t, err, false)
		})
	}
}

func TestHTTP_ARequestThatWasNeverSentIsKnown(t *testing.T) {
	t.Parallel()
	plain := newWire(t, func(conn *net.TCPConn, _ int) bool { return false })
	tests := map[string]string{
		"refused":      "http://" + nowhere,
		"no TLS there": strings.Replace(plain.url, "http:", "https:", 1),
	}
	for name, url := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := newHTTP(t, executor.HTTPConfig{URL: url}).Execute(t.Context(), claimed("{}"))
			wantFailure(t, err, executor.CodeConnection, false)
			wantUnknown(t, err, false)
		})
	}
	if n := plain.requests.Load(); n != 0 {
		t.Errorf("the receiver without TLS read %d requests", n)
	}
}

// The end of an attempt tells nothing of the receiver once the request was sent,
// and everything before.
func TestFailure_BR63_AnEndedAttemptKnowsWhetherItWasSent(t *testing.T) {
	t.Parallel()
	for _, test := range causes {
		t.Run("before/"+test.cause.Error(), func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancelCause(t.Context())
			cancel(test.cause)
			s := newSink(t, status(http.StatusOK))
			_, err := newHTTP(t, executor.HTTPConfig{URL: s.URL}).Execute(ctx, claimed("{}"))
			wantFailure(t, err, test.code, false)
			wantUnknown(t, err, false)
			if n := len(s.all()); n != 0 {
				t.Errorf("the receiver got %d calls", n)
			}
		})
		t.Run("during the TLS handshake/"+test.cause.Error(), func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancelCause(t.Context())
			silent := listen(t)
			go func() {
				conn, err := silent.Accept()
				if err == nil {
					_, _ = conn.Read(make([]byte, 1)) // the first byte of the greeting
					cancel(test.cause)
				}
			}()
			_, err := newHTTP(t, executor.HTTPConfig{URL: "https://" + silent.Addr().String()}).Execute(ctx, claimed("{}"))
			wantFailure(t, err, test.code, false)
			wantUnknown(t, err, false)
		})
		t.Run("while the request is sent/"+test.cause.Error(), func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancelCause(t.Context())
			slow := listen(t)
			go func() {
				conn, err := slow.Accept()
				if err == nil {
					_, _ = conn.Read(make([]byte, 1)) // and no more of it
					cancel(test.cause)
				}
			}()
			payload := `"` + strings.Repeat("x", 16<<20) + `"` // more than the buffers on the way hold
			_, err := newHTTP(t, executor.HTTPConfig{URL: "http://" + slow.Addr().String()}).Execute(ctx, claimed(payload))
			wantFailure(t, err, test.code, false)
			wantUnknown(t, err, true)
		})
	}
}

// What stands between may have passed the request on before it dropped it.
func TestHTTP_AProxyThatDropsTheRequestLeavesTheOutcomeUnknown(t *testing.T) {
	t.Parallel()
	dropping := listen(t)
	go func() {
		for {
			conn, err := dropping.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 1))
			_ = conn.(*net.TCPConn).SetLinger(0)
			_ = conn.Close()
		}
	}()
	_, err := newHTTP(t, executor.HTTPConfig{URL: "http://" + dropping.Addr().String()}).Execute(t.Context(), claimed("{}"))
	wantFailure(t, err, executor.CodeConnection, false)
	wantUnknown(t, err, true)
}

// Attempts share connections: what one has sent says nothing of the next one.
func TestHTTP_EachAttemptKnowsItsOwnCallOnly(t *testing.T) {
	t.Parallel()
	checkOwnCallOnly(t, newPlain)
}

func checkOwnCallOnly(t *testing.T, start func(*testing.T, http.HandlerFunc) *httptest.Server) {
	t.Helper()
	s := start(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Sekali-Attempt") == "3" {
			hangUp(w)
		}
	})
	h := newHTTP(t, executor.HTTPConfig{URL: s.URL})
	c := claimed("{}")
	for c.Attempts = range 3 {
		if _, err := h.Execute(t.Context(), c); err != nil {
			t.Fatalf("attempt %d: %v", c.Attempts, err)
		}
	}
	// The connection that all three used breaks just before the fourth uses it.
	broken := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
		if !info.Reused {
			t.Error("the connection was not kept")
		}
		_ = bare(info.Conn).Close()
	}})
	_, err := h.Execute(broken, c)
	wantFailure(t, err, executor.CodeConnection, false)
	wantUnknown(t, err, false)
	c.Attempts = 3
	_, err = h.Execute(t.Context(), c)
	wantFailure(t, err, executor.CodeConnection, false)
	wantUnknown(t, err, true)
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	return listener
}

func newPlain(t *testing.T, answer http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(answer)
	t.Cleanup(s.Close)
	return s
}

// hangUp ends the connection without an answer.
func hangUp(w http.ResponseWriter) {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		panic(err)
	}
	_ = bare(conn).Close()
}

// bare is the connection below TLS: closing it says no goodbye.
func bare(conn net.Conn) net.Conn {
	if secured, ok := conn.(*tls.Conn); ok {
		return secured.NetConn()
	}
	return conn
}

func TestContract_SectionI_ALostLockIsSaid(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	s := newSink(t, func(_ http.ResponseWriter, r *http.Request) {
		cancel(job.ErrLockLost)
		<-r.Context().Done()
	})
	_, err := newHTTP(t, executor.HTTPConfig{URL: s.URL}).Execute(ctx, claimed("{}"))
	wantFailure(t, err, executor.CodeLockLost, false)
	wantUnknown(t, err, true)
	if !errors.Is(err, job.ErrLockLost) {
		t.Errorf("error = %v, want it to wrap the cause", err)
	}
}
