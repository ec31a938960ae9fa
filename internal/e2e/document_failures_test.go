package e2e_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	generated "github.com/sekali/sekali/client/wire"
	"github.com/sekali/sekali/docs/openapi"
	"github.com/sekali/sekali/internal/testenv"
	"github.com/sekali/sekali/job"
)

// at returns what stands in the document at the path, as it was published.
func at(t testing.TB, path ...string) object {
	t.Helper()
	var o object
	if err := json.Unmarshal(openapi.JSON(), &o); err != nil {
		t.Fatal(err)
	}
	for _, step := range path {
		below, ok := o[step].(object)
		if !ok {
			t.Fatalf("the document has nothing at %v", path)
		}
		o = below
	}
	return o
}

func schemaOf(t testing.TB, name, member string) object {
	t.Helper()
	return at(t, "components", "schemas", name, "properties", member)
}

func TestFailure_BR85_PayloadsAndResultsAreAnyJSON(t *testing.T) {
	t.Parallel()
	for member := range maps.Keys(at(t, "components", "schemas", "AnyJSON")) {
		if member != "title" && member != "description" && !strings.HasPrefix(member, "x-") {
			t.Errorf("any JSON is restrained by %s", member)
		}
	}
	for _, of := range []object{
		schemaOf(t, "Submission", "payload"), schemaOf(t, "BatchItem", "payload"), schemaOf(t, "Job", "payload"),
		schemaOf(t, "Job", "result"), schemaOf(t, "Resolution", "result"),
		at(t, "paths", "/jobs/{key}/result", "get", "responses", "200", "content", "application/json", "schema"),
	} {
		if of["$ref"] != "#/components/schemas/AnyJSON" {
			t.Errorf("%v is not any JSON", of)
		}
	}
	for _, text := range []string{`{"b":1,"a":{}}`, `[ 1,[ ]]`, `"\u0041"`, `-0.10e-5`, `null`, `true`} {
		var j generated.Job
		if err := json.Unmarshal([]byte(`{"payload":`+text+`,"result":`+text+`}`), &j); err != nil || string(j.Payload) != text || string(j.Result) != text {
			t.Errorf("a generated client reads %s as %s and %s: %v", text, j.Payload, j.Result, err)
		}
	}
}

var firstColumn = regexp.MustCompile("(?m)^\\| (`[a-z_]+`(?:, `[a-z_]+`)*) \\|")

// The check of all answers refuses words that are not listed; here is that the
// lists are open, and that they are those of the code.
func TestFailure_BR86_WordsAreListedAndTheListsAreOpen(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/events.md")
	if err != nil {
		t.Fatal(err)
	}
	var events []string
	for _, cell := range firstColumn.FindAllStringSubmatch(string(text), -1) {
		events = append(events, strings.Split(strings.ReplaceAll(cell[1], "`", ""), ", ")...)
	}
	for _, c := range []struct {
		schema, member string
		words          []string
	}{
		{"Job", "status", texts(job.Statuses())},
		{"Job", "outcome", []string{job.DuplicateIgnored, job.OutcomeUnknown}},
		{"Attempt", "outcome", texts([]job.Outcome{job.AttemptSucceeded, job.AttemptFailed, job.AttemptLost, job.AttemptReleased, job.AttemptCancelled})},
		{"Event", "event", events},
	} {
		listed := schemaOf(t, c.schema, c.member)
		if got, want := sortedText(listed["x-extensible-enum"].([]any)), sortedText(c.words); got != want {
			t.Errorf("%s.%s lists %s, want %s", c.schema, c.member, got, want)
		}
		if !strings.Contains(listed["description"].(string), "open set") {
			t.Errorf("%s.%s: %v", c.schema, c.member, listed["description"])
		}
	}
	schemas := at(t, "components", "schemas")
	delete(schemas, "Resolution") // which clients send
	for name, sent := range map[string]any{"schemas": schemas, "responses": answersOf(t)} {
		for _, place := range closedSets(name, sent) {
			t.Errorf("%s is a closed set", place)
		}
	}
	if found := closedSets("x", object{"a": []any{object{"type": "string", "enum": []any{"b"}}}}); len(found) != 1 {
		t.Errorf("a closed set is found at %v", found)
	}
	var j generated.Job
	if err := json.Unmarshal([]byte(`{"status":"hibernating","outcome":"forgotten","new":[]}`), &j); err != nil || j.Status != "hibernating" {
		t.Errorf("a generated client cannot read a new word: %+v, %v", j, err)
	}
}

