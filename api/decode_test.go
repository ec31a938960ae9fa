package api_test

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func TestDecodeDraft_Accepted(t *testing.T) {
	t.Parallel()
	number := func(n int) *int { return &n }
	hour := time.Hour
	tests := []struct {
		name, body string
		want       job.Draft
	}{
		{"type alone", `{"type":"echo"}`, job.Draft{Type: "echo"}},
		{
			"every member", `{"type":"echo","payload":{"a":1},"business_key":"42","delay_seconds":60,"priority":-5,"max_attempts":3,"timeout_seconds":3600,"callback_url":"https://x/y"}`,
			job.Draft{Type: "echo", Payload: []byte(`{"a":1}`), BusinessKey: "42", Delay: time.Minute, Priority: number(-5), MaxAttempts: number(3), Timeout: &hour, CallbackURL: "https://x/y"},
		},
		{
			"null is absent", `{"type":"echo","payload":null,"business_key":null,"run_at":null,"delay_seconds":null,"priority":null,"max_attempts":null,"timeout_seconds":null,"callback_url":null}`,
			job.Draft{Type: "echo"},
		},
		{
			"payload keeps its bytes", "{\"type\":\"echo\",\"payload\":{ \"b\" : 1.50,\n\"a\":\"\\u003c\\u0000<&>\" } }\n",
			job.Draft{Type: "echo", Payload: []byte("{ \"b\" : 1.50,\n\"a\":\"\\u003c\\u0000<&>\" }")},
		},
		{"payload keeps members that stand twice", `{"type":"echo","payload":{"a":1,"a":2}}`, job.Draft{Type: "echo", Payload: []byte(`{"a":1,"a":2}`)}},
		{"Failure_BR35 payload 0", `{"type":"echo","payload":0}`, job.Draft{Type: "echo", Payload: []byte(`0`)}},
		{"Failure_BR35 payload false", `{"type":"echo","payload":false}`, job.Draft{Type: "echo", Payload: []byte(`false`)}},
		{"Failure_BR35 empty payload", `{"type":"echo","payload":""}`, job.Draft{Type: "echo", Payload: []byte(`""`)}},
		{"Failure_BR35 priority 0", `{"type":"echo","priority":0}`, job.Draft{Type: "echo", Priority: number(0)}},
		{"Failure_BR35 delay 0", `{"type":"echo","delay_seconds":0}`, job.Draft{Type: "echo"}},
		{"Failure_BR31 backslash in the payload", `{"type":"echo","payload":{"s":"\\u0000"}}`, job.Draft{Type: "echo", Payload: []byte(`{"s":"\\u0000"}`)}},
		{"numbers beyond any type in the payload", `{"type":"echo","payload":1e131071}`, job.Draft{Type: "echo", Payload: []byte(`1e131071`)}},
		{"expiry at once", `{"type":"echo","expires_in_seconds":0}`, job.Draft{Type: "echo", ExpiresIn: duration(0)}},
		{"expiry after a year", `{"type":"echo","expires_in_seconds":31536000}`, job.Draft{Type: "echo", ExpiresIn: duration(365 * 24 * time.Hour)}},
		{"escaped name", `{"typ\u0065":"echo"}`, job.Draft{Type: "echo"}},
		{"time of another zone", `{"type":"echo","run_at":"2026-03-01T14:00:00+01:00"}`, job.Draft{Type: "echo", RunAt: now.Add(time.Hour)}},
		{"time in the past", `{"type":"echo","run_at":"0000-01-01T00:00:00Z"}`, job.Draft{Type: "echo", RunAt: time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC)}},
		{"time a year ahead", `{"type":"echo","run_at":"2027-03-01T12:00:00Z"}`, job.Draft{Type: "echo", RunAt: now.AddDate(1, 0, 0)}},
		{
			"lower bounds", `{"type":"e","business_key":"~","delay_seconds":0,"priority":-100,"max_attempts":1,"timeout_seconds":1}`,
			job.Draft{Type: "e", BusinessKey: "~", Priority: number(-100), MaxAttempts: number(1), Timeout: duration(time.Second)},
		},
		{
			"upper bounds", `{"type":"` + strings.Repeat("t", 255) + `","business_key":"` + strings.Repeat("k", 255) + `","delay_seconds":31536000,"priority":100,"max_attempts":1000,"timeout_seconds":86400}`,
			job.Draft{Type: job.Type(strings.Repeat("t", 255)), BusinessKey: strings.Repeat("k", 255), Delay: 365 * 24 * time.Hour, Priority: number(100), MaxAttempts: number(1000), Timeout: duration(24 * time.Hour)},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := api.DecodeDraft([]byte(tt.body), now)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got  %+v (payload %s)\nwant %+v (payload %s)", got, got.Payload, tt.want, tt.want.Payload)
			}
		})
	}
}

