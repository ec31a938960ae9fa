package e2e_test

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/testenv"
)

// upstream is an API without idempotency: it counts what it executes by key, and
// answers each time something else.
type upstream struct {
	*httptest.Server
	mu       sync.Mutex
	arrived  *sync.Cond // something was executed
	executed map[string]int
	headers  map[string]http.Header
}

// newUpstream answers with answer after it has counted.
func newUpstream(t testing.TB, answer func(w http.ResponseWriter, r *http.Request, n int)) *upstream {
	u := &upstream{executed: map[string]int{}, headers: map[string]http.Header{}}
	u.arrived = sync.NewCond(&u.mu)
	u.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		key := strings.Trim(r.Header.Get("Idempotency-Key"), `"`)
		u.mu.Lock()
		u.executed[key]++
		n := u.executed[key]
		u.headers[key] = r.Header.Clone()
		u.mu.Unlock()
		u.arrived.Broadcast()
		answer(w, r, n)
	}))
	t.Cleanup(func() {
		u.CloseClientConnections()
		u.Close()
	})
	return u
}

// awaited returns once a request with the key has arrived.
func (u *upstream) awaited(key string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for u.executed[key] == 0 {
		u.arrived.Wait()
	}
}

func (u *upstream) times(key string) int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.executed[key]
}

// rule is the configuration of a gateway before the upstream.
func (u *upstream) rule(more string) string {
	return fmt.Sprintf("idempotency: {lease: 2s}\nproxy:\n  - {match: POST /v1/*, upstream: %q, %s}\n", u.URL, more)
}

func (g *gateway) charge(key string, headers ...string) answer {
	g.t.Helper()
	return g.do(http.MethodPost, "/v1/charges?x=1", `{"amount":1}`, append([]string{jsonType, "Idempotency-Key: " + key}, headers...)...)
}

func charged(w http.ResponseWriter, r *http.Request, n int) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.Header().Set("Location", fmt.Sprintf("/v1/charges/%d", n))
	w.Header().Add("Set-Cookie", "session=1")
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, `{ "id" : %d, "random" : %d }`, n, rand.Int())
}

// The example as it stands: its API, its configuration.
func TestMainJob_TheProxyExample(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "charges")
	if out, err := exec.Command("go", "build", "-o", binary, "../../examples/proxy").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	config, err := os.ReadFile("../../examples/proxy/sekali.yaml")
	if err != nil {
		t.Fatal(err)
	}
	onEngines(t, func(t *testing.T, database string) {
		address := serves(t, binary)
		g := start(t, database, strings.ReplaceAll(string(config), "127.0.0.1:9000", address))
		var wg sync.WaitGroup
		answers := make([]answer, 50)
		for i := range answers {
			wg.Go(func() {
				answers[i], _ = g.try(http.MethodPost, "/v1/charges", `{"amount":4200}`, jsonType, "Idempotency-Key: order-42", "Prefer: wait=20")
			})
		}
		wg.Wait()
		fresh := 0
		for _, a := range answers {
			if a.Response == nil {
				t.Fatal("no answer")
			}
			a.want(t, http.StatusCreated, "Location: /v1/charges/1", `Idempotency-Key: "order-42"`)
			if string(a.body) != "{\"id\":1}\n" {
				t.Errorf("body %q", a.body)
			}
			if a.Header.Get("Idempotent-Replayed") == "false" {
				fresh++
			}
		}
		if fresh != 1 {
			t.Errorf("%d answers say that they are the first one", fresh)
		}
		g.do(http.MethodPost, "/v1/charges", `{"amount":9999}`, jsonType, "Idempotency-Key: order-42").problem(t, http.StatusUnprocessableEntity, "idempotency-key-reused")
		if a := g.get("/v1/charges").want(t, http.StatusOK); string(a.body) != "{\"charges\":1}\n" {
			t.Errorf("the API has charged: %s", a.body)
		}
	})
}

