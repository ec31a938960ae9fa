package api_test

import (
	"bytes"
	"encoding/json"
	"net/http/httptest"
	"net/url"
	"reflect"
	"testing"
	"time"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

func finishedJob() job.Job {
	return job.Job{
		ID: "01987654-0000-7000-8000-000000000001", Tenant: "default", Key: "order-42", Type: "invoice_generate",
		Status: job.Succeeded, Payload: []byte(`{ "a" : 1.0 }`), BusinessKey: `4","error":2`, OperationKey: "evt:1",
		RunAt: now, MaxAttempts: 10, Attempts: 2, Generation: 1, Version: 4, WorkerID: "w1",
		LastError: &job.Failure{Code: "timeout", Detail: "The attempt took too long.", Attempt: 1},
		Outcome:   job.DuplicateIgnored, DuplicateOf: "order-41",
		Result:    &job.Result{Body: []byte("{\"html\":\"<b>\", \"n\": 9007199254740993}\n"), MediaType: "application/json; charset=utf-8"},
		CreatedAt: now, StartedAt: now.Add(time.Second), FinishedAt: now.Add(1500 * time.Millisecond), ExpiresAt: now.Add(time.Hour),
	}
}

// The document of contract section G, member for member and in that order.
func TestWriteJob_IsTheDocument(t *testing.T) {
	t.Parallel()
	const want = `{"id":"01987654-0000-7000-8000-000000000001","key":"order-42","type":"invoice_generate","status":"succeeded",` +
		`"attempts":2,"max_attempts":10,"generation":1,"version":4,"business_key":"4\",\"error\":2","operation_key":"evt:1","priority":0,` +
		`"payload":{ "a" : 1.0 },"result":{"html":"<b>", "n": 9007199254740993}` + "\n" +
		`,"error":{"code":"timeout","detail":"The attempt took too long.","attempt":1},"outcome":"duplicate_ignored","duplicate_of":"order-41",` +
		`"created_at":"2026-03-01T12:00:00Z","run_at":"2026-03-01T12:00:00Z","started_at":"2026-03-01T12:00:01Z",` +
		`"finished_at":"2026-03-01T12:00:01.5Z","next_attempt_at":null,"worker_id":"w1","expires_at":"2026-03-01T13:00:00Z"}` + "\n"
	if got := written(finishedJob()); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func written(j job.Job) string {
	w := httptest.NewRecorder()
	api.WriteJob(w, 200, j)
	return w.Body.String()
}

func TestFailure_BR85_BodiesComeBackByteForByte(t *testing.T) {
	t.Parallel()
	for _, text := range []string{`{"b":1, "a":[ ]}`, `[1,2.50]`, `"\u003c<\u0000"`, `1e400`, `null`, `false`, ` 0 `} {
		j := finishedJob()
		j.Payload = []byte(text)
		j.Result = &job.Result{Body: []byte(text), MediaType: "application/json"}
		var doc api.Job
		got := []byte(written(j))
		if err := json.Unmarshal(got, &doc); err != nil {
			t.Fatalf("%s: %v", got, err)
		}
		if !bytes.Contains(got, []byte(`"payload":`+text+`,"result":`+text+`,"error"`)) {
			t.Errorf("%s does not hold %s as it came", got, text)
		}
	}
}

func TestFromJob_ResultThatIsNoJSON(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		result *job.Result
		want   string
	}{
		{"none", nil, "null"},
		{"text", &job.Result{Body: []byte("1"), MediaType: "text/plain"}, "null"},
		{"broken JSON", &job.Result{Body: []byte("{"), MediaType: "application/json"}, "null"},
		{"empty", &job.Result{MediaType: "application/json"}, "null"},
		{"invalid UTF-8", &job.Result{Body: []byte("\"\xff\""), MediaType: "application/json"}, "null"},
		{"+json", &job.Result{Body: []byte("1"), MediaType: "application/vnd.x+json"}, "1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := api.FromJob(job.Job{Result: tt.result}, true).Result; string(got) != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

func TestContract_Row64_AcceptedIsPureAndWithoutBodies(t *testing.T) {
	t.Parallel()
	j := finishedJob()
	j.Key = "a/b c"
	first, second := api.Accepted(j), api.Accepted(j)
	if !reflect.DeepEqual(first, second) {
		t.Error("two renderings differ")
	}
	if first.Status != 202 || first.Header.Get("Location") != "/jobs/a%2Fb%20c" || first.Header.Get("Content-Type") != "application/json" {
		t.Errorf("got %d %v", first.Status, first.Header)
	}
	var members map[string]any
	if err := json.Unmarshal(first.Body, &members); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"payload", "result"} {
		if _, found := members[name]; found {
			t.Errorf("the stored answer has a %s", name)
		}
	}
	if members["key"] != "a/b c" || len(members) != 21 {
		t.Errorf("got %d members: %v", len(members), members)
	}
}

func TestContract_Row94_JobURL(t *testing.T) {
	t.Parallel()
	for key, want := range map[idempotency.Key]string{
		"order-42": "/jobs/order-42", "a/b": "/jobs/a%2Fb", "a b": "/jobs/a%20b", "50%": "/jobs/50%25",
		"a?b#c": "/jobs/a%3Fb%23c", `"`: "/jobs/%22", "a;b,c": "/jobs/a%3Bb%2Cc", "...": "/jobs/...",
	} {
		got := api.JobURL(key)
		if got != want {
			t.Errorf("%q: got %s, want %s", key, got, want)
		}
		if u, err := url.ParseRequestURI(got); err != nil || u.Path != "/jobs/"+string(key) || u.EscapedPath() != got {
			t.Errorf("%q: %s does not lead back: %v, %v", key, got, u, err)
		}
	}
}

func TestFromJobs_EmptyPage(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	api.WriteJSON(w, 200, api.FromJobs(nil, ""))
	if got := w.Body.String(); got != `{"jobs":[],"next_cursor":null}`+"\n" {
		t.Errorf("got %s", got)
	}
}

func TestRetryAfter_GrowsWithAge(t *testing.T) {
	t.Parallel()
	last := time.Duration(0)
	for _, age := range []time.Duration{-time.Second, 0, 10 * time.Second, 20 * time.Second, 45 * time.Second, time.Hour} {
		wait := api.RetryAfter(job.Job{CreatedAt: now}, now.Add(age))
		if wait < last || wait < time.Second || wait > 5*time.Second {
			t.Errorf("age %s: %s after %s", age, wait, last)
		}
		last = wait
	}
	if last != 5*time.Second {
		t.Errorf("an old job is asked for every %s, want 5s", last)
	}
}
