package executor

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/sekali/sekali/job"
)

const (
	// dialTimeout ends the attempt on a host that does not answer at all long
	// before a generous attempt timeout would.
	dialTimeout = 10 * time.Second
	// idleTimeout is below the shortest keep-alive in common use (five seconds,
	// Node). We must be the first to give a kept connection up: a request sent
	// into one that the receiver is closing costs an attempt, since it is not
	// sent again.
	idleTimeout = 4 * time.Second
	// keptConnections is how many are kept to one receiver: one for each slot
	// of a dispatcher with default settings.
	keptConnections = 64
	// responseHeaderLimit is generous for a receiver and harmless for us.
	responseHeaderLimit = 64 << 10
	// refusalPatience is how long an answer that is not 2xx may take to show
	// its body. The status is known; the body is only for people.
	refusalPatience = 2 * time.Second
)

// HTTPConfig says where and how an HTTP executor posts.
type HTTPConfig struct {
	URL         string            // http or https; user and password become basic authentication
	Headers     map[string]string // sent with every request; none that the executor sets itself
	Secret      string            // signs requests (Standard Webhooks, "whsec_…"); empty: unsigned
	ResultLimit int64             // of the response's body in bytes; 0: DefaultResultLimit
	ErrorBody   bool              // quote the body of a refusal in the job's error
	Now         func() time.Time  // for signatures and Retry-After dates; nil: the system's clock
}

// HTTP posts the payload to a URL.
//
// One attempt is at most one call on the wire. A receiver that honours the
// Idempotency-Key (the job's id, the same on every attempt) does the work
// once; any other at least once, since an answer can be lost.
//
// Every 2xx succeeds, whatever the body says: a receiver that answers 200 with
// {"success":false} has succeeded. The result is the body with its media type;
// none if it is empty.
//
// A call that ended without a whole answer after the first byte of it may have
// left is an error with Unknown set: the receiver may have done the work. An
// answer with any status but 2xx is one, whatever becomes of its body.
type HTTP struct {
	url         *url.URL
	header      http.Header
	webhook     *standardwebhooks.Webhook // nil: unsigned
	resultLimit int64
	errorBody   bool
	now         func() time.Time
	transport   *http.Transport
	tells       bool // of something that has happened: see Callback
}

var _ Executor = (*HTTP)(nil)

// NewHTTP returns an HTTP executor with a connection pool of its own. The
// error names everything that is wrong with the configuration.
func NewHTTP(cfg HTTPConfig) (*HTTP, error) {
	target, urlErr := parseTarget("http url", cfg.URL)
	header, headerErr := parseHeaders(cfg.Headers)
	webhook, secretErr := parseSecret(cfg.Secret)
	if err := errors.Join(urlErr, headerErr, secretErr); err != nil {
		return nil, err
	}
	h := &HTTP{
		url:         target,
		header:      header,
		webhook:     webhook,
		resultLimit: cmp.Or(cfg.ResultLimit, DefaultResultLimit),
		errorBody:   cfg.ErrorBody,
		now:         cfg.Now,
		transport:   newTransport(dialMetered),
	}
	h.useClock()
	return h, nil
}

func (h *HTTP) useClock() {
	if h.now == nil {
		h.now = time.Now //nolint:forbidigo // without a gateway there is no other clock
	}
}

// dialFunc is how a transport gets its connections.
type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// newTransport differs from http.DefaultTransport in what could turn one
// attempt into two calls or into one to somewhere else: HTTP/1 only (HTTP/2
// sends a refused stream again), no proxy from the environment. Bytes are
// passed as they come: no transparent decompression.
func newTransport(dial dialFunc) *http.Transport {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	return &http.Transport{
		DialContext:            dial,
		TLSHandshakeTimeout:    dialTimeout,
		MaxIdleConns:           keptConnections,
		MaxIdleConnsPerHost:    keptConnections,
		IdleConnTimeout:        idleTimeout,
		MaxResponseHeaderBytes: responseHeaderLimit,
		Protocols:              &protocols,
	}
}

// Close gives up the connections that are kept for later attempts. Running
// attempts go on.
func (h *HTTP) Close() { h.transport.CloseIdleConnections() }

