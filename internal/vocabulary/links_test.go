package vocabulary_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	link     = regexp.MustCompile(`\]\(([^)#\s]+)(?:#[^)]*)?\)`)
	testName = regexp.MustCompile("`(Test[A-Za-z0-9_]+)`")
	testFunc = regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9_]+)\(`)
)

// files returns the text of all files of the repository with the ending.
func files(t *testing.T, ending string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == ".git" || d.Name() == "node_modules" || d.Name() == "bin" || d.Name() == "out") {
			return filepath.SkipDir
		}
		if !d.IsDir() && strings.HasSuffix(path, ending) {
			text, err := os.ReadFile(path)
			found[path] = string(text)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestDocuments_RelativeLinksLeadSomewhere(t *testing.T) {
	t.Parallel()
	for path, text := range files(t, ".md") {
		for _, match := range link.FindAllStringSubmatch(text, -1) {
			target := match[1]
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(path), target)); err != nil {
				t.Errorf("%s: %s leads nowhere", path, target)
			}
		}
	}
}

func TestDocuments_GuaranteesNameTestsThatExist(t *testing.T) {
	t.Parallel()
	tests := map[string]bool{}
	for _, text := range files(t, "_test.go") {
		for _, match := range testFunc.FindAllStringSubmatch(text, -1) {
			tests[match[1]] = true
		}
	}
	text, err := os.ReadFile("../../docs/guarantees.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, match := range testName.FindAllStringSubmatch(string(text), -1) {
		if !tests[match[1]] {
			t.Errorf("docs/guarantees.md names %s, which does not exist", match[1])
		}
	}
}

var problemCode = regexp.MustCompile("(?:Code:|[cC]ode[A-Z][A-Za-z]* +=) +\"([a-z]+(?:-[a-z]+)*)\"")

// The type of a problem is the address of its page.
func TestDocuments_EveryProblemHasAPage(t *testing.T) {
	t.Parallel()
	found := 0
	for path, text := range files(t, ".go") {
		if filepath.Dir(path) != filepath.Join("..", "..", "api") || strings.HasSuffix(path, "_test.go") {
			continue
		}
		for _, match := range problemCode.FindAllStringSubmatch(text, -1) {
			found++
			if _, err := os.Stat(filepath.Join("../../docs/problems", match[1]+".md")); err != nil {
				t.Errorf("%s: the problem %s has no page in docs/problems", path, match[1])
			}
		}
	}
	if found < 20 {
		t.Errorf("only %d problems found: this test looks in the wrong place", found)
	}
}