// serves runs the API of the example until the end of the test, and returns where it
// is.
func serves(t testing.TB, binary string) (address string) {
	t.Helper()
	address = "127.0.0.1:" + freePort(t)
	charges := exec.Command(binary, "-listen", address)
	if err := charges.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = charges.Process.Kill()
		_ = charges.Wait()
	})
	testenv.Eventually(t, 60*time.Second, "the API serves", func() bool {
		_, err := (&gateway{t: t, url: "http://" + address}).try(http.MethodGet, "/v1/charges", "")
		return err == nil
	})
	return address
}

func TestContract_Row29_Row53_Row54_AProxiedReplayIsByteIdentical(t *testing.T) {
	u := newUpstream(t, charged)
	onGateway(t, u.rule(""), func(t *testing.T, g *gateway) {
		key := "k" + fmt.Sprint(rand.Int())
		first := g.charge(key, "Authorization: Bearer theirs").want(t, http.StatusCreated, "Idempotent-Replayed: false", "Set-Cookie: session=1", "Cache-Control: no-store")
		second := g.charge(`"`+key+`"`).want(t, http.StatusCreated, "Idempotent-Replayed: true", "Set-Cookie:", "Idempotency-Expires: *", "Location: /v1/charges/1")
		if !bytes.Equal(first.body, second.body) || first.Header.Get("Content-Type") != second.Header.Get("Content-Type") {
			t.Errorf("%s %s\n%s %s", first.body, first.Header, second.body, second.Header)
		}
		if u.times(key) != 1 {
			t.Errorf("executed %d times", u.times(key))
		}
		u.mu.Lock()
		got := u.headers[key]
		u.mu.Unlock()
		if got.Get("Idempotency-Key") != `"`+key+`"` || got.Get("Accept-Encoding") != "identity" || got.Get("Sekali-Tenant") != "default" || got.Get("Authorization") != "Bearer theirs" {
			t.Errorf("the upstream got %v", got)
		}
		// Rows 1, 3, 27 and 28 hold for proxied routes too.
		g.do(http.MethodPost, "/v1/charges", "{}", jsonType).problem(t, http.StatusBadRequest, "idempotency-key-missing")
		g.do(http.MethodPost, "/v1/charges?x=2", `{"amount":1}`, jsonType, "Idempotency-Key: "+key).problem(t, http.StatusUnprocessableEntity, "idempotency-key-reused")
		g.submit(key, `{"type":"echo"}`).problem(t, http.StatusUnprocessableEntity, "idempotency-key-reused")
		g.do(http.MethodPost, "/v1/%2e%2e/admin", "{}", jsonType, "Idempotency-Key: dots").problem(t, http.StatusNotFound, "route-not-found")
		g.do(http.MethodDelete, "/v1/charges", "", "Idempotency-Key: x").problem(t, http.StatusMethodNotAllowed, "method-not-allowed")
		if n := u.times("dots") + u.times(""); n != 0 {
			t.Errorf("refused requests reached the upstream %d times", n)
		}
	})
}

func TestContract_Row38_OfAProxiedRoute(t *testing.T) {
	broken := func(w http.ResponseWriter, _ *http.Request, n int) {
		if n == 1 {
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = io.WriteString(w, "broken")
			return
		}
		_, _ = io.WriteString(w, "done")
	}
	for policy, want := range map[string]int{"release": http.StatusOK, "store": http.StatusInternalServerError, "interrupt": http.StatusUnprocessableEntity} {
		t.Run(policy, func(t *testing.T) {
			u := newUpstream(t, broken)
			onGateway(t, u.rule("on_5xx: "+policy), func(t *testing.T, g *gateway) {
				key := fmt.Sprint("k", rand.Int())
				g.charge(key).want(t, http.StatusInternalServerError, "Error-Source: handler", "Idempotent-Replayed: false")
				a := g.charge(key).want(t, want)
				if policy == "interrupt" {
					a.problem(t, want, "idempotency-outcome-unknown")
				}
				if n := u.times(key); policy == "release" && n != 2 || policy != "release" && n != 1 {
					t.Errorf("executed %d times", n)
				}
			})
		})
	}
}

