package client_test

import (
	"fmt"
	"io"
	"log" //nolint:depguard // http.Server takes no other
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sekali/sekali/client"
)

// asked is a request that a double got, and when.
type asked struct {
	line, body string
	header     http.Header
	at         time.Time
}

// step is how a double answers one request.
type step func(*http.Request) (*http.Response, error)

// double stands in for a gateway and the way to it: it answers step by step, the
// last one again and again.
type double struct {
	mu    sync.Mutex
	steps []step
	asked []asked
}

func (d *double) RoundTrip(r *http.Request) (*http.Response, error) {
	body := []byte{}
	if r.Body != nil {
		body, _ = io.ReadAll(r.Body)
		r.Body.Close()
	}
	d.mu.Lock()
	d.asked = append(d.asked, asked{r.Method + " " + r.URL.RequestURI(), string(body), r.Header.Clone(), time.Now()})
	next := d.steps[0]
	if len(d.steps) > 1 {
		d.steps = d.steps[1:]
	}
	d.mu.Unlock()
	w, err := next(r)
	if w != nil {
		w.Request = r
	}
	return w, err
}

// requests returns what was asked so far.
func (d *double) requests() []asked {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]asked{}, d.asked...)
}

// of returns a client of the double.
func (d *double) of(t testing.TB, options ...client.Option) *client.Client {
	t.Helper()
	return made(t, "http://gateway.test", append([]client.Option{client.WithHTTPClient(&http.Client{Transport: d})}, options...)...)
}

func made(t testing.TB, url string, options ...client.Option) *client.Client {
	t.Helper()
	c, err := client.New(url, options...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// reply answers with a JSON document and "Name: value" headers.
func reply(status int, body string, headers ...string) step {
	return func(*http.Request) (*http.Response, error) {
		h := http.Header{"Content-Type": {"application/json"}}
		for _, header := range headers {
			name, value, _ := strings.Cut(header, ": ")
			h.Set(name, value)
		}
		return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader(body))}, nil
	}
}

// refuse answers with a problem document.
func refuse(status int, code string, retryable bool, headers ...string) step {
	body := fmt.Sprintf(`{"code":%q,"title":"T","detail":"D","status":%d,"retryable":%t,"instance":"urn:uuid:1","type":"https://x/problems/%s"}`, code, status, retryable, code)
	return reply(status, body, append([]string{"Content-Type: application/problem+json"}, headers...)...)
}

// fail breaks off.
func fail(err error) step {
	return func(*http.Request) (*http.Response, error) { return nil, err }
}

// silent answers nothing until the client has had enough.
func silent(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// page is an answer of something that is no gateway.
func page(status int, headers ...string) step {
	return reply(status, "<html>\n <h1>"+strconv.Itoa(status)+"\x1b[31m</h1>", append([]string{"Content-Type: text/html; charset=utf-8"}, headers...)...)
}

func document(key, status string) string {
	return fmt.Sprintf(`{"id":"1","key":%q,"type":"pay","status":%q,"attempts":1,"max_attempts":10,"version":3,"created_at":"2026-03-01T12:00:00Z"}`, key, status)
}

// sorted is a request line with its parameters in order.
func sorted(line string) string {
	path, query, _ := strings.Cut(line, "?")
	values, _ := url.ParseQuery(query)
	return path + "?" + values.Encode()
}

// quiet is a log that nobody reads.
func quiet() *log.Logger { return slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) }
