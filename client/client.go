package client

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/sekali/sekali/client/wire"
)

// Client asks one gateway, or several replicas behind one address.
type Client struct {
	doer *doer
	wire *wire.Client // sends through doer
}

// Option changes what New makes.
type Option func(*Client) error

// defaultRetries and the waits between them outlast a restart of a gateway or of
// its database connection: about ten seconds.
const defaultRetries = 6

const defaultUserAgent = "sekali-client-go"

// New makes a client of the gateway at baseURL, such as http://127.0.0.1:8080; a
// path in it is kept. It asks nobody yet.
func New(baseURL string, options ...Option) (*Client, error) {
	base, err := parseBase(baseURL)
	if err != nil {
		return nil, err
	}
	c := &Client{doer: &doer{base: base, http: &http.Client{}, retries: defaultRetries, longest: longestPause, agent: defaultUserAgent, limit: maxAnswer}}
	for _, option := range options {
		if err := option(c); err != nil {
			return nil, err
		}
	}
	c.doer.http.CheckRedirect = answerRedirects
	if c.wire, err = wire.NewClient(base.String(), wire.WithHTTPClient(c.doer)); err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	return c, nil
}

// parseBase refuses what cannot be an address before the first request does.
func parseBase(text string) (*url.URL, error) {
	base, err := url.Parse(text)
	if err != nil {
		// The text of a parse error repeats the address, with a password in it.
		return nil, errors.New("client: the base URL cannot be read: write it as http://127.0.0.1:8080")
	}
	if base.Scheme != "http" && base.Scheme != "https" || base.Host == "" || base.RawQuery != "" || base.Fragment != "" {
		return nil, fmt.Errorf("client: %q is not the address of a gateway, such as http://127.0.0.1:8080", base.Redacted())
	}
	base.Host = strings.TrimSuffix(base.Host, ":") // as net/http has it in its requests
	if port := base.Port(); port != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return nil, fmt.Errorf("client: %q has no port from 1 to 65535", base.Redacted())
		}
	}
	base.Path, base.RawPath = strings.TrimRight(base.Path, "/"), strings.TrimRight(base.RawPath, "/")
	return base, nil
}

// answerRedirects hands a redirect on as the answer. A gateway sends none, and
// what is at another address must get neither the token nor the payload.
func answerRedirects(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// WithToken sends the API key with every request.
func WithToken(token string) Option {
	return func(c *Client) error {
		if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return errors.New("client: a token has printable ASCII characters only, and no spaces")
		}
		c.doer.token = token
		return nil
	}
}

// WithHTTPClient sends through a copy of h: its transport, its cookies and its
// timeout for one try. Redirects are not followed whatever it says.
//
// A transport of Go itself sends a request with a key once more if a kept
// connection breaks under it. That is right here: the key is the same.
func WithHTTPClient(h *http.Client) Option {
	return func(c *Client) error {
		if h == nil {
			return errors.New("client: the HTTP client is nil")
		}
		copied := *h
		c.doer.http = &copied
		return nil
	}
}

// WithRetries sets how often a request that may be repeated is sent again, at
// most; 0 means never, and the default is 6. Wait goes on until its context ends
// in any case.
func WithRetries(n int) Option {
	return func(c *Client) error {
		if n < 0 {
			return errors.New("client: the number of retries must not be negative")
		}
		c.doer.retries = n
		return nil
	}
}

// WithLongestPause sets how long the client waits before a next try, at most; the
// default is a minute. Where the gateway asks for more (Retry-After), the call
// ends with its problem at once, and the caller decides.
func WithLongestPause(d time.Duration) Option {
	return func(c *Client) error {
		if d < 0 {
			return errors.New("client: the longest pause must not be negative")
		}
		c.doer.longest = d
		return nil
	}
}

// WithUserAgent names the program in the User-Agent header.
func WithUserAgent(name string) Option {
	return func(c *Client) error {
		if strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r > '~' }) {
			return errors.New("client: a user agent has printable ASCII characters only")
		}
		c.doer.agent = name
		return nil
	}
}
