package api

import (
	"crypto/rand"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/sekali/sekali/idempotency"
)

// DocsURL is where the documentation is published. The type of a problem is a
// page below it, and clients compare it as text: it does not change.
const DocsURL = "https://sekali.github.io/sekali"

// Problem is an error document (RFC 9457). Code is the last part of Type;
// Retryable says whether the same request, unchanged, may succeed later.
type Problem struct {
	Type           string       `json:"type"`
	Title          string       `json:"title"`
	Status         int          `json:"status"`
	Detail         string       `json:"detail"`
	Instance       string       `json:"instance"` // urn:uuid, also in the log
	Code           string       `json:"code"`
	Retryable      bool         `json:"retryable"`
	RetryAfterMS   int64        `json:"retry_after_ms,omitempty"` // exactly with the Retry-After header
	IdempotencyKey string       `json:"idempotency_key,omitempty"`
	Job            string       `json:"job,omitempty"` // URL
	JobStatus      string       `json:"job_status,omitempty"`
	ExpiredAt      *time.Time   `json:"expired_at,omitempty"`
	Reason         string       `json:"reason,omitempty"`
	Limit          int64        `json:"limit,omitempty"`
	OriginalStatus int          `json:"original_status,omitempty"`
	Errors         []FieldError `json:"errors,omitempty"`

	retryIn  time.Duration
	allow    []string // 405 only
	closing  bool     // the connection is of no more use
	keyed    bool     // Job is the one of the request's key
	ofJob    bool     // Job is the one that a JobError names
	location string   // of the first answer
	ofKey    string   // what Detail says besides where the request has a key
}

// notUsedUp is what most refusals say of the request's key.
const notUsedUp = "This request did not use up the key."

// FieldError is one thing that is wrong with a request. Pointer is a JSON
// Pointer into the body ("/max_attempts"), or ?name for a query parameter.
type FieldError struct {
	Pointer string `json:"pointer"`
	Rule    string `json:"rule"`
	Detail  string `json:"detail"`
}

// WriteError answers with the problem of err, and reports err to those who log.
// It must be called before anything else is written.
func WriteError(w http.ResponseWriter, r *http.Request, err error) {
	writeProblem(w, r, err, problemOf(err, r.Method))
}

// WriteKeyError is WriteError for keys of requests that make no job: the problem
// names none.
func WriteKeyError(w http.ResponseWriter, r *http.Request, err error) {
	p := problemOf(err, r.Method)
	p.keyed = false
	writeProblem(w, r, err, p)
}

func writeProblem(w http.ResponseWriter, r *http.Request, err error, p Problem) {
	req, _ := idempotency.FromContext(r.Context())
	p.complete(req.Key, req.Key != "" || sendsKey(w, r))
	report := ReportOf(r.Context())
	report.Code, report.Instance, report.Err = p.Code, p.Instance, err

	p.setHeader(w.Header())
	writeBody(w, p.Status, encode(p))
}

// sendsKey reports that the client has sent a key that counts. The request may have
// been refused before it was read.
func sendsKey(w http.ResponseWriter, r *http.Request) bool {
	return r.Header.Get("Idempotency-Key") != "" && w.Header().Get("Idempotency-Status") != "ignored"
}

// complete fills in what all problems have. The key is that of the request; ""
// if it had none, or if its key was not read, although one was sent.
func (p *Problem) complete(key idempotency.Key, sent bool) {
	p.Type = DocsURL + "/problems/" + p.Code
	p.Instance = newInstance()
	if p.retryIn > 0 {
		p.RetryAfterMS = (p.retryIn + time.Millisecond - 1).Milliseconds() // rounded up, as the header is: never too soon
	}
	p.IdempotencyKey = string(key)
	if p.keyed && key != "" {
		p.Job = JobURL(key)
	}
	if sent && p.ofKey != "" {
		p.Detail += " " + p.ofKey
	}
}

func (p *Problem) setHeader(h http.Header) {
	h.Set("Content-Type", problemType)
	h.Set("Error-Source", "gateway")
	h.Set("Cache-Control", "no-store")
	if p.retryIn > 0 {
		SetRetryAfter(h, p.retryIn)
	}
	if strings.HasPrefix(p.Code, "idempotency-") {
		h.Set("Link", "<"+DocsURL+`/idempotency>; rel="describedby"`)
	}
	if p.Status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", `Bearer realm="sekali"`)
	}
	if p.Status == http.StatusMethodNotAllowed {
		h.Set("Allow", strings.Join(p.allow, ", "))
	}
	if p.closing {
		h.Set("Connection", "close")
	}
	if p.location != "" {
		h.Set("Location", p.location)
	}
}

// newInstance names one occurrence of a problem: a random UUID.
func newInstance() string {
	var b [16]byte
	rand.Read(b[:]) // never fails: crypto/rand ends the program instead
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