// Execute posts the payload once.
func (h *HTTP) Execute(ctx context.Context, c job.Claimed) (*job.Result, error) {
	return h.execute(ctx, c, h.url)
}

// execute posts the payload to the target once.
func (h *HTTP) execute(ctx context.Context, c job.Claimed, target *url.URL) (*job.Result, error) {
	callCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	var sent sending
	req, err := h.post(sent.trace(callCtx), c, target)
	if err != nil {
		return nil, &job.AttemptError{
			Code:   CodeConnection,
			Detail: "the request could not be made",
			Err:    fmt.Errorf("executor: make request: %w", err),
		}
	}
	// The transport and not a client: a client may follow a redirect.
	resp, err := h.transport.RoundTrip(req)
	if err != nil {
		return nil, broken(ctx, err, sent.begun())
	}
	defer resp.Body.Close()
	refused := !successful(resp.StatusCode)
	if refused || h.tells {
		patience := time.AfterFunc(refusalPatience, cancel)
		defer patience.Stop()
	}
	switch {
	case refused:
		return nil, h.refused(resp)
	case h.tells:
		_ = refusalBody(resp) // there is nothing to show
		return nil, nil
	}
	return h.result(ctx, resp)
}

func successful(status int) bool { return status >= 200 && status <= 299 }

func (h *HTTP) post(ctx context.Context, c job.Claimed, target *url.URL) (*http.Request, error) {
	payload := payloadOf(c)
	req, err := h.request(ctx, http.MethodPost, target, payload)
	if err != nil {
		return nil, err
	}
	req.ContentLength = int64(len(payload))
	req.Header.Set("Content-Type", mediaJSON)
	return req, h.identify(req.Header, c, payload)
}

// request makes a request that is sent once.
func (h *HTTP) request(ctx context.Context, method string, target *url.URL, body []byte) (*http.Request, error) {
	// A body of a type that net/http does not know has no GetBody. With one,
	// or with no body, the transport would send a request that carries an
	// Idempotency-Key, or a GET, a second time when a kept connection breaks.
	once := io.NopCloser(bytes.NewReader(body))
	req, err := http.NewRequestWithContext(ctx, method, target.String(), once)
	if err != nil {
		return nil, err
	}
	req.Header = h.header.Clone()
	if target.User != nil {
		password, _ := target.User.Password()
		req.SetBasicAuth(target.User.Username(), password)
	}
	// Without it the transport asks for gzip and decodes, past our limit.
	req.Header.Set("Accept-Encoding", "identity")
	return req, nil
}

// identify sets the headers that say which attempt of which job this is.
func (h *HTTP) identify(header http.Header, c job.Claimed, body []byte) error {
	// The job's id and not the client's key: two tenants may use one key, and
	// a receiver must never take the one's job for the other's.
	header.Set("Idempotency-Key", `"`+string(c.ID)+`"`)
	header.Set("Sekali-Key", string(c.Key))
	header.Set("Sekali-Attempt", strconv.Itoa(c.Attempts))
	header.Set("Sekali-Fencing-Token", strconv.FormatInt(c.Lease.Token, 10))
	header.Set("Sekali-Type", string(c.Type))
	return h.sign(header, c.ID, body)
}

// sign sets the three headers of Standard Webhooks. Who tells of something is known
// by the first two also without a secret.
func (h *HTTP) sign(header http.Header, id job.ID, body []byte) error {
	if h.webhook == nil && !h.tells {
		return nil
	}
	now := h.now()
	header.Set(standardwebhooks.HeaderWebhookID, string(id))
	header.Set(standardwebhooks.HeaderWebhookTimestamp, strconv.FormatInt(now.Unix(), 10))
	if h.webhook == nil {
		return nil
	}
	signature, err := h.webhook.Sign(string(id), now, body)
	if err != nil {
		return err
	}
	header.Set(standardwebhooks.HeaderWebhookSignature, signature)
	return nil
}

