package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/sekali/sekali/docs/openapi"
)

const httpGuide = "docs/http.md"

func TestDocs_TheHTTPGuideShowsTheAnswersThatCome(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		d := follow(t, database)
		d.variables = []string{"claimed", "id", "lease"}
		d.serve()
		d.read(httpGuide)
		if d.checked < d.ran*2/3 {
			t.Errorf("of %d blocks %d say what is expected", d.ran, d.checked)
		}
	})
}

func TestDocs_TheHTTPGuideCallsEveryOperationOfTheDocument(t *testing.T) {
	t.Parallel()
	document, err := readContract()
	if err != nil {
		t.Fatal(err)
	}
	called := map[string]bool{}
	for _, block := range docBlocks(t, httpGuide) {
		if block.language != "sh" {
			continue
		}
		for _, c := range callsOf(block.text) {
			op := document.find(c.method, c.path)
			if op == nil {
				t.Errorf("%s:%d: the document has no %s %s", httpGuide, block.line, c.method, c.path)
				continue
			}
			called[op.id] = true
		}
	}
	for _, op := range document.operations {
		if !called[op.id] {
			t.Errorf("%s does not call %s (%s %s)", httpGuide, op.id, op.method, strings.Join(op.path, "/"))
		}
	}
}

// curlCall is one use of curl.
type curlCall struct{ method, path string }

var (
	curlLine   = regexp.MustCompile(`\bcurl [^|>\n]*`)
	curlMethod = regexp.MustCompile(`(?:-X|--request) ([A-Z]+)`)
	curlBody   = regexp.MustCompile(`(?:--json|--data-binary|-d) `)
	curlTarget = regexp.MustCompile(`http://127\.0\.0\.1:8080(/[^ '"?#)]*)`)
)

// callsOf returns the requests that a block sends.
func callsOf(block string) []curlCall {
	var calls []curlCall
	for _, line := range curlLine.FindAllString(strings.ReplaceAll(block, "\\\n", " "), -1) {
		c := curlCall{method: http.MethodGet}
		if curlBody.MatchString(line) {
			c.method = http.MethodPost
		}
		if method := curlMethod.FindStringSubmatch(line); method != nil {
			c.method = method[1]
		}
		for _, target := range curlTarget.FindAllStringSubmatch(line, -1) {
			c.path = target[1]
			calls = append(calls, c)
		}
	}
	return calls
}

// The page of a problem, and the table of all of them, have the status and the
// title that the gateway answers with.
func TestDocs_ThePagesOfProblemsSayWhatTheDocumentSays(t *testing.T) {
	t.Parallel()
	var document struct {
		Components struct {
			Examples map[string]struct {
				Value struct {
					Code, Title string
					Status      int
				}
			}
		}
	}
	if err := json.Unmarshal(openapi.JSON(), &document); err != nil {
		t.Fatal(err)
	}
	table := repositoryFile(t, "docs/problems/README.md")
	found := 0
	for _, example := range document.Components.Examples {
		p := example.Value
		if p.Code == "" {
			continue
		}
		found++
		if row := fmt.Sprintf("| [%s](%s.md) | %d | %s |", p.Code, p.Code, p.Status, p.Title); !strings.Contains(table, row) {
			t.Errorf("docs/problems/README.md has no row %q", row)
		}
		file := "docs/problems/" + p.Code + ".md"
		if line := fmt.Sprintf("**%d** %s\n", p.Status, p.Title); !strings.Contains(repositoryFile(t, file), line) {
			t.Errorf("%s does not say %q", file, line)
		}
	}
	if found < 20 {
		t.Errorf("only %d problems found: this test looks in the wrong place", found)
	}
}
