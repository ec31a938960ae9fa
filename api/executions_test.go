package api_test

import (
	"encoding/json"
	"errors"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/job"
)

func kindOf(t job.Type) string {
	return map[job.Type]string{"t": "remote", "u": "remote", "own": "http"}[t]
}

func TestContract_Row104_DecodeExecutionClaim(t *testing.T) {
	t.Parallel()
	claim, err := api.DecodeExecutionClaim([]byte(`{"worker":"w 1","types":["u","t","u"],"max":100,"wait_seconds":60}`), kindOf)
	if err != nil || claim.Worker != "w 1" || !slices.Equal(claim.Types, []job.Type{"u", "t"}) || claim.Max != 100 || claim.Wait != time.Minute {
		t.Errorf("%+v, %v", claim, err)
	}
	claim, err = api.DecodeExecutionClaim([]byte(`{"worker":"w","types":["t"],"max":null}`), kindOf)
	if err != nil || claim.Max != 1 || claim.Wait != 0 {
		t.Errorf("%+v, %v", claim, err)
	}
	for body, want := range map[string][]string{
		`{}`: {"/types required", "/worker required"},
		`{"worker":"w","types":["own","t","none"]}`:              {"/types/0 remote", "/types/2 configured"},
		`{"worker":"w","types":[]}`:                              {"/types length"},
		`{"worker":"w","types":["t"],"max":0,"wait_seconds":61}`: {"/max range", "/wait_seconds range"},
		`{"worker":"é","types":["t"]}`:                           {"/worker charset"},
		`{"worker":"w","types":["t"],"worker":"w"}`:              {"json"},
		`{"worker":"w","types":["t"]`:                            {"json"},
		``:                                                       {"json"},
	} {
		if _, err := api.DecodeExecutionClaim([]byte(body), kindOf); !slices.Equal(refused(err), want) {
			t.Errorf("%s: %v, want %v", body, refused(err), want)
		}
	}
}

func TestContract_Row106_DecodeExecutionCompletion(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		`{"lease_token":"1.x"}`: "none", `{"lease_token":"1.x","result":null}`: "none",
		`{"lease_token":"1.x","result":{ "b" : 1.50,"a":9007199254740993}}`: `{ "b" : 1.50,"a":9007199254740993}`, `{"lease_token":"1.x","result":""}`: `""`,
	} {
		token, result, err := api.DecodeExecutionCompletion([]byte(body), 40)
		got := "none"
		if result != nil {
			got = string(result.Body)
		}
		if err != nil || token != "1.x" || got != want {
			t.Errorf("%s: %q %s, %v", body, token, got, err)
		}
	}
	_, _, err := api.DecodeExecutionCompletion([]byte(`{"lease_token":"1.x","result":"`+strings.Repeat("x", 39)+`"}`), 40)
	tooLarge := (*api.TooLargeError)(nil)
	if !errors.As(err, &tooLarge) || tooLarge.Limit != 40 || !strings.Contains(tooLarge.Detail, "limits.result") {
		t.Errorf("%v", err)
	}
	if _, _, err := api.DecodeExecutionCompletion([]byte(`{"result":1}`), 40); !slices.Equal(refused(err), []string{"/lease_token required"}) {
		t.Errorf("%v", err)
	}
}

func TestContract_Row107_DecodeExecutionFailure(t *testing.T) {
	t.Parallel()
	token, e, err := api.DecodeExecutionFailure([]byte(`{"lease_token":"1.x","error":"on fire","retryable":false,"retry_after_seconds":5}`))
	if err != nil || token != "1.x" || e.Code != "worker-error" || e.Detail != "on fire" || !e.Permanent || e.After != 5*time.Second || e.Unknown {
		t.Errorf("%q %+v, %v", token, e, err)
	}
	if _, e, err = api.DecodeExecutionFailure([]byte(`{"lease_token":"1.x","error":"x"}`)); err != nil || e.Permanent || e.After != 0 {
		t.Errorf("%+v, %v", e, err)
	}
	for body, want := range map[string][]string{
		`{"lease_token":"1.x"}`: {"/error required"},
		`{"lease_token":"1.x","error":"` + strings.Repeat("é", 2049) + `"}`: {"/error length"},
		`{"lease_token":"1.x","error":"x","retryable":1}`:                   {"/retryable kind"},
		`{"lease_token":"` + strings.Repeat("x", 201) + `","error":"x"}`:    {"/lease_token length"},
	} {
		if _, _, err := api.DecodeExecutionFailure([]byte(body)); !slices.Equal(refused(err), want) {
			t.Errorf("%.60s: %v, want %v", body, refused(err), want)
		}
	}
}

// A payload comes to the worker byte for byte, also one that looks like the document
// around it.
func TestFailure_BR85_WriteExecutionsKeepsPayloads(t *testing.T) {
	t.Parallel()
	payloads := []string{`{ "n" : 1.50 }`, `null`, `{"payload":null,"lease_token":"x"}`, `",\"payload\":null"`}
	var handed []job.Handed
	for _, payload := range payloads {
		j := job.Job{Key: `,"payload":null`, Type: "t", Payload: []byte(payload), ClaimedAt: time.Unix(0, 0), Timeout: time.Minute}
		handed = append(handed, job.Handed{Claimed: job.Claimed{Job: j, Lease: job.Lease{Token: 7}}, LeaseToken: "7.mac", LeaseFor: 30 * time.Second})
	}
	w := httptest.NewRecorder()
	api.WriteExecutions(w, handed)
	var list struct {
		Executions []struct {
			Key      string
			Payload  json.RawMessage
			Token    string `json:"lease_token"`
			Deadline time.Time
			Left     int `json:"lease_ms"`
		}
	}
	if err := json.Unmarshal(w.Body.Bytes(), &list); err != nil || len(list.Executions) != len(payloads) {
		t.Fatalf("%s: %v", w.Body, err)
	}
	for i, e := range list.Executions {
		if string(e.Payload) != payloads[i] || e.Token != "7.mac" || e.Left != 30000 || !e.Deadline.Equal(time.Unix(60, 0)) {
			t.Errorf("%+v, want the payload %s", e, payloads[i])
		}
	}
	empty := httptest.NewRecorder()
	api.WriteExecutions(empty, nil)
	if got := empty.Body.String(); got != "{\"executions\":[]}\n" {
		t.Errorf("%s", got)
	}
}
