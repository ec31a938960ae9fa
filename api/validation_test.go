package api_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/job"
)

// details are what an error says, with the place.
func details(err error) []string {
	var invalid *api.ValidationError
	errors.As(err, &invalid)
	var all []string
	for i := 0; invalid != nil && i < len(invalid.Errors); i++ {
		all = append(all, invalid.Errors[i].Pointer+" "+invalid.Errors[i].Detail)
	}
	return all
}

func TestDecodeBatch_SaysWhatWasGiven(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		` {"key":"hush"}`: " must be a JSON array of submissions, not an object",
		`"hush"`:          " must be a JSON array of submissions, not a string",
		`7`:               " must be a JSON array of submissions, not 7",
	} {
		if _, err := api.DecodeBatch([]byte(body), "application/json", batchRule()); !slices.Equal(details(err), []string{want}) {
			t.Errorf("%s: %q, want %q", body, details(err), want)
		}
	}
	for item, want := range map[string]string{
		`{"key":["hush"],"type":"echo"}`: "/key must be a string, not an array",
		`["hush"]`:                       " must be a JSON object, not an array",
		`{"key":"a","type":"echo","priority":"hush"}`:  "/priority must be an integer from -100 to 100, not a string",
		`{"key":"a","type":"echo","max_attempts":1e3}`: "/max_attempts must be an integer from 1 to 1000, not 1e3",
	} {
		items, err := api.DecodeBatch([]byte(item), ndjson, batchRule())
		if err != nil || len(items) != 1 {
			t.Fatal(item, err)
		}
		if got := details(cmpOr(items[0].Err, items[0].Refusal)); !slices.Equal(got, []string{want}) {
			t.Errorf("%s: %q, want %q", item, got, want)
		}
	}
}

func TestFailure_BR33_ALineOfABatchIsOneValue(t *testing.T) {
	t.Parallel()
	for _, line := range []string{`{"key":"a","type":"echo"} {}`, `{"key":"a","type":"echo"}garbage`, `{"key":"a","type":"echo"},`, "\xef\xbb\xbf{}"} {
		items, err := api.DecodeBatch([]byte(line+"\n"+`{"key":"b","type":"echo"}`), ndjson, batchRule())
		if got := outline(items); err != nil || len(got) != 2 || !strings.Contains(got[0], "validation-failed") || !strings.HasSuffix(got[0], " json") || got[1] != "b" {
			t.Errorf("%s: %q, %v", line, got, err)
		}
	}
}

func TestDecodeResolution_SaysWhatWasGiven(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		`{"status":"hush"}`:           "/status must be succeeded or failed, not another string",
		`{"status":{"hush":1}}`:       "/status must be succeeded or failed, not an object",
		`{"status":null}`:             "/status must be given: succeeded or failed, not null",
		`"hush"`:                      " must be a JSON object, not a string",
		`{"status":"failed","why":1}`: "/why is not a member of a resolution",
	} {
		if _, _, err := api.DecodeResolution([]byte(body)); !slices.Equal(details(err), []string{want}) {
			t.Errorf("%s: %q, want %q", body, details(err), want)
		}
	}
}

// problemWritten is the problem document of an error, as a client gets it.
func problemWritten(t *testing.T, err error) (p api.Problem) {
	t.Helper()
	w := httptest.NewRecorder()
	api.WriteError(w, httptest.NewRequest("POST", "/jobs", nil), err)
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || w.Code != p.Status {
		t.Fatalf("%d %s: %v", w.Code, w.Body, err)
	}
	return p
}

func TestContract_Row69_PayloadsThatDoNotFit(t *testing.T) {
	t.Parallel()
	refused := &job.PayloadError{Violations: []job.Violation{
		{Pointer: "", Rule: "type", Detail: "must be an object, not null"}, {Pointer: "/a~1b/0", Rule: "min_length", Detail: "must have at least 1 character, not 0"},
	}}
	p := problemWritten(t, fmt.Errorf("submit: %w", refused))
	want := []api.FieldError{
		{Pointer: "/payload", Rule: "type", Detail: "must be an object, not null"},
		{Pointer: "/payload/a~1b/0", Rule: "min_length", Detail: "must have at least 1 character, not 0"},
	}
	if p.Status != 400 || p.Code != "validation-failed" || p.Retryable || !slices.Equal(p.Errors, want) {
		t.Errorf("%+v", p)
	}
}

func TestContract_Row69_ManyErrorsAreCounted(t *testing.T) {
	t.Parallel()
	for n, detail := range map[int]string{32: "See errors", 33: "33 things are wrong, of which errors lists the first 32.", 5000: "5000 things are wrong"} {
		refused := &job.PayloadError{}
		for i := range n {
			refused.Violations = append(refused.Violations, job.Violation{Pointer: fmt.Sprintf("/%05d", i), Rule: "type", Detail: "must be a string"})
		}
		p := problemWritten(t, refused)
		if len(p.Errors) != 32 || p.Errors[31].Pointer != "/payload/00031" || !strings.HasPrefix(p.Detail, detail) {
			t.Errorf("%d: %d errors, %s", n, len(p.Errors), p.Detail)
		}
	}
}
