package client

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// tryTimeout is longer than any answer takes that does not wait for a job. What
	// a request prefers to wait comes on top.
	tryTimeout = 30 * time.Second
	// firstBackoff is doubled for each further try, up to lastBackoff.
	firstBackoff = 200 * time.Millisecond
	lastBackoff  = 5 * time.Second
	// longestPause is what somebody who calls a function expects it to wait at
	// most; a gateway may ask for hours.
	longestPause = time.Minute
	// uploadRate is in bytes a second: the gateway waits for bodies as long.
	uploadRate = 128 << 10
	// maxAnswer is far above what a gateway keeps of one job.
	maxAnswer = 256 << 20
)

// doer sends requests, and is the one place that sends any of them again: all
// methods go through it, and so does the generated client below them. It answers
// with success (2xx, 304) and a body that has been read; anything else is an
// error of those that the package lists.
type doer struct {
	base    *url.URL
	http    *http.Client
	token   string
	agent   string
	retries int
	longest time.Duration // pause between two tries
	limit   int64         // bytes of an answer
}

// Do sends a request whose timeout is the usual one.
func (d *doer) Do(r *http.Request) (*http.Response, error) { return d.send(r, 0) }

// send sends r until it is answered with something else than "send this again",
// or may not be sent again. timeout bounds each try; 0 is the usual one.
func (d *doer) send(r *http.Request, timeout time.Duration) (*http.Response, error) {
	if err := d.address(r); err != nil {
		return nil, err
	}
	if timeout <= 0 {
		timeout = tryTimeout + preferredWait(r) + uploadTime(r)
	}
	key := unquoteKey(r.Header.Get("Idempotency-Key"))
	for try := 1; ; try++ {
		w, err := d.once(r, timeout, key)
		var unreachable *UnreachableError
		if errors.As(err, &unreachable) {
			unreachable.Tries = try
		}
		after, again := againIn(err, try)
		if !again || try > d.retries || after > d.longest || !d.repeatable(r) {
			return w, err
		}
		if stopped := pause(r.Context(), after); stopped != nil {
			return nil, stoppedAfter(stopped, err)
		}
	}
}

// address completes the headers. The token goes to the base URL only.
func (d *doer) address(r *http.Request) error {
	if r.URL.Scheme != d.base.Scheme || r.URL.Host != d.base.Host {
		return fmt.Errorf("client: %s is not below %s", r.URL.Redacted(), d.base.Redacted())
	}
	r.Header.Set("User-Agent", d.agent)
	if d.token != "" {
		r.Header.Set("Authorization", "Bearer "+d.token)
	}
	return nil
}

// once is one try.
func (d *doer) once(r *http.Request, timeout time.Duration, key string) (*http.Response, error) {
	ctx, cancel := context.WithTimeout(r.Context(), timeout)
	defer cancel()
	sent := r.Clone(ctx) // a jar of cookies writes into the headers
	if r.GetBody != nil {
		body, err := r.GetBody()
		if err != nil {
			return nil, fmt.Errorf("client: %w", err)
		}
		sent.Body = body
	}
	w, err := d.http.Do(sent)
	if err != nil {
		return nil, d.failure(r.Context(), err, key)
	}
	defer w.Body.Close()
	w.Request = cmp.Or(w.Request, sent) // a transport of somebody's own may leave it out
	body, err := io.ReadAll(io.LimitReader(w.Body, d.limit+1))
	if err != nil {
		return nil, d.failure(r.Context(), err, key)
	}
	if int64(len(body)) > d.limit {
		return nil, ErrAnswerTooLarge
	}
	w.Body = io.NopCloser(bytes.NewReader(body))
	return d.judge(w, body, key)
}

// failure is the error of a try that got no answer. The end of the caller's
// context is told as such, and only that: a try that took too long is none.
func (d *doer) failure(ctx context.Context, err error, key string) error {
	if ended := contextError(ctx); ended != nil {
		return ended
	}
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		err = wrapped.Err // the address is told once
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("no answer in time: %v", err) //nolint:errorlint // it must not look like the end of the caller's context
	}
	return &UnreachableError{URL: d.base.Redacted(), Key: key, Err: err}
}

// judge tells answers of a gateway from others.
func (d *doer) judge(w *http.Response, body []byte, key string) (*http.Response, error) {
	if d.isSuccess(w) {
		if d.expectsDocument(w.Request) && len(body) > 0 && (mediaTypeOf(w.Header) != jsonType || !isDocument(body)) {
			return nil, notGateway(w, body)
		}
		return w, nil
	}
	err := refusalOf(w, body, key)
	var other *NotGatewayError
	if errors.As(err, &other) && slices.Contains(proxyStatuses, w.StatusCode) {
		return nil, &UnreachableError{URL: d.base.Redacted(), Key: key, Err: err, after: retryAfter(w.Header)}
	}
	return nil, err
}

