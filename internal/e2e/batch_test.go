package e2e_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

const linesType = "Content-Type: application/x-ndjson"

// batch posts items and returns the results.
func (g *gateway) batch(body string, headers ...string) []map[string]any {
	g.t.Helper()
	if len(headers) == 0 {
		headers = []string{jsonType}
	}
	a := g.do(http.MethodPost, "/jobs/batch", body, headers...).want(g.t, http.StatusMultiStatus, "Content-Type: application/json", "Cache-Control: no-store", "Idempotent-Replayed:")
	var document struct{ Results []map[string]any }
	if err := json.Unmarshal(a.body, &document); err != nil {
		g.t.Fatalf("%s: %v", a.body, err)
	}
	return document.Results
}

// outcome is a result in a word: status, and whether it is a replay or what
// problem it has.
func outcome(result map[string]any) string {
	text := fmt.Sprint(result["status"])
	if result["replayed"] == true {
		text += " replayed"
	}
	if p, ok := result["problem"].(map[string]any); ok {
		text += " " + fmt.Sprint(p["code"])
	}
	if (result["job"] == nil) == (result["problem"] == nil) {
		text += " with both or none of job and problem"
	}
	return text
}

func outcomes(results []map[string]any) []string {
	texts := make([]string, len(results))
	for i, result := range results {
		texts[i] = outcome(result)
	}
	return texts
}

func TestFailure_BR47_Row81_EachItemOfABatchObeysTheTable(t *testing.T) {
	onGateway(t, "limits: {body: 2KiB}", func(t *testing.T, g *gateway) {
		g.submit("known", `{"type":"echo","payload":1}`)
		large := strings.Repeat("x", 2048)
		items := []string{
			`{"key":"b1","type":"echo","payload":{"a":1}}`, `{"key":"b2","type":"echo"}`, `{"key":"known","payload":1,"type":"echo"}`,
			`{"key":"known","type":"echo","payload":2}`, `{"key":"b3","type":"echo"}`, `{"key":"b1","type":"echo","payload":{"a":2}}`,
			`{"type":"echo"}`, `{"key":"b4","type":"nothing"}`, `{"key":"b5","type":"echo","payload":"` + large + `"}`, `{"key":"b6","type":"echo","max_attempts":0}`,
			`{"key":"b1","type":"echo","payload":{ "a" : 1 }}`, `{"key":"\"b3\"","type":"echo"}`, `{"key":"b7","type":"echo","payload":{"a":1,"a":2}}`,
		}
		want := []string{
			"202", "202", "202 replayed", "422 idempotency-key-reused", "202", "422 idempotency-key-reused",
			"400 idempotency-key-missing", "400 unknown-job-type", "413 request-too-large", "400 validation-failed",
			"202 replayed", "202 replayed", "400 validation-failed",
		}
		if got := outcomes(g.batch("["+strings.Join(items, ",")+"]", jsonType, "Idempotency-Key: ignored")); !slices.Equal(got, want) {
			t.Errorf("got  %q\nwant %q", got, want)
		}
		if replays, mismatches := g.measured("sekali_replays_total"), g.measured("sekali_mismatches_total"); replays != 3 || mismatches != 2 {
			t.Errorf("%v replays and %v mismatches are counted, want 3 and 2", replays, mismatches)
		}
		for i, text := range want {
			want[i] = strings.Replace(text, "202", "202 replayed", 1)
			want[i] = strings.Replace(want[i], "replayed replayed", "replayed", 1)
		}
		if got := outcomes(g.batch(strings.Join(items, "\n"), linesType)); !slices.Equal(got, want) {
			t.Errorf("again, as lines:\ngot  %q\nwant %q", got, want)
		}
		for _, key := range []string{"b1", "b2", "b3", "known"} {
			if j := g.finished(key); j["status"] != "succeeded" || fmt.Sprint(j["attempts"]) != "1" {
				t.Errorf("%s: %v", key, j)
			}
		}
		for _, key := range []string{"b4", "b5", "b6", "b7", "ignored"} { // not consumed
			g.get("/jobs/"+key).problem(t, http.StatusNotFound, "job-not-found")
			g.submit(key, `{"type":"echo"}`).want(t, http.StatusAccepted, "Idempotent-Replayed: false")
		}
	})
}

func TestContract_Row81_SingleAndBatchAreOneIdentity(t *testing.T) {
	onGateway(t, "", func(t *testing.T, g *gateway) {
		single := g.submit("one", `{"type":"echo","payload":{ "n" : 1.0 }}`).want(t, http.StatusAccepted)
		a := g.do(http.MethodPost, "/jobs/batch", `[{"payload":{"n":1.0},"key":"one","type":"echo"},{"key":"two","type":"echo","payload":[1, 2]}]`, jsonType)
		if job := bytes.TrimSpace(single.body); !bytes.Contains(a.body, append([]byte(`"job":`), job...)) {
			t.Errorf("no\n%s in\n%s", job, a.body)
		}
		two := g.submit("two", `{"payload":[1,2],"type":"echo"}`).want(t, http.StatusAccepted, "Idempotent-Replayed: true")
		if job := bytes.TrimSpace(two.body); !bytes.Contains(a.body, append([]byte(`"job":`), job...)) {
			t.Errorf("no\n%s in\n%s", job, a.body)
		}
		if j := g.finished("two"); fmt.Sprint(j["result"]) != "[1 2]" {
			t.Errorf("%v", j)
		}
	})
}

