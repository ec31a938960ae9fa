package api_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

func TestContract_Row77_ParsePrefer(t *testing.T) {
	t.Parallel()
	const none = time.Duration(-1)
	tests := []struct {
		name           string
		lines          []string
		wait           time.Duration
		async, minimal bool
	}{
		{"nothing", nil, none, false, false},
		{"wait", []string{"wait=5"}, 5 * time.Second, false, false},
		{"case and blanks", []string{" WAIT = 5 "}, 5 * time.Second, false, false},
		{"quoted", []string{`wait="5"`}, 5 * time.Second, false, false},
		{"parameters", []string{`wait=5; foo="a,b;c"; bar, respond-async`}, 5 * time.Second, true, false},
		{"one line", []string{"respond-async, wait=100, return=minimal"}, 100 * time.Second, true, true},
		{"several lines", []string{"respond-async", "wait=1", "return=minimal"}, time.Second, true, true},
		{"first counts", []string{"wait=1, wait=9", "wait=8"}, time.Second, false, false},
		{"malformed does not count as first", []string{"wait=x, wait=9"}, 9 * time.Second, false, false},
		{"zero", []string{"wait=0"}, 0, false, false},
		{"beyond int64", []string{"wait=99999999999999999999"}, 1_000_000 * time.Second, false, false},
		{"negative", []string{"wait=-1"}, none, false, false},
		{"fraction", []string{"wait=1.5"}, none, false, false},
		{"without value", []string{"wait"}, none, false, false},
		{"unclosed quote", []string{`wait="5, respond-async`}, none, false, false},
		{"not a token", []string{"w(ait=5, respond-async"}, none, true, false},
		{"other return", []string{"return=representation, return=minimal"}, none, false, false},
		{"unknown", []string{"handling=lenient, , ;"}, none, false, false},
		{"async with a value", []string{"respond-async=no"}, none, false, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := api.ParsePrefer(tt.lines)
			wait := none
			if p.Wait != nil {
				wait = *p.Wait
			}
			if wait != tt.wait || p.Async != tt.async || p.Minimal != tt.minimal {
				t.Errorf("got wait %s, async %t, minimal %t", wait, p.Async, p.Minimal)
			}
		})
	}
}

