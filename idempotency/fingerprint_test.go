package idempotency_test

import (
	"net/url"
	"testing"

	"github.com/sekali/sekali/idempotency"
)

func fingerprint(method, path, query, mediaType, body string) idempotency.Fingerprint {
	values, err := url.ParseQuery(query)
	if err != nil {
		panic(err)
	}
	return idempotency.NewFingerprint(method, path, values, mediaType, []byte(body))
}

func TestContract_Row25_FingerprintNamesTheDifferingPart(t *testing.T) {
	t.Parallel()
	first := fingerprint("POST", "/jobs", "a=1&b=2", "application/json", "{}")
	tests := []struct {
		name  string
		other idempotency.Fingerprint
		part  string
	}{
		{"the same", fingerprint("POST", "/jobs", "a=1&b=2", "application/json", "{}"), ""},
		{"order of parameters", fingerprint("POST", "/jobs", "b=2&a=1", "application/json", "{}"), ""},
		{"method", fingerprint("PUT", "/jobs", "a=1&b=2", "application/json", "{}"), idempotency.PartTarget},
		{"path", fingerprint("POST", "/job", "a=1&b=2", "application/json", "{}"), idempotency.PartTarget},
		{"parameter", fingerprint("POST", "/jobs", "a=1&b=3", "application/json", "{}"), idempotency.PartTarget},
		{"media type", fingerprint("POST", "/jobs", "a=1&b=2", "text/plain", "{}"), idempotency.PartBody},
		{"body", fingerprint("POST", "/jobs", "a=1&b=2", "application/json", "[]"), idempotency.PartBody},
		{"both", fingerprint("POST", "/x", "", "", ""), idempotency.PartTarget},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if part := first.Differs(tt.other); part != tt.part {
				t.Errorf("differs in %q, want %q", part, tt.part)
			}
		})
	}
	if fingerprint("POST", "/", "a=1&a=2", "", "").Differs(fingerprint("POST", "/", "a=2&a=1", "", "")) == "" {
		t.Error("the order of equal names does not matter")
	}
}

// No two requests feed the hash the same bytes by moving a boundary.
func TestFingerprint_BoundariesMatter(t *testing.T) {
	t.Parallel()
	for name, pair := range map[string][2]idempotency.Fingerprint{
		"method and path":     {fingerprint("POST", "/jobs", "", "", ""), fingerprint("POST/", "jobs", "", "", "")},
		"path and query":      {fingerprint("POST", "/a", "b=c", "", ""), fingerprint("POST", "/ab", "=c", "", "")},
		"name and value":      {fingerprint("POST", "/", "ab=c", "", ""), fingerprint("POST", "/", "a=bc", "", "")},
		"media type and body": {fingerprint("POST", "/", "", "text", "/plain"), fingerprint("POST", "/", "", "text/", "plain")},
	} {
		if pair[0].Differs(pair[1]) == "" {
			t.Errorf("%s: two requests are one", name)
		}
	}
}

func TestFingerprint_StoredForm(t *testing.T) {
	t.Parallel()
	first := fingerprint("POST", "/jobs", "", "application/json", "{}")
	if got, err := idempotency.ParseFingerprint(first.Bytes()); err != nil || got != first {
		t.Errorf("got %v, %v", got, err)
	}
	other := first.Bytes()
	other[0]++
	for name, stored := range map[string][]byte{"empty": nil, "short": first.Bytes()[1:], "long": append(first.Bytes(), 0), "other version": other} {
		if _, err := idempotency.ParseFingerprint(stored); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