// broken is the error of a call that brought no whole answer. sent says that
// the receiver may have got some of it, and so may have done the work.
func broken(ctx context.Context, err error, sent bool) error {
	if over := ended(ctx); over != nil {
		over.Unknown = sent
		return over
	}
	detail := "the connection to the receiver broke before its answer was complete"
	if opErr := (*net.OpError)(nil); errors.As(err, &opErr) && opErr.Op == "dial" {
		detail = "the receiver cannot be reached"
	}
	return &job.AttemptError{Code: CodeConnection, Detail: detail, Unknown: sent, Err: fmt.Errorf("executor: call: %w", err)}
}

// refused is the error of an answer that is not 2xx.
func (h *HTTP) refused(resp *http.Response) error {
	status := resp.StatusCode
	e := &job.AttemptError{
		Code:      CodeHTTPStatus,
		Detail:    "the receiver answered " + strconv.Itoa(status),
		Permanent: !h.retryable(status),
	}
	// Not resp.Status: its text is the receiver's.
	if text := http.StatusText(status); text != "" {
		e.Detail += " " + text
	}
	if redirect(status) {
		e.Code = CodeRedirectRefused
		e.Detail += "; redirects are not followed"
	}
	if !e.Permanent {
		e.After = retryAfter(resp.Header.Get("Retry-After"), h.now())
	}
	if body := refusalBody(resp); h.errorBody {
		e.Detail = withQuote(e.Detail, body)
	}
	return e
}

// refusalBody reads the start of the body, also where it is not shown: a
// connection is kept only if its answer was read to the end. What went wrong
// while reading does not matter.
func refusalBody(resp *http.Response) []byte {
	// The "body" of a 101 is the bare connection, which no context ends.
	if resp.StatusCode == http.StatusSwitchingProtocols {
		return nil
	}
	body, _ := io.ReadAll(io.LimitReader(resp.Body, quoteLimit))
	return body
}

func redirect(status int) bool {
	return slices.Contains([]int{301, 302, 303, 307, 308}, status)
}

// retryable reports whether another attempt may mend the refusal. Nobody has asked a
// receiver that is told of something, and it may be wrong about any of them for a
// while.
func (h *HTTP) retryable(status int) bool {
	if h.tells {
		return status != http.StatusGone
	}
	switch status {
	case http.StatusRequestTimeout, http.StatusConflict, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	}
	return status >= 500 || redirect(status)
}

// retryAfter reads a Retry-After header: whole seconds or a date. What it
// cannot read, and what lies in the past, means at once. The policy caps it.
func retryAfter(text string, now time.Time) time.Duration {
	// 31 bits of seconds are 68 years and fit a Duration; more is cut to that.
	seconds, err := strconv.ParseUint(text, 10, 31)
	if err == nil || errors.Is(err, strconv.ErrRange) {
		return time.Duration(seconds) * time.Second
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0
	}
	return max(0, at.Sub(now))
}

func (h *HTTP) result(ctx context.Context, resp *http.Response) (*job.Result, error) {
	body, whole, err := h.read(resp)
	if err != nil {
		return nil, broken(ctx, err, true)
	}
	if !whole {
		return nil, tooLarge(h.resultLimit)
	}
	return received(resp.Header, body), nil
}

// read reads the body; whole says that it is within the limit.
func (h *HTTP) read(resp *http.Response) (body []byte, whole bool, err error) {
	if resp.ContentLength > h.resultLimit {
		return nil, false, nil
	}
	body, err = io.ReadAll(io.LimitReader(resp.Body, h.resultLimit+1))
	return body, int64(len(body)) <= h.resultLimit, err
}

// received is the body as a result; nil if it is empty.
func received(header http.Header, body []byte) *job.Result {
	result := resultOf(body)
	if declared := header.Get("Content-Type"); result != nil && declared != "" {
		result.MediaType = mediaType(declared, header.Get("Content-Encoding"))
	}
	return result
}

// mediaType is the declared one if it can be stored and sent as it stands. A
// coded body is not what its media type says, although we asked for none.
func mediaType(declared, coding string) string {
	if coded(coding) || !legalValue(declared) {
		return mediaBytes
	}
	if _, _, err := mime.ParseMediaType(declared); err != nil {
		return mediaBytes
	}
	return declared
}

// coded reports whether a Content-Encoding makes a body other than it is.
func coded(coding string) bool { return coding != "" && coding != "identity" }
