package client

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"strings"
)

// Calls that end in one state however often they come.
var idempotentCall = regexp.MustCompile(`^/(jobs/[^/]+/cancel|executors/[^/]+/(pause|resume)|executions/[^/]+/(heartbeat|complete|fail|release))$`)

const batchPath = "/jobs/batch"

// route is the escaped path of a request below the base URL. Only the gateway's
// own routes are known here: what a proxied one does, its upstream knows.
func (d *doer) route(r *http.Request) string {
	return strings.TrimPrefix(r.URL.EscapedPath(), d.base.EscapedPath())
}

// repeatable reports that a request cannot do anything twice.
func (d *doer) repeatable(r *http.Request) bool {
	switch {
	case r.Body != nil && r.Body != http.NoBody && r.GetBody == nil:
		return false // the body is gone
	case r.Method == http.MethodGet, r.Method == http.MethodHead, r.Method == http.MethodOptions:
		return true
	case r.Method != http.MethodPost:
		return false
	case r.Header.Get("Idempotency-Key") != "":
		return true
	case d.route(r) == batchPath:
		return batchHasKeys(r)
	}
	return idempotentCall.MatchString(d.route(r))
}

// batchHasKeys reports that each item of a batch, an array or lines, has a key:
// then it may be sent again as a whole. A gateway can be told to make keys for
// items that have none, so one that is not clearly keyed counts as none.
func batchHasKeys(r *http.Request) bool {
	body, err := r.GetBody()
	if err != nil {
		return false
	}
	text, err := io.ReadAll(body)
	if err != nil {
		return false
	}
	var items []json.RawMessage
	if json.Unmarshal(text, &items) != nil {
		for line := range bytes.Lines(text) {
			if line = bytes.TrimSpace(line); json.Valid(line) { // any other is refused as often as it comes
				items = append(items, line)
			}
		}
	}
	for _, text := range items {
		var item struct {
			Key *string `json:"key"`
		}
		if json.Unmarshal(text, &item) != nil || item.Key == nil {
			return false
		}
	}
	return true
}
