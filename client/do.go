package client

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const jsonType = "application/json"

// Request is a request to the gateway, for Do.
type Request struct {
	Method string     // "" means GET
	Path   string     // below the base URL, escaped: /jobs/a%2Fb
	Query  url.Values // added to what Path has
	Header http.Header
	// Key is the idempotency key; "" for none. A request with a key is sent again
	// where that may help: do not give one to a proxied route that ignores keys.
	Key  string
	Body []byte
	// ContentType of the body; "" means application/json.
	ContentType string
	// Timeout bounds one try; 0 means 30 seconds, and what the request prefers to
	// wait in addition (Prefer: wait).
	Timeout time.Duration
}

// Answer is what a gateway answered with success.
type Answer struct {
	Status int // 2xx, or 304
	Header http.Header
	Body   []byte // as it came

	url string
}

// Decode reads the body as a JSON document. The error is a *NotGatewayError: a
// gateway sends the documents that it promises.
func (a Answer) Decode(document any) error {
	if json.Unmarshal(a.Body, document) != nil {
		return &NotGatewayError{URL: a.url, Status: a.Status, MediaType: mediaTypeOf(a.Header), Text: firstWords(string(a.Body))}
	}
	return nil
}

// Do sends a request and returns the answer as it came: for routes and details
// that have no method here. Like all methods it sends again what may be. (503 of
// /readyz is an answer as well.) Errors are those of the package.
func (c *Client) Do(ctx context.Context, r Request) (Answer, error) {
	request, err := c.request(ctx, r)
	if err != nil {
		return Answer{}, err
	}
	w, err := c.doer.send(request, r.Timeout)
	if err != nil {
		return Answer{}, err
	}
	return read(w)
}

// read takes over an answer of the doer, whose body is in memory.
func read(w *http.Response) (Answer, error) {
	body, err := io.ReadAll(w.Body)
	if err != nil {
		return Answer{}, fmt.Errorf("client: %w", err)
	}
	return Answer{Status: w.StatusCode, Header: w.Header, Body: body, url: w.Request.URL.Redacted()}, nil
}

func (c *Client) request(ctx context.Context, r Request) (*http.Request, error) {
	if !strings.HasPrefix(r.Path, "/") {
		return nil, fmt.Errorf("client: the path %q does not begin with a slash", r.Path)
	}
	var body io.Reader
	if r.Body != nil {
		body = bytes.NewReader(r.Body)
	}
	request, err := http.NewRequestWithContext(ctx, r.Method, c.doer.base.String()+r.Path, body)
	if err != nil {
		// The error's own text repeats the address, with a password in it.
		return nil, fmt.Errorf("client: %s %q is no request", cmp.Or(r.Method, http.MethodGet), r.Path)
	}
	if len(r.Query) > 0 {
		query := request.URL.Query()
		for name, values := range r.Query {
			query[name] = append(query[name], values...)
		}
		request.URL.RawQuery = query.Encode()
	}
	if r.Header != nil {
		request.Header = r.Header.Clone()
	}
	return request, setHead(request, r)
}

var errKey = errors.New("client: a key has 1 to 255 printable ASCII characters")

func setHead(request *http.Request, r Request) error {
	if r.Body != nil {
		request.Header.Set("Content-Type", jsonType)
		if r.ContentType != "" {
			request.Header.Set("Content-Type", r.ContentType)
		}
	}
	if r.Key == "" {
		return nil
	}
	if err := checkKey(r.Key); err != nil {
		return err
	}
	request.Header.Set("Idempotency-Key", quoteKey(r.Key))
	return nil
}

// checkKey refuses what no header can hold. What else a key must be like, the
// gateway says.
func checkKey(key string) error {
	if strings.ContainsFunc(key, func(r rune) bool { return r < ' ' || r > '~' }) {
		return fmt.Errorf("%w: %q", errKey, key)
	}
	return nil
}