func duration(d time.Duration) *time.Duration { return &d }

func TestContract_Row69_DecodeDraftRefused(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, body string
		want       []string // pointer and rule
	}{
		{"no type", `{}`, []string{"/type required"}},
		{"type null", `{"type":null}`, []string{"/type required"}},
		{"Failure_BR35 empty type is not called absent", `{"type":""}`, []string{"/type length"}},
		{"Failure_BR35 type of another kind is not called absent", `{"type":5}`, []string{"/type kind"}},
		{"type of 256", `{"type":"` + strings.Repeat("t", 256) + `"}`, []string{"/type length"}},
		{"Failure_BR32 duplicate member", `{"type":"a","type":"b"}`, []string{"/type duplicate"}},
		{"Failure_BR32 duplicate after null", `{"type":null,"type":"b"}`, []string{"/type duplicate"}},
		{"Failure_BR32 case twin", `{"type":"a","Type":"b"}`, []string{"/Type unknown"}},
		{"Failure_BR33 null", `null`, []string{" kind"}},
		{"Failure_BR33 array", `[]`, []string{" kind"}},
		{"unknown members", `{"type":"a","state":"x","tenant":"y","a/b~":1}`, []string{"/a~1b~0 unknown", "/state unknown", "/tenant unknown"}},
		{"empty callback URL", `{"type":"a","callback_url":""}`, []string{"/callback_url length"}},
		{"callback URL of another kind", `{"type":"a","callback_url":["http://x"]}`, []string{"/callback_url kind"}},
		{"Failure_BR35 max_attempts 0", `{"type":"a","max_attempts":0}`, []string{"/max_attempts range"}},
		{"max_attempts 1001", `{"type":"a","max_attempts":1001}`, []string{"/max_attempts range"}},
		{"int64 overflow", `{"type":"a","max_attempts":9223372036854775808}`, []string{"/max_attempts range"}},
		{"fraction", `{"type":"a","max_attempts":1.5}`, []string{"/max_attempts kind"}},
		{"number as text", `{"type":"a","max_attempts":"3"}`, []string{"/max_attempts kind"}},
		{"timeout 0", `{"type":"a","timeout_seconds":0}`, []string{"/timeout_seconds range"}},
		{"timeout of a day and a second", `{"type":"a","timeout_seconds":86401}`, []string{"/timeout_seconds range"}},
		{"delay negative", `{"type":"a","delay_seconds":-1}`, []string{"/delay_seconds range"}},
		{"delay of more than a year", `{"type":"a","delay_seconds":31536001}`, []string{"/delay_seconds range"}},
		{"expiry negative", `{"type":"a","expires_in_seconds":-1}`, []string{"/expires_in_seconds range"}},
		{"expiry after more than a year", `{"type":"a","expires_in_seconds":31536001}`, []string{"/expires_in_seconds range"}},
		{"priority -101", `{"type":"a","priority":-101}`, []string{"/priority range"}},
		{"priority 101", `{"type":"a","priority":101}`, []string{"/priority range"}},
		{"business key empty", `{"type":"a","business_key":""}`, []string{"/business_key length"}},
		{"business key of 256", `{"type":"a","business_key":"` + strings.Repeat("k", 256) + `"}`, []string{"/business_key length"}},
		{"Failure_BR29 NUL in the business key", `{"type":"a","business_key":"a\u0000b"}`, []string{"/business_key charset"}},
		{"run_at more than a year ahead", `{"type":"a","run_at":"2027-03-01T12:00:01Z"}`, []string{"/run_at range"}},
		{"run_at of year 9999", `{"type":"a","run_at":"9999-12-31T23:59:59Z"}`, []string{"/run_at range"}},
		{"run_at with a bad zone", `{"type":"a","run_at":"2026-03-01T12:00:00+14:60"}`, []string{"/run_at kind"}},
		{"run_at with a comma", `{"type":"a","run_at":"2026-03-01T12:00:00,5Z"}`, []string{"/run_at kind"}},
		{"run_at on a day that is none", `{"type":"a","run_at":"2026-02-30T12:00:00Z"}`, []string{"/run_at kind"}},
		{"run_at without zone", `{"type":"a","run_at":"2026-03-01T12:00:00"}`, []string{"/run_at kind"}},
		{"run_at and delay", `{"type":"a","run_at":"2026-03-01T12:00:00Z","delay_seconds":0}`, []string{"/delay_seconds exclusive"}},
		{
			"everything at once", `{"payload":1,"priority":"x","max_attempts":0,"nope":1}`,
			[]string{"/max_attempts range", "/nope unknown", "/priority kind", "/type required"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := api.DecodeDraft([]byte(tt.body), now)
			var e *api.ValidationError
			if !errors.As(err, &e) {
				t.Fatalf("error is %v, want a *ValidationError", err)
			}
			var got []string
			for _, f := range e.Errors {
				got = append(got, f.Pointer+" "+f.Rule)
				if f.Detail == "" {
					t.Errorf("%s has no detail", f.Pointer)
				}
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestDecodeDraft_DetailNamesTheRangeAndWhatWasGiven(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("ö", 256)
	for _, tt := range []struct{ body, want string }{
		{`{"type":"a","max_attempts":0}`, "must be an integer from 1 to 1000, not 0"},
		{`{"type":"a","max_attempts":"hush"}`, "must be an integer from 1 to 1000, not a string"},
		{`{"type":"a","max_attempts":1.50}`, "must be an integer from 1 to 1000, not 1.50"},
		{`{"type":"a","max_attempts":-9223372036854775809}`, "must be an integer from 1 to 1000, not -9223372036854775809"},
		{`{"type":"a","max_attempts":123456789012345678901}`, "must be an integer from 1 to 1000, not a longer number"},
		{`{"type":"a","priority": true }`, "must be an integer from -100 to 100, not a boolean"},
		{`{"type":"a","timeout_seconds":["hush"]}`, "must be an integer from 1 to 86400, not an array"},
		{`{"type":"a","delay_seconds":{"hush":1}}`, "must be an integer from 0 to 31536000, not an object"},
		{`{"type":"a","business_key":7}`, "must be a string of 1 to 255 printable ASCII characters, not 7"},
		{`{"type":"a","business_key":""}`, "must be a string of 1 to 255 printable ASCII characters, not an empty one"},
		{`{"type":"a","business_key":"` + long + `"}`, "must be a string of 1 to 255 printable ASCII characters, not one of 256"},
		{`{"type":"a","business_key":"hush\n"}`, "must be a string of 1 to 255 printable ASCII characters, not one with others"},
		{`{"type":"` + long + `"}`, "must be the name of a job type, a string of 1 to 255 characters, not one of 256"},
		{`{"payload":1}`, "must be given: the name of a job type, a string of 1 to 255 characters"},
		{`{"type":null}`, "must be given: the name of a job type, a string of 1 to 255 characters, not null"},
		{`{"type":"a","run_at":1767225600}`, "must be an RFC 3339 time at most a year ahead, not 1767225600"},
		{`{"type":"a","run_at":"hush"}`, "must be an RFC 3339 time at most a year ahead, not another string"},
		{`{"type":"a","run_at":"2027-03-01T12:00:01Z"}`, "must be an RFC 3339 time at most a year ahead, not later"},
		{`{"type":"a","run_at":"2026-03-01T12:00:00Z","delay_seconds":1}`, "must not be given together with run_at"},
		{`{"type":"a","Type":"b"}`, "is not a member of a submission; write it as type"},
		{`{"type":"a","type":"hush"}`, "must not stand here twice"},
		{` [{"type":"hush"}]`, "must be a JSON object, not an array"},
		{`"hush"`, "must be a JSON object, not a string"},
		{`null`, "must be a JSON object, not null"},
	} {
		_, err := api.DecodeDraft([]byte(tt.body), now)
		var e *api.ValidationError
		if !errors.As(err, &e) || len(e.Errors) != 1 || e.Errors[0].Detail != tt.want {
			t.Errorf("%s\ngot  %v\nwant %s", tt.body, err, tt.want)
		}
		if err != nil && strings.Contains(err.Error(), "hush") {
			t.Errorf("%s: the error shows what a string says: %v", tt.body, err)
		}
	}
}

func TestFailure_BR33_NotOneJSONObject(t *testing.T) {
	t.Parallel()
	for _, body := range []string{``, ` `, `{`, `{"type"}`, `{"type":"a"}{"type":"b"}`, `{"type":"a"}garbage`, "\xef\xbb\xbf{}", `{"type":}`, `{,}`} {
		_, err := api.DecodeDraft([]byte(body), now)
		var e *idempotency.JSONError
		if !errors.As(err, &e) {
			t.Errorf("%q: error is %v, want a *JSONError", body, err)
		}
	}
}

// Whatever the bytes, there is a draft or an error that has a 400.
func FuzzDecodeDraft(f *testing.F) {
	for _, seed := range []string{`{"type":"a","payload":[1]}`, `{"type":5,"run_at":1}`, `{"priority":1e5}`, `[`, `{"":0}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		draft, err := api.DecodeDraft(body, now)
		var invalid *api.ValidationError
		var notJSON *idempotency.JSONError
		switch {
		case err == nil && draft.Type == "":
			t.Errorf("%q was accepted without a type", body)
		case err != nil && !errors.As(err, &invalid) && !errors.As(err, &notJSON):
			t.Errorf("%q gave %v", body, err)
		}
	})
}
