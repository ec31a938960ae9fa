package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Problem is the gateway's refusal (RFC 9457). Code is what programs look at; see
// the constants Code… for those of today.
type Problem struct {
	Type      string `json:"type"`
	Title     string `json:"title"`
	Status    int    `json:"status"`
	Detail    string `json:"detail"`
	Instance  string `json:"instance"` // names this occurrence, also in the gateway's log
	Code      string `json:"code"`
	Retryable bool   `json:"retryable"` // the same request, unchanged, may succeed later

	// RetryAfter is when to send it again; 0 if the gateway does not say.
	RetryAfter time.Duration `json:"-"`
	// Key is the idempotency key of the request: send the request again with it.
	Key string `json:"idempotency_key,omitempty"`

	Job            string       `json:"job,omitempty"`        // path of the job that it is about, such as /jobs/order-42
	JobStatus      string       `json:"job_status,omitempty"` // how that job stands
	ExpiredAt      time.Time    `json:"expired_at,omitzero"`
	Reason         string       `json:"reason,omitempty"`
	Limit          int64        `json:"limit,omitempty"`
	OriginalStatus int          `json:"original_status,omitempty"` // of the answer that was not kept
	Errors         []FieldError `json:"errors,omitempty"`          // each thing that is wrong with the request
}

// FieldError is one thing that is wrong with a request. Pointer is a JSON Pointer
// into the body ("/max_attempts"), or ?name for a query parameter.
type FieldError struct {
	Pointer string `json:"pointer"`
	Rule    string `json:"rule"`
	Detail  string `json:"detail"`
}

// UnmarshalJSON reads the document, and RetryAfter from its member in
// milliseconds.
func (p *Problem) UnmarshalJSON(text []byte) error {
	type plain Problem // without this method
	document := struct {
		*plain
		RetryAfterMS int64 `json:"retry_after_ms"`
	}{plain: (*plain)(p)}
	if err := json.Unmarshal(text, &document); err != nil {
		return fmt.Errorf("client: problem: %w", err)
	}
	p.RetryAfter = time.Duration(document.RetryAfterMS) * time.Millisecond
	return nil
}

func (p *Problem) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "client: the gateway refused: %s (%d %s): %s", p.Title, p.Status, p.Code, p.Detail)
	for _, wrong := range p.Errors {
		fmt.Fprintf(&b, "; %s %s", wrong.Pointer, wrong.Detail)
	}
	return b.String()
}

// UnreachableError reports that no gateway answered, after all tries. The request
// may have been received all the same: repeat it with the same key.
type UnreachableError struct {
	URL   string // the base URL, without a password
	Key   string // idempotency key of the request; "" if it had none
	Tries int
	Err   error // of the last try

	after time.Duration // when a proxy says to come back
}

func (e *UnreachableError) Error() string {
	tries := ""
	if e.Tries > 1 {
		tries = fmt.Sprintf(" (tried %d times)", e.Tries)
	}
	return fmt.Sprintf("client: the gateway at %s cannot be reached%s: %v", e.URL, tries, e.Err)
}

// Unwrap returns what the last try ended with.
func (e *UnreachableError) Unwrap() error { return e.Err }

// NotGatewayError reports an answer that no gateway gives: the page of a proxy,
// or of another program at this address.
type NotGatewayError struct {
	URL       string // that was asked, without a password
	Status    int
	MediaType string // as the answer says
	Location  string // where it redirects to; "" if it does not
	Text      string // how it begins, in one line
}

func (e *NotGatewayError) Error() string {
	if e.Location != "" {
		return fmt.Sprintf("client: %s redirects to %s (%d): give the address of the gateway itself", e.URL, e.Location, e.Status)
	}
	return fmt.Sprintf("client: %s is answered with %d, %s %q: this is not a Sekali gateway, or something stands in front of it",
		e.URL, e.Status, orNothing(e.MediaType), e.Text)
}

func orNothing(mediaType string) string {
	if mediaType == "" {
		return "no media type,"
	}
	return mediaType
}

// ErrAnswerTooLarge reports an answer of more than 256 MiB.
var ErrAnswerTooLarge = errors.New("client: the answer is larger than 256 MiB")

const problemType = "application/problem+json"

// refusalOf turns an answer that is no success into its error: *Problem, or
// *NotGatewayError.
func refusalOf(w *http.Response, body []byte, key string) error {
	p := &Problem{}
	switch {
	case mediaTypeOf(w.Header) != problemType:
		return notGateway(w, body)
	case w.Request.Method == http.MethodHead: // the document stays with the gateway
		p.Title, p.Retryable = http.StatusText(w.StatusCode), w.Header.Get("Retry-After") != ""
	case json.Unmarshal(body, p) != nil || p.Code == "":
		return notGateway(w, body)
	}
	p.Status = w.StatusCode
	if p.Key == "" {
		p.Key = key
	}
	if p.RetryAfter == 0 {
		p.RetryAfter = retryAfter(w.Header)
	}
	return p
}

func notGateway(w *http.Response, body []byte) *NotGatewayError {
	e := &NotGatewayError{Status: w.StatusCode, MediaType: mediaTypeOf(w.Header), Location: firstWords(w.Header.Get("Location")), Text: firstWords(string(body))}
	if w.StatusCode < 300 || w.StatusCode >= 400 {
		e.Location = "" // of something that was made
	}
	e.URL = w.Request.URL.Redacted()
	return e
}

func mediaTypeOf(h http.Header) string {
	mediaType, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	if err != nil {
		return ""
	}
	return mediaType
}

// quoteLimit is enough to recognise a page by.
const quoteLimit = 80

// firstWords is how a text begins, fit for one line of a log.
func firstWords(text string) string {
	text = text[:min(len(text), 4*quoteLimit)]
	text = strings.Join(strings.Fields(strings.ToValidUTF8(text, "")), " ")
	text = strings.Map(func(r rune) rune {
		if !strconv.IsPrint(r) {
			return -1
		}
		return r
	}, text)
	if len(text) <= quoteLimit {
		return text
	}
	return strings.ToValidUTF8(text[:quoteLimit], "") + "…"
}

// retryAfter reads the header, in seconds or as a date; 0 without one.
func retryAfter(h http.Header) time.Duration {
	text := h.Get("Retry-After")
	if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(time.Until(at), 0)
	}
	return 0
}
