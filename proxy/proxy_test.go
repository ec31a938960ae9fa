package proxy_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/proxy"
)

// front serves a proxy before the upstream, with the keyed request that the
// header Key names, if any.
func front(t *testing.T, upstream string, c proxy.Config) *httptest.Server {
	t.Helper()
	var err error
	if c.Upstream, err = url.Parse(upstream); err != nil {
		t.Fatal(err)
	}
	p := proxy.New(c)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := idempotency.WithTenant(r.Context(), "acme")
		if key := r.Header.Get("Idempotency-Key"); key != "" {
			ctx = idempotency.NewContext(context.WithoutCancel(ctx), idempotency.Request{Tenant: "acme", Key: idempotency.Key(key)})
		}
		p.ServeHTTP(w, r.WithContext(ctx))
	}))
	t.Cleanup(func() { server.Close(); p.Close() })
	return server
}

// answer is a response with its body read.
type answer struct {
	*http.Response
	body string
	err  error // of reading the body
}

func send(t *testing.T, method, target, body string, headers ...string) answer {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, target, io.NopCloser(strings.NewReader(body)))
	if err != nil {
		t.Fatal(err)
	}
	r.ContentLength = int64(len(body))
	if body == "" {
		r.Body = http.NoBody
	}
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		r.Header.Add(name, value)
	}
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	read, err := io.ReadAll(resp.Body)
	return answer{resp, string(read), err}
}

func (a answer) problem(t *testing.T, status int, code string) api.Problem {
	t.Helper()
	var p api.Problem
	if err := json.Unmarshal([]byte(a.body), &p); err != nil || a.StatusCode != status || p.Code != code || a.Header.Get("Error-Source") != "gateway" {
		t.Errorf("%d %s %v, want %d %s: %v", a.StatusCode, a.body, a.Header, status, code, err)
	}
	return p
}

func TestProxy_WhatTheUpstreamGets(t *testing.T) {
	t.Parallel()
	var got *http.Request
	var body []byte
	upstream := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		got = r
		body, _ = io.ReadAll(r.Body)
	}))
	defer upstream.Close()
	base := strings.Replace(upstream.URL, "http://", "http://user:pass@", 1)
	server := front(t, base+"/base", proxy.Config{HideAuthorization: true})
	send(t, "POST", server.URL+"/v1/a%2Fb?x=1&y=%20", "the body",
		"Idempotency-Key: k1", "Authorization: Bearer sk_x", "Connection: X-Hop", "X-Hop: 1", "Te: gzip", "Keep-Alive: 5", "Proxy-Authorization: z",
		"X-Forwarded-For: 6.6.6.6", "Forwarded: for=6.6.6.6", "Accept-Encoding: br", "Sekali-Tenant: other", "X-Kept: 1", "Expect: 100-continue")
	if got.RequestURI != "/base/v1/a%2Fb?x=1&y=%20" || string(body) != "the body" || got.ContentLength != 8 {
		t.Errorf("%s %q of %d", got.RequestURI, body, got.ContentLength)
	}
	for name, want := range map[string]string{
		"Idempotency-Key": `"k1"`, "Authorization": "Basic dXNlcjpwYXNz", "X-Hop": "", "Connection": "", "Te": "", "Keep-Alive": "", "Proxy-Authorization": "",
		"X-Forwarded-For": "127.0.0.1", "X-Forwarded-Proto": "http", "X-Forwarded-Host": strings.TrimPrefix(server.URL, "http://"), "Forwarded": "",
		"Accept-Encoding": "identity", "Sekali-Tenant": "acme", "X-Kept": "1", "Expect": "",
	} {
		if values := strings.Join(got.Header.Values(name), "|"); values != want {
			t.Errorf("%s: %q, want %q", name, values, want)
		}
	}
	if got.Host != strings.TrimPrefix(upstream.URL, "http://") {
		t.Errorf("host %q", got.Host)
	}
}

func TestProxy_AuthorizationIsTheUpstreamsWhereTheGatewayHasNone(t *testing.T) {
	t.Parallel()
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Header.Get("Authorization"))
	}))
	defer upstream.Close()
	server := front(t, upstream.URL, proxy.Config{})
	if a := send(t, "GET", server.URL+"/", "", "Authorization: Bearer theirs"); a.body != "Bearer theirs" {
		t.Errorf("%q", a.body)
	}
}

