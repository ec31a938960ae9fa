package client_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sekali/sekali/client"
)

// answering is a gateway that accepts each item, unless refused says otherwise: the
// status of a problem, how often.
func answering(refused map[string][]int) step {
	return func(r *http.Request) (*http.Response, error) {
		body, err := r.GetBody()
		if err != nil {
			return nil, err
		}
		text, _ := io.ReadAll(body)
		var items []struct{ Key string }
		if err := json.Unmarshal(text, &items); err != nil {
			return nil, err
		}
		results := make([]string, len(items))
		for i, item := range items {
			key := strings.Trim(item.Key, `"`)
			results[i] = fmt.Sprintf(`{"key":%q,"status":202,"replayed":false,"job_status":"pending","job":%s}`, key, document(key, "pending"))
			if again := refused[key]; len(again) > 0 {
				refused[key] = again[1:]
				results[i] = fmt.Sprintf(`{"key":%q,"status":%d,"replayed":false,"problem":{"code":"c","status":%[2]d,"retryable":%t,"retry_after_ms":2000}}`, key, again[0], again[0] != 400)
			}
		}
		return reply(207, `{"results":[`+strings.Join(results, ",")+`]}`)(r)
	}
}

func TestSubmitBatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &double{steps: []step{fail(syscall.ECONNRESET), answering(map[string][]int{"wrong": {400}, "busy": {503, 429}, "full": {429, 429, 429, 429, 429, 429, 429, 429}})}}
		results, err := d.of(t, client.WithRetries(3)).SubmitBatch(t.Context(), []client.BatchItem{
			{Key: "a,b", Type: "pay", Payload: 1, Options: []client.SubmitOption{client.WithPriority(3)}},
			{Key: "wrong", Type: "pay"},
			{Key: "busy", Type: "pay", Payload: json.RawMessage(`{"n": 1.50}`)},
			{Key: "full", Type: "pay"},
			{Type: "pay"},
		})
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range []string{"a,b 202 pending", "wrong 400 ", "busy 202 pending", "full 429 ", results[4].Key + " 202 pending"} {
			r := results[i]
			if got := fmt.Sprintf("%s %d %s", r.Key, r.Status, r.Job.Status); got != want {
				t.Errorf("item %d: %s, want %s", i, got, want)
			}
			if (r.Problem == nil) != (r.Status == 202) {
				t.Errorf("%+v", r)
			}
		}
		if results[4].Key == "" || results[3].Problem.RetryAfter != 2*time.Second {
			t.Errorf("%+v", results[4])
		}
		r := d.requests()
		if len(r) != 5 || r[0].body != r[1].body || strings.Count(r[2].body, `"key"`) != 2 || strings.Count(r[4].body, `"key"`) != 1 {
			t.Errorf("%d requests: %+v", len(r), r)
		}
		if want := `[{"key":"\"a,b\"","type":"pay","priority":3,"payload":1},`; !strings.HasPrefix(r[0].body, want) || !strings.Contains(r[2].body, `{"n": 1.50}`) {
			t.Errorf("sent %s", r[0].body)
		}
		if waited := r[2].at.Sub(r[1].at); waited < 2*time.Second || waited > 3*time.Second {
			t.Errorf("waited %v", waited)
		}
	})
}

func TestSubmitBatch_MakesRequestsThatFit(t *testing.T) {
	t.Parallel()
	d := &double{steps: []step{answering(nil)}}
	items := make([]client.BatchItem, 2001)
	for i := range items {
		items[i] = client.BatchItem{Key: fmt.Sprint(i), Type: "pay"}
	}
	results, err := d.of(t).SubmitBatch(t.Context(), items)
	if err != nil || len(results) != 2001 || results[2000].Job.Key != "2000" || results[1000].Job.Key != "1000" {
		t.Fatal(err)
	}
	large := client.BatchItem{Type: "pay", Payload: strings.Repeat("x", 3<<20)}
	if _, err = d.of(t).SubmitBatch(t.Context(), []client.BatchItem{large, large, large}); err != nil {
		t.Fatal(err)
	}
	var sizes []int
	for _, r := range d.requests() {
		sizes = append(sizes, strings.Count(r.body, `"type"`))
	}
	if fmt.Sprint(sizes) != "[1000 1000 1 2 1]" {
		t.Errorf("requests of %v items", sizes)
	}
	if results, err = d.of(t).SubmitBatch(t.Context(), nil); err != nil || len(results) != 0 {
		t.Error(results, err)
	}
}

func TestSubmitBatch_Errors(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &double{steps: []step{answering(nil), fail(syscall.ECONNREFUSED)}}
		items := make([]client.BatchItem, 1001)
		for i := range items {
			items[i].Type = "pay"
		}
		results, err := d.of(t).SubmitBatch(t.Context(), items)
		if !is[*client.UnreachableError](err) || results[999].Status != 202 || results[1000].Status != 0 || results[1000].Key == "" {
			t.Errorf("%v %+v", err, results[1000])
		}
		c := (&double{steps: []step{reply(207, `{"results":[]}`)}}).of(t)
		if _, err = c.SubmitBatch(t.Context(), items[:1]); !is[*client.NotGatewayError](err) {
			t.Error(err)
		}
		for _, wrong := range []client.BatchItem{
			{Options: []client.SubmitOption{client.WithKey("k")}}, {Options: []client.SubmitOption{client.WithWait(1)}}, {Payload: json.RawMessage("x")}, {Key: "a\n"},
		} {
			if _, err = c.SubmitBatch(t.Context(), []client.BatchItem{{Type: "pay"}, wrong}); err == nil || !strings.Contains(err.Error(), "item 1") {
				t.Errorf("%+v: %v", wrong, err)
			}
		}
		if _, err = c.SubmitBatch(t.Context(), items[:1]); errors.Is(err, syscall.ECONNREFUSED) {
			t.Error(err)
		}
	})
}
