package openapi_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pb33f/libopenapi"
	"github.com/pb33f/libopenapi/what-changed/model"
	"go.yaml.in/yaml/v3"

	published "github.com/sekali/sekali/docs/openapi"
	"github.com/sekali/sekali/internal/openapi"
	"github.com/sekali/sekali/job"
)

const root = "../.."

// The library takes a parameter that comes to be required for harmless.
func TestMain(m *testing.M) {
	rules, breaks := model.GenerateDefaultBreakingRules(), true
	rules.Parameter.Required.Added = &breaks
	model.SetActiveBreakingRulesConfig(rules)
	os.Exit(m.Run())
}

type object = map[string]any

func document(t *testing.T) object {
	t.Helper()
	var doc object
	if err := yaml.Unmarshal(published.YAML(), &doc); err != nil {
		t.Fatal(err)
	}
	return doc
}

// proxied are problems of proxied routes and of paths that are no route: the
// document has no operation for them.
var proxied = []string{
	"upstream-unreachable", "upstream-timeout", "request-rejected", "idempotency-outcome-unknown",
	"idempotency-response-not-retained", "route-not-found", "method-not-allowed",
}

func TestDocument_NamesEveryProblemThatHasAPage(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob(root + "/docs/problems/*-*.md")
	if err != nil || len(pages) < 30 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	examples := document(t)["components"].(object)["examples"].(object)
	for _, page := range append(pages, "forbidden.md", "unauthenticated.md", "internal.md") {
		code := strings.TrimSuffix(filepath.Base(page), ".md")
		if _, found := examples[code]; found == slices.Contains(proxied, code) {
			t.Errorf("%s: in the document: %v", code, found)
		}
	}
}

func TestFailure_BR86_StatusIsAnOpenSetAndListsEveryStatus(t *testing.T) {
	t.Parallel()
	status := document(t)["components"].(object)["schemas"].(object)["Job"].(object)["properties"].(object)["status"].(object)
	if _, closed := status["enum"]; closed {
		t.Error("the set of statuses is closed")
	}
	for _, s := range job.Statuses() {
		if !strings.Contains(status["description"].(string), string(s)) || !slices.Contains(status["x-extensible-enum"].([]any), any(string(s))) {
			t.Errorf("%s is not listed: %v", s, status)
		}
	}
}

// What clients were generated from must go on working: released.yaml is the
// document of the last release.
func TestDocument_BreaksNobodySinceTheLastRelease(t *testing.T) {
	t.Parallel()
	released, err := os.ReadFile(root + "/docs/openapi/released.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if broken := breaking(t, released, published.YAML()); broken != 0 {
		t.Errorf("%d changes break clients that were generated from docs/openapi/released.yaml", broken)
	}
	for name, change := range map[string][2]string{
		"a member is gone":        {"        duplicate_of:\n", "        duplicates:\n"},
		"a parameter is needed":   {"          name: limit\n", "          name: limit\n          required: true\n"},
		"a route is gone":         {"  /jobs/{key}/events:\n", "  /jobs/{key}/timeline:\n"},
		"a status is gone":        {`        "409":` + "\n", `        "418":` + "\n"},
		"a member has a new type": {"        max_attempts:\n          type: integer\n", "        max_attempts:\n          type: string\n"},
	} {
		changed := strings.ReplaceAll(string(published.YAML()), change[0], change[1])
		if changed == string(published.YAML()) {
			t.Errorf("%s: nothing was changed", name)
			continue
		}
		if breaking(t, published.YAML(), []byte(changed)) == 0 {
			t.Errorf("%s: counts as no breaking change", name)
		}
	}
}

func breaking(t *testing.T, before, after []byte) int {
	t.Helper()
	var docs [2]libopenapi.Document
	for i, text := range [][]byte{before, after} {
		doc, err := libopenapi.NewDocument(text)
		if err != nil {
			t.Fatal(err)
		}
		docs[i] = doc
	}
	changes, err := libopenapi.CompareDocuments(docs[0], docs[1])
	if err != nil {
		t.Fatal(err)
	}
	if changes == nil {
		return 0
	}
	return changes.TotalBreakingChanges()
}

const sound = `
components:
  schemas:
    api.FieldError:
      properties: {detail: {type: string}, pointer: {type: string}, rule: {type: string}}
      type: object
    api.Submission: {type: object}
paths: {}
`

// swag says nothing when it does not understand a type, and ends with success.
func TestFinish_RefusesWhatSwagHasDegraded(t *testing.T) {
	t.Parallel()
	for name, change := range map[string][3]string{
		"a member is missing":   {"rule: {type: string}", "", "degraded api.FieldError: it lacks the member rule"},
		"a member is too many":  {"rule:", "kind: {type: string}, rule:", "has no member kind"},
		"nothing but an object": {"properties: {detail: {type: string}, pointer: {type: string}, rule: {type: string}}\n      ", "", "degraded api.FieldError"},
		"an unknown schema":     {"api.FieldError:", "api.Mystery:", "Mystery is of no type"},
	} {
		text := strings.Replace(sound, change[0], change[1], 1)
		if _, err := openapi.Finish([]byte(text), []byte("overlay: 1.0.0")); err == nil || !strings.Contains(err.Error(), change[2]) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
