package executor_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/sekali/sekali/executor"
	"github.com/sekali/sekali/job"
)

func newCallback(t *testing.T, cfg executor.CallbackConfig) *executor.Callback {
	t.Helper()
	c, err := executor.NewCallback(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// told is a callback to the URL as the dispatcher hands it out.
func told(payload, url string) job.Claimed {
	c := claimed(payload)
	c.Type, c.CallbackURL = job.CallbackType, url
	return c
}

const secret = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3"

const callbackBody = `{"type":"job.succeeded","data":{"result":{"a":  1.50}}}`

// TestFailure_BR71_Callback: a receiver recognises a repetition by its id, and gets
// the same bytes; time and signature are new each time.
func TestFailure_BR71_Callback(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	s := newSink(t, func(w http.ResponseWriter, _ *http.Request) {
		if calls.Add(1) < 3 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	var tick atomic.Int64
	now := func() time.Time { return time.Now().Add(time.Duration(tick.Add(1)) * time.Second) }
	e := newCallback(t, executor.CallbackConfig{Trusted: []string{s.URL + "/hooks?x=1"}, Secret: secret, Now: now})
	for attempt := range 3 {
		c := told(callbackBody, s.URL+"/hooks?x=1")
		c.Attempts, c.Lease.Token = attempt+1, int64(attempt+7)
		result, err := e.Execute(t.Context(), c)
		if (err != nil) != (attempt < 2) || result != nil {
			t.Fatalf("attempt %d: %v, %v", attempt, result, err)
		}
	}
	webhook, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		t.Fatal(err)
	}
	ids, sums, signatures, attempts := map[string]bool{}, map[[32]byte]bool{}, map[string]bool{}, map[string]bool{}
	for _, h := range s.all() {
		if err := webhook.Verify(h.body, h.header); err != nil || h.method != http.MethodPost {
			t.Errorf("%s: %v", h.method, err)
		}
		if key := h.header.Get("Idempotency-Key"); key != `"`+h.header.Get("Webhook-Id")+`"` {
			t.Errorf("key %s beside the id %s", key, h.header.Get("Webhook-Id"))
		}
		ids[h.header.Get("Webhook-Id")], sums[sha256.Sum256(h.body)] = true, true
		signatures[h.header.Get("Webhook-Signature")], attempts[h.header.Get("Sekali-Attempt")] = true, true
	}
	if len(s.all()) != 3 || len(ids) != 1 || len(sums) != 1 || len(signatures) != 3 || len(attempts) != 3 || !sums[sha256.Sum256([]byte(callbackBody))] {
		t.Errorf("%d hits with the ids %v, %d bodies, %d signatures, attempts %v", len(s.all()), ids, len(sums), len(signatures), attempts)
	}
}

func TestCallback_WithoutASecretIsUnsigned(t *testing.T) {
	t.Parallel()
	s := newSink(t, status(http.StatusOK))
	e := newCallback(t, executor.CallbackConfig{Trusted: []string{s.URL}})
	if _, err := e.Execute(t.Context(), told(`{}`, s.URL)); err != nil {
		t.Fatal(err)
	}
	h := s.all()[0].header
	if h.Get("Webhook-Id") == "" || h.Get("Webhook-Timestamp") == "" || h.Get("Webhook-Signature") != "" {
		t.Errorf("headers %v", h)
	}
}

// Whatever a receiver answers but "gone", it may mend; and nothing of its answers is
// kept or shown.
func TestCallback_Answers(t *testing.T) {
	t.Parallel()
	for code, permanent := range map[int]bool{
		200: false, 201: false, 204: false, 301: false, 400: false, 401: false, 404: false, 408: false, 410: true, 422: false, 429: false, 500: false, 503: false,
	} {
		s := newSink(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(code)
			if code != http.StatusNoContent {
				_, _ = w.Write([]byte(strings.Repeat("INTERNAL-TOKEN-42", 1<<16)))
			}
		})
		e := newCallback(t, executor.CallbackConfig{Trusted: []string{s.URL}})
		result, err := e.Execute(t.Context(), told(`{}`, s.URL))
		if result != nil || (err == nil) != (code < 300) || len(s.all()) != 1 {
			t.Errorf("%d: %v, %v, %d calls", code, result, err, len(s.all()))
		}
		var failed *job.AttemptError
		if err == nil {
			continue
		}
		if !errors.As(err, &failed) || failed.Permanent != permanent || failed.Unknown || strings.Contains(failed.Detail, "TOKEN") {
			t.Errorf("%d: %+v", code, failed)
		}
		if !permanent && failed.After != 7*time.Second {
			t.Errorf("%d: again after %s", code, failed.After)
		}
	}
}

// A receiver that says yes has said so, also if the rest of its answer does not come.
func TestCallback_TheAnswersBodyDoesNotMatter(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	s := newSink(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "100")
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	t.Cleanup(func() { close(release) })
	e := newCallback(t, executor.CallbackConfig{Trusted: []string{s.URL}})
	if result, err := e.Execute(t.Context(), told(`{}`, s.URL)); err != nil || result != nil {
		t.Errorf("%v, %v", result, err)
	}
}

// TestFailure_BR72_NameOfAPrivateAddress: a name that the list allows leads to an
// address of our own network, and the connection is refused; so is one that a
// redirect points to, which is not followed.
func TestFailure_BR72_NameOfAPrivateAddress(t *testing.T) {
	t.Parallel()
	s := newSink(t, status(http.StatusOK))
	_, port, _ := strings.Cut(strings.TrimPrefix(s.URL, "http://"), ":")
	resolver := newResolver(t, "127.0.0.1")
	inside := "http://inside.example:" + port + "/x"

	guarded := newCallback(t, executor.CallbackConfig{Allow: []string{"inside.example:" + port}, Resolver: resolver})
	if err := guarded.Check(inside); err != nil {
		t.Fatal(err)
	}
	_, err := guarded.Execute(t.Context(), told(`{}`, inside))
	var failed *job.AttemptError
	if !errors.As(err, &failed) || failed.Code != executor.CodeAddressRefused || failed.Permanent || failed.Unknown ||
		strings.Contains(failed.Detail, "127.0.0.1") || !errors.Is(err, executor.ErrPrivate) {
		t.Errorf("%+v", failed)
	}
	if len(s.all()) != 0 {
		t.Fatalf("%d calls", len(s.all()))
	}

	for name, cfg := range map[string]executor.CallbackConfig{
		"private ones are allowed":     {Allow: []string{"inside.example:" + port}, AllowPrivate: true, Resolver: resolver},
		"the address itself is listed": {Allow: []string{s.URL + "/"}},
		"localhost is listed":          {Allow: []string{"localhost:" + port}},
	} {
		target := inside
		switch name {
		case "the address itself is listed":
			target = s.URL + "/x"
		case "localhost is listed":
			target = "http://localhost:" + port + "/x"
		}
		before := len(s.all())
		_, err := newCallback(t, cfg).Execute(t.Context(), told(`{}`, target))
		if err != nil || len(s.all()) != before+1 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestFailure_BR72_RedirectToAPrivateAddress(t *testing.T) {
	t.Parallel()
	inside := newSink(t, status(http.StatusOK))
	s := newSink(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, inside.URL, http.StatusTemporaryRedirect)
	})
	e := newCallback(t, executor.CallbackConfig{Allow: []string{s.URL}})
	_, err := e.Execute(t.Context(), told(`{}`, s.URL))
	var failed *job.AttemptError
	if !errors.As(err, &failed) || failed.Code != executor.CodeRedirectRefused || len(inside.all()) != 0 {
		t.Errorf("%+v, %d calls inside", failed, len(inside.all()))
	}
}

// A connection that is kept from a call which the configuration vouches for serves
// no other one.
func TestFailure_BR72_KeptConnection(t *testing.T) {
	t.Parallel()
	s := newSink(t, status(http.StatusNoContent))
	target, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	// By name: the system's own resolver knows localhost, ours makes it a private address.
	trusted := "http://localhost:" + target.Port() + "/trusted"
	e := newCallback(t, executor.CallbackConfig{
		Trusted: []string{trusted}, Allow: []string{"127.0.0.1:" + target.Port(), "localhost.:" + target.Port()}, Resolver: newResolver(t, "10.0.0.1"),
	})
	if _, err := e.Execute(t.Context(), told(`{}`, trusted)); err != nil {
		t.Fatal(err)
	}
	_, err = e.Execute(t.Context(), told(`{}`, "http://localhost.:"+target.Port()+"/other"))
	if !errors.Is(err, executor.ErrPrivate) || len(s.all()) != 1 {
		t.Errorf("%v, %d calls", err, len(s.all()))
	}
}

func TestFailure_BR72_Addresses(t *testing.T) {
	t.Parallel()
	for address, ok := range map[string]bool{
		"127.0.0.1": false, "127.8.8.8": false, "::1": false, "::": false, "0.0.0.0": false, "0.1.2.3": false,
		"10.1.2.3": false, "172.16.0.1": false, "172.31.255.255": false, "172.32.0.1": true, "192.168.1.1": false, "100.64.0.1": false,
		"169.254.169.254": false, "100.100.100.200": false, "168.63.129.16": false, "192.0.0.192": false, "fd00:ec2::254": false,
		"fe80::1": false, "fe80::1%eth0": false, "fc00::1": false, "fec0::1": false, "ff02::1": false, "224.0.0.1": false, "239.1.1.1": false,
		"255.255.255.255": false, "240.0.0.1": false, "198.18.0.1": false, "192.0.2.1": false, "2001:db8::1": false, "100::1": false,
		"::ffff:127.0.0.1": false, "::ffff:8.8.8.8": true, "::127.0.0.1": false, "64:ff9b::7f00:1": false, "64:ff9b::a9fe:a9fe": false,
		"64:ff9b::808:808": true, "64:ff9b:1::808:808": false, "2002:7f00:1::": false, "2001::1": false,
		"8.8.8.8": true, "93.184.216.34": true, "2606:4700:4700::1111": true, "2a00:1450:4001:81b::200e": true,
	} {
		at := address + ":443"
		if strings.Contains(address, ":") {
			at = "[" + address + "]:443"
		}
		if err := executor.Permit("shop.example", at); (err == nil) != ok {
			t.Errorf("%s: %v", address, err)
		}
	}
	for named, at := range map[string]string{
		"127.0.0.1": "127.0.0.1:80", "::1": "[::1]:80", "10.0.0.1": "10.0.0.1:80", "::ffff:10.0.0.1": "10.0.0.1:80", "localhost": "[::1]:80",
	} {
		if err := executor.Permit(named, at); err != nil {
			t.Errorf("%s is listed and refused at %s", named, at)
		}
	}
	for named, at := range map[string]string{
		"127.0.0.1": "127.0.0.2:80", "localhost": "10.0.0.1:80", "0x7f000001": "127.0.0.1:80", "127.1": "127.0.0.1:80", "x.localhost": "127.0.0.1:80",
		"localhost.": "127.0.0.1:80", "shop.example": "no address",
	} {
		if err := executor.Permit(named, at); err == nil {
			t.Errorf("%s leads to %s", named, at)
		}
	}
}

// The configuration may have changed since the URL was accepted.
func TestCallback_URLThatIsNotAllowedAnyMore(t *testing.T) {
	t.Parallel()
	s := newSink(t, status(http.StatusOK))
	e := newCallback(t, executor.CallbackConfig{Allow: []string{"shop.example"}})
	for _, target := range []string{s.URL, "http://shop.example/../x", "", "::"} {
		_, err := e.Execute(t.Context(), told(`{}`, target))
		var failed *job.AttemptError
		if !errors.As(err, &failed) || failed.Code != executor.CodeURLRefused || failed.Permanent {
			t.Errorf("%q: %v", target, err)
		}
	}
	if len(s.all()) != 0 {
		t.Errorf("%d calls", len(s.all()))
	}
}

func TestCallback_EndsWithItsTime(t *testing.T) {
	t.Parallel()
	s := newSink(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	e := newCallback(t, executor.CallbackConfig{Trusted: []string{s.URL}})
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, job.ErrTimeout)
	defer cancel()
	_, err := e.Execute(ctx, told(`{}`, s.URL))
	var failed *job.AttemptError
	if !errors.As(err, &failed) || failed.Code != executor.CodeTimeout {
		t.Errorf("%v", err)
	}
}