func TestProxy_WhatTheClientGets(t *testing.T) {
	t.Parallel()
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		for _, name := range []string{"Idempotency-Key", "Idempotent-Replayed", "Idempotency-Status", "Idempotency-Expires", "X-Request-Id", "Access-Control-Allow-Origin", "Keep-Alive", "X-Hop"} {
			h.Set(name, "upstream")
		}
		h.Set("Connection", "X-Hop")
		h.Set("Location", "/v1/charges/1")
		h.Add("Set-Cookie", "a=1")
		h.Set("Link", `</style.css>; rel=preload`)
		w.WriteHeader(http.StatusEarlyHints)
		h.Del("Link")
		w.WriteHeader(http.StatusConflict)
		_, _ = io.WriteString(w, "no")
	}))
	defer upstream.Close()
	server := front(t, upstream.URL, proxy.Config{HideCORS: true})
	for _, key := range []string{"", "k"} {
		a := send(t, "POST", server.URL+"/v1/charges", "{}", "Idempotency-Key: "+key)
		if a.StatusCode != http.StatusConflict || a.body != "no" {
			t.Errorf("%d %q", a.StatusCode, a.body)
		}
		for name, want := range map[string]string{
			"Idempotency-Key": "", "Idempotent-Replayed": "", "Idempotency-Status": "", "Idempotency-Expires": "", "X-Request-Id": "",
			"Access-Control-Allow-Origin": "", "Keep-Alive": "", "X-Hop": "", "Link": "", "Location": "/v1/charges/1", "Set-Cookie": "a=1", "Error-Source": "handler",
		} {
			if got := strings.Join(a.Header.Values(name), "|"); got != want {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
		}
	}
}

func TestProxy_NothingIsSentTwice(t *testing.T) {
	t.Parallel()
	// An upstream that answers the first request of a connection, and breaks the
	// connection on the second one: just then http.Transport would send it again.
	var requests atomic.Int64
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				reader := bufio.NewReader(conn)
				for n := range 2 {
					r, err := http.ReadRequest(reader)
					if err != nil {
						return
					}
					_, _ = io.Copy(io.Discard, r.Body)
					requests.Add(1)
					if n == 0 {
						_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
					}
				}
			}()
		}
	}()
	for _, body := range []string{"", "{}"} {
		server := front(t, "http://"+listener.Addr().String(), proxy.Config{Repeatable: true})
		before := requests.Load()
		if a := send(t, "POST", server.URL+"/", body, "Idempotency-Key: k", "X-Idempotency-Key: k"); a.StatusCode != http.StatusOK {
			t.Fatalf("%d %s", a.StatusCode, a.body)
		}
		p := send(t, "POST", server.URL+"/", body, "Idempotency-Key: k", "X-Idempotency-Key: k").problem(t, http.StatusBadGateway, "upstream-unreachable")
		if !strings.Contains(p.Detail, "may have executed") {
			t.Errorf("detail %q", p.Detail)
		}
		if n := requests.Load() - before; n != 2 {
			t.Errorf("body %q: the upstream saw %d requests, want 2", body, n)
		}
	}
}

func TestContract_Row38_WhatWasNeverSentIsReleased(t *testing.T) {
	t.Parallel()
	// Nobody listens there; a port that was free a moment ago may be another test's by now.
	server := front(t, "http://127.0.0.1:1", proxy.Config{})
	a := send(t, "POST", server.URL+"/", "{}", "Idempotency-Key: k")
	p := a.problem(t, http.StatusBadGateway, "upstream-unreachable")
	if a.Header.Get("Idempotency-Store") != "no" || !p.Retryable || p.RetryAfterMS == 0 || a.Header.Get("Retry-After") == "" {
		t.Errorf("%v %s", a.Header, a.body)
	}
}

// slow is an upstream that does not answer before its clients have left.
func slow(t *testing.T, begin func(w http.ResponseWriter)) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // so that the end of the connection is seen
		begin(w)
		<-r.Context().Done()
	}))
	t.Cleanup(server.Close)
	return server
}

func TestContract_Row43_WhatWasSentHasUnknownEffects(t *testing.T) {
	t.Parallel()
	tests := map[string]func(w http.ResponseWriter){
		"no answer": func(http.ResponseWriter) {},
		"half an answer": func(w http.ResponseWriter) {
			_, _ = io.WriteString(w, "half")
			_ = http.NewResponseController(w).Flush()
		},
	}
	for name, begin := range tests {
		for _, repeatable := range []bool{true, false} {
			t.Run(fmt.Sprint(name, repeatable), func(t *testing.T) {
				t.Parallel()
				// Long enough to be sent on a machine that is busy with other things.
				const timeout = 3 * time.Second
				server := front(t, slow(t, begin).URL, proxy.Config{Timeout: timeout, Repeatable: repeatable})
				a := send(t, "POST", server.URL+"/", "{}", "Idempotency-Key: k")
				p := a.problem(t, http.StatusGatewayTimeout, "upstream-timeout")
				if a.Header.Get("Idempotency-Store") != "" || p.Retryable != repeatable || (p.RetryAfterMS != 0) != repeatable {
					t.Errorf("%v %s", a.Header, a.body)
				}
				if !strings.Contains(p.Detail, "may have executed") {
					t.Errorf("detail %q", p.Detail)
				}
			})
		}
	}
}

