package api_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

const ndjson = "application/x-ndjson; charset=utf-8"

func batchRule() api.BatchRule {
	return api.BatchRule{
		Tenant: "acme", Required: true, ItemLimit: 200, Now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC),
		NewKey: func() idempotency.Key { return "made" },
	}
}

// outline tells of each item its key, or why it is refused.
func outline(items []api.BatchItem) []string {
	lines := make([]string, len(items))
	for i, item := range items {
		lines[i] = string(item.Request.Key)
		if err := cmpOr(item.Err, item.Refusal); err != nil {
			p := api.RefusalOf(item, err).Problem
			lines[i] += " " + p.Code + " " + p.Reason
			for _, e := range p.Errors {
				lines[i] += e.Pointer + " " + e.Rule
			}
			lines[i] = strings.TrimSpace(lines[i])
		}
	}
	return lines
}

func cmpOr(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

func TestContract_Row81_DecodeBatch(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("k", 256)
	items := map[string]string{ // item: outline
		`{"key":"a","type":"echo"}`:                            "a",
		` { "type" : "echo" , "key" : "b" } `:                  "b",
		`{"key":"\"quoted key\"","type":"echo"}`:               "quoted key",
		`{"type":"echo"}`:                                      "idempotency-key-missing",
		`{"key":null,"type":"echo"}`:                           "idempotency-key-missing",
		`{"key":"","type":"echo"}`:                             "idempotency-key-invalid empty",
		`{"key":7,"type":"echo"}`:                              "validation-failed /key kind",
		`{"key":"x,y","type":"echo"}`:                          "idempotency-key-invalid multiple",
		`{"key":"ä","type":"echo"}`:                            "idempotency-key-invalid charset",
		`{"key":"` + long[:190] + `x","type":"echo"}`:          "request-too-large",
		`{"key":"c","type":7}`:                                 "c validation-failed /type kind",
		`{"key":"c2","Key":"d","type":"echo"}`:                 "c2 validation-failed /Key unknown",
		`{"key":"d","key":"e","type":"echo"}`:                  "validation-failed /key duplicate",
		`{"key":"e","type":"echo","payload":{"a":1,"a":2}}`:    "validation-failed /payload/a duplicate",
		`{"key":"f","type":"echo","payload":"\ud800"}`:         "validation-failed /payload utf8",
		`{"key":"g","type":"echo","payload":["],[{","\\\"]"]}`: "g",
		`[]`:   "validation-failed  kind",
		`7`:    "validation-failed  kind",
		`null`: "validation-failed  kind",
	}
	var texts, want []string
	for text, line := range items {
		texts, want = append(texts, text), append(want, line)
	}
	for contentType, body := range map[string]string{
		"application/json": "[" + strings.Join(texts, " ,\n") + "]\n",
		ndjson:             strings.Join(texts, "\n") + "\r\n\n",
	} {
		decoded, err := api.DecodeBatch([]byte(body), contentType, batchRule())
		if err != nil {
			t.Fatal(contentType, err)
		}
		if got := outline(decoded); !slices.Equal(got, want) {
			for i := range want {
				if i >= len(got) || got[i] != want[i] {
					t.Errorf("%s %s: %q, want %q", contentType, texts[i], got[i], want[i])
				}
			}
		}
	}
}

func TestDecodeBatch_KeyRules(t *testing.T) {
	t.Parallel()
	rule := batchRule()
	rule.ItemLimit = 1000
	rule.Key.Pattern, _ = idempotency.KeyPattern(`[a-z]+`)
	body := `[{"key":"abc","type":"echo"},{"key":"ABC","type":"echo"},{"key":"` + strings.Repeat("k", 256) + `","type":"echo"}]`
	items, err := api.DecodeBatch([]byte(body), "application/json", rule)
	if got := outline(items); err != nil || !slices.Equal(got, []string{"abc", "idempotency-key-invalid format", "idempotency-key-invalid length"}) {
		t.Errorf("%q, %v", got, err)
	}
	rule.Required = false
	items, err = api.DecodeBatch([]byte(`[{"type":"echo"}]`), "application/json", rule)
	if got := outline(items); err != nil || !slices.Equal(got, []string{"made"}) {
		t.Errorf("%q, %v", got, err)
	}
}

// A bad line of NDJSON is one bad item; an array that is no JSON is no batch.
func TestDecodeBatch_Whole(t *testing.T) {
	t.Parallel()
	items, err := api.DecodeBatch([]byte("{\"key\":\"a\",\"type\":\"echo\"}\n{\"key\":\"b\n{\"key\":\"c\",\"type\":\"echo\"}"), ndjson, batchRule())
	if got := outline(items); err != nil || !slices.Equal(got, []string{"a", "validation-failed /key json", "c"}) {
		t.Errorf("%q, %v", got, err)
	}
	for _, body := range []string{``, `{}`, `"x"`, `[`, `[{"key":"a"},]`, `[{"key":"a"]}`, `[] []`, "\ufeff[]", `[{"key":"a","type":"echo"} {"key":"b"}]`} {
		if items, err := api.DecodeBatch([]byte(body), "application/json", batchRule()); err == nil {
			t.Errorf("%s: %d items", body, len(items))
		}
	}
	for body, n := range map[string]int{`[]`: 0, ` [ ] `: 0, "\n": 0, `[{}]`: 1} {
		contentType := "application/json"
		if body == "\n" {
			contentType = ndjson
		}
		if items, err := api.DecodeBatch([]byte(body), contentType, batchRule()); err != nil || len(items) != n {
			t.Errorf("%q: %d items, %v", body, len(items), err)
		}
	}
	most := "[" + strings.Repeat(`{},`, 999) + `{}]`
	if items, err := api.DecodeBatch([]byte(most), "application/json", batchRule()); err != nil || len(items) != 1000 {
		t.Errorf("1000 items: %d, %v", len(items), err)
	}
	var invalid *api.ValidationError
	if _, err := api.DecodeBatch([]byte(most[:len(most)-1]+`,{}]`), "application/json", batchRule()); !errors.As(err, &invalid) {
		t.Errorf("1001 items: %v", err)
	}
}

// An item is the request that it would have been alone: same fingerprint, same
// payload bytes.
func TestContract_Row81_SingleAndBatchAreOneIdentity(t *testing.T) {
	t.Parallel()
	for item, single := range map[string]string{
		`{"key":"a","type":"echo","payload":{ "b":1.0, "a":[1, 2] }}`:    `{"type":"echo","payload":{"a":[1,2],"b":1.0}}`,
		`{"priority":3,"key":"a","type":"\u0065cho","payload":"<ä€>"}`:   `{"type":"echo","payload":"<ä€>","priority":3}`,
		`{"type":"echo","payload":12345678901234567890123,"key":"a"}`:    `{"type":"echo","payload":12345678901234567890123}`,
		`{"key":"a","type":"echo","business_key":null,"payload":{"":0}}`: `{"type":"echo","payload":{"":0},"business_key":null}`,
	} {
		items, err := api.DecodeBatch([]byte("["+item+"]"), "application/json", batchRule())
		if err != nil || items[0].Err != nil || items[0].Refusal != nil {
			t.Fatal(item, err, items)
		}
		canonical, err := idempotency.Canonical([]byte(single))
		if err != nil {
			t.Fatal(err)
		}
		want := idempotency.NewFingerprint("POST", "/jobs", nil, "application/json", canonical)
		if items[0].Request.Fingerprint != want || items[0].Request.Tenant != "acme" {
			t.Errorf("%s is not the same as %s", item, single)
		}
		if payload := string(items[0].Draft.Payload); !strings.Contains(item, payload) {
			t.Errorf("payload %s is not as it came in %s", payload, item)
		}
	}
}

func TestWriteBatch(t *testing.T) {
	t.Parallel()
	j := job.Job{ID: "01987654-0000-7000-8000-000000000001", Key: "k", Type: "echo", Status: job.Succeeded, Payload: []byte(`{ "a" : 1 }`)}
	item := api.BatchItem{}
	item.Request.Key = "k"
	stored := job.Receipt{Job: j, Record: idempotency.Record{Response: api.Accepted(j)}}
	alias := stored
	alias.Alias, alias.Record.Response = true, idempotency.Response{}
	nameless := api.BatchItem{Err: idempotency.ErrKeyMissing}
	w := httptest.NewRecorder()
	api.WriteBatch(w, []api.BatchResult{
		api.ResultOf(item, stored), api.ResultOf(item, alias),
		api.RefusalOf(item, &idempotency.MismatchError{Part: idempotency.PartBody}), api.RefusalOf(nameless, nameless.Err),
	})
	accepted, current := strings.TrimSpace(string(api.Accepted(j).Body)), strings.TrimSpace(string(api.Current(j).Body))
	got := regexp.MustCompile(`urn:uuid:[0-9a-f-]+`).ReplaceAllString(w.Body.String(), "urn")
	for _, want := range []string{
		fmt.Sprintf(`{"results":[{"key":"k","status":202,"replayed":true,"job_status":"succeeded","job":%s},{"key":"k","status":200,`, accepted),
		fmt.Sprintf(`"job_status":"succeeded","job":%s},{"key":"k","status":422,"replayed":false,"problem":{`, current),
		`"code":"idempotency-key-reused","retryable":false,"idempotency_key":"k","job":"/jobs/k"}},{"key":null,"status":400,"replayed":false,"problem":{`,
		`{ "a" : 1 }`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in\n%s", want, got)
		}
	}
	if w.Code != http.StatusMultiStatus || w.Header().Get("Content-Type") != "application/json" || w.Header().Get("Cache-Control") != "no-store" {
		t.Errorf("%d %v", w.Code, w.Header())
	}
	empty := httptest.NewRecorder()
	if api.WriteBatch(empty, nil); empty.Body.String() != "{\"results\":[]}\n" {
		t.Errorf("%s", empty.Body)
	}
}