func TestContract_Row80_Row81_BusinessKeysWithinABatch(t *testing.T) {
	onGateway(t, "job_types: {strict: {executor: echo, on_business_key_conflict: reject}}\ndispatcher: {slots: 0}", func(t *testing.T, g *gateway) {
		results := g.batch(`[{"key":"h","type":"echo","business_key":"42"},{"key":"a","type":"echo","business_key":"42"},
			{"key":"s","type":"strict","business_key":"42"},{"key":"r","type":"strict","business_key":"42"}]`)
		if got := outcomes(results); !slices.Equal(got, []string{"202", "200", "202", "409 business-key-conflict"}) {
			t.Errorf("%q", got)
		}
		if job, _ := results[1]["job"].(map[string]any); job["key"] != "h" {
			t.Errorf("the second key stands for %v", results[1])
		}
		if got := outcomes(g.batch(`[{"key":"a","type":"echo","business_key":"42"}]`)); !slices.Equal(got, []string{"200 replayed"}) {
			t.Errorf("the alias again: %q", got)
		}
	})
}

func TestContract_Row81_WhatIsNoBatch(t *testing.T) {
	onGateway(t, "limits: {batch: 4KiB, body: 4KiB}", func(t *testing.T, g *gateway) {
		if got := g.batch("[]"); len(got) != 0 {
			t.Errorf("%v", got)
		}
		many := "[" + strings.TrimSuffix(strings.Repeat("0,", 1001), ",") + "]"
		for _, body := range []string{`{"key":"k","type":"echo"}`, `[{"key":"k","type":"echo"}`, "nonsense", many} {
			g.do(http.MethodPost, "/jobs/batch", body, jsonType).problem(t, http.StatusBadRequest, "validation-failed")
		}
		g.do(http.MethodPost, "/jobs/batch", strings.Repeat(" ", 4097), jsonType).problem(t, http.StatusRequestEntityTooLarge, "request-too-large")
		g.do(http.MethodPost, "/jobs/batch", "[]", "Content-Type: text/plain").problem(t, http.StatusUnsupportedMediaType, "unsupported-media-type")
		g.do(http.MethodPost, "/jobs/batch", "[]").problem(t, http.StatusUnsupportedMediaType, "unsupported-media-type")
		g.get("/jobs/k").problem(t, http.StatusNotFound, "job-not-found")
	})
}

func TestContract_Row81_AThousandItemsAreOneAccept(t *testing.T) {
	onGateway(t, "", func(t *testing.T, g *gateway) {
		var lines strings.Builder
		for i := range 1000 {
			fmt.Fprintf(&lines, "{\"key\":\"m-%d\",\"type\":\"echo\",\"payload\":%d}\n", i, i)
		}
		for _, want := range []string{"202", "202 replayed"} {
			began := time.Now()
			for i, got := range outcomes(g.batch(lines.String(), linesType)) {
				if got != want {
					t.Fatalf("item %d: %s, want %s", i, got, want)
				}
			}
			t.Logf("%s: %v", want, time.Since(began))
		}
		if j := g.finished("m-999"); fmt.Sprint(j["result"]) != "999" {
			t.Errorf("%v", j)
		}
	})
}

func TestContract_Row72_PendingJobsOfATenant(t *testing.T) {
	onGateway(t, "limits: {pending: 3}\ndispatcher: {slots: 0}", func(t *testing.T, g *gateway) {
		first := g.submit("p1", `{"type":"echo"}`)
		if got := outcomes(g.batch(`[{"key":"p1","type":"echo"},{"key":"p2","type":"echo"},{"key":"p3","type":"echo"},{"key":"p4","type":"echo"}]`)); !slices.Equal(got, []string{"202 replayed", "202", "202", "429 rate-limited"}) {
			t.Errorf("%q", got)
		}
		p := g.submit("p5", `{"type":"echo"}`).want(t, http.StatusTooManyRequests, "Retry-After: *").problem(t, http.StatusTooManyRequests, "rate-limited")
		if p["retryable"] != true || p["retry_after_ms"] == nil {
			t.Errorf("%v", p)
		}
		if again := g.submit("p1", `{"type":"echo"}`).want(t, http.StatusAccepted, "Idempotent-Replayed: true"); !bytes.Equal(first.body, again.body) {
			t.Errorf("%s", again.body)
		}
		g.submit("p1", `{"type":"echo","payload":1}`).problem(t, http.StatusUnprocessableEntity, "idempotency-key-reused")
		g.get("/jobs/p5").problem(t, http.StatusNotFound, "job-not-found")
	})
}

func TestContract_Row20_TheRateOfATenant(t *testing.T) {
	onGateway(t, "limits: {rate: 3/h}", func(t *testing.T, g *gateway) {
		for range 3 {
			g.get("/jobs").want(t, http.StatusOK)
		}
		g.submit("k", `{"type":"echo"}`).want(t, http.StatusTooManyRequests, "Retry-After: *").problem(t, http.StatusTooManyRequests, "rate-limited")
		g.get("/healthz").want(t, http.StatusOK)
	})
}
