package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"
)

// BatchItem is one submission of a batch.
type BatchItem struct {
	// Key names the operation; without one a key is made, which the result has.
	Key     string
	Type    string
	Payload any
	Options []SubmitOption // other than WithKey and WithWait
}

// BatchResult is what became of one item. Status is 0 for an item that was not
// answered.
type BatchResult struct {
	Key       string   `json:"key"`
	Status    int      `json:"status"` // that a request of its own would have had: 202, 200, 4xx, 5xx
	Replayed  bool     `json:"replayed"`
	JobStatus string   `json:"job_status"` // now; Job is the job as it was accepted
	Job       Job      `json:"job"`
	Problem   *Problem `json:"problem"` // nil if the item was accepted, now or before
}

const (
	// A gateway takes at most so many items at once,
	batchItems = 1000
	// and 16 MiB, if it is not told otherwise.
	batchBytes = 8 << 20
)

var errBatchOption = errors.New("client: an item takes its key from the member Key, and cannot wait")

// SubmitBatch submits many jobs, in as few requests as they fit into. Each is
// accepted or refused by itself. Items that were refused for the moment only are
// submitted again, as Submit would. With an error, results holds what is known:
// repeat the call with the keys that it has.
func (c *Client) SubmitBatch(ctx context.Context, items []BatchItem) ([]BatchResult, error) {
	results := make([]BatchResult, len(items))
	texts := make([][]byte, len(items))
	for i, item := range items {
		var err error
		if results[i].Key, texts[i], err = item.document(); err != nil {
			return results, fmt.Errorf("%w (item %d)", err, i)
		}
	}
	for begin := 0; begin < len(items); {
		end := begin + fitting(texts[begin:])
		if err := c.submitPart(ctx, texts[begin:end], results[begin:end]); err != nil {
			return results, err
		}
		begin = end
	}
	return results, nil
}

func (item BatchItem) document() (key string, text []byte, err error) {
	s := newSubmission(item.Type, item.Options)
	if s.key != "" || s.wait != 0 {
		return item.Key, nil, errBatchOption
	}
	s.Key = item.Key
	if s.Key == "" {
		s.Key = NewKey()
	}
	if err := checkKey(s.Key); err != nil {
		return s.Key, nil, err
	}
	key = s.Key
	// The gateway reads this member as it would the header.
	s.Key = quoteKey(s.Key)
	text, err = s.document(item.Payload)
	return key, text, err
}

// fitting is how many of the texts, at least one, fit into a request.
func fitting(texts [][]byte) int {
	size := 0
	for i, text := range texts {
		size += len(text) + 1
		if i == batchItems || i > 0 && size > batchBytes {
			return i
		}
	}
	return len(texts)
}

// submitPart submits what fits into one request, and again what was refused for
// the moment.
func (c *Client) submitPart(ctx context.Context, texts [][]byte, results []BatchResult) error {
	open := make([]int, len(texts))
	for i := range open {
		open[i] = i
	}
	for try := 1; ; try++ {
		if err := c.submitItems(ctx, texts, results, open); err != nil {
			return err
		}
		var wait time.Duration
		open = slices.DeleteFunc(open, func(i int) bool {
			if results[i].Problem == nil {
				return true
			}
			after, again := againIn(results[i].Problem, try)
			if again {
				wait = max(wait, after)
			}
			return !again
		})
		if len(open) == 0 || try > c.doer.retries {
			return nil
		}
		if err := pause(ctx, wait); err != nil {
			return err
		}
	}
}

// submitItems sends one request with the open items.
func (c *Client) submitItems(ctx context.Context, texts [][]byte, results []BatchResult, open []int) error {
	parts := make([][]byte, len(open))
	for n, i := range open {
		parts[n] = texts[i]
	}
	body := slices.Concat([]byte("["), bytes.Join(parts, []byte(",")), []byte("]"))
	w, err := c.wire.SubmitBatchWithBody(ctx, jsonType, bytes.NewReader(body))
	answers, err := decoded[batchResults](w, err)
	if err != nil {
		return err
	}
	if len(answers.Results) != len(open) {
		return strayBatch(w, len(open), len(answers.Results))
	}
	for n, i := range open {
		key := results[i].Key
		results[i] = answers.Results[n]
		results[i].Key = key // the gateway knows none where it cannot be a key
	}
	return nil
}

type batchResults struct {
	Results []BatchResult `json:"results"`
}

func strayBatch(w *http.Response, sent, got int) error {
	stray := notGateway(w, nil)
	stray.Text = fmt.Sprintf("%d results for %d items", got, sent)
	return stray
}
