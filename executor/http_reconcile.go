package executor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/sekali/sekali/job"
)

// ReconcilingHTTP is an HTTP that asks the receiver what became of an attempt.
//
// The question is a GET of the reconcile URL, to which the parameters id (the
// job's) and key (the client's) are added. It carries the headers of the
// attempts, signed over an empty body, and is sent once. The receiver answers
//
//   - 2xx: done, and the body is the result. A body that is a JSON object with
//     the member status is read instead where that is "not_done", "unknown" or
//     "done"; with the last one its member result is the result.
//   - 404 or 410: not done.
//
// Anything else, 202 and errors included, leaves the outcome unknown.
type ReconcilingHTTP struct {
	*HTTP
	reconcileURL *url.URL
}

var (
	_ Executor   = (*ReconcilingHTTP)(nil)
	_ Reconciler = (*ReconcilingHTTP)(nil)
)

// NewReconcilingHTTP returns an HTTP executor that asks at the URL. A URL on the
// host of the configured one has that one's user and password unless it has its
// own. The error names everything that is wrong.
func NewReconcilingHTTP(cfg HTTPConfig, reconcileURL string) (*ReconcilingHTTP, error) {
	h, err := NewHTTP(cfg)
	target, targetErr := parseReconcileURL(reconcileURL)
	if err := errors.Join(err, targetErr); err != nil {
		return nil, err
	}
	if target.User == nil && target.Scheme == h.url.Scheme && target.Host == h.url.Host {
		target.User = h.url.User
	}
	return &ReconcilingHTTP{HTTP: h, reconcileURL: target}, nil
}

func parseReconcileURL(text string) (*url.URL, error) {
	const name = "http reconcile_url"
	target, err := parseTarget(name, text)
	if err != nil {
		return nil, err
	}
	query, err := url.ParseQuery(target.RawQuery)
	if err != nil {
		return nil, errors.New("executor: " + name + ": its query cannot be read")
	}
	for _, own := range []string{"id", "key"} {
		if query.Has(own) {
			return nil, fmt.Errorf("executor: %s: its query has %s, which the executor adds", name, own)
		}
	}
	return target, nil
}

// Reconcile asks once.
func (h *ReconcilingHTTP) Reconcile(ctx context.Context, c job.Claimed) (Reconciliation, error) {
	callCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	req, err := h.question(callCtx, c)
	if err != nil {
		return Reconciliation{}, fmt.Errorf("executor: reconcile: make request: %w", err)
	}
	resp, err := h.transport.RoundTrip(req)
	if err != nil {
		return Reconciliation{}, unanswered(ctx, err)
	}
	defer resp.Body.Close()
	switch status := resp.StatusCode; {
	case successful(status) && status != http.StatusAccepted:
		return h.answer(ctx, resp)
	case status == http.StatusNotFound || status == http.StatusGone:
		h.readOff(resp, cancel)
		return Reconciliation{Answer: ReconcileNotDone}, nil
	default:
		h.readOff(resp, cancel)
		return Reconciliation{}, fmt.Errorf("executor: reconcile: the receiver answered %d", status)
	}
}

// readOff reads a body that nobody needs, for a while, to keep the connection.
func (h *ReconcilingHTTP) readOff(resp *http.Response, cancel context.CancelFunc) {
	patience := time.AfterFunc(refusalPatience, cancel)
	defer patience.Stop()
	_ = refusalBody(resp)
}

func (h *ReconcilingHTTP) question(ctx context.Context, c job.Claimed) (*http.Request, error) {
	target := *h.reconcileURL
	// What the URL has of its own stays as it was written.
	if target.RawQuery != "" {
		target.RawQuery = strings.TrimSuffix(target.RawQuery, "&") + "&"
	}
	target.RawQuery += "id=" + url.QueryEscape(string(c.ID)) + "&key=" + url.QueryEscape(string(c.Key))
	req, err := h.request(ctx, http.MethodGet, &target, nil)
	if err != nil {
		return nil, err
	}
	// Of a body whose length it does not know, which request gives it, the transport
	// looks for a first byte for 200 ms, and sends the question in chunks where that
	// takes longer. Named so, there is nothing to look for, and nothing is sent.
	req.TransferEncoding = []string{"identity"}
	return req, h.identify(req.Header, c, nil)
}

// answer reads an answer with status 2xx. One that is not whole is none.
func (h *ReconcilingHTTP) answer(ctx context.Context, resp *http.Response) (Reconciliation, error) {
	body, whole, err := h.read(resp)
	switch {
	case err != nil:
		return Reconciliation{}, unanswered(ctx, err)
	case !whole:
		return Reconciliation{}, fmt.Errorf("executor: reconcile: the answer is larger than %d bytes", h.resultLimit)
	case len(body) > 0 && coded(resp.Header.Get("Content-Encoding")):
		// It may say "not_done" in there.
		return Reconciliation{}, errors.New("executor: reconcile: the answer has a content coding, which was not asked for")
	}
	var members map[string]json.RawMessage
	var status string
	switch {
	case json.Unmarshal(body, &members) == nil:
		// No such text: then the body is the result.
		_ = json.Unmarshal(members["status"], &status)
	case len(body) > 0 && isJSON(resp.Header.Get("Content-Type")) && !json.Valid(body):
		return Reconciliation{}, errors.New("executor: reconcile: the answer says that it is JSON, and is not")
	}
	if twice(body) {
		return Reconciliation{}, errors.New(`executor: reconcile: the answer has the member "status" twice`)
	}
	switch status {
	case ReconcileNotDone.String():
		return Reconciliation{Answer: ReconcileNotDone}, nil
	case ReconcileUnknown.String():
		return Reconciliation{}, errors.New(`executor: reconcile: the receiver answered "unknown"`)
	case ReconcileDone.String():
		return Reconciliation{Answer: ReconcileDone, Result: jsonResult(members["result"])}, nil
	}
	return Reconciliation{Answer: ReconcileDone, Result: received(resp.Header, body)}, nil
}

// isJSON reports whether a Content-Type is one of JSON.
func isJSON(contentType string) bool {
	mediaType, _, err := mime.ParseMediaType(contentType)
	return err == nil && (mediaType == mediaJSON || strings.HasSuffix(mediaType, "+json"))
}

// twice reports whether an object says more than once how the work stands: then
// it says nothing.
func twice(body []byte) bool {
	decoder := json.NewDecoder(bytes.NewReader(body))
	if open, err := decoder.Token(); err != nil || open != json.Delim('{') {
		return false
	}
	said := 0
	for decoder.More() {
		name, err := decoder.Token()
		var value json.RawMessage
		if err != nil || decoder.Decode(&value) != nil {
			return false
		}
		if name == "status" {
			said++
		}
	}
	return said > 1
}

// jsonResult is a member as the result; absent and null mean that there is none.
func jsonResult(member json.RawMessage) *job.Result {
	if len(member) == 0 || string(member) == "null" {
		return nil
	}
	return &job.Result{Body: member, MediaType: mediaJSON}
}

// unanswered is the error of a question that got no whole answer.
func unanswered(ctx context.Context, err error) error {
	if over := ended(ctx); over != nil {
		return fmt.Errorf("executor: reconcile: %w", over)
	}
	return fmt.Errorf("executor: reconcile: call: %w", err)
}