// answersOf are the answers to all operations.
func answersOf(t testing.TB) object {
	all := object{}
	for path, operations := range at(t, "paths") {
		for method, operation := range operations.(object) {
			if operation, ok := operation.(object); ok {
				all[method+" "+path] = operation["responses"]
			}
		}
	}
	return all
}

// closedSets lists where below a place a schema has one.
func closedSets(place string, node any) (found []string) {
	switch node := node.(type) {
	case object:
		if _, closed := node["enum"].([]any); closed {
			found = append(found, place)
		}
		for name, below := range node {
			found = append(found, closedSets(place+"/"+name, below)...)
		}
	case []any:
		for i, below := range node {
			found = append(found, closedSets(fmt.Sprint(place, "/", i), below)...)
		}
	}
	return found
}

func texts[T ~string](words []T) (all []string) {
	for _, word := range words {
		all = append(all, string(word))
	}
	return all
}

func sortedText[T any](words []T) string {
	all := strings.Fields(strings.Trim(fmt.Sprint(words), "[]"))
	slices.Sort(all)
	return strings.Join(all, " ")
}

// Every answer to any test of this package is compared with the document. This is
// the test of the comparison: a sound answer passes, and each change of it that
// nothing documents is found.
func TestFailure_BR87_WhatTheDocumentDoesNotNameIsFound(t *testing.T) {
	t.Parallel()
	c, err := document()
	if err != nil {
		t.Fatal(err)
	}
	g := start(t, testenv.SQLite(t), "")
	g.ended(t, "k", `{"type":"echo"}`)
	sound := func() exchange {
		a := g.get("/jobs/k")
		return exchange{http.MethodGet, "/jobs/k", http.Header{}, nil, a}
	}
	if wrong := c.check(sound()); len(wrong) > 0 {
		t.Fatal(wrong)
	}
	for name, change := range unnamed {
		x := sound()
		change(&x)
		if len(c.check(x)) == 0 {
			t.Errorf("nobody notices %s", name)
		}
	}
	for target, id := range map[string]string{
		"/jobs/a%2Fb": "getJob", "/jobs/a%2Fresult": "getJob", "/jobs/a%2Fb/result?x=1": "getResult", "/jobs/batch": "getJob", "/jobs?limit=1": "listJobs", "/executors/x": "getExecutor",
	} {
		if op := c.find(http.MethodHead, target); op == nil || op.id != id {
			t.Errorf("%s is taken for %v", target, op)
		}
	}
	if op := c.find(http.MethodPost, "/jobs/batch"); op == nil || op.id != "submitBatch" {
		t.Errorf("POST /jobs/batch is taken for %v", op)
	}
}

