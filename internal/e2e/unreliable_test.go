package e2e_test

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// unreliable stands between a client and a gateway. Of each key's submissions the
// first one does not arrive and is answered with a 503, the second one arrives and
// its answer is lost, and the answer to the third one breaks off. A first read of
// anything is lost. The status of an unfinished job is a word that nobody knows.
type unreliable struct {
	server *httptest.Server
	g      *gateway

	mu     sync.Mutex
	times  map[string]int
	bodies map[string][]string // of submissions, by key
}

// sent is how often each request came.
func (u *unreliable) sent() map[string]int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return maps.Clone(u.times)
}

func newUnreliable(t testing.TB, g *gateway) *unreliable {
	t.Helper()
	u := &unreliable{g: g, times: map[string]int{}, bodies: map[string][]string{}}
	u.server = httptest.NewServer(u)
	t.Cleanup(func() {
		u.server.CloseClientConnections()
		u.server.Close()
	})
	return u
}

func (u *unreliable) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	submits := r.Method == http.MethodPost && r.URL.Path == "/jobs"
	n := u.count(r, string(body), submits)
	switch {
	case submits && n == 1:
		u.refuse(w, r)
	case submits && n == 2:
		u.forward(r, body)
		panic(http.ErrAbortHandler)
	case submits && n == 3:
		a := u.forward(r, body)
		hand(w, a, len(a.body)/2)
		panic(http.ErrAbortHandler)
	case r.Method == http.MethodGet && n == 1:
		panic(http.ErrAbortHandler)
	default:
		a := u.forward(r, body)
		hand(w, a, len(a.body))
	}
}

func (u *unreliable) count(r *http.Request, body string, submits bool) int {
	u.mu.Lock()
	defer u.mu.Unlock()
	what := r.Method + r.URL.RequestURI()
	if submits {
		key := r.Header.Get("Idempotency-Key")
		u.bodies[key] = append(u.bodies[key], body)
		what = key
	}
	u.times[what]++
	return u.times[what]
}

// refuse answers as a gateway does that is shutting down.
func (u *unreliable) refuse(w http.ResponseWriter, r *http.Request) {
	if origin := r.Header.Get("Origin"); origin != "" {
		w.Header().Set("Access-Control-Allow-Origin", origin)
		w.Header().Set("Access-Control-Expose-Headers", "Retry-After")
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Retry-After", "1")
	w.WriteHeader(http.StatusServiceUnavailable)
	_, _ = io.WriteString(w, `{"status":503,"code":"shutting-down","title":"","detail":"","retryable":true}`)
}

var unfinished = regexp.MustCompile(`"status":"(scheduled|pending|processing|retrying)"`)

// forward hands the request on. The status is changed of a job that is asked for;
// what answers a submission stays the same bytes each time.
func (u *unreliable) forward(r *http.Request, body []byte) answer {
	var headers []string
	for name, values := range r.Header {
		if name != "Accept-Encoding" && name != "Connection" {
			headers = append(headers, name+": "+strings.Join(values, ", "))
		}
	}
	a, err := u.g.try(r.Method, r.URL.RequestURI(), string(body), headers...)
	if err != nil {
		panic(http.ErrAbortHandler) // the client has gone, or the gateway has
	}
	if r.Method == http.MethodGet {
		a.body = unfinished.ReplaceAll(a.body, []byte(`"status":"dreaming"`))
	}
	return a
}

// hand answers with the first bytes of what the gateway has answered.
func hand(w http.ResponseWriter, a answer, length int) {
	for name, values := range a.Header {
		w.Header()[name] = values
	}
	w.Header().Set("Content-Length", fmt.Sprint(len(a.body)))
	w.WriteHeader(a.StatusCode)
	_, _ = w.Write(a.body[:length])
	_ = http.NewResponseController(w).Flush()
}

// sameEachTime fails unless the key came with that many bodies, and with the first
// of them at least four times.
func (u *unreliable) sameEachTime(t testing.TB, key string, different int) {
	t.Helper()
	u.mu.Lock()
	defer u.mu.Unlock()
	bodies := u.bodies[key]
	if len(bodies) < 4 {
		t.Fatalf("%s came %d times: %q", key, len(bodies), u.bodies)
	}
	for _, body := range bodies[:4] {
		if body != bodies[0] {
			t.Errorf("%s came with %s and then with %s", key, bodies[0], body)
		}
	}
	sorted := slices.Clone(bodies)
	slices.Sort(sorted)
	if n := len(slices.Compact(sorted)); n != different {
		t.Errorf("%s came with %d different bodies, want %d: %q", key, n, different, bodies)
	}
}
