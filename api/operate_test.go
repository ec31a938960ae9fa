package api_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

// refused tells of an error what it points at and which rule it names.
func refused(err error) []string {
	var invalid *api.ValidationError
	var notJSON *idempotency.JSONError
	switch {
	case errors.As(err, &notJSON):
		return []string{"json"}
	case !errors.As(err, &invalid):
		return nil
	}
	var all []string
	for _, f := range invalid.Errors {
		all = append(all, f.Pointer+" "+f.Rule)
	}
	return all
}

func TestContract_Row75a_DecodeResolution(t *testing.T) {
	t.Parallel()
	for body, result := range map[string]string{
		`{"status":"succeeded"}`:               "none",
		`{"status":"succeeded","result":null}`: "none",
		`{"status":"failed","result":null}`:    "none",
		"{\"result\":{ \"b\" : 1.50,\n\"a\":9007199254740993},\"status\":\"succeeded\"}": "{ \"b\" : 1.50,\n\"a\":9007199254740993}",
		`{"status":"succeeded","result":false}`:                                          "false",
		`{"status":"succeeded","result":""}`:                                             `""`,
	} {
		status, r, err := api.DecodeResolution([]byte(body))
		got := "none"
		if r != nil {
			got = string(r.Body)
			if r.MediaType != "application/json" {
				t.Errorf("%s: media type %q", body, r.MediaType)
			}
		}
		if err != nil || got != result || !strings.Contains(body, string(status)) {
			t.Errorf("%s: %s with %s, %v", body, status, got, err)
		}
	}
	for body, want := range map[string][]string{
		`{}`:                             {"/status required"},
		`{"status":null}`:                {"/status required"},
		`{"status":""}`:                  {"/status one_of"},
		`{"status":"cancelled"}`:         {"/status one_of"},
		`{"status":5}`:                   {"/status kind"},
		`{"status":"failed","result":1}`: {"/result exclusive"},
		`{"status":"failed","status":"succeeded"}`:       {"/status duplicate"},
		`{"status":"succeeded","Status":"x","why":"it"}`: {"/Status unknown", "/why unknown"},
		`[]`:                      {" kind"},
		``:                        {"json"},
		`{"status":"failed"} {}`:  {"json"},
		`{"status":"succeeded",}`: {"json"},
	} {
		if _, _, err := api.DecodeResolution([]byte(body)); !slices.Equal(refused(err), want) {
			t.Errorf("%s: %q, want %q", body, refused(err), want)
		}
	}
}

func TestContract_Row75_DecodeNothing(t *testing.T) {
	t.Parallel()
	for body, want := range map[string][]string{
		``: nil, " \n": nil, `{}`: nil, ` { } `: nil,
		`{"type":"x","a":1}`: {"/a unknown", "/type unknown"},
		`null`:               {" kind"},
		`{`:                  {"json"},
		`{}{}`:               {"json"},
	} {
		err := api.DecodeNothing([]byte(body))
		if got := refused(err); !slices.Equal(got, want) || (err == nil) != (want == nil) {
			t.Errorf("%q: %q, want %q", body, got, want)
		}
	}
}

func TestDocument_IsTheJob(t *testing.T) {
	t.Parallel()
	j := finishedJob()
	if got, want := string(api.Document(j)), strings.TrimSuffix(written(j), "\n"); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := string(api.Document(job.Job{Payload: []byte(`{ }`)})); !strings.Contains(got, `"payload":{ },"result":null`) {
		t.Errorf("got %s", got)
	}
}