// An answer that breaks off is a 502 while that can still be said.
func TestProxy_AnAnswerThatBreaksOff(t *testing.T) {
	t.Parallel()
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, "half")
	}))
	defer upstream.Close()
	server := front(t, upstream.URL, proxy.Config{})
	send(t, "POST", server.URL+"/", "{}", "Idempotency-Key: k").problem(t, http.StatusBadGateway, "upstream-unreachable")
	resp, err := http.Post(server.URL+"/", "", nil)
	if err == nil {
		_, err = io.ReadAll(resp.Body)
		_ = resp.Body.Close()
	}
	if err == nil {
		t.Error("without a key: half an answer passed for a whole one")
	}
}

// flushes counts the flushes that reach the writer.
type flushes struct {
	*httptest.ResponseRecorder
	n int
}

func (f *flushes) Flush() { f.n++ }

// A chunked answer is no stream; one of events is.
func TestContract_Row52_ChunkedAnswersAreNotFlushed(t *testing.T) {
	t.Parallel()
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", r.Header.Get("Accept"))
		w.Header().Set("Trailer", "X-Sum")
		for range 3 {
			_, _ = io.WriteString(w, "part")
			_ = http.NewResponseController(w).Flush()
		}
		w.Header().Set("X-Sum", "1")
	}))
	defer upstream.Close()
	target, _ := url.Parse(upstream.URL)
	p := proxy.New(proxy.Config{Upstream: target})
	defer p.Close()
	for accept, want := range map[string]bool{"text/plain": false, "text/event-stream": true} {
		r := httptest.NewRequest("POST", "/", strings.NewReader("{}"))
		r.Header.Set("Accept", accept)
		r = r.WithContext(idempotency.NewContext(t.Context(), idempotency.Request{Tenant: "acme", Key: "k"}))
		w := &flushes{ResponseRecorder: httptest.NewRecorder()}
		p.ServeHTTP(w, r)
		if (w.n > 0) != want || w.Body.String() != "partpartpart" {
			t.Errorf("%s: %d flushes, %q", accept, w.n, w.Body)
		}
	}
}

func TestProxy_AStreamMayLastLongerThanTheTimeout(t *testing.T) {
	t.Parallel()
	// Long enough for a beginning on a machine that is busy with other things.
	const timeout = 5 * time.Second
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: first\n\n")
		_ = http.NewResponseController(w).Flush()
		<-time.After(timeout * 6 / 5)
		_, _ = io.WriteString(w, "data: last\n\n")
	}))
	t.Cleanup(upstream.Close)
	server := front(t, upstream.URL, proxy.Config{Timeout: timeout})
	for _, key := range []string{"", "k"} {
		t.Run("key "+key, func(t *testing.T) {
			t.Parallel()
			if a := send(t, "POST", server.URL+"/", "{}", "Idempotency-Key: "+key); a.err != nil || a.body != "data: first\n\ndata: last\n\n" {
				t.Errorf("%q, %v", a.body, a.err)
			}
		})
	}
}

func TestProxy_LargeAnswersPassThrough(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("0123456789", 5000)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, large) }))
	defer upstream.Close()
	server := front(t, upstream.URL, proxy.Config{ResponseLimit: 1000})
	if a := send(t, "POST", server.URL+"/", "{}", "Idempotency-Key: k"); a.body != large {
		t.Errorf("%d bytes, %v", len(a.body), a.err)
	}
}

func TestProxy_LimitsBodiesWithoutKey(t *testing.T) {
	t.Parallel()
	upstream := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
	defer upstream.Close()
	server := front(t, upstream.URL, proxy.Config{BodyLimit: 10})
	send(t, "POST", server.URL+"/", "01234567890").problem(t, http.StatusRequestEntityTooLarge, "request-too-large")
	r, _ := http.NewRequestWithContext(t.Context(), "POST", server.URL+"/", io.MultiReader(strings.NewReader(strings.Repeat("x", 5000)))) // chunked
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("chunked: %d", resp.StatusCode)
	}
	if a := send(t, "POST", server.URL+"/", "0123456789"); a.StatusCode != http.StatusOK {
		t.Errorf("at the limit: %d %s", a.StatusCode, a.body)
	}
}

// A client that leaves ends the exchange of a request without a key, and is no
// failure of anybody.
func TestProxy_AClientThatLeaves(t *testing.T) {
	t.Parallel()
	reached, left := make(chan struct{}), make(chan struct{})
	upstream := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(reached)
		<-r.Context().Done()
		close(left)
	}))
	defer upstream.Close()
	target, _ := url.Parse(upstream.URL)
	p := proxy.New(proxy.Config{Upstream: target})
	defer p.Close()
	ctx, leave := context.WithCancel(t.Context())
	ctx, report := api.WithReport(ctx)
	w := httptest.NewRecorder()
	var wg sync.WaitGroup
	wg.Go(func() { p.ServeHTTP(w, httptest.NewRequest("GET", "/", nil).WithContext(ctx)) })
	<-reached
	leave()
	<-left
	wg.Wait()
	if w.Code != http.StatusRequestTimeout || !errors.Is(report.Err, context.Canceled) {
		t.Errorf("%d %v", w.Code, report.Err)
	}
}
