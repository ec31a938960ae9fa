package gateway

import (
	"net/http"
	"net/url"

	"github.com/go-chi/chi/v5"

	"github.com/sekali/sekali/access"
	"github.com/sekali/sekali/middleware"
	"github.com/sekali/sekali/proxy"
)

// proxyRoutes registers a route for each rule of the configuration.
func (p *parts) proxyRoutes(r chi.Router) {
	r = r.With(middleware.Permit(access.Proxy), middleware.Drain(p.draining.Load), p.calls.count, proxy.Contain)
	for _, rule := range p.cfg.Proxy {
		rule = rule.filled()
		upstream := p.newProxy(rule)
		p.proxies = append(p.proxies, upstream)
		method, path := rule.target()
		switch {
		case method == http.MethodGet:
			read(r, path, upstream)
		case rule.Key == keyIgnored:
			r.With(middleware.IgnoreKey()).Method(method, path, upstream)
		default:
			r.With(middleware.Key(p.proxyKeys(rule)), middleware.Once(p.records, p.onceOptions(rule))).Method(method, path, upstream)
		}
	}
}

func (p *parts) newProxy(rule ProxyRule) *proxy.Proxy {
	upstream, err := url.Parse(rule.Upstream)
	if err != nil {
		panic(err) // validated with the configuration
	}
	return proxy.New(proxy.Config{
		Upstream: upstream, Timeout: rule.Timeout, BodyLimit: int64(p.cfg.Limits.Body),
		Repeatable:        rule.On5xx == middleware.Release5xx,
		HideAuthorization: p.cfg.Auth.Mode == authKey, HideCORS: len(p.cfg.CORS.AllowedOrigins) > 0,
	})
}

// proxyKeys is keyPolicy for an API whose media types are its own business.
func (p *parts) proxyKeys(rule ProxyRule) middleware.KeyPolicy {
	policy := p.keyPolicy()
	policy.Required = rule.Key == keyRequired
	policy.MediaTypes = nil
	method, _ := rule.target()
	policy.Methods = []string{method} // PUT and DELETE too, where a rule names them
	return policy
}

func (p *parts) onceOptions(rule ProxyRule) middleware.Options {
	return middleware.Options{
		Lease: p.cfg.Idempotency.Lease, Keep: p.cfg.Idempotency.ResponseRetention, Now: p.clock.Now, AfterExpiry: p.cfg.Idempotency.AfterExpiry,
		On5xx: rule.On5xx, OnInterrupted: rule.OnInterrupted, FailOpen: rule.FailOpen,
		IgnoreFlush: true, // the reverse proxy flushes whatever is chunked
		Waiters:     p.places, Stopping: p.stopping, Still: p.stillIn,
		Log: p.log, RedactKeys: p.cfg.Log.RedactKeys,
		Count: func(o middleware.Outcome) { p.metrics.KeyedRuns.WithLabelValues(string(o)).Inc() },
	}
}