var unnamed = map[string]func(*exchange){
	"a status":                   func(x *exchange) { x.answer.StatusCode = http.StatusTeapot },
	"a header":                   func(x *exchange) { x.answer.Header.Set("X-New", "1") },
	"another header's value":     func(x *exchange) { x.answer.Header.Set("Retry-After", "soon") },
	"a time that is none":        func(x *exchange) { x.answer.Header.Set("Idempotency-Expires", "tomorrow") },
	"a media type":               func(x *exchange) { x.answer.Header.Set("Content-Type", "text/html") },
	"a member":                   func(x *exchange) { x.replace(`"id":`, `"new":1,"id":`) },
	"a missing member":           func(x *exchange) { x.replace(`"generation":`, `"generations":`) },
	"a member of another kind":   func(x *exchange) { x.replace(`"attempts":1`, `"attempts":"1"`) },
	"a null":                     func(x *exchange) { x.replace(`"attempts":1`, `"attempts":null`) },
	"a word":                     func(x *exchange) { x.replace(`"succeeded"`, `"done"`) },
	"a body that is no JSON":     func(x *exchange) { x.answer.body = []byte("{") },
	"a missing body":             func(x *exchange) { x.answer.body = nil },
	"a body after 304":           func(x *exchange) { x.answer.StatusCode = http.StatusNotModified },
	"a problem's code":           func(x *exchange) { x.refuse(http.StatusNotFound, "job-lost") },
	"a problem of elsewhere":     func(x *exchange) { x.refuse(http.StatusNotFound, "executor-not-found") },
	"an error that is none":      func(x *exchange) { x.target = "/nothing"; x.answer.Header.Set("Error-Source", "gateway") },
	"a query that it took":       func(x *exchange) { x.target = "/jobs/k?wait=x" },
	"a request without a key":    func(x *exchange) { x.submitted(`{"type":"echo"}`, "") },
	"a request's unknown member": func(x *exchange) { x.submitted(`{"type":"echo","new":1}`, "k") },
	"a request out of range":     func(x *exchange) { x.submitted(`{"type":"echo","priority":101}`, "k") },
}

func (x *exchange) replace(old, by string) {
	x.answer.body = []byte(strings.Replace(string(x.answer.body), old, by, 1))
}

func (x *exchange) refuse(status int, code string) {
	x.answer.StatusCode = status
	x.answer.Header = http.Header{"Content-Type": {"application/problem+json"}, "X-Request-Id": {"x"}}
	x.answer.body = fmt.Appendf(nil, `{"type":"x","title":"x","status":%d,"detail":"x","instance":"x","code":%q,"retryable":false}`, status, code)
}

// submitted makes the answer that of a submission.
func (x *exchange) submitted(body, key string) {
	x.method, x.target, x.sent = http.MethodPost, "/jobs", []byte(body)
	x.header = http.Header{"Content-Type": {"application/json"}}
	if key != "" {
		x.header.Set("Idempotency-Key", key)
	}
	x.answer.Header = http.Header{"Content-Type": {"application/json"}, "X-Request-Id": {"x"}}
}

func TestFailure_BR88_EveryErrorIsAProblemOfAKnownStatus(t *testing.T) {
	t.Parallel()
	c, err := document()
	if err != nil {
		t.Fatal(err)
	}
	for _, op := range c.operations {
		for status, answer := range op.answers {
			isProblem := len(answer.bodies) == 1 && answer.bodies["application/problem+json"] != nil && len(answer.codes) > 0
			switch {
			case http.StatusText(status) == "":
				t.Errorf("%s: the status %d is nobody's", op.id, status)
			case op.id == "getReadiness":
			case isProblem != (status >= http.StatusBadRequest):
				t.Errorf("%s: %d is documented with %v", op.id, status, slices.Collect(maps.Keys(answer.bodies)))
			}
		}
	}
	for _, path := range []string{"/jobs", "/jobs/{key}/retry"} {
		accepted := at(t, "paths", path, "post", "responses", "202", "content", "application/json", "schema")
		if accepted["$ref"] != "#/components/schemas/Job" {
			t.Errorf("202 of %s is %v", path, accepted)
		}
	}
	g := start(t, testenv.SQLite(t), "")
	g.get("/nothing").problem(t, http.StatusNotFound, "route-not-found")
	g.do(http.MethodDelete, "/jobs/k", "").want(t, http.StatusMethodNotAllowed, "Allow: GET, HEAD").problem(t, http.StatusMethodNotAllowed, "method-not-allowed")
	g.do("BREW", "/jobs", "").problem(t, http.StatusMethodNotAllowed, "method-not-allowed")
	g.do("BREW", "/nothing", "").problem(t, http.StatusNotFound, "route-not-found")
}
