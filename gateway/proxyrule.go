package gateway

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/sekali/sekali/middleware"
)

// What a rule of the proxy may say about keys.
const (
	keyRequired = "required"
	keyOptional = "optional"
	keyIgnored  = "ignored"
)

const (
	minProxyTimeout = 10 * time.Millisecond
	maxProxyTimeout = time.Hour
)

// reserved are the paths of the gateway's own contract, each with all below it,
// also those that this version does not serve.
var reserved = []string{
	"/jobs", "/executors", "/executions", "/healthz", "/readyz", "/metrics", "/openapi.json", "/openapi.yaml", "/docs",
}

// plainPath are paths in which nothing has a meaning for the router, and which
// are written as clients send them.
var plainPath = regexp.MustCompile(`^(/[A-Za-z0-9._~!$&'()+,;=:@%-]+)*/?$`)

// filled returns the rule with its defaults.
func (r ProxyRule) filled() ProxyRule {
	r.Timeout = cmp.Or(r.Timeout, 30*time.Second)
	r.On5xx = cmp.Or(r.On5xx, middleware.Release5xx)
	r.OnInterrupted = cmp.Or(r.OnInterrupted, middleware.ReexecuteInterrupted)
	method, _ := r.target()
	if r.Key == "" && method == http.MethodGet {
		r.Key = keyIgnored
	}
	r.Key = cmp.Or(r.Key, keyRequired)
	return r
}

// target is what the rule matches: a method, and a path that may end in /*.
func (r ProxyRule) target() (method, path string) {
	method, path, _ = strings.Cut(strings.TrimSpace(r.Match), " ")
	return method, strings.TrimSpace(path)
}

func (c Config) checkProxy(k *check) {
	seen := map[string]int{}
	for i, rule := range c.Proxy {
		path := fmt.Sprintf("proxy[%d]", i)
		rule.check(k, path)
		match := strings.Join(strings.Fields(rule.Match), " ")
		if other, twice := seen[match]; twice {
			k.that(false, path+".match", rule.Match, fmt.Sprintf("is what proxy[%d] matches too; a request goes to one upstream", other))
		}
		seen[match] = i
	}
}

func (r ProxyRule) check(k *check, path string) {
	r.checkMatch(k, path+".match")
	u, err := url.Parse(r.Upstream)
	sound := err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && u.RawQuery == "" && u.Fragment == ""
	k.that(sound, path+".upstream", redactURL(r.Upstream), "takes http://host:port or https://…, without query")
	r = r.filled()
	k.between(path+".timeout", r.Timeout, minProxyTimeout, maxProxyTimeout)
	k.oneOf(path+".on_5xx", r.On5xx, middleware.Release5xx, middleware.Store5xx, middleware.Interrupt5xx)
	k.oneOf(path+".on_interrupted", r.OnInterrupted, middleware.ReexecuteInterrupted, middleware.RejectInterrupted)
	k.oneOf(path+".key", r.Key, keyRequired, keyOptional, keyIgnored)
	method, _ := r.target()
	k.that(r.Key == keyIgnored || method != http.MethodGet, path+".key", r.Key, "must be ignored: GET changes nothing, so a key has no meaning with it")
}

// proxyMethods are what a rule may name; GET takes HEAD with it.
var proxyMethods = []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}

func (r ProxyRule) checkMatch(k *check, at string) {
	method, path := r.target()
	if !slices.Contains(proxyMethods, method) || !strings.HasPrefix(path, "/") {
		k.that(false, at, r.Match, "takes METHOD /path, e.g. POST /v1/charges; methods are "+strings.Join(proxyMethods, ", "))
		return
	}
	base, wild := strings.CutSuffix(path, "/*")
	unescaped, err := url.PathUnescape(base)
	dots := slices.ContainsFunc(strings.Split(unescaped, "/"), func(s string) bool { return s == "." || s == ".." })
	if err != nil || dots || !plainPath.MatchString(base) || strings.Contains(base, "//") {
		k.that(false, at, r.Match, "takes a plain, escaped path; * may stand at its end only, after a slash")
		return
	}
	for _, own := range reserved {
		below := unescaped == own || strings.HasPrefix(unescaped, own+"/")
		above := wild && strings.HasPrefix(own+"/", unescaped+"/")
		if below || above {
			k.that(false, at, r.Match, own+" is a path of the gateway itself; name a path of your API, e.g. POST /v1/*")
			return
		}
	}
}
