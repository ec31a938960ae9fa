package main

import (
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/sekali/sekali/client"
)

// filterFlags say which jobs are meant. Those of several filters have them all. Which
// statuses there is something to do about, each command sets; none is the empty one.
type filterFlags struct {
	Status        string `enum:"${statuses}," default:"" placeholder:"STATUS" usage:"[--status STATUS]" help:"Jobs of this status: ${statuses}."`
	Type          string `name:"type" placeholder:"TYPE" usage:"[--type TYPE]" help:"Jobs of this type."`
	BusinessKey   string `placeholder:"KEY" help:"Jobs with this business key."`
	KeyPrefix     string `placeholder:"TEXT" help:"Jobs whose keys begin so."`
	CreatedAfter  moment `placeholder:"TIME" help:"Jobs that were accepted since: an RFC 3339 time, or how long ago, such as 24h."`
	CreatedBefore moment `placeholder:"TIME" help:"Jobs that were accepted before: likewise."`
}

// moment is a time that may be given as a span before now.
type moment struct{ time.Time }

// UnmarshalText reads a time or a span. One that is negative is a time to come: all
// jobs were accepted before it, and who writes so means the past.
func (m *moment) UnmarshalText(text []byte) error {
	if ago, err := time.ParseDuration(string(text)); err == nil {
		if ago < 0 {
			return &usageError{notNegative + ": 24h is 24 hours ago"}
		}
		m.Time = time.Now().Add(-ago).UTC()
		return nil
	}
	at, err := time.Parse(time.RFC3339, string(text))
	if err != nil {
		return &usageError{"must be an RFC 3339 time such as " + exampleTime + ", or how long ago, such as 24h"}
	}
	m.Time = at.UTC()
	return nil
}

// each lists the filters that are given, by the names of their parameters.
func (f filterFlags) each() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for _, one := range []struct{ name, value string }{
			{"status", f.Status},
			{"type", f.Type},
			{"business_key", f.BusinessKey},
			{"key_prefix", f.KeyPrefix},
			{"created_after", f.CreatedAfter.text()},
			{"created_before", f.CreatedBefore.text()},
		} {
			if one.value != "" && !yield(one.name, one.value) {
				return
			}
		}
	}
}

func (m moment) text() string {
	if m.IsZero() {
		return ""
	}
	return m.Format(time.RFC3339Nano)
}

// given reports whether there is any filter.
func (f filterFlags) given() bool { return f != filterFlags{} }

func (f filterFlags) query() url.Values {
	query := url.Values{}
	for name, value := range f.each() {
		query.Set(name, value)
	}
	return query
}

// words are the filters as they are typed. Times are fixed ones: who goes on later
// means the same jobs.
func (f filterFlags) words() string {
	text := ""
	for name, value := range f.each() {
		text += " --" + flagName(name) + "=" + shellWord(value)
	}
	return text
}

// page is one page of a list; more says that another one follows.
type page struct {
	jobs []listed
	more bool
}

// pageSize is the most that a gateway lists at once.
const pageSize = 200

// pages walks the list, the newest job first; most is how many jobs are wanted, 0
// means all. Jobs that are accepted meanwhile are not among them.
func (f clientFlags) pages(ctx context.Context, gateway asker, query url.Values, most int) iter.Seq2[page, error] {
	return func(yield func(page, error) bool) {
		for seen := 0; ; {
			limit := pageSize
			if most > 0 {
				limit = min(limit, most-seen)
			}
			query.Set("limit", strconv.Itoa(limit))
			p, cursor, err := f.page(ctx, gateway, query)
			seen += len(p.jobs)
			if !yield(p, err) || err != nil || cursor == "" || seen == most {
				return
			}
			query.Set("cursor", cursor)
		}
	}
}

func (f clientFlags) page(ctx context.Context, gateway asker, query url.Values) (page, string, error) {
	got, err := gateway.Do(ctx, client.Request{Method: http.MethodGet, Path: "/jobs", Query: query})
	if err != nil {
		return page{}, "", f.explained(ctx, err)
	}
	var document struct {
		Jobs   []json.RawMessage
		Cursor *string `json:"next_cursor"`
	}
	if err := f.decoded(got, &document); err != nil {
		return page{}, "", err
	}
	p := page{jobs: make([]listed, len(document.Jobs)), more: document.Cursor != nil}
	for i, raw := range document.Jobs {
		p.jobs[i].raw = raw
		if err := json.Unmarshal(raw, &p.jobs[i].Job); err != nil {
			return page{}, "", f.noGateway(err)
		}
	}
	if !p.more {
		return p, "", nil
	}
	return p, *document.Cursor, nil
}
