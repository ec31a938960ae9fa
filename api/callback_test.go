package api_test

import (
	"strings"
	"testing"
	"time"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/job"
)

func TestCallbackOf(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 1, 12, 0, 3, 120_000_000, time.UTC)
	j := job.Job{
		ID: "0198f000-0000-7000-8000-000000000001", Tenant: "acme", Key: "a/b", Type: "pay", Status: job.Succeeded, Payload: []byte(`"secret"`),
		Attempts: 2, Generation: 1, Version: 5, CallbackURL: "https://shop.example/", CreatedAt: at.Add(-time.Second), FinishedAt: at,
	}
	const head = `{"type":"job.succeeded","timestamp":"2026-03-01T12:00:04.12Z","data":{"url":"/jobs/a%2Fb","id":"0198f000-0000-7000-8000-000000000001",` +
		`"key":"a/b","type":"pay","business_key":null,"status":"succeeded","attempts":2,"generation":1,"version":5,"outcome":null,"duplicate_of":null,` +
		`"error":null,"created_at":"2026-03-01T12:00:02.12Z","finished_at":"2026-03-01T12:00:03.12Z","result":`
	for name, tt := range map[string]struct {
		result *job.Result
		want   string
	}{
		"none":            {nil, "null"},
		"byte for byte":   {&job.Result{Body: []byte(`{ "a" : 1.50, "b":"<é> null}}" }`), MediaType: "application/json"}, `{ "a" : 1.50, "b":"<é> null}}" }`},
		"null":            {&job.Result{Body: []byte(`null`), MediaType: "application/json"}, "null"},
		"text":            {&job.Result{Body: []byte(`7`), MediaType: "text/plain"}, "null"},
		"no JSON, really": {&job.Result{Body: []byte(`{"a":`), MediaType: "application/json"}, "null"},
	} {
		j.Result = tt.result
		if got := string(api.CallbackOf(j, at.Add(time.Second))); got != head+tt.want+"}}" {
			t.Errorf("%s:\n got %s\nwant %s", name, got, head+tt.want+"}}")
		}
	}
	j.Status, j.LastError, j.Outcome, j.Result = job.Failed, &job.Failure{Code: "timeout", Detail: "too long", Attempt: 2}, job.OutcomeUnknown, nil
	got := string(api.CallbackOf(j, at))
	for _, want := range []string{`"type":"job.failed"`, `"error":{"code":"timeout","detail":"too long","attempt":2}`, `"outcome":"outcome_unknown"`} {
		if !strings.Contains(got, want) {
			t.Errorf("%s lacks %s", got, want)
		}
	}
}