// proxyStatuses are what proxies and balancers answer with while the gateway
// behind them is away or has too much to do.
var proxyStatuses = []int{http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout}

func (d *doer) isSuccess(w *http.Response) bool {
	if w.StatusCode == http.StatusServiceUnavailable && d.route(w.Request) == "/readyz" {
		return mediaTypeOf(w.Header) == jsonType // it says what is not ready
	}
	return w.StatusCode >= 200 && w.StatusCode < 300 || w.StatusCode == http.StatusNotModified
}

// expectsDocument: all answers about jobs and executors are documents, except for
// results.
func (d *doer) expectsDocument(r *http.Request) bool {
	route := d.route(r) + "/"
	return !strings.HasSuffix(route, "/result/") && (strings.HasPrefix(route, "/jobs/") || strings.HasPrefix(route, "/executors/"))
}

// isDocument reports that a body is one of a gateway: each has one of these
// members. Other services answer with JSON too, and nothing was accepted there.
func isDocument(body []byte) bool {
	var members struct {
		ID        string          `json:"id"`   // of a job
		Name      string          `json:"name"` // of an executor
		Jobs      json.RawMessage `json:"jobs"`
		Attempts  json.RawMessage `json:"attempts"`
		Events    json.RawMessage `json:"events"`
		Results   json.RawMessage `json:"results"`
		Executors json.RawMessage `json:"executors"`
	}
	if json.Unmarshal(body, &members) != nil {
		return false
	}
	return members.ID+members.Name != "" || slices.ContainsFunc(
		[]json.RawMessage{members.Jobs, members.Attempts, members.Events, members.Results, members.Executors},
		func(list json.RawMessage) bool { return bytes.HasPrefix(list, []byte("[")) })
}

// againStatuses are those that may be answered otherwise in a moment. A 422 is
// none of them, whatever its document says.
var againStatuses = append([]int{http.StatusRequestTimeout, http.StatusConflict, http.StatusTooEarly}, proxyStatuses...)

// waitingCodes ask for patience that a caller has to have: another job has to end
// first, which may take days.
var waitingCodes = []string{CodeBusinessKeyConflict, CodeJobNotFinished}

// againIn says whether what ended with err may end otherwise in a moment, and how
// long to wait until then: as long as the answer says, and a little more each
// time, at random, so that those who were turned away together do not come back
// together.
func againIn(err error, try int) (time.Duration, bool) {
	var problem *Problem
	var unreachable *UnreachableError
	var untrusted *tls.CertificateVerificationError
	switch {
	case errors.As(err, &untrusted):
		return 0, false // nor will it be in a moment
	case errors.As(err, &unreachable):
		return unreachable.after + backoff(try), true
	case errors.As(err, &problem):
		return problem.RetryAfter + backoff(try), problem.worthRepeating()
	}
	return 0, false
}

func (p *Problem) worthRepeating() bool {
	return p.Retryable && slices.Contains(againStatuses, p.Status) && !slices.Contains(waitingCodes, p.Code)
}

func backoff(try int) time.Duration {
	wait := lastBackoff
	if shift := try - 1; shift < 5 { // 200 ms << 5 is above the last one
		wait = firstBackoff << shift
	}
	return wait/2 + rand.N(wait/2)
}

// pause waits. Its error is that of ctx, if that ends first.
func pause(ctx context.Context, wait time.Duration) error {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return contextError(ctx)
	case <-timer.C:
		return nil
	}
}

// stoppedAfter is the error of a pause that ctx has ended, with the one before it.
func stoppedAfter(stopped, before error) error {
	if before == nil {
		return stopped
	}
	return fmt.Errorf("%w, and before: %w", stopped, before)
}

// contextError is nil until ctx has ended, and then wraps its error and its cause.
func contextError(ctx context.Context) error {
	err := ctx.Err()
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); !errors.Is(err, cause) {
		return fmt.Errorf("client: %w: %w", err, cause)
	}
	return fmt.Errorf("client: %w", err)
}

// uploadTime is what a slow line needs for the body.
func uploadTime(r *http.Request) time.Duration {
	return time.Duration(max(r.ContentLength, 0)/uploadRate) * time.Second
}

var waitAsked = regexp.MustCompile(`(?i)(?:^|[,\s])wait\s*=\s*"?([0-9]{1,6})`)

// preferredWait is how long the request lets the gateway hold its answer.
func preferredWait(r *http.Request) time.Duration {
	text := "wait=" + r.URL.Query().Get("wait")
	if prefer := r.Header.Get("Prefer"); waitAsked.MatchString(prefer) {
		text = prefer
	}
	found := waitAsked.FindStringSubmatch(text)
	if found == nil {
		return 0
	}
	seconds, _ := strconv.Atoi(found[1]) // six digits
	return time.Duration(seconds) * time.Second
}
