package api

import (
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

// The page sizes of GET /jobs. 200 jobs without bodies are about 150 KB.
const (
	defaultLimit = 50
	maxLimit     = 200
)

// DecodeFilter reads the query of GET /jobs. An empty parameter is an absent
// one; a repeated or an unknown one is an error, since a filter that is ignored
// shows jobs that nobody asked for. Errors: *ValidationError.
func DecodeFilter(rawQuery string, tenant idempotency.Tenant) (job.Filter, error) {
	query, err := url.ParseQuery(rawQuery)
	if err != nil {
		return job.Filter{}, &ValidationError{Errors: []FieldError{BadQuery}}
	}
	d := filterDecoder{filter: job.Filter{Tenant: tenant, Limit: defaultLimit}}
	cursor := ""
	for name, values := range query {
		switch {
		case len(values) > 1:
			d.refuse(name, "repeated", "must not be repeated")
		case values[0] == "":
		case name == "cursor":
			cursor = values[0]
		default:
			d.decode(name, values[0])
		}
	}
	if cursor != "" && len(d.errors) == 0 {
		if d.filter.Before, err = parseCursor(cursor, d.filter); err != nil {
			d.refuse("cursor", "cursor", "must be the next_cursor of a page with the same filters")
		}
	}
	if len(d.errors) > 0 {
		return job.Filter{}, &ValidationError{Errors: sortErrors(d.errors)}
	}
	return d.filter, nil
}

// BadQuery is what is wrong with a query that cannot be split into parameters.
var BadQuery = FieldError{Pointer: "?", Rule: "syntax", Detail: "must be name=value pairs joined by &, percent-encoded"}

type filterDecoder struct {
	filter job.Filter
	errors []FieldError
}

func (d *filterDecoder) refuse(name, rule, detail string) {
	d.errors = append(d.errors, FieldError{Pointer: "?" + strings.ToValidUTF8(name, "?"), Rule: rule, Detail: detail})
}

func (d *filterDecoder) decode(name, value string) {
	switch name {
	case "status":
		d.filter.Status = job.Status(value)
		if !d.filter.Status.Valid() {
			d.refuse(name, "status", "must be one of "+statusList())
		}
	case "type":
		d.filter.Type = job.Type(d.text(name, value))
	case "business_key":
		d.filter.BusinessKey = d.text(name, value)
	case "key_prefix":
		d.filter.KeyPrefix = d.text(name, value)
	case "created_after":
		d.filter.CreatedAfter = d.time(name, value)
	case "created_before":
		d.filter.CreatedBefore = d.time(name, value)
	case "limit":
		d.filter.Limit = d.limit(name, value)
	default:
		d.refuse(name, ruleUnknown, "is not a parameter of this list")
	}
}

// text lets nothing through that a database would not take as text (BR-34).
func (d *filterDecoder) text(name, value string) string {
	if len(value) > idempotency.MaxKeyLength || !utf8.ValidString(value) || strings.ContainsFunc(value, isControl) {
		d.refuse(name, "text", "must be 1 to 255 bytes of UTF-8 without control characters")
	}
	return value
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }

func (d *filterDecoder) time(name, value string) time.Time {
	t, err := parseTime(value)
	// An offset can move a valid time out of the years that there is a text for.
	if err != nil || t.Year() < 1 || t.Year() > 9999 {
		d.refuse(name, "time", "must be an RFC 3339 time such as 2026-01-02T03:04:05Z, with + written as %2B")
		return time.Time{}
	}
	if t.IsZero() {
		return t.Add(time.Millisecond) // as early, and yet a bound: zero is none
	}
	return t
}

func (d *filterDecoder) limit(name, value string) int {
	limit, err := strconv.Atoi(value)
	if err != nil || limit < 1 || limit > maxLimit {
		d.refuse(name, ruleRange, "must be an integer from 1 to "+strconv.Itoa(maxLimit))
	}
	return limit
}

func statusList() string {
	var words []string
	for _, s := range job.Statuses() {
		words = append(words, string(s))
	}
	return strings.Join(words, ", ")
}