func TestContract_Row43_AnUpstreamThatDoesNotAnswer(t *testing.T) {
	u := newUpstream(t, func(_ http.ResponseWriter, r *http.Request, _ int) { <-r.Context().Done() })
	onGateway(t, u.rule("timeout: 3s, on_5xx: interrupt"), func(t *testing.T, g *gateway) {
		key := fmt.Sprint("k", rand.Int())
		p := g.charge(key).problem(t, http.StatusGatewayTimeout, "upstream-timeout")
		if p["retryable"] != false || p["idempotency_key"] != key {
			t.Errorf("%v", p)
		}
		g.charge(key).problem(t, http.StatusUnprocessableEntity, "idempotency-outcome-unknown")
		if u.times(key) != 1 {
			t.Errorf("executed %d times", u.times(key))
		}
	})
}

func TestContract_Row38_WhatNeverReachedTheUpstreamMayBeSentAgain(t *testing.T) {
	// Nobody listens at port 1, and no other test is given it.
	const config = "proxy: [{match: POST /v1/*, upstream: 'http://127.0.0.1:1', on_5xx: store, on_interrupted: reject}]"
	onGateway(t, config, func(t *testing.T, g *gateway) {
		for range 2 {
			p := g.charge("k", "Prefer: wait=1").want(t, http.StatusBadGateway, "Idempotent-Replayed: false", "Retry-After: *", "Idempotency-Store:").problem(t, http.StatusBadGateway, "upstream-unreachable")
			if p["retryable"] != true {
				t.Errorf("%v", p)
			}
		}
	})
}