func FuzzParsePrefer(f *testing.F) {
	f.Add(`wait=5;a="\"", return=minimal`)
	f.Add(`"\`)
	f.Fuzz(func(t *testing.T, line string) {
		if wait, _ := api.ParsePrefer([]string{line}).Grant(time.Minute); wait < 0 || wait > time.Minute {
			t.Errorf("%q grants %s", line, wait)
		}
	})
}

func TestFailure_BR40_ParseWait(t *testing.T) {
	t.Parallel()
	for query, want := range map[string]string{
		"": "", "wait=": "", "wait=7": "7s", "wait=9223372036854775808": "277h46m40s",
		"wait=-1": "error", "wait=abc": "error", "wait=1&wait=1": "error", "wait=1.5": "error",
	} {
		values, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		wait, err := api.ParseWait(values)
		got := ""
		switch {
		case err != nil:
			got = "error"
		case wait != nil:
			got = wait.String()
		}
		if got != want {
			t.Errorf("%q: got %q, want %q", query, got, want)
		}
	}
}

func TestContract_Row111_DecodeFilter(t *testing.T) {
	t.Parallel()
	got, err := api.DecodeFilter("status=failed&type=a&business_key=42&key_prefix=order-&created_after=2026-03-01T13:00:00%2B01:00&created_before=&limit=7", "acme")
	want := job.Filter{Tenant: "acme", Status: job.Failed, Type: "a", BusinessKey: "42", KeyPrefix: "order-", CreatedAfter: now, Limit: 7}
	if err != nil || got != want {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	if got, err := api.DecodeFilter("", "acme"); err != nil || got.Limit != 50 {
		t.Errorf("default limit is %d, %v; want 50", got.Limit, err)
	}
}

func TestContract_Row112_DecodeFilterRefused(t *testing.T) {
	t.Parallel()
	tests := []struct{ query, pointer string }{
		{"limit=0", "?limit"},
		{"limit=-1", "?limit"},
		{"limit=201", "?limit"},
		{"limit=1e9", "?limit"},
		{"limit=9223372036854775808", "?limit"},
		{"limit=abc", "?limit"},
		{"limit=1&limit=2", "?limit"},
		{"status=running", "?status"},
		{"status=%00", "?status"},
		{"type=a%00", "?type"},
		{"business_key=%FF", "?business_key"},
		{"key_prefix=" + strings.Repeat("k", 256), "?key_prefix"},
		{"created_after=yesterday", "?created_after"},
		{"created_before=9999-12-31T23:59:59-23:00", "?created_before"},
		{"created_after=0000-01-01T00:00:00%2B23:00", "?created_after"},
		{"created_after=2026-03-01T12:00:00+01:00", "?created_after"},
		{"cursor=%C3%28", "?cursor"},
		{"cursor=AAAA", "?cursor"},
		{"page=2", "?page"},
		{"%FF=1", "??"},
		{"a=%zz", "?"},
		{"a;b", "?"},
	}
	for _, tt := range tests {
		t.Run(tt.query[:min(len(tt.query), 40)], func(t *testing.T) {
			t.Parallel()
			_, err := api.DecodeFilter(tt.query, "acme")
			var e *api.ValidationError
			if !errors.As(err, &e) || len(e.Errors) != 1 || e.Errors[0].Pointer != tt.pointer {
				t.Errorf("got %v, want one error at %s", err, tt.pointer)
			}
		})
	}
}

func TestFailure_BR41_Cursor(t *testing.T) {
	t.Parallel()
	const last = job.ID("01987654-0000-7000-8000-000000000001")
	filter := job.Filter{Tenant: "acme", Status: job.Failed, Limit: 7}
	cursor := api.Cursor(last, filter)

	if got, err := api.DecodeFilter("status=failed&limit=9&cursor="+cursor, "acme"); err != nil || got.Before != last {
		t.Errorf("got %q, %v; want the page after %s, of any size", got.Before, err, last)
	}
	refused := map[string]string{"other filters": "cursor=" + cursor, "more filters": "status=failed&type=a&cursor=" + cursor}
	for i := range cursor {
		changed := []byte(cursor)
		changed[i] = 'A' + (changed[i]-'A'+1)%26
		refused["changed byte "+string(changed)] = "status=failed&cursor=" + string(changed)
	}
	for name, query := range refused {
		if _, err := api.DecodeFilter(query, "acme"); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := api.DecodeFilter("status=failed&cursor="+cursor, "other"); err == nil {
		t.Error("another tenant's cursor is accepted")
	}
}

func TestContract_Row87_NoneMatch(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]bool{
		``: false, `"4"`: true, `W/"4"`: true, `*`: true, ` * `: true, `"1", "4"`: true, `"1","2"`: false,
		`4`: false, `"4`: false, `"x,y", W/"4"`: true, `"44"`: false, `garbage, "4"`: false,
	} {
		r := httptest.NewRequest("GET", "/", nil)
		if value != "" {
			r.Header.Set("If-None-Match", value)
		}
		if got := api.NoneMatch(r, api.JobETag(job.Job{Version: 4})); got != want {
			t.Errorf("%s: got %t", value, got)
		}
	}
}

func TestContract_Row29_WriteRecord(t *testing.T) {
	t.Parallel()
	req := idempotency.Request{Key: `a"b`}
	rec := idempotency.Record{
		Request: req, ExpiresAt: now,
		Response: idempotency.Response{Status: 201, Body: []byte("{ }"), Header: http.Header{
			"Content-Type": {"application/json"}, "Location": {"/x"}, "Etag": {`"1"`}, "Link": {"<a>", "<b>"},
			"Set-Cookie": {"s=1"}, "Authorization": {"x"}, "Retry-After": {"9"}, "Date": {"then"}, "X-Request-Id": {"old"}, "Content-Length": {"99"},
		}},
	}
	w := httptest.NewRecorder()
	api.WriteRecord(w, req, rec, false)
	if w.Code != 201 || w.Body.String() != "{ }" {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
	want := http.Header{
		"Content-Type": {"application/json"}, "Location": {"/x"}, "Etag": {`"1"`}, "Link": {"<a>", "<b>"}, "Content-Length": {"3"}, "X-Content-Type-Options": {"nosniff"},
		"Idempotency-Key": {`"a\"b"`}, "Idempotent-Replayed": {"true"}, "Idempotency-Expires": {"2026-03-01T12:00:00Z"},
	}
	if len(w.Header()) != len(want) {
		t.Errorf("headers are %v", w.Header())
	}
	for name, values := range want {
		if strings.Join(w.Header()[name], "|") != strings.Join(values, "|") {
			t.Errorf("%s is %q, want %q", name, w.Header()[name], values)
		}
	}
	t.Run("first answer, minimal, error", func(t *testing.T) {
		t.Parallel()
		first := idempotency.Record{Fresh: true, Response: idempotency.Response{Status: 402, Body: []byte("x")}}
		w := httptest.NewRecorder()
		api.WriteRecord(w, req, first, true)
		h := w.Header()
		if w.Body.Len() != 0 || h.Get("Idempotent-Replayed") != "false" || h.Get("Error-Source") != "handler" || h.Get("Idempotency-Expires") != "" {
			t.Errorf("got %q, %v", w.Body, h)
		}
	})
}
