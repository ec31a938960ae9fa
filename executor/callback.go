package executor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/sekali/sekali/job"
)

// The codes of attempts at callbacks, besides those of HTTP.
const (
	// CodeURLRefused: no configuration here allows the URL.
	CodeURLRefused = "url-refused"
	// CodeAddressRefused: the host of a URL that a request named has an address
	// within somebody's own network.
	CodeAddressRefused = "address-refused"
)

// CallbackConfig says whom callbacks may call.
type CallbackConfig struct {
	// Allow lists what requests may name: URL prefixes (https://shop.example/hooks/),
	// hosts, and hosts with a port.
	Allow []string
	// Trusted are the URLs that the configuration itself names. They are called
	// wherever they lead.
	Trusted []string
	// AllowPrivate lets names that requests give lead to private addresses.
	AllowPrivate bool
	Secret       string           // signs (Standard Webhooks, "whsec_…"); empty: unsigned
	Now          func() time.Time // for signatures and Retry-After dates; nil: the system's clock
	Resolver     *net.Resolver    // of the names that requests give; nil: the system's
}

// Callback posts the payload to the job's callback URL, with the webhook-id,
// webhook-timestamp and, given a secret, webhook-signature of Standard Webhooks.
// The id is the job's, the same on every attempt.
//
// It makes calls as HTTP does: one per attempt, to nowhere else. Any 2xx succeeds,
// and nothing of its body is kept. Everything else may be mended by another
// attempt, but for 410, by which a receiver says that it wants no more.
//
// For a URL that a request named it connects to public addresses only, unless Allow
// names that very address, or localhost.
type Callback struct {
	allow         []allowedURLs
	trusted       []string
	free, guarded *HTTP
}

var _ Executor = (*Callback)(nil)

// NewCallback returns an executor of callbacks. The error names everything that is
// wrong with the configuration.
func NewCallback(cfg CallbackConfig) (*Callback, error) {
	c := &Callback{trusted: cfg.Trusted}
	var problems []error
	for _, entry := range cfg.Allow {
		a, err := parseAllowed(entry)
		if err != nil {
			problems = append(problems, fmt.Errorf("executor: callback allow %q: %w", entry, err))
		}
		c.allow = append(c.allow, a)
	}
	var err error
	if c.free, err = newCaller(cfg, dialMetered); err != nil {
		problems = append(problems, err)
	}
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	c.guarded, err = newCaller(cfg, dialer{cfg.Resolver, cfg.AllowPrivate}.dial)
	return c, err
}

// newCaller returns what makes the calls. Those that are guarded have connections
// of their own: none that is kept from a call without a guard serves them.
func newCaller(cfg CallbackConfig, dial dialFunc) (*HTTP, error) {
	webhook, err := parseSecret(cfg.Secret)
	if err != nil {
		return nil, err
	}
	h := &HTTP{webhook: webhook, header: http.Header{"User-Agent": {"sekali"}}, now: cfg.Now, transport: newTransport(dial), tells: true}
	h.useClock()
	return h, nil
}

// CheckAllowed says of an entry of CallbackConfig.Allow what would be right; nil: it
// is.
func CheckAllowed(entry string) error {
	_, err := parseAllowed(entry)
	return err
}

// Check returns a *job.CallbackError for a URL that no request may name.
func (c *Callback) Check(text string) error {
	u, err := parseCallbackURL(text)
	switch {
	case err != nil:
		return &job.CallbackError{Detail: err.Error()}
	case len(c.allow) == 0:
		return &job.CallbackError{Detail: "must not be given: the gateway's configuration (callbacks.allow) lists no URL that requests may name"}
	case !c.allows(u):
		return &job.CallbackError{Detail: "must be one of the URLs that the gateway's configuration (callbacks.allow) lists; scheme, host, port and the beginning of the path count"}
	}
	return nil
}

func (c *Callback) allows(u *url.URL) bool {
	return slices.ContainsFunc(c.allow, func(a allowedURLs) bool { return a.has(u) })
}

// Close gives up the connections that are kept for later attempts.
func (c *Callback) Close() {
	c.free.Close()
	c.guarded.Close()
}

// Execute posts the payload once.
func (c *Callback) Execute(ctx context.Context, claimed job.Claimed) (*job.Result, error) {
	caller, target, err := c.callerOf(claimed.CallbackURL)
	if err != nil {
		return nil, err
	}
	result, err := caller.execute(ctx, claimed, target)
	if errors.Is(err, errPrivate) {
		return nil, &job.AttemptError{
			Code: CodeAddressRefused, Err: err,
			Detail: "the host of the callback URL has an address that is not public; callbacks.allow_private, or the address itself in callbacks.allow, would let it be called",
		}
	}
	return result, err
}

// callerOf decides how the URL is called. It may have been named under another
// configuration: then a process that has that, or a configuration that allows it
// again, can still call it.
func (c *Callback) callerOf(text string) (*HTTP, *url.URL, error) {
	if slices.Contains(c.trusted, text) {
		target, err := parseTarget("callback url", text)
		return c.free, target, err
	}
	target, err := parseCallbackURL(text)
	if err != nil || !c.allows(target) {
		return nil, nil, &job.AttemptError{
			Code: CodeURLRefused, Err: err,
			Detail: "the configuration does not allow the callback URL any more; callbacks.allow would have to list it",
		}
	}
	return c.guarded, target, nil
}
