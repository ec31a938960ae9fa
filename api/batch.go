package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

// BatchSize is how many items a batch may have. A thousand are one statement of
// the database and an answer of about half a megabyte.
const BatchSize = 1000

// The media types of newline-delimited JSON. There is no registered one.
var ndjsonTypes = []string{"application/x-ndjson", "application/ndjson"}

// BatchTypes lists the media types of POST /jobs/batch.
func BatchTypes() []string { return append([]string{jsonType}, ndjsonTypes...) }

// BatchRule says what the items of a batch may be.
type BatchRule struct {
	Tenant    idempotency.Tenant
	Key       idempotency.KeyRule
	Required  bool  // each item needs a key
	ItemLimit int64 // bytes of an item
	Now       time.Time
	// NewKey gives a key to an item that has none and needs none.
	NewKey func() idempotency.Key
}

// BatchItem is one element of a batch, taken apart.
type BatchItem struct {
	job.Item
	// Err is why the item cannot even be looked up: nothing is to be done for
	// it. Its Request has the key if that could be read.
	Err error
}

// DecodeBatch takes a batch apart: a JSON array, or lines of JSON. What is wrong
// with an item is told by that item. The error, *ValidationError or
// *idempotency.JSONError, is about the batch as a whole.
func DecodeBatch(body []byte, contentType string, rule BatchRule) ([]BatchItem, error) {
	texts, err := splitBatch(body, contentType)
	if err != nil {
		return nil, err
	}
	if len(texts) > BatchSize {
		return nil, &ValidationError{Errors: []FieldError{{Rule: ruleLength, Detail: "must have at most 1000 items"}}}
	}
	items := make([]BatchItem, len(texts))
	for i, text := range texts {
		items[i] = rule.item(text)
	}
	return items, nil
}

func splitBatch(body []byte, contentType string) ([][]byte, error) {
	mediaType, _, _ := strings.Cut(contentType, ";")
	for _, lines := range ndjsonTypes {
		if strings.EqualFold(strings.TrimSpace(mediaType), lines) {
			return splitLines(body), nil
		}
	}
	return splitArray(body)
}

func splitLines(body []byte) [][]byte {
	var texts [][]byte
	for line := range bytes.Lines(body) {
		if line = bytes.Trim(line, " \t\r\n"); len(line) > 0 {
			texts = append(texts, line)
		}
		if len(texts) > BatchSize {
			break // too many already: what follows need not be held apart
		}
	}
	return texts
}

// splitArray cuts an array at the commas between its elements. The whole must
// be JSON, or a cut could fall where nobody meant one; what else is asked of
// JSON here is asked of each element.
func splitArray(body []byte) ([][]byte, error) {
	body, err := arrayOf(body)
	if err != nil {
		return nil, err
	}
	var texts [][]byte
	depth, quoted, start := 0, false, 1
	for i := 0; i < len(body); i++ {
		switch c := body[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			depth--
		case c == ',' && depth == 1:
			texts = append(texts, bytes.TrimSpace(body[start:i]))
			start = i + 1
		}
		if len(texts) > BatchSize {
			return texts, nil // likewise
		}
	}
	if last := bytes.TrimSpace(body[start : len(body)-1]); len(last) > 0 {
		texts = append(texts, last)
	}
	return texts, nil
}

// arrayOf returns the text of a JSON array without what surrounds it.
func arrayOf(body []byte) ([]byte, error) {
	if !json.Valid(body) {
		return nil, notJSON(errors.New("api: batch is not JSON"))
	}
	body = bytes.TrimSpace(body)
	if body[0] != '[' {
		return nil, &ValidationError{Errors: []FieldError{{Rule: ruleKind, Detail: "must be a JSON array of submissions" + not(body)}}}
	}
	return body, nil
}

