package gateway_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/sekali/sekali/gateway"
)

func TestProxyRules(t *testing.T) {
	t.Parallel()
	good := []string{
		"POST /v1/charges", "POST /v1/*", "GET /", "PATCH /a%2Fb/c", "DELETE /jobsite", "PUT /v1/a:b@c,d;e=f", "POST /job/*", "POST  /v1/charges/", "POST /v1/.well-known",
	}
	bad := map[string]string{
		"": "METHOD /path", "POST": "METHOD /path", "/v1": "METHOD /path", "POST v1": "METHOD /path", "post /v1": "METHOD /path", "CONNECT /v1": "METHOD /path",
		"HEAD /v1": "METHOD /path", "* /v1": "METHOD /path", "POST /v1/*/x": "plain", "POST /v1*": "plain", "POST /v1/{id}": "plain", "POST /v1?x=1": "plain",
		"POST /v1/../x": "plain", "POST /v1/%2e%2e/x": "plain", "POST //v1": "plain", "POST /v1 x": "plain", "POST /a b": "plain", "POST /a%zz": "plain",
		"POST /*": "gateway itself", "POST /jobs": "gateway itself", "POST /jobs/*": "gateway itself", "GET /healthz": "gateway itself", "POST /jo%62s": "gateway itself",
		"GET /readyz": "gateway itself", "GET /metrics": "gateway itself", "POST /executions/*": "gateway itself", "GET /docs/x": "gateway itself", "GET /openapi.json": "gateway itself",
	}
	load := func(rules string) error {
		_, err := gateway.Load(file(t, "proxy:\n"+rules), nil)
		return err
	}
	for _, match := range good {
		if err := load("  - {match: '" + match + "', upstream: 'http://user:pass@api.internal:8000/base'}"); err != nil {
			t.Errorf("%s: %v", match, err)
		}
	}
	for match, want := range bad {
		err := load("  - {match: '" + match + "', upstream: 'http://api.internal'}")
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "proxy[0].match") {
			t.Errorf("%q: %v, want %q", match, err, want)
		}
	}
	twice := "  - {match: POST /a, upstream: 'http://x'}\n  - {match: POST  /a, upstream: 'http://y'}"
	for _, c := range []struct{ rules, want string }{
		{twice, "proxy[1].match"},
		{"  - {match: GET /a, upstream: 'http://x', key: required}", "proxy[0].key"},
		{"  - {match: POST /a}", "proxy[0].upstream"},
		{"  - {match: POST /a, upstream: 'http://u:hush@x?y=1'}", "proxy[0].upstream"},
		{"  - {match: POST /a, upstream: 'http://x', retry: 3}", "proxy[0].retry"},
	} {
		if err := load(c.rules); err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hush") {
			t.Errorf("%s: %v", c.rules, err)
		}
	}
	if err := load("  - {match: POST /a, upstream: 'http://x'}\n  - {match: PUT /a, upstream: 'http://x'}\n  - {match: GET /a, upstream: 'http://x'}\n  - {match: POST /a/*, upstream: 'http://y'}"); err != nil {
		t.Error(err)
	}
}

func TestConfig_TheProxysPasswordsAreNotPrinted(t *testing.T) {
	t.Parallel()
	cfg := gateway.Default()
	cfg.Proxy = []gateway.ProxyRule{{Match: "POST /a", Upstream: "http://u:hush@x"}}
	if text, err := cfg.YAML(); err != nil || strings.Contains(string(text), "hush") || !strings.Contains(string(text), "POST /a") {
		t.Errorf("%s, %v", text, err)
	}
	if cfg.Proxy[0].Upstream != "http://u:hush@x" {
		t.Error("printing changed the configuration")
	}
}

func TestConfig_APIKeysAllowAPublicAddress(t *testing.T) {
	t.Parallel()
	cfg := gateway.Default()
	cfg.Listen, cfg.Auth.Mode = "0.0.0.0:80", "api_key"
	if err := cfg.Validate(); err != nil {
		t.Error(err)
	}
	cfg.Auth.Mode = "none"
	var wrong *gateway.ConfigError
	if err := cfg.Validate(); !errors.As(err, &wrong) {
		t.Error("a public address without authentication is taken")
	}
}
