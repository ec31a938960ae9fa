package handlers_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

func TestFailure_BR47_EachItemHasItsOwnResult(t *testing.T) {
	t.Parallel()
	d := domain{all: func(items []job.Item) ([]job.Receipt, []error) {
		receipts, errs := make([]job.Receipt, len(items)), make([]error, len(items))
		for i, item := range items {
			switch item.Request.Key {
			case "new":
				receipts[i] = receipt(pendingJob(), true)
			case "known":
				receipts[i] = receipt(succeededJob(), false)
			case "other":
				errs[i] = &idempotency.MismatchError{Part: idempotency.PartBody}
			case "refused":
				errs[i] = item.Refusal
			case "away":
				errs[i] = fmt.Errorf("x: %w", job.ErrUnavailable)
			default:
				t.Errorf("item %+v reached the domain", item)
			}
		}
		return receipts, errs
	}}
	w := call{method: "POST", target: "/jobs/batch", header: http.Header{"Content-Type": {"application/json"}}, body: `[
		{"key":"new","type":"echo"}, {"type":"echo"}, {"key":"known","type":"echo"}, {"key":"other","type":"echo"},
		{"key":"refused"}, {"key":"away","type":"echo"}, {"key":"big","type":"echo","payload":"` + strings.Repeat("x", 300) + `"}]`}.do(serve(d, start))
	want{status: http.StatusMultiStatus, contains: []string{
		`{"key":"new","status":202,"replayed":false,"job_status":"pending","job":{`,
		`{"key":null,"status":400,"replayed":false,"problem":{`,
		`{"key":"known","status":202,"replayed":true,"job_status":"succeeded","job":{`,
		`{"key":"other","status":422,"replayed":false,"problem":{`,
		`{"key":"refused","status":400,"replayed":false,"problem":{`,
		`"errors":[{"pointer":"/type","rule":"required"`,
		`{"key":"away","status":503,"replayed":false,"problem":{`,
		`"retry_after_ms":2000,"idempotency_key":"away"`,
		`{"key":null,"status":413,"replayed":false,"problem":{`,
	}}.check(t, w)
}

func TestSubmitBatch_RefusesWhatIsNoBatch(t *testing.T) {
	t.Parallel()
	w := call{method: "POST", target: "/jobs/batch", header: http.Header{"Content-Type": {"application/json"}}, body: `{"key":"a"}`}.do(serve(domain{}, start))
	want{status: http.StatusBadRequest, contains: []string{`"validation-failed"`}}.check(t, w)
}

// A job may be named batch: only POST is taken by the path.
func TestSubmitBatch_LeavesTheKeyBatchAlone(t *testing.T) {
	t.Parallel()
	w := call{method: "GET", target: "/jobs/batch"}.do(serve(found(succeededJob()), start))
	want{status: http.StatusOK}.check(t, w)
	w = call{method: "DELETE", target: "/jobs/batch"}.do(serve(domain{}, start))
	want{status: http.StatusMethodNotAllowed, header: map[string]string{"Allow": "GET, HEAD, POST"}}.check(t, w)
}