// item reads one element as if its members but the key had been the body of a
// POST /jobs of its own: the same fingerprint, so that single and batch are one
// identity, and the same refusals.
func (rule BatchRule) item(text []byte) BatchItem {
	item := BatchItem{}
	item.Request.Tenant = rule.Tenant
	if int64(len(text)) > rule.ItemLimit {
		item.Err = &TooLargeError{Limit: rule.ItemLimit}
		return item
	}
	if _, item.Err = idempotency.Canonical(text); item.Err != nil {
		return item
	}
	members, err := readMembers(text)
	if err != nil {
		item.Err = err
		return item
	}
	rest, key := cutKey(members)
	if item.Request.Key, item.Err = rule.key(key); item.Err != nil {
		return item
	}
	canonical, err := idempotency.Canonical(object(rest))
	if err != nil {
		item.Err = err
		return item
	}
	item.Request.Fingerprint = idempotency.NewFingerprint(http.MethodPost, "/jobs", nil, jsonType, canonical)
	item.Draft, item.Refusal = decodeMembers(rest, rule.Now)
	return item
}

// cutKey takes the member key out of the others.
func cutKey(members []member) (rest []member, key json.RawMessage) {
	for _, m := range members {
		if m.name == "key" {
			key = m.value
			continue
		}
		rest = append(rest, m)
	}
	return rest, key
}

// key reads the key as it would be read from the header: "abc" and "\"abc\""
// are the same key, here and there.
func (rule BatchRule) key(value json.RawMessage) (idempotency.Key, error) {
	if value == nil || string(value) == "null" {
		if rule.Required {
			return "", idempotency.ErrKeyMissing
		}
		return rule.NewKey(), nil
	}
	text := ""
	if err := json.Unmarshal(value, &text); err != nil {
		return "", &ValidationError{Errors: []FieldError{{Pointer: "/key", Rule: ruleKind, Detail: "must be a string" + not(value)}}}
	}
	return idempotency.ParseKey([]string{text}, rule.Key)
}

// object writes members as an object, their values as they came.
func object(members []member) []byte {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, m := range members {
		if i > 0 {
			b.WriteByte(',')
		}
		b.Write(bytes.TrimSpace(encode(m.name)))
		b.WriteByte(':')
		b.Write(m.value)
	}
	b.WriteByte('}')
	return b.Bytes()
}

// BatchResult is what became of one item. Exactly one of Job and Problem is
// there.
type BatchResult struct {
	Key       *string         `json:"key"` // null if none could be read
	Status    int             `json:"status"`
	Replayed  bool            `json:"replayed"`
	JobStatus string          `json:"job_status,omitempty"` // now; job is the answer as it was stored
	Job       json.RawMessage `json:"job,omitempty"`
	Problem   *Problem        `json:"problem,omitempty"`
}

// BatchResults is the document of POST /jobs/batch.
type BatchResults struct {
	Results []BatchResult `json:"results"`
}

// ResultOf is the result of an item that was accepted, now or before: what a
// request of its own would have been answered.
func ResultOf(item BatchItem, receipt job.Receipt) BatchResult {
	response := receipt.Record.Response
	if receipt.Duplicate() {
		response = Current(receipt.Job)
	}
	return BatchResult{
		Key: optional(item.Request.Key), Status: response.Status, Replayed: !receipt.Record.Fresh,
		JobStatus: string(receipt.Job.Status), Job: bytes.TrimSpace(response.Body),
	}
}

// RefusalOf is the result of an item that was refused.
func RefusalOf(item BatchItem, err error) BatchResult {
	p := problemOf(err, http.MethodPost)
	p.complete(item.Request.Key, true) // each has one, if only the one that it was given
	return BatchResult{Key: optional(item.Request.Key), Status: p.Status, Problem: &p}
}

// WriteBatch answers 207 with a result for each item, in their order. Jobs are
// put in byte for byte.
func WriteBatch(w http.ResponseWriter, results []BatchResult) {
	var b bytes.Buffer
	b.WriteString(`{"results":[`)
	for i, result := range results {
		if i > 0 {
			b.WriteByte(',')
		}
		document := result.Job
		result.Job = nil
		head := bytes.TrimSpace(encode(result))
		if document == nil {
			b.Write(head)
			continue
		}
		b.Write(head[:len(head)-1])
		b.WriteString(`,"job":`)
		b.Write(document)
		b.WriteByte('}')
	}
	b.WriteString("]}\n")
	w.Header().Set("Content-Type", jsonType)
	w.Header().Set("Cache-Control", "no-store")
	writeBody(w, http.StatusMultiStatus, b.Bytes())
}