// The client is gone before it has read anything, and so is the gateway.
func TestContract_Row42_TheAnswerIsStoredBeforeItIsSent(t *testing.T) {
	large := strings.Repeat("0123456789abcdef", 50_000)
	u := newUpstream(t, func(w http.ResponseWriter, _ *http.Request, n int) {
		w.Header().Set("Content-Type", "text/plain")
		fmt.Fprintf(w, "%d:%s", n, large)
	})
	onEngines(t, func(t *testing.T, database string) {
		config := u.rule("on_interrupted: reject")
		g := start(t, database, config)
		key := fmt.Sprint("k", rand.Int())
		conn, err := net.Dial("tcp", strings.TrimPrefix(g.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.(*net.TCPConn).SetReadBuffer(4 << 10)
		// A client that sends and never reads: its answer is on the way for ever.
		fmt.Fprintf(conn, "POST /v1/charges?x=1 HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nIdempotency-Key: %s\r\nContent-Length: 12\r\n\r\n{\"amount\":1}", key)
		u.awaited(key)
		stored := g.settledCharge(t, key).want(t, http.StatusOK, "Idempotent-Replayed: true")
		g.kill()
		again := start(t, database, config).charge(key).want(t, http.StatusOK, "Idempotent-Replayed: true")
		if !bytes.Equal(stored.body, again.body) || string(again.body) != "1:"+large {
			t.Errorf("%d and %d bytes", len(stored.body), len(again.body))
		}
		if u.times(key) != 1 {
			t.Errorf("executed %d times", u.times(key))
		}
	})
}

// settledCharge repeats a charge until its key is in progress no more.
func (g *gateway) settledCharge(t testing.TB, key string) answer {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		a := g.charge(key, "Prefer: wait=5")
		if a.StatusCode != http.StatusConflict || time.Now().After(deadline) {
			return a
		}
		a.problem(t, http.StatusConflict, "idempotency-key-in-use")
	}
}

// Kills at any point between the upstream's first byte and the client's last
// one: where the policy says so, nothing is ever executed twice, and what was
// answered stays the answer.
func TestContract_Row42_Row43_KillsBetweenTheUpstreamsAnswerAndTheClients(t *testing.T) {
	u := newUpstream(t, charged)
	onEngines(t, func(t *testing.T, database string) {
		config := u.rule("on_interrupted: reject")
		g := start(t, database, config)
		for range 6 {
			key := fmt.Sprint("k", rand.Int())
			got := make(chan answer, 1)
			url := g.url
			go func() {
				a, _ := (&gateway{t: t, url: url}).try(http.MethodPost, "/v1/charges?x=1", `{"amount":1}`, jsonType, "Idempotency-Key: "+key)
				got <- a
			}()
			u.awaited(key)
			<-time.After(time.Duration(rand.IntN(15_000)) * time.Microsecond)
			g.kill()
			first := <-got
			g = start(t, database, config)
			a := g.settledCharge(t, key)
			if a.StatusCode == http.StatusCreated {
				a.want(t, http.StatusCreated, "Idempotent-Replayed: true")
			} else {
				a.problem(t, http.StatusUnprocessableEntity, "idempotency-outcome-unknown")
			}
			if first.Response != nil && first.StatusCode == http.StatusCreated && !bytes.Equal(first.body, a.body) {
				t.Errorf("the client had %s, the replay is %d %s", first.body, a.StatusCode, a.body)
			}
			if u.times(key) != 1 {
				t.Errorf("executed %d times", u.times(key))
			}
		}
	})
}

func TestContract_Row18_ARuleMayIgnoreKeys(t *testing.T) {
	u := newUpstream(t, charged)
	config := fmt.Sprintf("limits: {body: 2KiB}\nproxy: [{match: POST /v1/charges, upstream: %q, key: ignored}, {match: PUT /v1/charges, upstream: %q, key: optional}, {match: GET /v1/charges, upstream: %q}]", u.URL, u.URL, u.URL)
	onGateway(t, config, func(t *testing.T, g *gateway) {
		key := fmt.Sprint("k", rand.Int())
		for n := range 2 {
			g.do(http.MethodPost, "/v1/charges", "{}", jsonType, "Idempotency-Key: "+key).want(t, http.StatusCreated, "Idempotency-Status: ignored", "Idempotent-Replayed:")
			g.get("/v1/charges", "Idempotency-Key: "+key+"-get").want(t, http.StatusCreated, "Idempotency-Status: ignored", "Idempotent-Replayed:")
			g.do(http.MethodPut, "/v1/charges", "{}", jsonType).want(t, http.StatusCreated, "Idempotency-Status: none")
			if u.times(key) != n+1 {
				t.Errorf("executed %d times", u.times(key))
			}
		}
		g.do(http.MethodPut, "/v1/charges", "{}", jsonType, "Idempotency-Key: "+key+"-put").want(t, http.StatusCreated, "Idempotent-Replayed: false")
		g.do(http.MethodPut, "/v1/charges", "{}", jsonType, "Idempotency-Key: "+key+"-put").want(t, http.StatusCreated, "Idempotent-Replayed: true")
		g.do(http.MethodPost, "/v1/charges", strings.Repeat("x", 3000), "Content-Type: text/plain").problem(t, http.StatusRequestEntityTooLarge, "request-too-large")
	})
}

// A stop waits for proxied requests as it does for jobs.
func TestContract_Row84_AStopLetsProxiedRequestsEnd(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		release := make(chan struct{})
		u := newUpstream(t, func(w http.ResponseWriter, r *http.Request, n int) { // each engine's own: what is released here is under way here
			<-release
			charged(w, r, n)
		})
		g := start(t, database, both(t, u.rule(""), "dispatcher: {shutdown_grace: 30s}"))
		key := fmt.Sprint("k", rand.Int())
		got := make(chan answer, 1)
		go func() {
			a, _ := g.try(http.MethodPost, "/v1/charges?x=1", `{"amount":1}`, jsonType, "Idempotency-Key: "+key)
			got <- a
		}()
		u.awaited(key)
		g.draining()
		g.charge(key+"-late").problem(t, http.StatusServiceUnavailable, "shutting-down")
		close(release)
		if a := <-got; a.Response == nil || a.StatusCode != http.StatusCreated {
			t.Errorf("the request under way got %v", a.Response)
		}
		if code := g.wait(30 * time.Second); code != 0 {
			t.Errorf("exit code %d", code)
		}
	})
}
